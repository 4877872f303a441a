//! `sealwire tools diff`: which definitions are not approved, and where they differ from the approved ones.
//! Never hides a difference in characters that cannot be seen.

use std::fmt::Write as _;

use clap::Args;
use sealwire_backend::{Lock, differences, shown};
use serde_json::{Value, json};

use super::{Servers, Tool};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Show what differs from what was approved: new tools in full, changed ones difference by difference
///
/// The servers are started for this and stopped again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire tools diff
  sealwire tools diff --exit-code -- mcp-server-time  # 13 if anything differs")]
pub(crate) struct Diff {
    /// Exit with code 13 if anything is not approved
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    servers: Servers,
}

impl Diff {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let found = self.servers.ask()?;
        let open: Vec<&Tool> = found.tools.iter().filter(|tool| matches!(tool.says(), "new" | "changed")).collect();
        let shown: Vec<String> = open.iter().map(|tool| text(tool, &found.lock)).collect();
        let tools: Vec<Value> = open
            .iter()
            .map(|tool| {
                let name = &tool.definition.name;
                let lines = lines(tool, &found.lock);
                json!({ "backend": tool.backend, "tool": name, "standing": tool.says(), "differences": lines })
            })
            .collect();
        out.tell(&json!({ "tools": tools }), || {
            if shown.is_empty() { "everything is approved".to_owned() } else { shown.join("\n") }
        })?;
        Ok(if self.exit_code && !open.is_empty() { Exit::Different } else { Exit::Ok })
    }
}

fn lines(tool: &Tool, lock: &Lock) -> Vec<String> {
    let now = tool.definition.pin.as_ref().map(|pin| read(&pin.definition)).unwrap_or_default();
    match lock.pin(&tool.backend, &tool.definition.name) {
        None => vec![shown(&serde_json::to_string_pretty(&now).unwrap_or_default())],
        Some(approved) => differences(&read(&approved.definition), &now),
    }
}

/// A tool for people.
pub(super) fn text(tool: &Tool, lock: &Lock) -> String {
    let mut text = format!("{} tool `{}` of `{}`\n", tool.says(), shown(&tool.definition.name), tool.backend);
    for line in lines(tool, lock) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    text
}

fn read(definition: &str) -> Value {
    serde_json::from_str(definition).unwrap_or_default()
}
