//! `sealwire tools approve`: shows each definition that is not approved, asks, and writes the lock file.
//! Never approves what is unusable, nor, without `--yes`, one that nobody agreed to.

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use sealwire_backend::{Approval, Kind, shown};
use serde_json::json;

use super::diff;
use super::servers::{Servers, unasked};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// Approve definitions of tools and prompts as servers give them now, showing each one and asking
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
    /// Only this prompt; repeat for several
    #[arg(long = "prompt", value_name = "PROMPT")]
    of_prompts: Vec<String>,
    /// Approve everything that is shown, without asking
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    servers: Servers,
}

impl Approve {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Self { tools, of_prompts, yes, servers } = self;
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
        let named: Vec<(Kind, String)> = tools
            .into_iter()
            .map(|name| (Kind::Tool, name))
            .chain(of_prompts.into_iter().map(|name| (Kind::Prompt, name)))
            .collect();
        for (kind, name) in &named {
            let mut of_name =
                found.tools.iter().filter(|tool| tool.definition.kind == *kind && tool.definition.name == *name);
            let Some(first) = of_name.clone().next() else {
                let message = format!("no server has a {kind} `{name}`");
                return Err(unasked(&found.silent)
                    .unwrap_or_else(|| Failure::input(message).help("`sealwire tools list` shows them")));
            };
            // Otherwise something unusable would be skipped without a word.
            if of_name.all(|tool| tool.standing.is_none()) {
                let fault = first.definition.fault().unwrap_or_default();
                let message = format!("the {kind} `{}` cannot be used: {}", shown(name), shown(fault));
                return Err(Failure::input(message).help("nothing was approved: leave it out"));
            }
        }
        let (mut approved, mut approvals) = (Vec::new(), Vec::new());
        for tool in &found.tools {
            let Ok(pin) = &tool.definition.pin else { continue };
            let (kind, name) = (tool.definition.kind, &tool.definition.name);
            let is_open = matches!(tool.says(), "new" | "changed");
            if !is_open || !(named.is_empty() || named.iter().any(|(of, meant)| *of == kind && meant == name)) {
                continue;
            }
            out.note(&diff::text(tool, &found.lock));
            if yes || agreed(out)? {
                approvals.push(Approval::new(&tool.backend, kind, name, pin.clone()));
                approved.push(json!({ "backend": tool.backend, kind.to_string(): name, "digest": pin.digest }));
            }
        }
        if !approved.is_empty() {
            found.lock.amend(&found.path, approvals).or_fail(Exit::Input)?;
        }
        let count = approved.len();
        out.result(&json!({ "approved": approved }), || format!("{count} approved; see {}", found.path.display()))?;
        found.end(Exit::Ok)
    }
}

fn agreed(out: &Output) -> Result<bool, Failure> {
    out.note("Approve it? [y/N]");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::input(format!("stdin cannot be read: {error}")))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
