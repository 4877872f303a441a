//! A `[[backend]]` table of kind `http`.
//! Never takes a key that belongs to another kind.

use std::collections::BTreeMap;
use std::time::Duration;

use super::rest::Rest;
use super::target;
use crate::config::{in_flight, timeout, tool, whole_names};
use crate::tables::{BackendConfig, BackendOutput};
use crate::tool::Tool;
use crate::web::Web;

/// How a method is called.
#[derive(Debug)]
pub(crate) enum Binding {
    /// JSON-RPC in a POST to the server's address.
    Post,
    /// The same, answered by a stream of events whose responses are parts.
    PostStream,
    /// JSON-RPC in the query of a GET of this path, answered by a stream of events.
    Stream(String),
    /// A request of its own.
    Rest(Box<Rest>),
}

/// How a server is used.
#[derive(Debug)]
pub(crate) struct HttpOptions {
    pub(crate) name: String,
    pub(crate) web: Web,
    /// By method name.
    pub(crate) ways: BTreeMap<String, Binding>,
    pub(crate) in_flight: usize,
    pub(crate) timeout: Duration,
    pub(crate) send_caller: bool,
    /// Whether calls of one caller that arrive at the same time go in one `POST`.
    pub(crate) batch: bool,
    /// The path of the health check.
    pub(crate) probe: Option<String>,
}

/// A server, and what it offers.
#[derive(Debug)]
pub(crate) struct HttpConfig {
    pub(crate) how: HttpOptions,
    pub(crate) tools: Vec<Tool>,
}

impl HttpConfig {
    /// Reads the table.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(config: &BackendConfig) -> Result<Self, String> {
        if !config.command.is_empty() || config.processes.is_some() {
            return Err("`command` and `processes` are for kinds that run a program".to_owned());
        }
        whole_names(config)?;
        if config.method.is_empty() {
            return Err("it offers nothing: describe each method in a `[[backend.method]]`".to_owned());
        }
        let (mut tools, mut ways) = (Vec::new(), BTreeMap::new());
        for method in &config.method {
            let wrong = |why: String| format!("`{}`: {why}", method.name.escape_debug());
            if method.push || method.args.is_some() || method.stdin.is_some() {
                let foreign = "`push` is for kinds `stdio` and `ws`, and `args` and `stdin` are for kind `exec`";
                return Err(wrong(foreign.to_owned()));
            }
            if method.output.is_some() && method.http.is_none() {
                return Err(wrong("`output` is for requests of its own (`http`): JSON-RPC is JSON".to_owned()));
            }
            let mut tool = tool(method)?;
            let way = match (&method.stream, &method.http) {
                (None, None) if A2A_STREAMS.contains(&tool.name.as_str()) => Binding::PostStream,
                (None, None) => Binding::Post,
                (Some(path), None) if path == "POST" => Binding::PostStream,
                (Some(path), None) => Binding::Stream(target::path(path).map_err(wrong)?),
                (None, Some(_)) if method.tool.is_some() => {
                    return Err(wrong("`tool` is for JSON-RPC: a request of its own has `http.path`".to_owned()));
                }
                (None, Some(request)) => {
                    // Only what is declared becomes part of a request.
                    let params = tool.declared.get_or_insert_default();
                    let output = method.output.unwrap_or(BackendOutput::Json);
                    Binding::Rest(Box::new(Rest::read(request, params, output).map_err(wrong)?))
                }
                (Some(_), Some(_)) => return Err(wrong("it has `stream` or `http`, not both".to_owned())),
            };
            ways.insert(tool.method.to_string(), way);
            tools.push(tool);
        }
        if config.batch && !ways.values().any(|way| matches!(way, Binding::Post)) {
            return Err(
                "`batch` is for methods that are asked for by JSON-RPC in a `POST`, and there is none".to_owned()
            );
        }
        let how = HttpOptions {
            name: config.name.to_string(),
            web: Web::new(config)?,
            ways,
            in_flight: in_flight(config),
            timeout: timeout(config),
            send_caller: config.send_caller.unwrap_or(false),
            batch: config.batch,
            probe: config
                .health
                .as_deref()
                .map(target::path)
                .transpose()
                .map_err(|wrong| format!("`health`: {wrong}"))?,
        };
        Ok(Self { how, tools })
    }
}

/// The methods of A2A that are answered by a stream of responses.
const A2A_STREAMS: [&str; 2] = ["SendStreamingMessage", "SubscribeToTask"];
