//! `sealwire tools list`: every tool and prompt, and whether it is approved.
//! Never shows more of one than its name, its standing, why it is unusable, and what of it is not checked.

use std::fmt::Write as _;

use clap::Args;
use sealwire_backend::shown;
use serde_json::json;

use super::servers::Servers;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// List the tools and prompts of MCP servers: approved, changed, new, or unusable and why
///
/// The servers are started for this and stopped again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire tools list
  sealwire tools list -- mcp-server-time")]
pub(crate) struct List {
    #[command(flatten)]
    servers: Servers,
}

impl List {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let found = self.servers.ask()?;
        let tools = found.tools.iter().map(|tool| {
            let (kind, name, fault) = (tool.definition.kind, &tool.definition.name, tool.definition.fault());
            let unchecked = tool.definition.unchecked();
            json!({
                "backend": tool.backend, kind.to_string(): name, "standing": tool.says(), "fault": fault, "unchecked": unchecked,
            })
        });
        let nameless = found.nameless.iter().map(|(backend, fault)| json!({ "backend": backend, "fault": fault }));
        let result = json!({ "tools": tools.collect::<Vec<_>>(), "nameless": nameless.collect::<Vec<_>>() });
        out.result(&result, || {
            let mut text = String::new();
            for tool in &found.tools {
                let fault = tool.definition.fault().map(|fault| format!(": {fault}")).unwrap_or_default();
                let unchecked = tool.definition.unchecked().join(", ");
                let unchecked = if unchecked.is_empty() {
                    unchecked
                } else {
                    format!("; left to the server to check: {unchecked}")
                };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{:<10}{}: {}{}{}",
                    tool.says(),
                    tool.backend,
                    tool.title(),
                    shown(&fault),
                    shown(&unchecked)
                );
            }
            for (backend, fault) in &found.nameless {
                let _ = writeln!(text, "unusable  {backend}: {}", shown(fault));
            }
            text
        })?;
        found.end(Exit::Ok)
    }
}
