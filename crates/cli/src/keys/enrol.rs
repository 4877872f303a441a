//! `sealwire keys enrol`: adds an agent's public key to the rings of the services that it may call.
//! Never sees the private key, and never enrols a key whose holder did not ask for it.

use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::Name;
use sealwire::configure::ServicePublicKey;
use sealwire::internal::auth::{KeyEntry, read_service_key};
use sealwire::internal::wire::KeyRequest;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::new_agent::{ServiceRing, opened, save};
use super::request::read_request;
use super::ring::Ring;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{Lock, all_shown, check_apart, check_output, shown, write_public};
use crate::output::Output;
use crate::when;

/// Enrol an agent by the public key in its request (`sealwire keys request`)
///
/// Checks that the maker of the request has the private key, adds the public key to the key rings, and writes what the agent
/// needs: the services' public keys and the brokers' addresses. The thumbprint tells you that it is the right agent.
#[derive(Args)]
#[command(
    override_usage = "\
sealwire keys enrol [OPTIONS] --thumbprint <THUMBPRINT>
       --service <ENV/SVC=RING_FILE> <AGENT> <REQUEST>",
    after_help = "\
Examples:
  sealwire keys enrol robot robot.request \\
      --thumbprint kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k \\
      --service dev/math=math.ring.json --pin-from math.service-key.json
  sealwire keys enrol robot robot.request --thumbprint … \\
      --service dev/math=math.ring.json \\
      --pin svc:dev/math:1=11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
)]
pub(crate) struct Enrol {
    /// The agent whose key it will be
    agent: Name,
    /// The request; `-` for stdin
    #[arg(value_name = "REQUEST")]
    request: PathBuf,
    /// The key's thumbprint, as told by the agent's owner
    #[arg(long, value_name = "THUMBPRINT", allow_hyphen_values = true)]
    thumbprint: String,
    /// Add a further key of an agent that the rings already know
    #[arg(long)]
    another_key: bool,
    /// A service that the agent may call, and its key ring, created if there is none; repeat for several
    #[arg(long = "service", value_name = "ENV/SVC=RING_FILE", required = true)]
    services: Vec<ServiceRing>,
    /// The public key of such a service, for the agent to pin; repeat for several
    #[arg(long = "pin", value_name = "KID=X")]
    pins: Vec<String>,
    /// The key file of such a service, whose public key the agent is to pin; repeat for several
    #[arg(long = "pin-from", value_name = "FILE")]
    pin_files: Vec<PathBuf>,
    /// The broker's address, if the agent has a different one; repeat for the nodes of a cluster
    #[arg(long = "url", value_name = "URL")]
    urls: Vec<String>,
    /// The file to hand back to the agent, with nothing secret in it; `-` for stdout [default: NAME.enrolment.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The file that the agent gets back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Enrolment {
    pub(super) environment: String,
    pub(super) agent: String,
    pub(super) kid: String,
    /// The services' public keys.
    pub(super) service_keys: Vec<PinnedKeys>,
    /// If empty, the agent keeps the addresses that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) urls: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinnedKeys {
    pub(super) service: String,
    pub(super) kid: String,
    pub(super) x: String,
}

/// Whether a known record is exactly the one to be added: in particular, not revoked and not about to end.
fn is_same(known: &KeyEntry, entry: &KeyEntry) -> bool {
    let public = |entry: &KeyEntry| (entry.kid.clone(), entry.owner.clone(), entry.x.clone());
    let state = |entry: &KeyEntry| (entry.status, entry.not_before, entry.not_after);
    public(known) == public(entry) && state(known) == state(entry)
}

impl Enrol {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let request = read_request(&self.request, &self.thumbprint)?;
        // The requester chooses the name, and proves only that it has the key.
        if request.agent != self.agent {
            let message = format!("the request is for a key of `{}`, and not of `{}`", request.agent, self.agent);
            return Err(Failure::input(message).help("ask its owner which agent it is"));
        }
        let own = &request.environment;
        if let Some(other) = self.services.iter().find(|service| service.audience.environment() != own.as_str()) {
            return Err(Failure::input(format!("`{}` is not in the request's environment `{own}`", other.audience)));
        }
        let service_keys = self.pinned()?;
        let path = self.out.clone().unwrap_or_else(|| format!("{}.enrolment.json", request.agent).into());
        let printed = path == Path::new("-");
        if !printed {
            let rings = self.services.iter().map(|service| ("a key ring", service.path.as_path()));
            check_apart(rings.chain([("the enrolment", path.as_path())]))?;
            check_output(&path, "enrolment", |text| serde_json::from_str::<Enrolment>(text).is_ok())?;
        }

        let _lock = Lock::of(self.services.iter().map(|service| service.path.as_path()));
        let mut rings = opened(&self.services)?;
        for ring in &mut rings {
            let entry = KeyEntry::ed25519(&request.kid, request.agent.clone(), request.x.clone());
            // Accept a repeated request: the first enrolment may have failed after the ring was written.
            if !ring.entries().iter().any(|known| is_same(known, &entry)) {
                if !self.another_key && ring.entries().iter().any(|entry| entry.owner == self.agent) {
                    let message = format!("`{}` has a key of `{}` already", ring.path().display(), self.agent);
                    return Err(Failure::input(message).help(
                        "for a further key of the same agent, add --another-key; a different agent needs another name",
                    ));
                }
                ring.push(entry)?;
            }
        }
        save(&rings)?;
        let enrolment = Enrolment {
            environment: own.to_string(),
            agent: request.agent.to_string(),
            kid: request.kid.clone(),
            service_keys,
            urls: self.urls,
        };
        let text = serde_json::to_string_pretty(&enrolment).or_fail(Exit::Bug)? + "\n";
        if printed {
            out.print(&text)?;
        } else {
            write_public(&path, &text)?;
        }

        let files = all_shown(rings.iter().map(Ring::path));
        let KeyRequest { agent, kid, nkey, made_at, .. } = &request;
        let thumbprint = request.thumbprint();
        let result = json!({ "agent": agent, "kid": kid, "thumbprint": thumbprint, "nkey": nkey, "rings": files,
                             "enrolment": shown(&path) });
        let report = || {
            let mut text =
                format!("enrolled {agent} with the key {kid}, asked for {}\n", when::both(*made_at, when::now_s()));
            for ring in &rings {
                text.push_str(&format!("{} knows the key by {}\n", ring.audience(), ring.path().display()));
            }
            if let Some(nkey) = nkey {
                text.push_str(&format!("it asks for a broker user with the public nkey {nkey}\n"));
            }
            let (request, audience) = (self.request.display(), self.services.first().map(|service| &service.audience));
            let audience = audience.map(ToString::to_string).unwrap_or_default();
            text + &format!(
                "\nHand {} back to the agent. Its tokens: sealwire token issue --subject {agent} --audience {audience} \
                 --cnf-jkt {thumbprint} …\nIts user, in a setup of `sealwire setup cluster`: sealwire setup agent {request} …",
                if printed { "this".to_owned() } else { path.display().to_string() }
            )
        };
        if printed {
            out.note(&report());
        } else {
            out.result(&result, report)?;
        }
        Ok(Exit::Ok)
    }

    /// The keys to pin. Each belongs to one of the services, and every service has at least one.
    fn pinned(&self) -> Result<Vec<PinnedKeys>, Failure> {
        let mut pinned = Vec::new();
        for file in &self.pin_files {
            let read = self.services.iter().find_map(|service| {
                let key = read_service_key(file, &service.audience).ok()?;
                Some(PinnedKeys {
                    service: service.audience.service().to_owned(),
                    kid: key.kid().to_owned(),
                    x: key.public().x(),
                })
            });
            let none = || Failure::input(format!("`{}` is not the key of one of these services", file.display()));
            pinned.push(read.ok_or_else(none)?);
        }
        for pin in &self.pins {
            let wrong =
                || Failure::input(format!("`--pin {pin}`: write svc:ENV/SVC:N=X, as `keys new-service` prints them"));
            let (kid, x) = pin.split_once('=').ok_or_else(wrong)?;
            let key = ServicePublicKey::new(kid, x).map_err(|_| wrong())?;
            let of = |service: &&ServiceRing| kid.starts_with(&format!("svc:{}:", service.audience));
            let service = self.services.iter().find(of).ok_or_else(wrong)?;
            let service = service.audience.service().to_owned();
            pinned.push(PinnedKeys { service, kid: kid.to_owned(), x: key.x() });
        }
        for service in &self.services {
            if !pinned.iter().any(|pinned| pinned.service == service.audience.service()) {
                let message = format!("an agent with an Ed25519 key must pin the key of `{}`", service.audience);
                return Err(Failure::input(message).help("name it with --pin-from or --pin"));
            }
        }
        Ok(pinned)
    }
}
