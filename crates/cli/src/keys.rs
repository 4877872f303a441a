//! `sealwire keys`: the keys of agents, services and token issuers, from creation to revocation.
//! Never prints a secret: secrets only go from file to file.

mod accept;
mod audience;
mod enrol;
mod grant;
mod list;
mod new_agent;
mod new_operator;
mod new_service;
mod new_token_key;
mod pin;
mod request;
mod retire;
mod revoke;
mod ring;
mod rotate;
mod status;

use clap::Subcommand;

pub(crate) use request::read_request;
pub(crate) use ring::add_to_ring;

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
    NewOperator(new_operator::NewOperator),
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
            Self::NewOperator(command) => command.run(out),
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
