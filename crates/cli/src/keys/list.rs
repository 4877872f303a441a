//! `sealwire keys list`: the contents of a key ring, without the keys themselves.
//! Never shows a symmetric key.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use sealwire::internal::auth::{KeyEntry, KeyStatus};
use serde::Serialize;

use super::ring::Ring;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::when;

/// List the keys in a key ring: their owners, and whether they are still valid
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire keys list math.ring.json
  sealwire keys list math.ring.json --json | jq -r '.keys[].kid'")]
pub(crate) struct List {
    /// The key ring
    #[arg(value_name = "RING", required_unless_present = "named")]
    ring: Option<PathBuf>,
    /// The same, as an option like that of other commands
    #[arg(id = "named", long = "ring", value_name = "FILE", conflicts_with = "ring")]
    named: Option<PathBuf>,
}

#[derive(Serialize)]
struct KeyLine<'a> {
    audience: &'a str,
    keys: Vec<Key<'a>>,
}

#[derive(Serialize)]
struct Key<'a> {
    kid: &'a str,
    owner: &'a str,
    alg: &'a str,
    /// Whether the key is valid now, from its status and its dates.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<u64>,
    /// To be used as `cnf.jkt` in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    thumbprint: Option<String>,
}

impl List {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let ring = Ring::open(&self.ring.or(self.named).unwrap_or_default())?;
        let now_s = when::now_s();
        let keys: Vec<Key<'_>> = ring.entries().iter().map(|entry| key(entry, now_s)).collect();
        let listed = KeyLine { audience: ring.audience().as_str(), keys };
        out.result(&listed, || text(&listed, now_s))?;
        Ok(Exit::Ok)
    }
}

fn key(entry: &KeyEntry, now_s: u64) -> Key<'_> {
    let state = match entry.status {
        KeyStatus::Retired => "retired",
        KeyStatus::Revoked => "revoked",
        KeyStatus::Active if entry.not_before.is_some_and(|from| now_s < from) => "not yet",
        KeyStatus::Active if entry.not_after.is_some_and(|until| until <= now_s) => "expired",
        KeyStatus::Active => "active",
    };
    Key {
        kid: &entry.kid,
        owner: entry.owner.as_str(),
        alg: &entry.alg,
        state,
        not_before: entry.not_before,
        not_after: entry.not_after,
        thumbprint: entry.thumbprint(),
    }
}

fn text(listed: &KeyLine<'_>, now_s: u64) -> String {
    let width =
        |name: &str, column: fn(&Key<'_>) -> usize| listed.keys.iter().map(column).max().unwrap_or(0).max(name.len());
    let (kid, owner) = (width("KID", |key| key.kid.len()), width("OWNER", |key| key.owner.len()));
    let mut text = format!("key ring of {}: {} keys\n\n", listed.audience, listed.keys.len());
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:kid$}  {:owner$}  ALG    STATE    DATES", "KID", "OWNER");
    for key in &listed.keys {
        let from = key.not_before.map(|from| format!("from {}", when::both(from, now_s)));
        let until = key.not_after.map(|until| format!("until {}", when::both(until, now_s)));
        let jkt = key.thumbprint.as_ref().map(|jkt| format!("thumbprint {jkt}"));
        let rest: Vec<String> = [from, until, jkt].into_iter().flatten().collect();
        let line =
            format!("{:kid$}  {:owner$}  {:5}  {:7}  {}", key.kid, key.owner, key.alg, key.state, rest.join(", "));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
