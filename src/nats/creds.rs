//! `.creds` files of NATS, for brokers in operator mode: a user's JWT, and the nkey seed that proves it to be ours.
//! Never checks the JWT's signature, which is the broker's task, and never reveals anything that is in a file.

use std::time::Duration;

use serde::Deserialize;
use zeroize::Zeroizing;

use super::nkey::{NKey, SeedFault};
use crate::jose::unb64;

/// What a `.creds` file holds.
pub(super) struct UserCreds {
    pub(super) jwt: Zeroizing<String>,
    pub(super) key: NKey,
    pub(super) life: Life,
}

/// When a JWT is valid, in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    /// From when on; 0 for always.
    from: u64,
    /// When it was issued.
    issued: u64,
    /// When it ends; `None` for never.
    pub(super) until: Option<u64>,
}

/// What is wrong with a `.creds` file, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CredsFault {
    #[error("holds no JWT of a user: write the whole file as nsc does (`nsc generate creds`)")]
    NoJwt,
    #[error("holds more than one JWT: keep the one of the user in question")]
    SeveralJwts,
    #[error(
        "holds no nkey seed: write the whole file as nsc does (`nsc generate creds`), the JWT and the seed below it"
    )]
    NoSeed,
    #[error("holds more than one nkey seed: keep the one of the user in question")]
    SeveralSeeds,
    #[error("holds the JWT or the seed of an operator or account, which cannot log in: generate the file of a user")]
    NotOfUser,
    #[error("holds a damaged nkey seed: generate the file again")]
    Seed,
    #[error("holds a damaged JWT: generate the file again")]
    Jwt,
    #[error("holds a JWT that does not belong to its nkey seed: they are parts of different files; generate it again")]
    Mismatch,
    #[error("holds a bearer JWT, which lets in anybody who sees it: generate a user without `--bearer`")]
    Bearer,
    #[error("holds a JWT that is longer than {MOST} bytes: no broker takes it")]
    TooLong,
    #[error("holds a JWT that expired {ago_s} s ago: get a new file, or correct this machine's clock")]
    Expired { ago_s: u64 },
    #[error("holds a JWT that is valid only in {in_s} s: wait, or correct this machine's clock")]
    NotYet { in_s: u64 },
}

/// The longest JWT, in bytes. Brokers accept 4,096 unless `max_control_line` says otherwise.
const MOST: usize = 64 * 1024;

/// The claims that concern us. The broker decides on all of them.
#[derive(Deserialize)]
struct Claims {
    sub: String,
    #[serde(default)]
    iat: u64,
    #[serde(default)]
    nbf: u64,
    #[serde(default)]
    exp: u64,
    #[serde(default)]
    nats: UserClaims,
}

#[derive(Default, Deserialize)]
struct UserClaims {
    #[serde(default)]
    bearer_token: bool,
}

impl UserCreds {
    /// Parses a file, except for the dates in it.
    pub(super) fn parse(text: &str) -> Result<Self, CredsFault> {
        let (mut jwts, mut seeds) = (Vec::new(), Vec::new());
        for (label, content) in Blocks(text.lines()) {
            if label.ends_with(" JWT") {
                jwts.push((label, content));
            } else if label.ends_with(" SEED") {
                seeds.push((label, content));
            }
        }
        let (label, jwt) = only(jwts, CredsFault::NoJwt, CredsFault::SeveralJwts)?;
        let (_, seed) = only(seeds, CredsFault::NoSeed, CredsFault::SeveralSeeds)?;
        if jwt.len() > MOST {
            return Err(CredsFault::TooLong);
        }
        let claims = Claims::of(&jwt).ok_or(CredsFault::Jwt)?;
        if !label.contains("USER") || !claims.sub.starts_with('U') {
            return Err(CredsFault::NotOfUser);
        }
        let key = NKey::from_seed(&seed).map_err(|fault| match fault {
            SeedFault::OtherKind => CredsFault::NotOfUser,
            SeedFault::Damaged => CredsFault::Seed,
        })?;
        if key.public() != claims.sub {
            return Err(CredsFault::Mismatch);
        }
        if claims.nats.bearer_token {
            return Err(CredsFault::Bearer);
        }
        let life = Life { from: claims.nbf, issued: claims.iat, until: (claims.exp > 0).then_some(claims.exp) };
        Ok(Self { jwt, key, life })
    }
}

impl Life {
    /// That of something which should be renewed from `renew_s` on and ends at `until`.
    pub(super) fn renewed_from(renew_s: u64, until: u64) -> Self {
        let issued = until.saturating_sub(until.saturating_sub(renew_s).saturating_mul(5));
        Self { from: 0, issued, until: Some(until) }
    }

    pub(super) fn check(&self, now_s: u64) -> Result<(), CredsFault> {
        match self.until {
            Some(until) if until <= now_s => Err(CredsFault::Expired { ago_s: now_s - until }),
            _ if self.from > now_s => Err(CredsFault::NotYet { in_s: self.from - now_s }),
            _ => Ok(()),
        }
    }

    /// Seconds to the end, if it is time to look for a successor: in the last fifth of the life, and at most the last week.
    pub(super) fn left_to_renew(&self, now_s: u64) -> Option<u64> {
        let left_s = self.until?.saturating_sub(now_s);
        (left_s <= self.renewal_s()?).then_some(left_s)
    }

    /// How long to wait before looking again. No more than a minute: clocks are set, and machines sleep.
    pub(super) fn look_in(&self, now_s: u64) -> Duration {
        let left_s = self.until.unwrap_or(u64::MAX).saturating_sub(now_s);
        let before_s = left_s.saturating_sub(self.renewal_s().unwrap_or(0));
        Duration::from_secs(if before_s > 0 { before_s.min(60) } else { (left_s / 10).clamp(1, 60) })
    }

    fn renewal_s(&self) -> Option<u64> {
        Some((self.until?.saturating_sub(self.issued) / 5).min(WEEK_S))
    }
}

const WEEK_S: u64 = 7 * 24 * 60 * 60;

impl Claims {
    fn of(jwt: &str) -> Option<Self> {
        let mut parts = jwt.split('.');
        let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        serde_json::from_slice(&unb64(claims)?).ok()
    }
}

/// The blocks between lines such as `-----BEGIN USER NKEY SEED-----`, each with its label and its content in one piece.
struct Blocks<'t>(std::str::Lines<'t>);

impl<'t> Iterator for Blocks<'t> {
    type Item = (&'t str, Zeroizing<String>);

    fn next(&mut self) -> Option<Self::Item> {
        let label = self.0.by_ref().find_map(|line| rule(line)?.strip_prefix("BEGIN "))?;
        // nsc ends a block with one hyphen more than it begins it with.
        let lines = self.0.by_ref().take_while(|line| rule(line).is_none());
        // With room for a seed, which a growing string would leave behind in pieces.
        let mut content = Zeroizing::new(String::with_capacity(128));
        lines.for_each(|line| content.push_str(line.trim()));
        Some((label, content))
    }
}

/// What stands between the hyphens of a line that begins and ends with three or more.
fn rule(line: &str) -> Option<&str> {
    let line = line.trim();
    (line.starts_with("---") && line.ends_with("---")).then(|| line.trim_matches('-').trim())
}

fn only<T>(found: Vec<T>, none: CredsFault, several: CredsFault) -> Result<T, CredsFault> {
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(none),
        (Some(_), Some(_)) => Err(several),
    }
}

#[cfg(test)]
mod tests;
