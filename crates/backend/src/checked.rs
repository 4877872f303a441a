//! Turns `[[backend]]` tables into what can be started.
//! Never guesses: a key that does not belong to the kind is an error, and so is a method that nobody could call.

use std::collections::BTreeSet;

use sealwire::MethodName;

use crate::config::BackendError;
use crate::exec::ExecConfig;
use crate::http::HttpConfig;
use crate::mcp::{self, McpConfig};
use crate::names::Names;
use crate::stdio::StdioConfig;
use crate::tables::{BackendConfig, BackendKind, BackendMethodConfig};
use crate::ws::WsConfig;

/// A validated backend, ready to be started.
#[derive(Debug)]
pub(crate) enum CheckedBackend {
    Stdio(StdioConfig),
    Mcp(McpConfig),
    Exec(ExecConfig),
    Http(HttpConfig),
    Ws(WsConfig),
}

impl CheckedBackend {
    /// Its configuration, if it is an MCP server.
    pub(crate) fn server(&self) -> Option<&McpConfig> {
        if let Self::Mcp(server) = self { Some(server) } else { None }
    }
}

/// Validates all backends together, and claims the method names that they give.
pub(crate) fn check(configs: &[BackendConfig]) -> Result<(Vec<CheckedBackend>, Names), BackendError> {
    let (mut names, methods) = (BTreeSet::new(), Names::default());
    let mut checked = Vec::new();
    for config in configs {
        let wrong = |fault: String| BackendError { backend: config.name.to_string(), fault };
        for (position, method) in config.method.iter().enumerate() {
            let name = named(config, &method.name).map_err(wrong)?;
            let owner = match config.kind {
                BackendKind::Mcp => mcp::owner(config.name.as_str(), method.tool.as_deref().unwrap_or_default()),
                _ => format!("method {} of backend `{}`", position + 1, config.name),
            };
            methods.claim(&name, &owner).map_err(|fault| wrong(format!("{fault}: rename one")))?;
        }
        let can_ask = matches!(config.kind, BackendKind::Stdio | BackendKind::Ws | BackendKind::Mcp);
        if !can_ask && config.may_ask != BackendConfig::MAY_ASK {
            return Err(wrong("`may_ask` is for kinds `stdio`, `ws` and `mcp`".to_owned()));
        }
        if !names.insert(&config.name) {
            return Err(wrong("two backends have this name: rename one".to_owned()));
        }
        if config.kind != BackendKind::Exec
            && config.method.iter().any(|method| method.params.iter().flatten().any(|param| param.allow_argument))
        {
            return Err(wrong("`allow_argument` of parameters is for kind `exec`".to_owned()));
        }
        if config.kind != BackendKind::Mcp && (config.revision.is_some() || config.resources || config.prompts) {
            return Err(wrong("`revision`, `resources` and `prompts` are for kind `mcp`".to_owned()));
        }
        let is_server = config.kind == BackendKind::Ws || config.kind == BackendKind::Mcp && config.url.is_some();
        let asked = config.url.is_some() || config.tls_ca.is_some() || config.allow_plaintext;
        let asked = asked || !config.headers.is_empty() || !config.credential.is_empty();
        if config.kind != BackendKind::Http {
            if asked && !is_server {
                return Err(wrong(
                    "`url` and what belongs to it are for servers, and this kind runs a program".to_owned(),
                ));
            }
            let of_requests = |method: &BackendMethodConfig| method.stream.is_some() || method.http.is_some();
            if config.health.is_some() || config.batch || config.method.iter().any(of_requests) {
                return Err(wrong(
                    "`health`, `batch`, and `stream` and `http` of methods are for kind `http`".to_owned(),
                ));
            }
        }
        checked.push(
            match config.kind {
                BackendKind::Stdio => StdioConfig::read(config).map(CheckedBackend::Stdio),
                BackendKind::Mcp => McpConfig::read(config).map(CheckedBackend::Mcp),
                BackendKind::Exec => ExecConfig::read(config).map(CheckedBackend::Exec),
                BackendKind::Http => HttpConfig::read(config).map(CheckedBackend::Http),
                BackendKind::Ws => WsConfig::read(config).map(CheckedBackend::Ws),
            }
            .map_err(wrong)?,
        );
    }
    Ok((checked, methods))
}

/// The method of this name, below the prefix if there is one.
fn named(config: &BackendConfig, name: &str) -> Result<MethodName, String> {
    let whole = match &config.prefix {
        Some(prefix) => MethodName::new(&format!("{prefix}/{name}")),
        None => MethodName::new(name),
    };
    whole.map_err(|error| error.to_string())
}
