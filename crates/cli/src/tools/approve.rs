//! `sealwire tools approve`: shows each definition that is not approved, asks, and writes the lock file.
//! Never approves a tool that is unusable, nor, without `--yes`, one that nobody agreed to.

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use sealwire_backend::shown;
use serde_json::json;

use super::{Servers, diff};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// Approve tool definitions as servers give them now, showing each one and asking
///
/// Approvals are written to tools.lock.toml next to the configuration, and a running service applies them at once. The servers
/// are started for this and stopped again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire tools approve
  sealwire tools approve --tool get_current_time -- mcp-server-time
  sealwire tools approve --yes")]
pub(crate) struct Approve {
    /// Only this tool; repeat for several
    #[arg(long = "tool", value_name = "TOOL")]
    tools: Vec<String>,
    /// Approve everything that is shown, without asking
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    servers: Servers,
}

impl Approve {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Self { tools: named, yes, servers } = self;
        // With `--json`, people are shown nothing, so they cannot be asked.
        let nobody = match (out.is_json(), std::io::stdin().is_terminal()) {
            _ if yes => None,
            (true, _) => Some("`--json` is for scripts"),
            (false, false) => Some("stdin is not a terminal"),
            (false, true) => None,
        };
        if let Some(why) = nobody {
            return Err(Failure::new(Exit::Usage, format!("nobody can be asked: {why}"))
                .help("read `sealwire tools diff`, and then approve with --yes"));
        }
        let found = servers.ask()?;
        if let Some(name) = named.iter().find(|name| !found.tools.iter().any(|tool| tool.definition.name == **name)) {
            return Err(
                Failure::input(format!("no server has a tool `{name}`")).help("`sealwire tools list` shows them")
            );
        }
        // Otherwise an unusable tool would be skipped without a word.
        let is_usable =
            |name: &str| found.tools.iter().any(|tool| tool.definition.name == name && tool.standing.is_some());
        if let Some(name) = named.iter().find(|name| !is_usable(name)) {
            let mut of_name = found.tools.iter().filter(|tool| tool.definition.name == *name);
            let fault = of_name.find_map(|tool| tool.definition.fault()).unwrap_or_default();
            let message = format!("the tool `{}` cannot be used: {}", shown(name), shown(fault));
            return Err(Failure::input(message).help("nothing was approved: leave it out"));
        }
        let (mut approved, mut pins) = (Vec::new(), Vec::new());
        for tool in &found.tools {
            let Ok(pin) = &tool.definition.pin else { continue };
            let name = &tool.definition.name;
            let is_open = matches!(tool.says(), "new" | "changed");
            if !is_open || !(named.is_empty() || named.contains(name)) {
                continue;
            }
            out.note(&diff::text(tool, &found.lock));
            if yes || agreed(out)? {
                pins.push((tool.backend.clone(), name.clone(), pin.clone()));
                approved.push(json!({ "backend": tool.backend, "tool": name, "digest": pin.digest }));
            }
        }
        if !approved.is_empty() {
            found.lock.amend(&found.path, pins).or_fail(Exit::Input)?;
        }
        let count = approved.len();
        out.result(&json!({ "approved": approved }), || format!("{count} approved; see {}", found.path.display()))?;
        Ok(Exit::Ok)
    }
}

fn agreed(out: &Output) -> Result<bool, Failure> {
    out.note("Approve it? [y/N]");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::input(format!("stdin cannot be read: {error}")))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
