//! `sealwire ping`: which replicas of a service are up or, for an agent, whether the service can be reached.
//! Never reports that a replica takes messages unless the replica says so itself, through the broker.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use sealwire::Name;
use sealwire::internal::service::{Replica, replicas};
use serde::Deserialize;
use serde_json::json;

use crate::call::reach::reach;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::read_if_there;
use crate::output::Output;
use crate::runtime::block_on;
use crate::when;

/// Check which replicas of a service are up, or whether an agent can reach a service
///
/// With `--config`: asks all replicas through the broker, as the service's own user. A service with a key (`service_key` in its
/// configuration) signs the answers; an answer without its signature is listed but not counted. Without a key, nothing can be
/// verified. A replica is not counted either while it refuses the present key ring, denylist, token keys or service key, since
/// what these files take back is then still accepted. A refused policy is shown: the one before decides as it did.
///
/// With SERVICE: calls `rpc.can`, which changes nothing, as the agent of `--creds`; agents may not ask the replicas. An answer
/// that the service signed for this call proves that the service is up and genuine, and knows this agent. What the answer says,
/// even that the policy denies the call, does not matter.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire ping --config sealwire.toml
  sealwire ping --config sealwire.toml --at-least 2  # for scripts
  sealwire ping --config sealwire.toml --own /run/sealwire/state.json
  sealwire ping --creds planner.creds.json math

The third one is for health checks: it asks the replica on the same machine.")]
pub(crate) struct Ping {
    /// The service's configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The agent's credentials file
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    /// The service to reach as an agent
    #[arg(value_name = "SERVICE", conflicts_with_all = ["config", "at_least", "own"])]
    service: Option<String>,
    /// How many replicas must be taking messages
    #[arg(long, value_name = "N", default_value_t = 1)]
    at_least: usize,
    /// The replica that must be taking messages: the one that keeps its state in this file (`sealwire serve --state-file`)
    #[arg(long, value_name = "FILE", conflicts_with = "at_least")]
    own: Option<PathBuf>,
    /// How long to wait for replicas to answer, or for the service
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = when::duration)]
    within: Duration,
}

impl Ping {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match (&self.service, &self.config) {
            (Some(service), _) => reach(self.creds.clone(), service, self.within, out),
            (None, Some(config)) => self.replicas(config, out),
            (None, None) => {
                let failure = Failure::new(Exit::Usage, "which service? name it, or its configuration with --config");
                Err(failure.help(
                    "as an agent: sealwire ping SERVICE, with --creds or SEALWIRE_CREDS; as its operator: sealwire ping \
                     --config sealwire.toml",
                ))
            }
        }
    }

    /// As the service's operator.
    fn replicas(&self, config: &Path, out: &Output) -> Result<Exit, Failure> {
        let (config, _) = crate::project::load(config)?;
        let endpoint = config.endpoint().or_fail(Exit::Input)?;
        let keys = config.service_keys().or_fail(Exit::Input)?;
        let own = self.own.as_deref().map(instance).transpose()?;
        if own.is_some() && keys.is_empty() {
            let audience = endpoint.audience();
            let failure = Failure::input(format!("{audience} has no key, so anybody could have answered"));
            return Err(failure.help(format!("name one as `service_key`: sealwire keys new-service {audience}")));
        }
        let enough = |found: &[Replica]| own.is_some() && found.iter().any(|replica| replica.verified);
        let found = block_on(replicas(&config.nats, &endpoint, &keys, own.as_deref(), self.within, enough))?;
        let found = found.or_fail(Exit::Transport)?;
        // Without a key, all we have is that only the service's user should be able to publish where the answer arrived.
        let counts = |replica: &&Replica| replica.is_ready() && (replica.verified || keys.is_empty());
        let ready = found.iter().filter(counts).count();

        let audience = endpoint.audience();
        out.tell(&json!({ "audience": audience.as_str(), "ready": ready, "replicas": lines(&found) }), || {
            let line = |replica: &Replica| {
                let Replica { instance, state, guard, policy, after, verified, refused, .. } = replica;
                let refused = match refused.is_empty() {
                    true => String::new(),
                    false => format!(", REFUSES the present {}", refused.join(", ")),
                };
                let verified = if *verified { "verified" } else { "NOT VERIFIED" };
                format!(
                    "\n  {instance}  {state:<11} guard {guard}, policy {policy}, {verified}, after {} ms{refused}",
                    after.as_millis()
                )
            };
            format!(
                "{audience}: {ready} of {} take messages{}",
                found.len(),
                found.iter().map(line).collect::<String>()
            )
        })?;
        if ready < self.at_least {
            let message = match own {
                Some(_) => format!("this machine's replica of {audience} does not take messages"),
                None => format!("{ready} replicas of {audience} take messages, not {}", self.at_least),
            };
            let failure = Failure::new(Exit::Transport, message);
            let refused: BTreeSet<&str> =
                found.iter().flat_map(|replica| &replica.refused).map(String::as_str).collect();
            let refused: Vec<&str> = refused.into_iter().collect();
            return Err(match refused.is_empty() {
                true => failure,
                false => failure.help(format!(
                    "refused, so that what it takes back is not in force: {}; the service's log says why",
                    refused.join(", ")
                )),
            });
        }
        Ok(Exit::Ok)
    }
}

fn lines(found: &[Replica]) -> Vec<serde_json::Value> {
    let line = |replica: &Replica| {
        json!({ "instance": replica.instance, "state": replica.state, "guard": replica.guard,
                "policy": replica.policy, "refused": replica.refused, "verified": replica.verified, "after_ms": u64::try_from(replica.after.as_millis()).unwrap_or(u64::MAX) })
    };
    found.iter().map(line).collect()
}

/// The id of the replica that keeps its state in this file.
fn instance(path: &Path) -> Result<String, Failure> {
    #[derive(Deserialize)]
    struct InstanceFile {
        instance: String,
    }
    let text = read_if_there(path)?;
    let kept = text.and_then(|text| serde_json::from_str(&text).ok());
    // It becomes part of a subject, so it must be a valid name.
    let kept = kept.map(|InstanceFile { instance }| instance).filter(|instance| Name::new(instance).is_ok());
    kept.ok_or_else(|| {
        let failure = Failure::new(Exit::Transport, format!("no replica keeps its state in `{}`", path.display()));
        failure.help("start it with: sealwire serve --state-file FILE")
    })
}
