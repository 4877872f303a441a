//! `sealwire token revoke`: adds entries to a deny list, which services reread when it changes.
//! Never removes an entry, unless told to drop those that no longer matter.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use sealwire::internal::auth::{Denylist, decode_untrusted};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, Lock};
use crate::output::Output;
use crate::when;

/// Revoke a token, or all older tokens of a subject, with an entry in a deny list
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
    /// The deny list; created if there is none
    #[arg(long, value_name = "FILE")]
    denylist: PathBuf,
    /// The token with this `jti`, or with this value of the claim that its issuer uses instead
    #[arg(long, value_name = "JTI", allow_hyphen_values = true)]
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
        let path = &self.denylist;
        let prune = |list: Denylist| if self.prune { list.without_ended(now_s) } else { list };
        let (list, mut entry, told) = if let Some(subject) = self.subject {
            // A token of this very second has `iat` = now, and `before` does not include its own second.
            let before = self.before.unwrap_or(now_s.saturating_add(1));
            let told = format!("tokens of `{}` issued before {}", subject.escape_debug(), when::absolute(before));
            let entry = json!({ "file": files::shown(path), "sub": subject, "before": before });
            (DenylistChange::new(path, |list| prune(list.with_subject(subject, before)), out)?, entry, told)
        } else {
            let (jti, until) = match self.token {
                Some(token) => of_token(Some(token))?,
                // By default, services accept tokens of at most an hour.
                None => (self.jti.unwrap_or_default(), self.until.unwrap_or(now_s.saturating_add(86_400))),
            };
            let told = format!("token `{}`", jti.escape_debug());
            let entry = json!({ "file": files::shown(path), "jti": jti, "until": until });
            (DenylistChange::new(path, |list| prune(list.with_token(jti, until)), out)?, entry, told)
        };
        let created = list.save(out)?;
        entry.as_object_mut().map(|entry| entry.insert("created".to_owned(), created.into()));
        out.result(&entry, || format!("revoked {told} in {}", path.display()))?;
        Ok(Exit::Ok)
    }
}

/// A changed deny list that is not written yet.
pub(crate) struct DenylistChange<'a> {
    path: &'a Path,
    text: String,
    is_new: bool,
}

impl<'a> DenylistChange<'a> {
    /// The list in the file, or an empty one if there is no file, with this change. Fails if the result is too large for services.
    pub(crate) fn new(
        path: &'a Path,
        change: impl FnOnce(Denylist) -> Denylist,
        out: &Output,
    ) -> Result<Self, Failure> {
        let before = files::read_if_there(path)?;
        let (is_new, shown, most) = (before.is_none(), path.display(), Denylist::MAX_BYTES);
        let list = before.map(|text| Denylist::parse(&text, &shown.to_string()).or_fail(Exit::Input)).transpose()?;
        let text = change(list.unwrap_or_default()).to_json();
        let help = "`sealwire token revoke --prune` drops entries of tokens that have expired, and `--sub` denies all \
                    older tokens of a subject with one entry";
        if text.len() > most {
            let length = text.len();
            let message =
                format!("`{shown}` would have {length} bytes, and services read {most} at most: nothing was revoked");
            return Err(Failure::input(message).help(help));
        }
        if text.len() > most / 5 * 4 {
            out.warning(&format!("`{shown}` has {} of the {most} bytes that services read: {help}", text.len()));
        }
        Ok(Self { path, text, is_new })
    }

    /// Writes the list. Returns whether it is new, and warns if so: the name may be mistyped, and no service would read it.
    pub(crate) fn save(self, out: &Output) -> Result<bool, Failure> {
        files::write_public(self.path, &self.text)?;
        if self.is_new {
            let path = self.path.display();
            out.warning(&format!(
                "`{path}` is a new list: it revokes nothing unless `denylist` in a service's configuration names it"
            ));
        }
        Ok(self.is_new)
    }
}

/// The token's own `jti`, or if it has none, its digest; and its own `exp`. The token need not be trusted: a forged one only
/// denies itself. Services check both, whichever claim its issuer uses as an id.
fn of_token(token: Option<String>) -> Result<(String, u64), Failure> {
    let token = files::argument_or_stdin(token, "the token")?;
    let said = decode_untrusted(token.trim()).or_fail(Exit::Input)?;
    let id = said.claims.get("jti").and_then(Value::as_str).unwrap_or(&said.digest);
    match said.date("exp") {
        Some(exp) => Ok((id.to_owned(), exp)),
        None => Err(Failure::input("the token has no `exp`: no service accepts it, so there is nothing to revoke")),
    }
}
