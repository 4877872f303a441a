//! `sealwire token revoke`: entries of a deny list, which services read again when it changes.
//! Never takes an entry away, unless it is told to drop those that no longer matter.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use sealwire::auth::{Denylist, decode_untrusted};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, Lock};
use crate::output::Output;
use crate::when;

/// Revoke a token, or all older tokens of a subject, by an entry in a deny list
#[derive(Args)]
#[command(
    group(ArgGroup::new("what").required(true).multiple(false).args(["jti", "token", "subject"])),
    after_help = "\
Examples:
  sealwire token revoke --denylist deny.json --jti 3q2-7wEjRWeJq83vEjRWeA
  sealwire token revoke --denylist deny.json --token - < stolen.jwt
  sealwire token revoke --denylist deny.json --sub planner
  sealwire token revoke --denylist deny.json --sub planner \\
      --before 2026-03-01T22:00:00Z"
)]
pub(crate) struct Revoke {
    /// The deny list; created when there is none
    #[arg(long, value_name = "FILE")]
    denylist: PathBuf,
    /// The token with this `jti`, or whatever its issuer numbers tokens with
    #[arg(long, value_name = "JTI")]
    jti: Option<String>,
    /// This very token; `-` reads it from stdin
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// The tokens of this subject or actor that were issued before `--before`
    #[arg(id = "subject", long = "sub", value_name = "NAME")]
    subject: Option<String>,
    /// With --sub: only tokens issued before this time (seconds, RFC 3339, or now) [default: now]
    #[arg(long, value_name = "TIME", requires = "subject", value_parser = when::instant)]
    before: Option<u64>,
    /// With --jti: when the token expires by itself, after which the entry may be dropped [default: in 24 hours]
    #[arg(long, value_name = "TIME", requires = "jti", value_parser = when::instant)]
    until: Option<u64>,
    /// Also drop entries of tokens that expired more than an hour ago
    #[arg(long)]
    prune: bool,
}

impl Revoke {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let now_s = when::now_s();
        let _lock = Lock::of([self.denylist.as_path()]);
        let list = load(&self.denylist)?;
        let path = &self.denylist;
        let (list, entry, told) = if let Some(subject) = self.subject {
            // A token of this very second has `iat` = now, and `before` does not include its own second.
            let before = self.before.unwrap_or(now_s.saturating_add(1));
            let told = format!("tokens of `{}` issued before {}", subject.escape_debug(), when::absolute(before));
            let entry = json!({ "file": path, "sub": subject, "before": before });
            (list.with_subject(subject, before), entry, told)
        } else {
            let (jti, until) = match self.token {
                Some(token) => of_token(Some(token))?,
                // Services take tokens of at most an hour unless they are told otherwise.
                None => (self.jti.unwrap_or_default(), self.until.unwrap_or(now_s.saturating_add(86_400))),
            };
            let told = format!("token `{}`", jti.escape_debug());
            let entry = json!({ "file": path, "jti": jti, "until": until });
            (list.with_token(jti, until), entry, told)
        };
        let list = if self.prune { list.without_ended(now_s) } else { list };
        files::write_public(path, &text(path, &list, out)?)?;
        out.result(&entry, || format!("revoked {told} in {}", path.display()))?;
        Ok(Exit::Ok)
    }
}

/// The list in the file; an empty one when there is no file.
pub(crate) fn load(path: &Path) -> Result<Denylist, Failure> {
    match files::read_if_there(path)? {
        Some(text) => Denylist::parse(&text, &path.display().to_string()).or_fail(Exit::Input),
        None => Ok(Denylist::default()),
    }
}

/// The text of a list, as far as services read so much. It is looked at before anything is written.
pub(crate) fn text(path: &Path, list: &Denylist, out: &Output) -> Result<String, Failure> {
    let (text, path, most) = (list.to_json(), path.display(), Denylist::MAX_BYTES);
    let help = "`sealwire token revoke --prune` drops entries of tokens that have expired, and `--sub` denies all older \
                tokens of a subject by one entry";
    if text.len() > most {
        let message =
            format!("`{path}` would have {} bytes, and services read {most} at most: nothing was revoked", text.len());
        return Err(Failure::input(message).help(help));
    }
    if text.len() > most / 5 * 4 {
        out.warning(&format!("`{path}` has {} of the {most} bytes that services read: {help}", text.len()));
    }
    Ok(text)
}

/// `jti`, or else the digest, and `exp` as the token itself says. It need not be trusted for this: a forged token denies
/// itself. Services know a token by either, whatever its issuer numbers tokens with.
fn of_token(token: Option<String>) -> Result<(String, u64), Failure> {
    let token = files::argument_or_stdin(token, "the token")?;
    let said = decode_untrusted(token.trim()).or_fail(Exit::Input)?;
    let id = said.claims.get("jti").and_then(Value::as_str).unwrap_or(&said.digest);
    match said.claims.get("exp").and_then(Value::as_u64) {
        Some(exp) => Ok((id.to_owned(), exp)),
        None => Err(Failure::input("the token has no `exp`: no service accepts it, so there is nothing to revoke")),
    }
}
