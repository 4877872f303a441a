//! `sealwire tools list`: every tool, and whether it is approved.
//! Never shows more of a tool than its name, its standing and why it is unusable.

use std::fmt::Write as _;

use clap::Args;
use sealwire_backend::shown;
use serde_json::json;

use super::Servers;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// List the tools of MCP servers: approved, changed, new, or unusable and why
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
            let (name, fault) = (&tool.definition.name, tool.definition.fault());
            json!({ "backend": tool.backend, "tool": name, "standing": tool.says(), "fault": fault })
        });
        out.result(&json!({ "tools": tools.collect::<Vec<_>>() }), || {
            let mut text = String::new();
            for tool in &found.tools {
                let fault = tool.definition.fault().map(|fault| format!(": {fault}")).unwrap_or_default();
                let name = shown(&tool.definition.name);
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{:<10}{}: {name}{}", tool.says(), tool.backend, shown(&fault));
            }
            text
        })?;
        Ok(Exit::Ok)
    }
}
