//! `sealwire keys rotate`: gives an agent its next key, with an overlap in which both are valid.
//! Never ends the old key before the new one can be used.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::Credentials;
use sealwire::configure::AgentKey;
use sealwire::internal::auth::KeyStatus;
use sealwire::internal::files::write_secret;
use serde_json::json;

use super::ring::Ring;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{Lock, all_shown, check_output};
use crate::output::Output;
use crate::when;

/// Give an agent a new key; the old one stays valid for a while
#[derive(Args)]
#[command(after_help = "\
Name every ring that knows the agent. Tokens that are bound to the old key
(`cnf`) must be reissued.

Examples:
  sealwire keys rotate planner.creds.json --ring math.ring.json \\
      --ring bank.ring.json
  sealwire keys rotate planner.creds.json --ring math.ring.json --overlap 10m")]
pub(crate) struct Rotate {
    /// The agent's credentials file
    #[arg(value_name = "CREDS")]
    creds: PathBuf,
    /// A key ring that knows the agent; repeat for all of them
    #[arg(long = "ring", value_name = "FILE", required = true)]
    rings: Vec<PathBuf>,
    /// How long the old key stays valid
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = when::duration)]
    overlap: Duration,
    /// Write the new key id to this file, for the issuer of tokens bound to the key (`sealwire token issue --cnf-kid-file`)
    #[arg(long, value_name = "FILE")]
    kid_file: Option<PathBuf>,
}

impl Rotate {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let _lock = Lock::of(self.rings.iter().map(PathBuf::as_path).chain([self.creds.as_path()]));
        let credentials = Credentials::load(&self.creds).or_fail(Exit::Input)?;
        let (agent, old) = (credentials.agent().clone(), credentials.kid().to_owned());
        let kid = next(&old);
        let key = AgentKey::generate(&kid, credentials.key().algorithm()).or_fail(Exit::Input)?;

        let now_s = when::now_s();
        let until = now_s.saturating_add(self.overlap.as_secs());
        let mut before = Vec::with_capacity(self.rings.len());
        let mut after = Vec::with_capacity(self.rings.len());
        // The rings in which the old key is still valid, and until when.
        let mut holds = Vec::with_capacity(self.rings.len());
        for path in &self.rings {
            before.push(Ring::open(path)?);
            let mut ring = Ring::open(path)?;
            let entry = ring.entry(&old).filter(|entry| entry.owner == agent).ok_or_else(|| {
                Failure::input(format!("`{}` does not know the key `{old}` of {agent}", path.display())).help(format!(
                    "leave it out, or let it know the agent: sealwire keys grant {}",
                    self.creds.display()
                ))
            })?;
            // Keep an earlier end.
            let until = entry.not_after.map_or(until, |given| given.min(until));
            entry.not_after = Some(until);
            if entry.status == KeyStatus::Active && until > now_s {
                holds.push((path, until));
            }
            // The key is used at once, and a service's clock may be behind ours by as much as the protocol tolerates.
            ring.add(&key, &agent, Some(now_s.saturating_sub(MAX_CLOCK_DIFFERENCE_S)))?;
            after.push(ring);
        }
        if let Some(path) = &self.kid_file {
            let known = before.iter().flat_map(Ring::entries).filter(|entry| entry.owner == agent);
            check_output(path, "key id of this agent", |text| known.clone().any(|entry| entry.kid == text))?;
        }
        // Write the rings first: a service must know the key before the agent signs with it.
        let done = after
            .iter()
            .try_for_each(Ring::save)
            .and_then(|()| credentials.with_key(key).save(&self.creds, true).or_fail(Exit::Input));
        if let Err(failure) = done {
            // Restore the rings, which must not name a key that nobody has. Report only the first failure.
            let _ = before.iter().map(Ring::save).collect::<Vec<_>>();
            return Err(failure);
        }
        if let Some(path) = &self.kid_file {
            write_secret(path, &format!("{kid}\n"), true).map_err(|error| {
                let failure = Failure::of(Exit::Input, &error);
                failure.help(format!("the key is rotated all the same: write `{kid}` into that file yourself"))
            })?;
        }
        let files = all_shown(after.iter().map(Ring::path));
        let old_until = holds.iter().map(|(_, until)| *until).max();
        let result = json!({ "agent": agent, "kid": kid, "old_kid": old, "old_until": old_until, "rings": files });
        out.result(&result, || {
            let creds = self.creds.display();
            let Some(until) = old_until else {
                return format!(
                    "{agent} signs with {kid} from now on; {old} is no longer valid: it was revoked or retired, or has \
                     expired\n\nRestart the programs that run with {creds}."
                );
            };
            format!(
                "{agent} signs with {kid} from now on; {old} is valid until {}\n\nPrograms that run with {creds} go on with the \
                 old key until they are restarted. Then:\n  sealwire keys retire {old}{}",
                when::both(until, now_s),
                holds.iter().map(|(ring, _)| format!(" --ring {}", ring.display())).collect::<String>()
            )
        })?;
        Ok(Exit::Ok)
    }
}

/// `planner.k2` after `planner.k1`, and after `planner`.
fn next(kid: &str) -> String {
    let numbered = kid.rsplit_once(".k").and_then(|(name, number)| Some((name, number.parse::<u32>().ok()?)));
    match numbered {
        Some((name, number)) => format!("{name}.k{}", number.saturating_add(1)),
        None => format!("{kid}.k2"),
    }
}

/// The largest clock difference that a service can be configured to tolerate, in seconds.
const MAX_CLOCK_DIFFERENCE_S: u64 = 30;

#[cfg(test)]
mod tests {
    #[test]
    fn key_ids_count_up() {
        for (kid, expected) in
            [("a.k1", "a.k2"), ("a.k9", "a.k10"), ("a", "a.k2"), ("a.kx", "a.kx.k2"), ("a.b.k2", "a.b.k3")]
        {
            assert_eq!(super::next(kid), expected);
        }
    }
}
