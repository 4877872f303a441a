//! `[[backend]]`: programs whose tools the command `sealwire serve` puts behind the bus.
//! Never says what a backend does with it: this is what can be written, and `sealwire-backend` judges and runs it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::files::FileTrust;
use crate::name::Name;
use crate::policy::{Param, ParamType};

/// `[[backend]]`
///
/// Which keys a kind takes is in docs/backends.md; a key of another kind is an error.
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
    /// What it is called in the log.
    pub name: Name,
    /// What it speaks.
    pub kind: BackendKind,
    /// The program and its arguments; each is handed over as it is, and no shell reads it. Of `exec`, the beginning of each
    /// method's command.
    #[serde(default)]
    pub command: Vec<String>,
    /// What the names of all methods of an `mcp` server begin with, before a `/`; nothing.
    pub prefix: Option<String>,
    /// Where a server is that is asked over HTTP: `https://…`, or `http://…` of this machine. For kinds that take it.
    pub url: Option<String>,
    /// Whether `url` may be `http://…` of another machine: whoever is on the way can read and change everything; false.
    #[serde(default)]
    pub allow_plaintext: bool,
    /// Trust anchors of the server at `url`, a PEM file; those of the system.
    pub tls_ca: Option<PathBuf>,
    /// Header fields of every request to `url`. No secrets.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Header fields of every request to `url` that are secret.
    #[serde(default)]
    pub credential: Vec<BackendCredentialConfig>,
    /// The folder that its processes run in; that of the configuration file.
    pub dir: Option<PathBuf>,
    /// Its environment beside `PATH`, `HOME` and `LANG`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of the service's own environment that it gets as well.
    #[serde(default)]
    pub pass_env: Vec<String>,
    /// How many processes of a `stdio` program share the calls, 1 to 64; 1.
    pub processes: Option<usize>,
    /// The most calls under way at a time, 1 to 1,024; 64. Further ones wait; agents take turns, and one alone gets half.
    pub in_flight: Option<usize>,
    /// How long a call may take in seconds, 1 to 3600; 60. A caller's own deadline may be nearer.
    pub timeout_s: Option<u64>,
    /// The memory of each process in MiB, 64 to 1048576; 1,024.
    pub memory_mib: Option<u64>,
    /// The open files of each process, 32 to 65536; 256.
    pub open_files: Option<u64>,
    /// Whether requests say who calls, `{"agent": …, "subject": …}`: those of `stdio` as the member `caller`, those of `mcp` in
    /// `_meta` as `dev.sealwire/caller`; false. Never the token.
    pub send_caller: Option<bool>,
    /// Of `http`: whether calls of one caller that come at the same time go to the server in one `POST`, as a batch of JSON-RPC;
    /// false.
    #[serde(default)]
    pub batch: bool,
    /// Of `http`: a path at `url`'s origin that answers with a status of success while the server is there.
    pub health: Option<String>,
    /// What it offers.
    #[serde(default)]
    pub method: Vec<BackendMethodConfig>,
    /// Whose files are believed: `[files]` of the configuration.
    #[serde(skip)]
    pub files: FileTrust,
}

/// `[[backend.credential]]`: a header field with a secret.
///
/// Exactly one of `file`, `folder` and `command` says where it comes from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendCredentialConfig {
    /// The name of the field; `Authorization`.
    pub header: Option<String>,
    /// What stands before the secret, and a blank: `Bearer`; nothing.
    pub scheme: Option<String>,
    /// A file with the secret on one line. Read again when it changes.
    pub file: Option<PathBuf>,
    /// A folder with such a file for each owner.
    pub folder: Option<PathBuf>,
    /// A command that prints the secret on one line. No shell runs it.
    #[serde(default)]
    pub command: Vec<String>,
    /// Whose it is; the service's.
    #[serde(default)]
    pub owner: CredentialOwner,
    /// How long what a command has printed is used, in seconds, 1 to 86400; 300.
    pub keep_s: Option<u64>,
}

/// Whose a credential is.
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
    /// See [`keep_s`](Self::keep_s).
    pub const KEEP_S: u64 = 300;
}

/// What a backend speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BackendKind {
    /// A JSON-RPC object a line, in both directions.
    Stdio,
    /// The Model Context Protocol, over standard input and output or over HTTP.
    Mcp,
    /// A command for each call.
    Exec,
    /// A request over HTTP for each call.
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
    /// A line about it.
    pub description: Option<String>,
    /// Its parameters, in the order of their positions, for rules on arguments.
    pub params: Option<Vec<BackendParamConfig>>,
    /// Whether it is something to listen to: notifications of this name that the program sends, with no call under way.
    #[serde(default)]
    pub push: bool,
    /// Of `exec`: what follows on the backend's `command`; `{name}` stands for a declared parameter.
    pub args: Option<Vec<String>>,
    /// Of `exec` and of `http` requests: what the answer is; `json`.
    pub output: Option<BackendOutput>,
    /// Of `http`: the path of a GET that has the JSON-RPC request in its query, and is answered by a stream of events.
    pub stream: Option<String>,
    /// Of `http`: a plain request in place of JSON-RPC.
    pub http: Option<BackendHttpConfig>,
}

/// `method.http`: a request.
///
/// `{name}` stands for a declared parameter; a brace is written twice, except in `body`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BackendHttpConfig {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`; `GET`.
    #[serde(default)]
    pub verb: BackendVerb,
    /// The whole path at `url`'s origin, `/weather/{city}`.
    pub path: String,
    /// The query: values by names.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header fields: values by names.
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

/// What an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BackendOutput {
    /// JSON, which is the result.
    Json,
    /// A text, which is the result without a line's end behind it.
    Text,
}

/// A parameter, as policy files declare one.
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
    /// A text.
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
    /// A list of texts.
    #[serde(rename = "string[]")]
    Strings,
    /// A list of whole numbers.
    #[serde(rename = "integer[]")]
    Integers,
    /// A list of truth values.
    #[serde(rename = "boolean[]")]
    Booleans,
}

impl BackendConfig {
    /// See [`processes`](Self::processes).
    pub const PROCESSES: usize = 1;
    /// See [`in_flight`](Self::in_flight).
    pub const IN_FLIGHT: usize = 64;
    /// See [`timeout_s`](Self::timeout_s).
    pub const TIMEOUT_S: u64 = 60;
    /// See [`memory_mib`](Self::memory_mib).
    pub const MEMORY_MIB: u64 = 1024;
    /// See [`open_files`](Self::open_files).
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
    /// As the router takes it.
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
