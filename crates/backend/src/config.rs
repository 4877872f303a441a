//! What the tables of all kinds of backends have in common.
//! Never knows a kind: each reads its own table with these.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use sealwire::MethodName;

use crate::child::Launch;
use crate::tables::{BackendConfig, BackendMethodConfig, BackendParamConfig};
use crate::tool::Tool;

/// A backend cannot be used as it is described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("backend `{backend}`: {fault}")]
pub struct BackendError {
    /// The backend's name.
    pub backend: String,
    /// What is wrong, and what to do about it.
    pub fault: String,
}

/// How many calls may run at a backend at a time.
pub(crate) fn in_flight(config: &BackendConfig) -> usize {
    config.in_flight.unwrap_or(BackendConfig::IN_FLIGHT)
}

/// How long a call may take.
pub(crate) fn timeout(config: &BackendConfig) -> Duration {
    Duration::from_secs(config.timeout_s.unwrap_or(BackendConfig::TIMEOUT_S))
}

/// Refuses a `prefix`, of a kind whose methods have whole names.
pub(crate) fn whole_names(config: &BackendConfig) -> Result<(), String> {
    match config.prefix {
        Some(_) => Err("`prefix` is for kind `mcp`: write the whole names of methods".to_owned()),
        None => Ok(()),
    }
}

/// The process of a backend.
pub(crate) fn launch(config: &BackendConfig) -> Result<Launch, String> {
    if config.command.first().is_none_or(String::is_empty) {
        return Err("`command` names no program: write it as a list, [\"python3\", \"server.py\"]".to_owned());
    }
    limited(config, &config.command)
}

/// A process for a backend, within its limits.
pub(crate) fn limited(config: &BackendConfig, command: &[String]) -> Result<Launch, String> {
    if command.iter().any(|text| text.contains('\0')) {
        return Err("`command` cannot hold a NUL".to_owned());
    }
    let mut launch = Launch::new(config.name.as_str(), command.iter().map(OsString::from));
    // A configuration file in the working directory has the empty path as its folder.
    launch.dir = config.dir.clone().filter(|dir| !dir.as_os_str().is_empty());
    launch.env = environment(config)?;
    launch.memory = config.memory_mib.unwrap_or(BackendConfig::MEMORY_MIB) << 20;
    launch.open_files = config.open_files.unwrap_or(BackendConfig::OPEN_FILES);
    Ok(launch)
}

/// The environment variables for the programs of a backend.
fn environment(config: &BackendConfig) -> Result<Vec<(OsString, OsString)>, String> {
    let variable = |name: &String| name.is_empty() || name.contains(['=', '\0']);
    if config.env.values().any(|text| text.contains('\0')) {
        return Err("`env` cannot hold a NUL".to_owned());
    }
    if let Some(name) = config.env.keys().chain(&config.pass_env).find(|name| variable(name)) {
        return Err(format!("`{}` is not a variable name", name.escape_debug()));
    }
    let passed = config.pass_env.iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
    Ok(passed.chain(config.env.iter().map(|(name, value)| (name.into(), value.into()))).collect())
}

/// The method of a table.
pub(crate) fn tool(config: &BackendMethodConfig) -> Result<Tool, String> {
    let method = MethodName::new(&config.name).map_err(|error| error.to_string())?;
    let mut tool = Tool::new(config.tool.clone().unwrap_or_else(|| config.name.clone()), method);
    tool.description.clone_from(&config.description);
    tool.declared = config.params.as_ref().map(|params| params.iter().map(BackendParamConfig::declared).collect());
    if let Some(declared) = &tool.declared {
        let mut names = BTreeSet::new();
        if let Some(twice) = declared.iter().find(|param| !names.insert(param.name())) {
            return Err(format!("`{}` has two parameters `{}`", config.name, twice.name().escape_debug()));
        }
    }
    Ok(tool)
}
