//! A `[[backend]]` table of kind `stdio`, and what kind `ws` has in common with it.
//! Never takes a key that belongs to another kind.

use std::time::Duration;

use crate::child::Launch;
use crate::config::{in_flight, launch, timeout, tool, whole_names};
use crate::mcp::Questions;
use crate::tables::{BackendConfig, BackendMethodConfig};
use crate::tool::Tool;

/// A program, and how it is used.
#[derive(Debug)]
pub(crate) struct StdioConfig {
    pub(crate) launch: Launch,
    pub(crate) processes: usize,
    pub(crate) peer: PeerConfig,
}

/// How a program or server is used that speaks JSON-RPC in both directions and says nothing of itself.
#[derive(Debug)]
pub(crate) struct PeerConfig {
    pub(crate) in_flight: usize,
    pub(crate) timeout: Duration,
    pub(crate) send_caller: bool,
    /// What it may ask callers for.
    pub(crate) questions: Questions,
    pub(crate) tools: Vec<Tool>,
    /// Methods that only push.
    pub(crate) pushes: Vec<Tool>,
}

impl StdioConfig {
    /// Reads the table.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(config: &BackendConfig) -> Result<Self, String> {
        whole_names(config)?;
        let processes = config.processes.unwrap_or(BackendConfig::PROCESSES);
        Ok(Self { launch: launch(config)?, processes, peer: PeerConfig::read(config)? })
    }
}

impl PeerConfig {
    /// Reads what both kinds have.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(config: &BackendConfig) -> Result<Self, String> {
        let (tools, pushes) = methods(config)?;
        Ok(Self {
            in_flight: in_flight(config),
            timeout: timeout(config),
            send_caller: config.send_caller.unwrap_or(false),
            questions: Questions::new(&config.may_ask),
            tools,
            pushes,
        })
    }
}

/// The methods that can be called, and those that only push.
fn methods(config: &BackendConfig) -> Result<(Vec<Tool>, Vec<Tool>), String> {
    let (pushes, methods): (Vec<_>, Vec<_>) = config.method.iter().partition(|method| method.push);
    let tools = |methods: Vec<&BackendMethodConfig>| methods.into_iter().map(tool).collect::<Result<Vec<_>, _>>();
    if config.method.is_empty() {
        return Err("it offers nothing: a program does not say what it can do, so describe each method in a \
                    `[[backend.method]]`"
            .to_owned());
    }
    let of_commands =
        |method: &&BackendMethodConfig| method.args.is_some() || method.output.is_some() || method.stdin.is_some();
    if let Some(method) = config.method.iter().find(of_commands) {
        return Err(format!(
            "`{}` has `args`, `output` or `stdin`, which are for kind `exec`",
            method.name.escape_debug()
        ));
    }
    if let Some(push) = pushes.iter().find(|push| push.params.is_some()) {
        return Err(format!("`{}` only pushes (`push`), so it has no parameters", push.name));
    }
    Ok((tools(methods)?, tools(pushes)?))
}
