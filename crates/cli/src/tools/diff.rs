//! `sealwire tools diff`: which definitions are not approved, and where they differ from the approved ones.
//! Never hides a difference in characters that cannot be seen.

use std::fmt::Write as _;

use clap::Args;
use sealwire_backend::{Lock, differences, shown, whole};
use serde_json::{Value, json};

use super::servers::{Servers, Tool};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Show what differs from what was approved: new tools and prompts in full, changed ones difference by difference
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
                let (kind, name) = (tool.definition.kind, &tool.definition.name);
                let lines = lines(tool, &found.lock);
                json!({ "backend": tool.backend, kind.to_string(): name, "standing": tool.says(), "differences": lines })
            })
            .collect();
        let unusable = found.tools.iter().filter(|tool| tool.standing.is_none()).count() + found.nameless.len();
        out.tell(&json!({ "tools": tools, "unusable": unusable }), || {
            let unusable = match unusable {
                0 => String::new(),
                1 => "1 entry cannot be used: sealwire tools list says why".to_owned(),
                many => format!("{many} entries cannot be used: sealwire tools list says why"),
            };
            match (shown.is_empty(), found.silent.is_empty(), unusable.is_empty()) {
                (true, true, true) => "everything is approved".to_owned(),
                (true, _, true) => "everything that was asked about is approved".to_owned(),
                (true, _, false) => format!("everything else is approved; {unusable}"),
                (false, _, _) => [shown.join("\n"), unusable].join("\n").trim_end().to_owned(),
            }
        })?;
        found.end(if self.exit_code && !open.is_empty() { Exit::Different } else { Exit::Ok })
    }
}

fn lines(tool: &Tool, lock: &Lock) -> Vec<String> {
    let now = tool.definition.pin.as_ref().map(|pin| pin.definition.as_str()).unwrap_or_default();
    match lock.pin(&tool.backend, tool.definition.kind, &tool.definition.name) {
        None => vec![whole(now)],
        Some(approved) => differences(&approved.definition, now),
    }
}

/// A tool or prompt for people.
pub(super) fn text(tool: &Tool, lock: &Lock) -> String {
    let (kind, name) = (tool.definition.kind, shown(&tool.definition.name));
    let mut text = format!("{} {kind} `{name}` of `{}`\n", tool.says(), tool.backend);
    for line in lines(tool, lock) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    text
}
