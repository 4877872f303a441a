//! `sealwire revoke`: takes rights away, everywhere, within a second.
//! Never revokes less than it says: what does not fit the list is an error, and changes nothing.

use std::time::Duration;

use clap::{ArgGroup, Args};
use sealwire::internal::auth::{EVERYTHING, Revocation, RevocationKind};

use super::Signing;
use super::act::act;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::when;

/// Revoke an agent, a key, a token, a subject, a method, a service, or everything, within a second
///
/// Signs the next list of revocations and writes it to the bucket that every replica of a service follows. Running calls and streams of
/// what is revoked are ended. Waits for reports and says what holds where, after how long. docs/revocation.md is the runbook.
#[derive(Args)]
#[command(
    group(ArgGroup::new("end").multiple(false).args(["until", "during"])),
    after_help = "\
Examples:
  sealwire revoke agent planner --key op-1.json --reason 'runs wild'
  sealwire revoke key planner.k1 --key op-1.json
  sealwire revoke method 'bank/*' --for 2h --key op-1.json
  sealwire revoke everything --key op-1.json --expect bank=3"
)]
pub(crate) struct Revoke {
    /// agent, key, token (its `jti` or digest), subject, method, service or everything
    #[arg(value_name = "KIND")]
    kind: RevocationKind,
    /// Its name; of methods also `bank/*`. None for everything
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// When it ends by itself, by the clock of each replica: 2026-03-01T22:00:00Z, or seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = when::instant)]
    until: Option<u64>,
    /// After how long it ends by itself, such as 2h
    #[arg(long = "for", id = "during", value_name = "TIME", value_parser = when::interval)]
    during: Option<Duration>,
    /// Why: kept in the list, readable by all who follow it
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    #[command(flatten)]
    signing: Signing,
}

impl Revoke {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let name = named(self.kind, self.name)?;
        let until = self.until.or_else(|| Some(when::now_s() + self.during?.as_secs().max(1)));
        if until.is_some_and(|until| until <= when::now_s()) {
            return Err(Failure::input("`--until` lies in the past: nothing would be revoked"));
        }
        act(&self.signing, out, |latest, now_ms| {
            let (name, reason) = (name.clone(), self.reason.clone());
            latest.revoke(Revocation { kind: self.kind, name, until, at_ms: now_ms, reason }).or_fail(Exit::Input)
        })
    }
}

/// The name of what is named.
pub(super) fn named(kind: RevocationKind, name: Option<String>) -> Result<String, Failure> {
    match (kind, name) {
        (RevocationKind::Everything, None) => Ok(EVERYTHING.to_owned()),
        (RevocationKind::Everything, Some(name)) if name == EVERYTHING => Ok(name),
        (RevocationKind::Everything, Some(_)) => Err(Failure::new(Exit::Usage, "everything has no name: leave it out")),
        (kind, None) => Err(Failure::new(Exit::Usage, format!("which {kind}? Give its name"))),
        (_, Some(name)) => Ok(name),
    }
}
