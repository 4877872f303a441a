//! `sealwire tools`: compares the tool definitions of servers with the approved ones, and lets the operator approve them.
//! Never approves a definition that was not shown, with its invisible characters made visible.

mod approve;
mod diff;
mod list;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sealwire::{BackendConfig, BackendKind, Config};
use sealwire_backend::{Definition, Lock, Standing, described};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::runtime::block_on;
use crate::serve::{lock_beside, quick};

#[derive(Subcommand)]
pub(crate) enum Tools {
    List(list::List),
    Diff(diff::Diff),
    Approve(approve::Approve),
}

impl Tools {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::List(command) => command.run(out),
            Self::Diff(command) => command.run(out),
            Self::Approve(command) => command.run(out),
        }
    }
}

/// The servers whose tools are meant.
#[derive(Args)]
pub(crate) struct Servers {
    /// The configuration file; its backends of kind `mcp` are asked
    #[arg(long, value_name = "FILE", default_value = "sealwire.toml")]
    config: PathBuf,
    /// Ask the server of `sealwire serve mcp --url URL` instead of those in the file
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    url: Option<String>,
    /// Ask the server of `sealwire serve mcp -- COMMAND` instead of those in the file
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
}

/// The tools that servers offer now, and the lock file with the approved ones.
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) lock: Lock,
    pub(crate) tools: Vec<Tool>,
}

pub(crate) struct Tool {
    pub(crate) backend: String,
    pub(crate) definition: Definition,
    /// `None` if it cannot be used, approved or not.
    pub(crate) standing: Option<Standing>,
}

impl Servers {
    /// Starts the servers, asks them for their tools, and stops them.
    pub(crate) fn ask(self) -> Result<Found, Failure> {
        let config = Config::load(&self.config).or_fail(Exit::Input)?;
        let backends: Vec<BackendConfig> = if self.command.is_empty() && self.url.is_none() {
            config.backend
        } else {
            vec![quick::mcp(self.command, self.url, None)?]
        };
        if !backends.iter().any(|backend| backend.kind == BackendKind::Mcp) {
            return Err(Failure::input(format!("`{}` has no `[[backend]]` of kind `mcp`", self.config.display()))
                .help("name a server: sealwire tools list -- COMMAND, or --url URL"));
        }
        let path = lock_beside(&self.config);
        let lock = Lock::load(&path).or_fail(Exit::Input)?;
        let all = block_on(described(&backends, &lock))?.or_fail(Exit::Input)?;
        let tools = all.into_iter().flat_map(|(backend, definitions)| {
            definitions.into_iter().map(move |definition| (backend.clone(), definition))
        });
        let tools = tools.map(|(backend, definition)| {
            let pin = definition.pin.as_ref().ok().filter(|_| definition.fault().is_none());
            let standing = pin.map(|pin| lock.standing(&backend, &definition.name, pin));
            Tool { backend, definition, standing }
        });
        let tools = tools.collect();
        Ok(Found { path, lock, tools })
    }
}

impl Tool {
    pub(crate) fn says(&self) -> &'static str {
        match self.standing {
            Some(Standing::Approved) => "approved",
            Some(Standing::Changed) => "changed",
            Some(_) => "new",
            None => "unusable",
        }
    }
}
