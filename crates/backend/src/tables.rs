//! `[[backend]]`: programs whose tools the command `sealwire serve` puts behind the bus.
//! Never says what a backend does with its settings: this is only their format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sealwire::Name;
use sealwire::configure::FileTrust;
use sealwire::decide::{Param, ParamType};
use sealwire::internal::settings::{Kind, Setting};
use sealwire_mcp::Revision;
use serde::Deserialize;

/// What a configuration file has beside the keys of the service.
#[derive(Debug, Clone, Default, Deserialize, Setting)]
#[non_exhaustive]
pub struct BackendTables {
    /// A program whose tools `sealwire serve` puts behind the bus; there may be several (docs/backends.md). A program of your own does not
    /// load a file that has one.
    #[serde(default)]
    #[setting(left_out = "there is none")]
    pub backend: Vec<BackendConfig>,
}

/// `[[backend]]`
///
/// docs/backends.md says which keys each kind accepts; any other key is an error.
///
/// ```toml
/// [[backend]]
/// name = "clock"
/// kind = "stdio"
/// command = ["python3", "clock.py"]
///
/// [[backend.method]]
/// name = "clock/now"
/// params = [{ name = "zone", type = "string" }]
/// ```
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendConfig {
    /// Its name in the log.
    pub name: Name,
    /// What it speaks: one JSON-RPC object per line (`stdio`), the Model Context Protocol over lines or over HTTP (`mcp`), nothing, with a
    /// command for each call (`exec`), HTTP, with a request for each call (`http`), or one JSON-RPC object per message of a WebSocket
    /// (`ws`).
    pub kind: BackendKind,
    /// The program and its arguments, passed on unchanged: no shell reads them. For `exec`, the beginning of each method's command.
    #[serde(default)]
    pub command: Vec<String>,
    /// What the names of all methods of an `mcp` server begin with, before a `/`.
    #[setting(left_out = "nothing")]
    pub prefix: Option<String>,
    /// For `mcp`: the revision of the protocol that is spoken. Some servers can ask people only in an earlier one.
    #[setting(left_out = "the newest that the server speaks, too")]
    pub revision: Option<McpRevision>,
    /// For `mcp`: whether the server's resources are offered. Nobody approves what they contain.
    #[serde(default)]
    pub resources: bool,
    /// For `mcp`: whether the server's prompts are offered, each once it has been approved.
    #[serde(default)]
    pub prompts: bool,
    /// The address of a server that is called over HTTP: `https://…`, or `http://…` on this machine (a loopback address or `localhost`);
    /// for `ws`, `wss://…` and `ws://…`. For kinds that accept it.
    #[setting(left_out = "it is a program")]
    pub url: Option<String>,
    /// Whether `url` may be `http://…` on another machine. Anybody on the path can then read and change everything, credentials included.
    #[serde(default)]
    pub allow_plaintext: bool,
    /// A PEM file with the trust anchors for the server at `url`. Read at the start.
    #[setting(left_out = "those of the system")]
    pub tls_ca: Option<PathBuf>,
    /// Header fields of every request to `url`. No secrets: those are for `credential`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// A header field with a secret, added to every request to `url`. Exactly one of `file`, `folder` and `command` says where the secret
    /// comes from. It is never the caller's token.
    #[serde(default)]
    #[setting(left_out = "there is none")]
    pub credential: Vec<BackendCredentialConfig>,
    /// The folder that its processes run in.
    #[setting(left_out = "that of this file")]
    pub dir: Option<PathBuf>,
    /// Its environment besides `PATH`, `HOME` and `LANG`. A secret is better kept in a file that the program reads, or in `pass_env`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the service's own environment that it gets as well.
    #[serde(default)]
    pub pass_env: Vec<String>,
    /// How many processes of a `stdio` program share the calls.
    #[setting(unit = "processes", min = 1, max = 64, default = Self::PROCESSES)]
    pub processes: Option<usize>,
    /// The most calls in flight. Further calls wait; agents take turns, and a single agent gets at most half.
    #[setting(unit = "calls", min = 1, max = 1024, default = Self::IN_FLIGHT)]
    pub in_flight: Option<usize>,
    /// How long a call may take. A caller's own deadline may be earlier.
    #[setting(unit = "seconds", min = 1, max = 3600, default = Self::TIMEOUT_S)]
    pub timeout_s: Option<u64>,
    /// The memory of each process (`RLIMIT_DATA`).
    #[setting(unit = "MiB", min = 64, max = 1 << 20, default = Self::MEMORY_MIB)]
    pub memory_mib: Option<u64>,
    /// The open files of each process (`RLIMIT_NOFILE`).
    #[setting(unit = "files", min = 32, max = 65_536, default = Self::OPEN_FILES)]
    pub open_files: Option<u64>,
    /// Whether requests name the caller, `{"agent": …, "subject": …}`: for `stdio` and `ws` in the member `caller`, for `mcp` in `_meta` as
    /// `dev.sealwire/caller`. The token is never sent.
    #[setting(default = false)]
    pub send_caller: Option<bool>,
    /// What a program or server (`stdio`, `ws`, `mcp`) may ask callers for while it works on their calls, if they have declared it: a form
    /// for people (`elicitation`), an answer of their model to a text of the server (`sampling`), the folders that they work in (`roots`).
    #[serde(default = "BackendConfig::may_ask")]
    pub may_ask: Vec<BackendQuestion>,
    /// For `http`: whether calls of one caller that arrive within 5 ms go to the server in one `POST`, as a JSON-RPC 2.0 batch of at most
    /// 32 calls and 1 MiB.
    #[serde(default)]
    pub batch: bool,
    /// For `http`: a path at `url`'s origin, such as `/livez`, that returns a success status while the server is available. Requested every
    /// 10 s, and before calls resume.
    #[setting(left_out = "the server is available while it accepts connections")]
    pub health: Option<String>,
    /// A method that the backend offers.
    #[serde(default)]
    #[setting(left_out = "it offers none")]
    pub method: Vec<BackendMethodConfig>,
    /// Whose files are trusted: `[files]` of the configuration.
    #[serde(skip)]
    pub files: FileTrust,
}

/// `[[backend.credential]]`: a header field with a secret.
///
/// Exactly one of `file`, `folder` and `command` says where the secret comes from.
#[derive(Debug, Clone, Default, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendCredentialConfig {
    /// The name of the field.
    #[setting(left_out = "`\"Authorization\"`")]
    pub header: Option<String>,
    /// What precedes the secret and a blank, such as `Bearer`.
    #[setting(left_out = "nothing")]
    pub scheme: Option<String>,
    /// A file with the secret on one line, for its owner alone (mode 0600). Read again when it changes.
    #[setting(left_out = "it comes from elsewhere")]
    pub file: Option<PathBuf>,
    /// A folder with such a file for each agent or subject, named after it: letters, digits, `@ _ + -` and inner dots as they are, any other
    /// byte as `%2F`. Callers without a file there cannot call.
    #[setting(left_out = "it comes from elsewhere")]
    pub folder: Option<PathBuf>,
    /// A command that prints the secret on one line, within 10 s. No shell runs it. Its environment has `env` and `pass_env` and, for a
    /// caller's own secret, `SEALWIRE_AGENT` or `SEALWIRE_SUBJECT`. Run again when the server answers 401.
    #[serde(default)]
    pub command: Vec<String>,
    /// Whose secret it is: the same for all calls, the calling agent's, or that of the subject on whose behalf the agent calls.
    #[serde(default)]
    pub owner: CredentialOwner,
    /// How long a secret that a command printed is used.
    #[setting(unit = "seconds", min = 1, max = 86_400, default = Self::KEEP_S)]
    pub keep_s: Option<u64>,
}

/// What an `mcp` server may ask a caller for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BackendQuestion {
    /// What people fill into a form (`elicitation/create`).
    Elicitation,
    /// What the caller's model says to a text of the server (`sampling/createMessage`).
    Sampling,
    /// The folders that the caller works in (`roots/list`).
    Roots,
}

/// To whom a credential belongs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CredentialOwner {
    /// The same for all calls.
    #[default]
    Service,
    /// The calling agent's.
    Agent,
    /// That of the subject on whose behalf the agent calls.
    Subject,
}

impl BackendCredentialConfig {
    /// The default of [`keep_s`](Self::keep_s).
    pub const KEEP_S: u64 = 300;
}

/// The protocol of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BackendKind {
    /// One JSON-RPC object per line, in both directions.
    Stdio,
    /// The Model Context Protocol, over standard input and output or over HTTP.
    Mcp,
    /// A command for each call.
    Exec,
    /// An HTTP request for each call.
    Http,
    /// One JSON-RPC object per message of a WebSocket, in both directions.
    Ws,
}

/// A revision of the Model Context Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct McpRevision(pub(crate) Revision);

impl Setting for McpRevision {
    fn kind() -> Kind {
        Kind::Choice(&Revision::NAMES)
    }
}

/// `[[backend.method]]`
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendMethodConfig {
    /// The method on the bus, such as `clock/now`.
    pub name: String,
    /// What the backend itself calls it.
    #[setting(left_out = "the same name")]
    pub tool: Option<String>,
    /// A one-line description.
    #[setting(left_out = "nothing")]
    pub description: Option<String>,
    /// Whether callers can subscribe to it: to notifications with this name that a `stdio` program or a `ws` server sends.
    #[serde(default)]
    pub push: bool,
    /// For `exec`: the arguments after the backend's `command`. `{name}` stands for a declared parameter that is an integer, a boolean, or
    /// a string with `allow_argument`; write a literal brace twice.
    #[setting(left_out = "none")]
    pub args: Option<Vec<String>>,
    /// For `exec`: your word that the command reads its standard input as data, and never runs what it reads, as a shell does. Then it gets
    /// the parameters there, as JSON.
    #[setting(left_out = "its standard input is empty")]
    pub stdin: Option<BackendStdin>,
    /// For `exec`, and for `http` with a plain request: whether the answer is JSON or text. It becomes the result. `"jsonrpc"`, for `http`:
    /// JSON-RPC 2.0 responses, whose results are taken out.
    #[setting(left_out = "`\"json\"`")]
    pub output: Option<BackendOutput>,
    /// For `http`: the path of a GET with the JSON-RPC request in its query (`method`, `params`, `id`). The answer is a stream of events
    /// whose data are parts, until `[DONE]`. `"POST"`: the answer to the POST is such a stream, until its end.
    #[setting(left_out = "a POST to `url`")]
    pub stream: Option<String>,
    /// For `http`: a plain request instead of JSON-RPC. `{name}` stands for a declared parameter that is a string, an integer or a boolean;
    /// write a literal brace twice.
    #[setting(left_out = "it is JSON-RPC")]
    pub http: Option<BackendHttpConfig>,
    /// A parameter, for rules on arguments. In the order of their positions, as policy files declare them (docs/policies.md).
    #[setting(left_out = "rules on its arguments need declarations in the policy")]
    pub params: Option<Vec<BackendParamConfig>>,
}

/// `method.http`: a plain request.
///
/// `{name}` stands for a declared parameter; write a literal brace twice, except in `body`.
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendHttpConfig {
    /// The request method.
    #[serde(default)]
    pub verb: BackendVerb,
    /// The whole path at `url`'s origin, such as `/weather/{city}`. A parameter there can be at most one segment of the path.
    pub path: String,
    /// The query: values by name. A value with an optional parameter that the call leaves out is left out, too.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header fields: values by name, as in `query`.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The body: a JSON text in which `{name}` stands for the whole value of a parameter of any type, such as
    /// `{"city": {city}, "days": 3}`; a parameter that the call leaves out becomes `null`.
    #[setting(left_out = "nothing")]
    pub body: Option<String>,
}

/// The method of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "UPPERCASE")]
#[non_exhaustive]
pub enum BackendVerb {
    /// `GET`.
    #[default]
    Get,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
}

/// What a command does with its standard input, by the operator's word: only the command knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BackendStdin {
    /// It reads it as data, and never runs it. It gets the parameters there, as JSON.
    Data,
}

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BackendOutput {
    /// JSON, which is the result.
    Json,
    /// Text, which is the result, without a final line break.
    Text,
    /// For `http`: a JSON-RPC 2.0 response, or a stream of them, each of which is a part.
    JsonRpc,
}

/// A parameter, as policy files declare it.
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendParamConfig {
    /// Its name in a call with named parameters.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: BackendParamType,
    /// Whether a call may leave it out or send `null`.
    #[serde(default)]
    pub optional: bool,
    /// For `exec`: whether a string may be an argument of the command (`args`). It is your word that the command takes it for data there,
    /// and never for code, an option, or a file to open or run. Without it, the command reads the parameter from its standard input.
    #[serde(default)]
    pub allow_argument: bool,
}

/// The type of a parameter, as policy files write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Setting)]
#[non_exhaustive]
pub enum BackendParamType {
    /// A string.
    #[serde(rename = "string")]
    String,
    /// A whole number.
    #[serde(rename = "integer")]
    Integer,
    /// `true` or `false`.
    #[serde(rename = "boolean")]
    Boolean,
    /// A number.
    #[serde(rename = "number")]
    Number,
    /// Anything.
    #[serde(rename = "any")]
    Any,
    /// A list of strings.
    #[serde(rename = "string[]")]
    Strings,
    /// A list of whole numbers.
    #[serde(rename = "integer[]")]
    Integers,
    /// A list of booleans.
    #[serde(rename = "boolean[]")]
    Booleans,
}

impl BackendConfig {
    /// The default of [`processes`](Self::processes).
    pub const PROCESSES: usize = 1;
    /// The default of [`in_flight`](Self::in_flight).
    pub const IN_FLIGHT: usize = 64;
    /// The default of [`timeout_s`](Self::timeout_s).
    pub const TIMEOUT_S: u64 = 60;
    /// The default of `may_ask`.
    pub const MAY_ASK: &'static [BackendQuestion] = &[BackendQuestion::Elicitation];
    /// The default of [`memory_mib`](Self::memory_mib).
    pub const MEMORY_MIB: u64 = 1024;
    /// The default of [`open_files`](Self::open_files).
    pub const OPEN_FILES: u64 = 256;

    fn may_ask() -> Vec<BackendQuestion> {
        Self::MAY_ASK.to_vec()
    }

    pub(crate) fn relative_to(&mut self, folder: &Path) {
        let credentials = self.credential.iter_mut().flat_map(|one| [&mut one.file, &mut one.folder]);
        for path in credentials.chain([&mut self.tls_ca]).flatten() {
            *path = folder.join(&*path);
        }
        self.dir = Some(folder.join(self.dir.take().unwrap_or_default()));
    }
}

impl BackendParamConfig {
    /// The declaration in the router's form.
    #[must_use]
    pub fn declared(&self) -> Param {
        use sealwire::decide::ScalarType;
        let kind = match self.kind {
            BackendParamType::String => ParamType::String,
            BackendParamType::Integer => ParamType::Integer,
            BackendParamType::Boolean => ParamType::Boolean,
            BackendParamType::Number => ParamType::Number,
            BackendParamType::Any => ParamType::Any,
            BackendParamType::Strings => ParamType::List(ScalarType::String),
            BackendParamType::Integers => ParamType::List(ScalarType::Integer),
            BackendParamType::Booleans => ParamType::List(ScalarType::Boolean),
        };
        let param = Param::new(&self.name, kind);
        if self.optional { param.optional() } else { param }
    }
}
