//! A single program, described on the command line instead of in a file.
//! Never checks less than the file does: what is built here is a `[[backend]]`.

use clap::{ArgGroup, Args};
use sealwire_backend::BackendConfig;
use serde_json::{Map, Value, json};

use crate::exit::{Exit, Failure, OrFail as _};

/// Serve a program that reads and writes JSON-RPC 2.0, one object per line
///
/// The same as a `[[backend]]` of kind `stdio` (docs/backends.md), under the name `stdio`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire serve stdio --method clock/now -- python3 clock.py
  sealwire serve stdio --method 'clock/now(zone: string, utc?: boolean)' \\
      --method clock/zones -- python3 clock.py")]
pub(super) struct Stdio {
    /// A method of the program: `NAME` or, to let rules look at arguments, `NAME(PARAM: TYPE, PARAM?: TYPE)`; repeat for several
    #[arg(long = "method", value_name = "METHOD", required = true, value_parser = method)]
    methods: Vec<Value>,
    /// How many processes share the calls
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<String>,
}

impl Stdio {
    pub(super) fn backend(&self) -> Result<BackendConfig, Failure> {
        let Self { methods, processes, command } = self;
        made(json!({
            "name": "stdio", "kind": "stdio", "command": command, "processes": processes, "method": methods,
        }))
    }
}

/// Serve a command that is run once for each call
///
/// The same as a `[[backend]]` of kind `exec` (docs/backends.md), under the name `exec`. No shell runs the command.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire serve exec --method 'clock/utc(when: string)' --text \\
      --allow-argument when -- date --utc '--date={when}'
  sealwire serve exec --method 'text/len(s: string)' --stdin-data -- wc -c")]
pub(super) struct Exec {
    /// The method, with its parameters: `NAME` or `NAME(PARAM: TYPE, PARAM?: TYPE)`
    #[arg(long = "method", value_name = "METHOD", value_parser = method)]
    method: Value,
    /// The command prints text instead of JSON
    #[arg(long)]
    text: bool,
    /// Allow a string parameter to be an argument: your word that the command takes it for data there, and never for code, an
    /// option, or a file to open or run; repeat for several
    #[arg(long, value_name = "PARAM")]
    allow_argument: Vec<String>,
    /// Give the command the parameters on its standard input, as JSON: your word that it reads that as data, and never runs what it
    /// reads, as a shell does
    #[arg(long)]
    stdin_data: bool,
    /// The command and its arguments; `{PARAM}` in an argument stands for a parameter
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<String>,
}

impl Exec {
    pub(super) fn backend(&self) -> Result<BackendConfig, Failure> {
        let (program, args) = self.command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let mut method = self.method.clone();
        for name in &self.allow_argument {
            let mut params = method.get_mut("params").and_then(Value::as_array_mut).into_iter().flatten();
            let Some(Value::Object(param)) = params.find(|param| param["name"] == name.as_str()) else {
                let known = format!("`--allow-argument {name}`: the method has no such parameter");
                return Err(Failure::new(Exit::Usage, known).help("write it into --method 'NAME(PARAM: string)'"));
            };
            param.insert("allow_argument".to_owned(), json!(true));
        }
        if let Value::Object(method) = &mut method {
            method.insert("args".to_owned(), json!(args));
            method.insert("output".to_owned(), json!(if self.text { "text" } else { "json" }));
            if self.stdin_data {
                method.insert("stdin".to_owned(), json!("data"));
            }
        }
        made(json!({ "name": "exec", "kind": "exec", "command": [program], "method": [method] }))
    }
}

/// Serve an MCP (Model Context Protocol) server
///
/// The same as a `[[backend]]` of kind `mcp` (docs/backends.md), under the name `mcp`. A tool can be called once its definition has
/// been approved, before the service starts or while it runs: `sealwire tools approve -- COMMAND`, or with `--url`.
#[derive(Args)]
#[command(group = ArgGroup::new("place").args(["url", "command"]).required(true))]
#[command(after_help = "\
Examples:
  sealwire serve mcp -- mcp-server-time
  sealwire serve mcp --prefix git -- mcp-server-git --repository .
  sealwire serve mcp --prompts --revision 2025-11-25 -- uvx some-server
  sealwire serve mcp --url https://tools.example/mcp")]
pub(crate) struct Mcp {
    #[command(flatten)]
    server: Server,
}

impl Mcp {
    pub(super) fn backend(self) -> Result<BackendConfig, Failure> {
        self.server.backend()
    }
}

/// Serve an HTTP server that takes JSON-RPC 2.0
///
/// The same as a `[[backend]]` of kind `http` (docs/backends.md), under the name `http`. Streams, plain requests and credentials
/// need a `[[backend]]` in the file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire serve http http://127.0.0.1:8000/rpc \\
      --method 'weather/now(city: string)' --method weather/cities")]
pub(super) struct Http {
    /// The URL of the server: https://…, or http://… on this machine
    #[arg(value_name = "URL")]
    url: String,
    /// A method of the server: `NAME` or, to let rules look at arguments, `NAME(PARAM: TYPE, PARAM?: TYPE)`; repeat for several
    #[arg(long = "method", value_name = "METHOD", required = true, value_parser = method)]
    methods: Vec<Value>,
}

impl Http {
    pub(super) fn backend(&self) -> Result<BackendConfig, Failure> {
        made(json!({ "name": "http", "kind": "http", "url": self.url, "method": self.methods }))
    }
}

/// Serve a server that takes JSON-RPC 2.0 over a WebSocket
///
/// The same as a `[[backend]]` of kind `ws` (docs/backends.md), under the name `ws`. Credentials and subscriptions need a
/// `[[backend]]` in the file.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire serve ws ws://127.0.0.1:8000/ws --method 'feed/now(symbol: string)'")]
pub(super) struct Ws {
    /// The URL of the server: wss://…, or ws://… on this machine
    #[arg(value_name = "URL")]
    url: String,
    /// A method of the server: `NAME` or, to let rules look at arguments, `NAME(PARAM: TYPE, PARAM?: TYPE)`; repeat for several
    #[arg(long = "method", value_name = "METHOD", required = true, value_parser = method)]
    methods: Vec<Value>,
}

impl Ws {
    pub(super) fn backend(&self) -> Result<BackendConfig, Failure> {
        made(json!({ "name": "ws", "kind": "ws", "url": self.url, "method": self.methods }))
    }
}

/// An MCP server that no file describes, as `sealwire serve mcp` serves it.
#[derive(Args)]
pub(crate) struct Server {
    /// Prefix for the names of all its methods, followed by a `/`
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// Offer the server's resources as well. Nobody approves what they contain
    #[arg(long)]
    pub(crate) resources: bool,
    /// Offer the server's prompts as well, each once it has been approved
    #[arg(long)]
    pub(crate) prompts: bool,
    /// Speak this revision of the protocol [default: the newest that the server speaks, too]
    #[arg(long, value_name = "REVISION")]
    pub(crate) revision: Option<String>,
    /// The URL of a server over HTTP: https://…, or http://… on this machine
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub(crate) url: Option<String>,
    /// The server and its arguments
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<String>,
}

impl Server {
    /// Whether a server is named.
    pub(crate) fn is_named(&self) -> bool {
        !self.command.is_empty() || self.url.is_some()
    }

    /// Whether there is an option for one.
    pub(crate) fn has_options(&self) -> bool {
        self.prefix.is_some() || self.resources || self.prompts || self.revision.is_some()
    }

    /// Its backend.
    pub(crate) fn backend(self) -> Result<BackendConfig, Failure> {
        let Self { command, url, prefix, resources, prompts, revision } = self;
        made(json!({
            "name": "mcp", "kind": "mcp", "command": command, "url": url, "prefix": prefix, "resources": resources,
            "prompts": prompts, "revision": revision,
        }))
    }
}

/// Parsed like the file, so that nothing is accepted here that the file would not accept.
fn made(backend: Value) -> Result<BackendConfig, Failure> {
    serde_json::from_value(backend).or_fail(Exit::Usage)
}

/// `math/add(a: integer, b?: integer)` as a `[[backend.method]]`.
fn method(text: &str) -> Result<Value, String> {
    let Some((name, rest)) = text.split_once('(') else { return Ok(json!({ "name": text.trim() })) };
    let inside = rest.trim_end().strip_suffix(')').ok_or("the parameters end with `)`")?;
    let mut params = Vec::new();
    for param in inside.split(',').map(str::trim).filter(|param| !param.is_empty()) {
        let (name, kind) = param.split_once(':').ok_or_else(|| format!("`{param}` has no type: write NAME: TYPE"))?;
        let (name, optional) = match name.trim().strip_suffix('?') {
            Some(name) => (name, true),
            None => (name.trim(), false),
        };
        let mut described = Map::new();
        described.insert("name".to_owned(), name.into());
        described.insert("type".to_owned(), kind.trim().into());
        described.insert("optional".to_owned(), optional.into());
        params.push(Value::Object(described));
    }
    Ok(json!({ "name": name.trim(), "params": params }))
}
