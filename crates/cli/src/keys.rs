//! `sealwire keys`: the keys of agents, services and token issuers, from creation to revocation.
//! Never prints a secret: secrets only go from file to file.

mod accept;
mod enrol;
mod grant;
mod list;
mod new_agent;
mod new_service;
mod new_token_key;
mod pin;
mod request;
mod retire;
mod revoke;
mod ring;
mod rotate;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Subcommand, ValueEnum};
use sealwire::Name;
use sealwire::auth::{KeyStatus, ProofAlgorithm};
use sealwire::wire::{AgentKey, Audience};
use serde_json::json;

pub(crate) use request::read_request;
use ring::Ring;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Keys of agents, services and token issuers.
#[derive(Subcommand)]
pub(crate) enum Keys {
    NewAgent(new_agent::NewAgent),
    Request(request::Request),
    Enrol(enrol::Enrol),
    Accept(accept::Accept),
    Grant(grant::Grant),
    NewService(new_service::NewService),
    Pin(pin::Pin),
    NewTokenKey(new_token_key::NewTokenKey),
    Rotate(rotate::Rotate),
    Retire(retire::Retire),
    Revoke(revoke::Revoke),
    List(list::List),
}

impl Keys {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::NewAgent(command) => command.run(out),
            Self::Request(command) => command.run(out),
            Self::Enrol(command) => command.run(out),
            Self::Accept(command) => command.run(out),
            Self::Grant(command) => command.run(out),
            Self::NewService(command) => command.run(out),
            Self::Pin(command) => command.run(out),
            Self::NewTokenKey(command) => command.run(out),
            Self::Rotate(command) => command.run(out),
            Self::Retire(command) => command.run(out),
            Self::Revoke(command) => command.run(out),
            Self::List(command) => command.run(out),
        }
    }
}

/// The proof algorithms, as written on the command line.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum Alg {
    /// HMAC-SHA256 under a key derived for each service
    #[default]
    Hs256,
    /// Ed25519: no secret is shared with a service
    Eddsa,
}

impl From<Alg> for ProofAlgorithm {
    fn from(alg: Alg) -> Self {
        match alg {
            Alg::Hs256 => Self::Hs256,
            Alg::Eddsa => Self::EdDsa,
        }
    }
}

/// `ENVIRONMENT/SERVICE` on the command line.
#[derive(Clone)]
pub(crate) struct AudienceArg(Audience);

impl FromStr for AudienceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Audience::parse(text).map(Self).ok_or_else(|| "write ENVIRONMENT/SERVICE, such as dev/math".to_owned())
    }
}

/// Adds the record of an agent's key to an existing ring.
pub(crate) fn add_to_ring(path: &std::path::Path, key: &AgentKey, owner: &Name) -> Result<(), Failure> {
    let mut ring = Ring::open(path)?;
    ring.add(key, owner, None)?;
    ring.save()
}

/// Sets the status of `kid` in every ring. Writes none unless all of them can be changed.
fn change_status(kid: &str, paths: &[PathBuf], status: KeyStatus) -> Result<(), Failure> {
    let mut rings = Vec::with_capacity(paths.len());
    for path in paths {
        let mut ring = Ring::open(path)?;
        ring.set_status(kid, status)?;
        rings.push(ring);
    }
    rings.iter().try_for_each(Ring::save)
}

/// Reports a change. `created` says whether the deny list among the files is new.
fn changed(out: &Output, what: &str, kid: &str, paths: &[PathBuf], created: Option<bool>) -> Result<(), Failure> {
    let mut result = json!({ "kid": kid, "state": what, "files": paths });
    if let (Some(created), Some(result)) = (created, result.as_object_mut()) {
        result.insert("created".to_owned(), created.into());
    }
    out.result(&result, || {
        let files: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        format!("{what} {kid} in {}", files.join(", "))
    })
}
