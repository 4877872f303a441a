//! The identity of a client: its agent, its key, where its token comes from, and where the broker is.
//! Never reads a file that others can read, and never shows a secret.

mod file;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::token::{CommandToken, FileToken, StaticToken, TokenSource};
use crate::files::SecretFileError;
use crate::name::Name;
use crate::nats::{BusConfig, BusError};
use crate::wire::{AgentKey, Endpoint, EndpointError, KeyError, ServicePublicKey};

/// What a client needs to make calls as an agent. Cloning shares the key.
///
/// Usually read from a file, whose format is in SPEC.md; a program can also build them:
///
/// ```
/// use sealwire::configure::ProofAlgorithm;
/// use sealwire::Credentials;
/// use sealwire::configure::AgentKey;
/// use sealwire::{BusConfig, Name};
///
/// let key = AgentKey::generate("planner.k1", ProofAlgorithm::Hs256)?;
/// let credentials = Credentials::new(Name::new("dev")?, Name::new("planner")?, key, BusConfig::open("nats://127.0.0.1:4222"))
///     .token_file("/run/planner.jwt");
/// assert_eq!(credentials.agent().as_str(), "planner");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Credentials {
    environment: Name,
    agent: Name,
    key: Arc<AgentKey>,
    token: Token,
    bus: BusConfig,
    prefix: String,
    inbox_prefix: String,
    service_keys: BTreeMap<Name, Vec<ServicePublicKey>>,
    method_subjects: bool,
    /// The folder that relative file names start from.
    folder: PathBuf,
}

#[derive(Clone)]
enum Token {
    None,
    Text(Zeroizing<String>),
    File(PathBuf),
    Command(Vec<String>),
    Source(Arc<dyn TokenSource>),
}

/// Why credentials cannot be read, used or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The file cannot be read or written, or others can read it.
    #[error("credentials: {0}")]
    File(#[from] SecretFileError),
    /// The file is not in the expected form. The text never quotes values, which may be secrets.
    #[error("credentials `{}`, line {line}, column {column}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A member has an invalid value.
    #[error("credentials `{}`: {fault}", path.display())]
    Member {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: MemberFault,
    },
    /// There is no token to go with the key.
    #[error("the credentials have no access token: set a token, a token file, a token command or a token source")]
    NoToken,
    /// A custom token source cannot be written to a file.
    #[error("credentials with a token source of your own cannot be saved: use a token file or a token command")]
    NotSaveable,
}

/// What is wrong with a member of a credentials file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberFault {
    /// `version`.
    #[error("`version` is {0}; this program reads version 1")]
    Version(u64),
    /// `environment`, `agent` or a name in `service_keys`.
    #[error("`{0}` is not a name: 1 to 64 of A-Z a-z 0-9 _ - are allowed")]
    Name(&'static str),
    /// `key`.
    #[error("`key`: {0}")]
    Key(KeyError),
    /// `key` has no member that fits its `alg`.
    #[error("`key` needs `secret` for HS256, or `seed` for EdDSA, and not the other one")]
    KeyMember,
    /// None, or more than one, of `token`, `token_file` and `token_command`.
    #[error("exactly one of `token`, `token_file` and `token_command` is needed")]
    Token,
    /// `token_command` is empty.
    #[error("`token_command` is an array of a program and its arguments")]
    Command,
    /// `prefix` or `inbox_prefix`.
    #[error("{0}")]
    Prefix(EndpointError),
    /// `service_keys`.
    #[error("`service_keys`: {0}")]
    ServiceKey(KeyError),
    /// A key in `service_keys` that belongs to another service.
    #[error(
        "`service_keys`: a kid does not begin with `svc:<environment>/<service>:` of the service that it is listed under"
    )]
    OtherService,
    /// `nats`.
    #[error("`nats`: {0}")]
    Nats(BusError),
}

impl Credentials {
    /// The credentials of `agent`, without a token: add one with [`Credentials::token`], [`Credentials::token_file`],
    /// [`Credentials::token_command`] or [`Credentials::token_source`].
    #[must_use]
    pub fn new(environment: Name, agent: Name, key: AgentKey, bus: BusConfig) -> Self {
        Self {
            environment,
            agent,
            key: Arc::new(key),
            token: Token::None,
            bus,
            prefix: Endpoint::PREFIX.to_owned(),
            inbox_prefix: Endpoint::INBOX_PREFIX.to_owned(),
            service_keys: BTreeMap::new(),
            method_subjects: false,
            folder: PathBuf::new(),
        }
    }

    /// Uses this access token until it expires.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Token::Text(Zeroizing::new(token.into()));
        self
    }

    /// Reads the access token from a file, and again when it changes. A relative name starts from the credentials
    /// file's folder, or from the working directory if there is no such file.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Token::File(path.into());
        self
    }

    /// Gets the access token from the output of a program: the program and its arguments. It is run in the credentials
    /// file's folder, and again before each token expires.
    #[must_use]
    pub fn token_command(mut self, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.token = Token::Command(command.into_iter().map(Into::into).collect());
        self
    }

    /// Gets access tokens from a source of your own.
    #[must_use]
    pub fn token_source(mut self, source: impl TokenSource) -> Self {
        self.token = Token::Source(Arc::new(source));
        self
    }

    /// Prefixes other than `rpc.v1` and `_INBOX`.
    ///
    /// # Errors
    /// [`EndpointError`] if one does not consist of subject tokens, or begins with the other.
    pub fn prefixes(mut self, prefix: &str, inbox_prefix: &str) -> Result<Self, EndpointError> {
        // Any service will do: the rules only concern the prefixes.
        Endpoint::new(self.environment.clone(), self.agent.clone()).with_prefixes(prefix, inbox_prefix)?;
        self.prefix = prefix.to_owned();
        self.inbox_prefix = inbox_prefix.to_owned();
        Ok(self)
    }

    /// Pins the keys of a service, which an Ed25519 agent needs to verify its answers.
    #[must_use]
    pub fn service_keys(mut self, service: Name, keys: Vec<ServicePublicKey>) -> Self {
        self.service_keys.insert(service, keys);
        self
    }

    /// Whether each single call and notification goes to the subject of its method, for brokers that permit single methods
    /// (`sealwire policy compile`). A batch has no method, and always goes to the agent's plain subject.
    #[must_use]
    pub fn method_subjects(mut self, wanted: bool) -> Self {
        self.method_subjects = wanted;
        self
    }

    /// See [`Credentials::method_subjects`].
    pub(super) fn has_method_subjects(&self) -> bool {
        self.method_subjects
    }

    /// Replaces the addresses of the broker.
    #[must_use]
    pub fn urls(mut self, urls: Vec<String>) -> Self {
        self.bus.urls = urls;
        self
    }

    /// Replaces the agent's key, after a rotation.
    #[must_use]
    pub fn with_key(mut self, key: AgentKey) -> Self {
        self.key = Arc::new(key);
        self
    }

    /// The environment.
    #[must_use]
    pub fn environment(&self) -> &Name {
        &self.environment
    }

    /// The agent.
    #[must_use]
    pub fn agent(&self) -> &Name {
        &self.agent
    }

    /// The key id under which this agent signs.
    #[must_use]
    pub fn kid(&self) -> &str {
        self.key.kid()
    }

    /// The prefix of this agent's reply subjects, without a final dot: `_INBOX.<agent>`.
    pub(super) fn inbox(&self) -> String {
        format!("{}.{}", self.inbox_prefix, self.agent)
    }

    /// The agent's signing key.
    #[must_use]
    pub fn key(&self) -> &AgentKey {
        &self.key
    }

    /// How to reach the broker, with absolute file names if the credentials came from a file.
    #[must_use]
    pub fn bus(&self) -> BusConfig {
        self.bus.clone().relative_to(&self.folder)
    }

    /// Where the tokens come from.
    ///
    /// # Errors
    /// [`CredentialsError::NoToken`].
    pub fn tokens(&self) -> Result<Arc<dyn TokenSource>, CredentialsError> {
        Ok(match &self.token {
            Token::None => return Err(CredentialsError::NoToken),
            Token::Text(token) => Arc::new(StaticToken::new(token.as_str())),
            Token::File(path) => Arc::new(FileToken::new(self.folder.join(path))),
            Token::Command(command) => match command.split_first() {
                Some((program, arguments)) => {
                    Arc::new(CommandToken::new(program, arguments.iter().cloned(), &self.folder))
                }
                None => return Err(CredentialsError::NoToken),
            },
            Token::Source(source) => Arc::clone(source),
        })
    }

    /// The endpoint of a service, with this agent's prefixes.
    ///
    /// # Errors
    /// [`EndpointError`]; prefixes were checked when they were set.
    #[doc(hidden)]
    pub fn endpoint(&self, service: Name) -> Result<Endpoint, EndpointError> {
        Endpoint::new(self.environment.clone(), service).with_prefixes(&self.prefix, &self.inbox_prefix)
    }

    /// The services whose keys are pinned, by name.
    pub fn services(&self) -> impl Iterator<Item = &Name> {
        self.service_keys.keys()
    }

    /// The pinned keys of a service; empty if there are none.
    #[must_use]
    pub fn pinned(&self, service: &Name) -> Vec<ServicePublicKey> {
        self.service_keys.get(service).cloned().unwrap_or_default()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = match &self.token {
            Token::None => "none",
            Token::Text(_) => "given",
            Token::File(_) => "from a file",
            Token::Command(_) => "from a command",
            Token::Source(_) => "from a source",
        };
        f.debug_struct("Credentials")
            .field("environment", &self.environment)
            .field("agent", &self.agent)
            .field("key", &self.key)
            .field("token", &token)
            .field("bus", &self.bus)
            .finish_non_exhaustive()
    }
}
