//! Asks servers for their tools and prompts, and compares them with the approved ones.
//! Never leaves a server running.

use std::path::PathBuf;

use clap::Args;
use sealwire_backend::{ApprovalState, BackendError, Definition, Kind, Lock, ServerListing, described, shown};
use sealwire_backend::{BackendConfig, BackendKind};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::runtime::block_on;
use crate::serve::{lock_beside, quick};

/// The servers whose tools and prompts are meant.
#[derive(Args)]
pub(crate) struct Servers {
    /// The configuration file; its backends of kind `mcp` are asked
    #[arg(long, value_name = "FILE", default_value = "sealwire.toml")]
    config: PathBuf,
    /// Ask the server of `sealwire serve mcp --url URL` instead of those in the file
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    url: Option<String>,
    /// With `--url` or COMMAND: ask for prompts as well, as `sealwire serve mcp --prompts` offers them
    #[arg(long)]
    prompts: bool,
    /// With `--url` or COMMAND: speak this revision of the protocol
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// With `--url` or COMMAND: the server's name in the lock file, such as the prefix under which a service in Python mounts it
    /// [default: mcp]
    #[arg(long, value_name = "NAME")]
    name: Option<sealwire::Name>,
    /// Ask the server of `sealwire serve mcp -- COMMAND` instead of those in the file
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
}

/// The tools and prompts that servers offer now, and the lock file with the approved ones.
pub(crate) struct Offer {
    pub(crate) path: PathBuf,
    pub(crate) lock: Lock,
    pub(crate) tools: Vec<Tool>,
    /// What servers list without a name to be known by: of which backend, and what.
    pub(crate) nameless: Vec<(String, String)>,
    /// The servers that could not be asked.
    pub(crate) silent: Vec<BackendError>,
}

/// A tool or a prompt.
pub(crate) struct Tool {
    pub(crate) backend: String,
    pub(crate) definition: Definition,
    /// `None` if it cannot be used, approved or not.
    pub(crate) standing: Option<ApprovalState>,
}

impl Servers {
    /// Starts the servers, asks them for their tools, and stops them.
    pub(crate) fn ask(self) -> Result<Offer, Failure> {
        let (_, backends) = crate::project::load(&self.config)?;
        let Self { url, command, prompts, revision, name, .. } = self;
        let backends: Vec<BackendConfig> = if command.is_empty() && url.is_none() {
            if prompts || revision.is_some() || name.is_some() {
                return Err(Failure::new(
                    Exit::Usage,
                    "`--prompts`, `--revision` and `--name` are for a server that no file describes",
                )
                .help("in the file, write `prompts = true`, `revision` and `name` in its `[[backend]]`"));
            }
            backends
        } else {
            let server = quick::Server { command, url, prefix: None, resources: false, prompts, revision };
            let mut backend = server.backend()?;
            backend.name = name.unwrap_or(backend.name);
            vec![backend]
        };
        if !backends.iter().any(|backend| backend.kind == BackendKind::Mcp) {
            return Err(Failure::input(format!("`{}` has no `[[backend]]` of kind `mcp`", self.config.display()))
                .help("name a server: sealwire tools list -- COMMAND, or --url URL"));
        }
        let path = lock_beside(&self.config);
        let lock = Lock::load(&path).or_fail(Exit::Input)?;
        let all = block_on(described(&backends, &lock))?.or_fail(Exit::Input)?;
        let (mut tools, mut nameless, mut silent) = (Vec::new(), Vec::new(), Vec::new());
        for ServerListing { backend, listing, .. } in all {
            let listing = match listing {
                Ok(listing) => listing,
                Err(fault) => {
                    silent.push(fault);
                    continue;
                }
            };
            nameless.extend(listing.nameless.into_iter().map(|wrong| (backend.clone(), wrong)));
            tools.extend(listing.definitions.into_iter().map(|definition| {
                let pin = definition.pin.as_ref().ok().filter(|_| definition.fault().is_none());
                let standing = pin.map(|pin| lock.standing(&backend, definition.kind, &definition.name, pin));
                Tool { backend: backend.clone(), definition, standing }
            }));
        }
        match unasked(&silent) {
            Some(failure) if tools.is_empty() && nameless.is_empty() => Err(failure),
            _ => Ok(Offer { path, lock, tools, nameless, silent }),
        }
    }
}

impl Offer {
    /// What a command ends with that did what it could: a failure if servers could not be asked.
    pub(crate) fn end(&self, exit: Exit) -> Result<Exit, Failure> {
        match unasked(&self.silent) {
            None => Ok(exit),
            Some(failure) => Err(failure),
        }
    }
}

/// The failure of a command for these servers, if there are any.
pub(crate) fn unasked(silent: &[BackendError]) -> Option<Failure> {
    let reasons: Vec<String> = silent.iter().map(|fault| shown(&fault.to_string())).collect();
    if reasons.is_empty() { None } else { Some(Failure::input(reasons.join("; "))) }
}

impl Tool {
    /// Its name for people, in which a prompt is not taken for a tool.
    pub(crate) fn title(&self) -> String {
        let name = shown(&self.definition.name);
        if self.definition.kind == Kind::Tool { name } else { format!("{name} ({})", self.definition.kind) }
    }

    pub(crate) fn says(&self) -> &'static str {
        match self.standing {
            Some(ApprovalState::Approved) => "approved",
            Some(ApprovalState::Changed) => "changed",
            Some(_) => "new",
            None => "unusable",
        }
    }
}
