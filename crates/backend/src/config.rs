//! Turns `[[backend]]` tables into what can be started.
//! Never guesses: a key that does not belong to the kind is an error, and so is a method that nobody could call.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use sealwire::{
    BackendConfig, BackendCredentialConfig, BackendKind, BackendMethodConfig, BackendOutput, CredentialOwner,
    MethodName,
};

use crate::child::Launch;
use crate::exec::{ExecCommand, Template};
use crate::http::{self, Rest, Way};
use crate::mcp;
use crate::names::Names;
use crate::tool::Tool;
use crate::web::Web;

/// A backend cannot be used as it is described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("backend `{backend}`: {fault}")]
pub struct BackendFault {
    /// The backend's name.
    pub backend: String,
    /// What is wrong, and what to do about it.
    pub fault: String,
}

/// A validated backend, ready to be started.
#[derive(Debug)]
pub(crate) enum Judged {
    Stdio(StdioConfig),
    Mcp(McpConfig),
    Exec(ExecConfig),
    Http(HttpConfig),
}

impl Judged {
    /// Its configuration, if it is an MCP server.
    pub(crate) fn server(&self) -> Option<&McpConfig> {
        if let Self::Mcp(server) = self { Some(server) } else { None }
    }
}

/// Kind `http`.
#[derive(Debug)]
pub(crate) struct HttpConfig {
    pub(crate) how: http::Use,
    pub(crate) tools: Vec<Tool>,
}

/// Kind `exec`.
#[derive(Debug)]
pub(crate) struct ExecConfig {
    pub(crate) launch: Launch,
    pub(crate) commands: Vec<ExecCommand>,
    pub(crate) in_flight: usize,
    pub(crate) timeout: Duration,
    pub(crate) tools: Vec<Tool>,
}

/// Kind `mcp`.
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

/// Kind `stdio`.
#[derive(Debug)]
pub(crate) struct StdioConfig {
    pub(crate) launch: Launch,
    pub(crate) processes: usize,
    pub(crate) in_flight: usize,
    pub(crate) timeout: Duration,
    pub(crate) send_caller: bool,
    pub(crate) tools: Vec<Tool>,
    /// Methods that only push.
    pub(crate) pushes: Vec<Tool>,
}

/// Validates all backends together, and claims the method names that they give.
pub(crate) fn judge(configs: &[BackendConfig]) -> Result<(Vec<Judged>, Names), BackendFault> {
    let (mut names, methods) = (BTreeSet::new(), Names::default());
    let mut judged = Vec::new();
    for config in configs {
        let wrong = |fault: String| BackendFault { backend: config.name.to_string(), fault };
        for (position, method) in config.method.iter().enumerate() {
            let name = named(config, &method.name).map_err(wrong)?;
            let owner = match config.kind {
                BackendKind::Mcp => mcp::owner(config.name.as_str(), method.tool.as_deref().unwrap_or_default()),
                _ => format!("method {} of backend `{}`", position + 1, config.name),
            };
            methods.claim(&name, &owner).map_err(|fault| wrong(format!("{fault}: rename one")))?;
        }
        if !names.insert(&config.name) {
            return Err(wrong("two backends have this name: rename one".to_owned()));
        }
        let is_server = config.kind == BackendKind::Mcp && config.url.is_some();
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
        judged.push(
            match config.kind {
                BackendKind::Stdio => stdio(config).map(Judged::Stdio),
                BackendKind::Mcp => server(config).map(Judged::Mcp),
                BackendKind::Exec => exec(config).map(Judged::Exec),
                BackendKind::Http => requests(config).map(Judged::Http),
                kind => Err(format!("this version does not know kind {kind:?}")),
            }
            .map_err(wrong)?,
        );
    }
    Ok((judged, methods))
}

/// The method of this name, below the prefix if there is one.
fn named(config: &BackendConfig, name: &str) -> Result<MethodName, String> {
    let whole = match &config.prefix {
        Some(prefix) => MethodName::new(&format!("{prefix}/{name}")),
        None => MethodName::new(name),
    };
    whole.map_err(|error| error.to_string())
}

fn server(config: &BackendConfig) -> Result<McpConfig, String> {
    if config.processes.is_some() {
        return Err("`processes` is for kind `stdio`: an MCP server is one process".to_owned());
    }
    let prefix = config.prefix.as_deref().map(MethodName::new).transpose().map_err(|error| error.to_string())?;
    if let Some(prefix) = prefix.as_ref().filter(|prefix| prefix.is_reserved()) {
        return Err(format!("prefix `{prefix}`: names that begin with `rpc` are reserved"));
    }
    let mut aliases = BTreeMap::new();
    for method in &config.method {
        let of_commands = method.args.is_some() || method.output.is_some();
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
    Ok(McpConfig {
        name: config.name.to_string(),
        place: place(config)?,
        prefix: prefix.map(|prefix| prefix.to_string()),
        aliases,
        in_flight: config.in_flight.unwrap_or(BackendConfig::IN_FLIGHT),
        timeout: Duration::from_secs(config.timeout_s.unwrap_or(BackendConfig::TIMEOUT_S)),
        send_caller: config.send_caller.unwrap_or(false),
    })
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

fn stdio(config: &BackendConfig) -> Result<StdioConfig, String> {
    if config.prefix.is_some() {
        return Err("`prefix` is for kind `mcp`: write the whole names of methods".to_owned());
    }
    let launch = launch(config)?;
    let (pushes, methods): (Vec<_>, Vec<_>) = config.method.iter().partition(|method| method.push);
    let tools = |methods: Vec<&BackendMethodConfig>| methods.into_iter().map(tool).collect::<Result<Vec<_>, _>>();
    if config.method.is_empty() {
        return Err("it offers nothing: a program does not say what it can do, so describe each method in a \
                    `[[backend.method]]`"
            .to_owned());
    }
    if let Some(method) = config.method.iter().find(|method| method.args.is_some() || method.output.is_some()) {
        return Err(format!("`{}` has `args` or `output`, which are for kind `exec`", method.name.escape_debug()));
    }
    if let Some(push) = pushes.iter().find(|push| push.params.is_some()) {
        return Err(format!("`{}` only pushes (`push`), so it has no parameters", push.name));
    }
    Ok(StdioConfig {
        launch,
        processes: config.processes.unwrap_or(BackendConfig::PROCESSES),
        in_flight: config.in_flight.unwrap_or(BackendConfig::IN_FLIGHT),
        timeout: Duration::from_secs(config.timeout_s.unwrap_or(BackendConfig::TIMEOUT_S)),
        send_caller: config.send_caller.unwrap_or(false),
        tools: tools(methods)?,
        pushes: tools(pushes)?,
    })
}

fn exec(config: &BackendConfig) -> Result<ExecConfig, String> {
    if config.processes.is_some() || config.send_caller.is_some() || config.method.iter().any(|method| method.push) {
        return Err("`processes`, `send_caller` and `push` are for kind `stdio`".to_owned());
    }
    if config.prefix.is_some() {
        return Err("`prefix` is for kind `mcp`: write the whole names of methods".to_owned());
    }
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
        let args = Template::read(&config.command, method.args.as_deref().unwrap_or_default(), params)
            .map_err(|why| format!("`{}`: {why}", method.name.escape_debug()))?;
        let text = method.output == Some(BackendOutput::Text);
        commands.push(ExecCommand { method: method.name.clone(), args, text });
        tools.push(tool);
    }
    let in_flight = config.in_flight.unwrap_or(BackendConfig::IN_FLIGHT);
    let timeout = Duration::from_secs(config.timeout_s.unwrap_or(BackendConfig::TIMEOUT_S));
    Ok(ExecConfig { launch, commands, in_flight, timeout, tools })
}

fn requests(config: &BackendConfig) -> Result<HttpConfig, String> {
    if !config.command.is_empty() || config.processes.is_some() {
        return Err("`command` and `processes` are for kinds that run a program".to_owned());
    }
    if config.prefix.is_some() {
        return Err("`prefix` is for kind `mcp`: write the whole names of methods".to_owned());
    }
    if config.method.is_empty() {
        return Err("it offers nothing: describe each method in a `[[backend.method]]`".to_owned());
    }
    let (mut tools, mut ways) = (Vec::new(), BTreeMap::new());
    for method in &config.method {
        let wrong = |why: String| format!("`{}`: {why}", method.name.escape_debug());
        if method.push || method.args.is_some() {
            return Err(wrong("`push` is for kind `stdio`, and `args` are for kind `exec`".to_owned()));
        }
        if method.output.is_some() && method.http.is_none() {
            return Err(wrong("`output` is for requests of its own (`http`): JSON-RPC is JSON".to_owned()));
        }
        let mut tool = tool(method)?;
        let way = match (&method.stream, &method.http) {
            (None, None) => Way::Post,
            (Some(path), None) => Way::Stream(Way::path(path).map_err(wrong)?),
            (None, Some(_)) if method.tool.is_some() => {
                return Err(wrong("`tool` is for JSON-RPC: a request of its own has `http.path`".to_owned()));
            }
            (None, Some(request)) => {
                // Only what is declared becomes part of a request.
                let params = tool.declared.get_or_insert_default();
                let text = method.output == Some(BackendOutput::Text);
                Way::Rest(Box::new(Rest::read(request, params, text).map_err(wrong)?))
            }
            (Some(_), Some(_)) => return Err(wrong("it has `stream` or `http`, not both".to_owned())),
        };
        ways.insert(tool.method.to_string(), way);
        tools.push(tool);
    }
    if config.batch && !ways.values().any(|way| matches!(way, Way::Post)) {
        return Err("`batch` is for methods that are asked for by JSON-RPC in a `POST`, and there is none".to_owned());
    }
    let how = http::Use {
        name: config.name.to_string(),
        web: Web::new(config)?,
        ways,
        in_flight: config.in_flight.unwrap_or(BackendConfig::IN_FLIGHT),
        timeout: Duration::from_secs(config.timeout_s.unwrap_or(BackendConfig::TIMEOUT_S)),
        send_caller: config.send_caller.unwrap_or(false),
        batch: config.batch,
        probe: config.health.as_deref().map(Way::path).transpose().map_err(|wrong| format!("`health`: {wrong}"))?,
    };
    Ok(HttpConfig { how, tools })
}

/// The process of a backend.
fn launch(config: &BackendConfig) -> Result<Launch, String> {
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

fn tool(config: &BackendMethodConfig) -> Result<Tool, String> {
    let method = MethodName::new(&config.name).map_err(|error| error.to_string())?;
    let mut tool = Tool::new(config.tool.clone().unwrap_or_else(|| config.name.clone()), method);
    tool.description.clone_from(&config.description);
    tool.declared =
        config.params.as_ref().map(|params| params.iter().map(sealwire::BackendParamConfig::declared).collect());
    if let Some(declared) = &tool.declared {
        let mut names = BTreeSet::new();
        if let Some(twice) = declared.iter().find(|param| !names.insert(param.name())) {
            return Err(format!("`{}` has two parameters `{}`", config.name, twice.name().escape_debug()));
        }
    }
    Ok(tool)
}
