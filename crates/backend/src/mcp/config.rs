//! A `[[backend]]` table of kind `mcp`.
//! Never takes a key that belongs to another kind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sealwire::MethodName;
use sealwire_mcp::Revision;

use super::questions::Questions;
use crate::child::Launch;
use crate::config::{in_flight, launch, timeout};
use crate::tables::{BackendConfig, BackendCredentialConfig, CredentialOwner};
use crate::web::Web;

/// A server, and how it is used.
#[derive(Debug)]
pub(crate) struct McpConfig {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) prefix: Option<String>,
    /// Method names by tool name.
    pub(crate) aliases: BTreeMap<String, String>,
    pub(crate) in_flight: usize,
    pub(crate) timeout: Duration,
    pub(crate) send_caller: bool,
    /// What the server may ask callers for.
    pub(crate) questions: Questions,
    /// The revision that is spoken, if not whichever the server speaks.
    pub(crate) revision: Option<Revision>,
    /// Whether resources and prompts are offered.
    pub(crate) resources: bool,
    pub(crate) prompts: bool,
}

/// Where an MCP server is.
#[derive(Debug)]
pub(crate) enum Place {
    Process(Launch),
    Address(Address),
}

/// A server that is reached over HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) web: Arc<Web>,
    /// Whether callers have credentials of their own there.
    pub(crate) of_callers: bool,
}

impl McpConfig {
    /// Reads the table.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(config: &BackendConfig) -> Result<Self, String> {
        if config.processes.is_some() {
            return Err("`processes` is for kind `stdio`: an MCP server is one process".to_owned());
        }
        let prefix = config.prefix.as_deref().map(MethodName::new).transpose().map_err(|error| error.to_string())?;
        if let Some(prefix) = prefix.as_ref().filter(|prefix| prefix.is_reserved()) {
            return Err(format!("prefix `{prefix}`: names that begin with `rpc` are reserved"));
        }
        let mut aliases = BTreeMap::new();
        for method in &config.method {
            let of_commands = method.args.is_some() || method.output.is_some() || method.stdin.is_some();
            if method.push || method.params.is_some() || method.description.is_some() || of_commands {
                return Err(format!(
                    "`{}`: a method of kind `mcp` has `name` and `tool`, and the server says the rest",
                    method.name.escape_debug()
                ));
            }
            let Some(tool) = &method.tool else {
                return Err(format!("`{}` has no `tool`: write the server's name for it as `tool`", method.name));
            };
            if aliases.insert(tool.clone(), method.name.clone()).is_some() {
                return Err(format!("the tool `{}` has two names", tool.escape_debug()));
            }
        }
        Ok(Self {
            name: config.name.to_string(),
            place: place(config)?,
            prefix: prefix.map(|prefix| prefix.to_string()),
            aliases,
            in_flight: in_flight(config),
            timeout: timeout(config),
            send_caller: config.send_caller.unwrap_or(false),
            questions: Questions::new(&config.may_ask),
            revision: config.revision.map(|revision| revision.0),
            resources: config.resources,
            prompts: config.prompts,
        })
    }
}

fn place(config: &BackendConfig) -> Result<Place, String> {
    match (&config.url, config.command.is_empty()) {
        (None, true) => {
            Err("`command` or `url` is missing: write which program the server is, or where it is".to_owned())
        }
        (None, false) => launch(config).map(Place::Process),
        (Some(_), false) => Err("`command` and `url` exclude each other: write one of them".to_owned()),
        (Some(_), true) => {
            let of_callers = |one: &BackendCredentialConfig| one.owner != CredentialOwner::Service;
            let of_callers = config.credential.iter().any(of_callers);
            Ok(Place::Address(Address { web: Arc::new(Web::new(config)?), of_callers }))
        }
    }
}
