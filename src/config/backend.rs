//! `[[backend]]`: programs whose tools the command `sealwire serve` puts behind the bus.
//! Never says what a backend does with its settings: this is only their format; `sealwire-backend` checks and runs them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::files::FileTrust;
use crate::name::Name;
use crate::policy::{Param, ParamType};

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
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendConfig {
    /// Its name in the log.
    pub name: Name,
    /// What it speaks.
    pub kind: BackendKind,
    /// The program and its arguments, passed on unchanged: no shell reads them. For `exec`, the beginning of each
    /// method's command.
    #[serde(default)]
    pub command: Vec<String>,
    /// What the names of all methods of an `mcp` server begin with, before a `/`; nothing.
    pub prefix: Option<String>,
    /// The address of a server that is called over HTTP: `https://…`, or `http://…` on this machine. For kinds that accept it.
    pub url: Option<String>,
    /// Whether `url` may be `http://…` on another machine, where anybody on the path can read and change everything; false.
    #[serde(default)]
    pub allow_plaintext: bool,
    /// A PEM file with the trust anchors for the server at `url`; the system's.
    pub tls_ca: Option<PathBuf>,
    /// Header fields of every request to `url`. No secrets.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Header fields with secrets, added to every request to `url`.
    #[serde(default)]
    pub credential: Vec<BackendCredentialConfig>,
    /// The folder that its processes run in; that of the configuration file.
    pub dir: Option<PathBuf>,
    /// Its environment besides `PATH`, `HOME` and `LANG`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the service's own environment that it gets as well.
    #[serde(default)]
    pub pass_env: Vec<String>,
    /// How many processes of a `stdio` program share the calls, 1 to 64; 1.
    pub processes: Option<usize>,
    /// The most calls in flight, 1 to 1,024; 64. Further calls wait; agents take turns, and a single agent gets at most half.
    pub in_flight: Option<usize>,
    /// How long a call may take in seconds, 1 to 3600; 60. A caller's own deadline may be earlier.
    pub timeout_s: Option<u64>,
    /// The memory of each process in MiB, 64 to 1048576; 1,024.
    pub memory_mib: Option<u64>,
    /// The open files of each process, 32 to 65536; 256.
    pub open_files: Option<u64>,
    /// Whether requests name the caller, `{"agent": …, "subject": …}`: for `stdio` in the member `caller`, for `mcp` in
    /// `_meta` as `dev.sealwire/caller`; false. The token is never sent.
    pub send_caller: Option<bool>,
    /// For `http`: whether calls of one caller that arrive at the same time go to the server in one `POST`, as a
    /// JSON-RPC batch; false.
    #[serde(default)]
    pub batch: bool,
    /// For `http`: a path at `url`'s origin that returns a success status while the server is available.
    pub health: Option<String>,
    /// The methods that it offers.
    #[serde(default)]
    pub method: Vec<BackendMethodConfig>,
    /// Whose files are trusted: `[files]` of the configuration.
    #[serde(skip)]
    pub files: FileTrust,
}

/// `[[backend.credential]]`: a header field with a secret.
///
/// Exactly one of `file`, `folder` and `command` says where the secret comes from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendCredentialConfig {
    /// The name of the field; `Authorization`.
    pub header: Option<String>,
    /// What precedes the secret and a blank, such as `Bearer`; nothing.
    pub scheme: Option<String>,
    /// A file with the secret on one line. Read again when it changes.
    pub file: Option<PathBuf>,
    /// A folder with such a file for each owner.
    pub folder: Option<PathBuf>,
    /// A command that prints the secret on one line. No shell runs it.
    #[serde(default)]
    pub command: Vec<String>,
    /// Whose secret it is; the service's.
    #[serde(default)]
    pub owner: CredentialOwner,
    /// How long a secret that a command printed is used, in seconds, 1 to 86400; 300.
    pub keep_s: Option<u64>,
}

/// To whom a credential belongs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
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
}

/// `[[backend.method]]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendMethodConfig {
    /// The method on the bus.
    pub name: String,
    /// What the backend itself calls it; the same name.
    pub tool: Option<String>,
    /// A one-line description.
    pub description: Option<String>,
    /// Its parameters, in the order of their positions, for rules on arguments.
    pub params: Option<Vec<BackendParamConfig>>,
    /// Whether callers can subscribe to it: to notifications with this name that the program sends outside of any call.
    #[serde(default)]
    pub push: bool,
    /// For `exec`: the arguments after the backend's `command`; `{name}` stands for a declared parameter.
    pub args: Option<Vec<String>>,
    /// For `exec` and plain `http` requests: whether the answer is JSON or text; `json`.
    pub output: Option<BackendOutput>,
    /// For `http`: the path of a GET with the JSON-RPC request in its query, which a stream of events answers.
    pub stream: Option<String>,
    /// For `http`: a plain request instead of JSON-RPC.
    pub http: Option<BackendHttpConfig>,
}

/// `method.http`: a plain request.
///
/// `{name}` stands for a declared parameter; write a literal brace twice, except in `body`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendHttpConfig {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`; `GET`.
    #[serde(default)]
    pub verb: BackendVerb,
    /// The whole path at `url`'s origin, `/weather/{city}`.
    pub path: String,
    /// The query: values by name.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header fields: values by name.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The body, a JSON text in which a parameter stands for a whole value: `{"city": {city}}`.
    pub body: Option<String>,
}

/// The method of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
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

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BackendOutput {
    /// JSON, which is the result.
    Json,
    /// Text, which is the result, without a final line break.
    Text,
}

/// A parameter, as policy files declare it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendParamConfig {
    /// The name in a call with named parameters.
    pub name: String,
    /// The type, as in policy files.
    #[serde(rename = "type")]
    pub kind: BackendParamType,
    /// Whether a call may leave it out or send null; false.
    #[serde(default)]
    pub optional: bool,
}

/// The type of a parameter, as policy files write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
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
    /// The default of [`memory_mib`](Self::memory_mib).
    pub const MEMORY_MIB: u64 = 1024;
    /// The default of [`open_files`](Self::open_files).
    pub const OPEN_FILES: u64 = 256;

    pub(super) fn relative_to(&mut self, folder: &Path) {
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
        use crate::policy::ScalarType;
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
