//! A `[[backend]]` table of kind `exec`.
//! Never takes a key that belongs to another kind.

use std::time::Duration;

use super::template::Template;
use crate::child::Launch;
use crate::config::{in_flight, launch, timeout, tool, whole_names};
use crate::tables::{BackendConfig, BackendOutput, BackendStdin};
use crate::tool::Tool;

/// Commands, and how they are run.
#[derive(Debug)]
pub(crate) struct ExecConfig {
    pub(crate) launch: Launch,
    pub(crate) commands: Vec<ExecCommand>,
    pub(crate) in_flight: usize,
    pub(crate) timeout: Duration,
    pub(crate) tools: Vec<Tool>,
}

/// The command of one method.
#[derive(Debug)]
pub(crate) struct ExecCommand {
    pub(crate) method: String,
    pub(crate) args: Template,
    /// Whether the command reads its standard input as data, and so gets the parameters there.
    pub(crate) stdin: bool,
    /// Whether the command prints text instead of JSON.
    pub(crate) text: bool,
}

impl ExecConfig {
    /// Reads the table.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(config: &BackendConfig) -> Result<Self, String> {
        if config.processes.is_some() || config.send_caller.is_some() || config.method.iter().any(|method| method.push)
        {
            return Err("`processes` and `send_caller` are for kind `stdio`, and so is `push`".to_owned());
        }
        whole_names(config)?;
        if config.method.is_empty() {
            return Err("it offers nothing: describe each command in a `[[backend.method]]`".to_owned());
        }
        let launch = launch(config)?;
        let (mut tools, mut commands) = (Vec::new(), Vec::new());
        for method in &config.method {
            if method.tool.is_some() {
                return Err(format!("`{}` has `tool`, which is not for commands: they run with `args`", method.name));
            }
            let mut tool = tool(method)?;
            // Only what is declared becomes part of a command.
            let params = tool.declared.get_or_insert_default();
            let allowed = method.params.iter().flatten().filter(|param| param.allow_argument);
            let allowed = allowed.map(|param| param.name.as_str()).collect();
            let stdin = method.stdin == Some(BackendStdin::Data);
            let args = Template::read(method.args.as_deref().unwrap_or_default(), params, &allowed, stdin)
                .map_err(|why| format!("`{}`: {why}", method.name.escape_debug()))?;
            if method.output == Some(BackendOutput::JsonRpc) {
                return Err(format!("`{}`: output \"jsonrpc\" is for kind `http`", method.name.escape_debug()));
            }
            let text = method.output == Some(BackendOutput::Text);
            commands.push(ExecCommand { method: method.name.clone(), args, stdin, text });
            tools.push(tool);
        }
        let in_flight = in_flight(config);
        let timeout = timeout(config);
        Ok(Self { launch, commands, in_flight, timeout, tools })
    }
}
