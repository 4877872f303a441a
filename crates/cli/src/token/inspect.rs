//! `sealwire token inspect`: shows what a token contains, for debugging.
//! Never verifies anything, and says so first.

use std::fmt::Write as _;

use clap::Args;
use sealwire::internal::auth::{Untrusted, decode_untrusted};
use serde_json::{Map, Value, json};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files;
use crate::output::Output;
use crate::when;

/// Show what a token contains, WITHOUT verifying it
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire token inspect < planner.jwt
  sealwire token inspect eyJhbGciOi…
  sealwire token inspect --json < planner.jwt | jq .claims.roles")]
pub(crate) struct Inspect {
    /// The token; read from stdin if `-` or absent
    #[arg(value_name = "TOKEN")]
    token: Option<String>,
}

impl Inspect {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let token = files::argument_or_stdin(self.token, "the token")?;
        let said = decode_untrusted(token.trim()).or_fail(Exit::Input).map_err(|failure| {
            failure.help("to inspect a token in a file, pass it on stdin: `sealwire token inspect < FILE`")
        })?;
        let now_s = when::now_s();
        let expired = said.date("exp").map(|exp| exp <= now_s);
        out.warning("nothing in this token was verified");
        let result = json!({ "verified": false, "header": said.header, "claims": said.claims, "expired": expired });
        out.result(&result, || text(&said, now_s))?;
        Ok(Exit::Ok)
    }
}

fn text(said: &Untrusted, now_s: u64) -> String {
    let mut text = "NOT VERIFIED: anybody can write such a token; nothing below was checked\n\nheader\n".to_owned();
    lines(&mut text, &said.header, |_| None);
    text.push_str("claims\n");
    lines(&mut text, &said.claims, |name| {
        let time = said.date(name).filter(|_| matches!(name, "iat" | "nbf" | "exp"))?;
        let over = if name == "exp" && time <= now_s { ", EXPIRED" } else { "" };
        Some(format!("{}{over}", when::both(time, now_s)))
    });
    text
}

/// Writes the members, each with what `explain` has to add.
fn lines(text: &mut String, members: &Map<String, Value>, explain: impl Fn(&str) -> Option<String>) {
    let width = members.keys().map(|name| name.chars().count()).max().unwrap_or(0).min(24);
    for (name, value) in members {
        // Escaped, so that a name or a value cannot break the line.
        let name = name.escape_debug().to_string();
        let explained = explain(&name).map(|more| format!("  {more}")).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:width$}  {}{explained}", crate::term::safe_json(&value.to_string()));
    }
}
