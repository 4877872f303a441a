//! What the commands that talk to a service share: credentials, deadlines, and how errors are reported.
//! Never prints as a result anything that was not verified.

pub(crate) mod approvals;
mod attach;
mod await_approval;
pub(crate) mod batch;
pub(crate) mod bench;
pub(crate) mod discover;
pub(crate) mod notify;
mod outcome;
pub(crate) mod reach;
mod repeat;
pub(crate) mod send;
pub(crate) mod single;
pub(crate) mod stream;
mod suspect;
pub(crate) mod task;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use sealwire::call::TaskState;
use sealwire::errors::{BusError, ErrorKind, HintKind, code};
use sealwire::{Client, ClientError, Credentials, MethodName, Name, RequestBuilder, RpcError};
use serde_json::value::RawValue;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::when;

/// The calling agent, and how it calls.
#[derive(Args)]
pub(crate) struct Options {
    /// The agent's credentials file, as created by `sealwire keys new-agent`
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    /// How long everything may take; default 10s, or 10m with --stream or --attach. The service knows this deadline and starts
    /// nothing after it
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    deadline: Option<Duration>,
    /// How long to wait for a service that is not listening yet, for example because it has just been started, or that does
    /// not know this agent's key yet. The message is sent only then, and once
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    wait: Option<Duration>,
    /// Running the method twice does no harm: retry after a refusal or a lost connection, within the deadline
    #[arg(long)]
    idempotent: bool,
}

impl Options {
    /// Connects, does `work`, and waits until everything is written. If a signal should cancel a request at the service, make the
    /// request with [`Options::cancellable`].
    fn run<T, W, F>(&self, service: &str, out: &Output, work: W) -> Result<T, Failure>
    where
        W: FnOnce(Client, Signals) -> F,
        F: Future<Output = Result<T, ClientError>>,
    {
        self.run_until_stopped(service, out, async |client: Client, signals: Signals, credentials| {
            match work(client, signals.clone()).await {
                Ok(done) => Ok(done),
                Err(error) => Err(match stopped(&error, &signals) {
                    Some(failure) => failure,
                    None => failed(error, &credentials, service).await,
                }),
            }
        })
    }

    /// Connects and does `work`, which must itself end on a signal. A signal before `work` begins ends everything.
    fn run_until_stopped<T, F>(
        &self,
        service: &str,
        out: &Output,
        work: impl FnOnce(Client, Signals, Credentials) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let credentials = credentials(self.creds.as_deref())?;
        let signals = Signals::listen(None)?;
        block_on(async {
            let Some(client) = signals.unless_stopped(Client::connect(credentials.clone())).await else {
                return Err(unsent());
            };
            let client = client.map_err(|error| unconnected(error, &credentials))?;
            let done = match signals.unless_stopped(self.listened(&client, service, out)).await {
                None => Err(unsent()),
                Some(Err(error)) => Err(failed(error, &credentials, service).await),
                Some(Ok(())) => work(client.clone(), signals.clone(), credentials).await,
            };
            if signals.unless_stopped(client.close()).await.is_none() {
                // Closing cancels abandoned calls at the service. The time is limited, since a silent broker accepts nothing.
                drop(tokio::time::timeout(CLOSED_WITHIN, client.close()).await);
            }
            done
        })?
    }

    /// Waits for the service if `--wait` is given.
    async fn listened(&self, client: &Client, service: &str, out: &Output) -> Result<(), ClientError> {
        match self.wait {
            Some(limit) => {
                let _working = out.working(&format!("waiting for the service `{service}`"));
                let started = Instant::now();
                client.wait_for(service, limit).await?;
                // The service knows a new key once it has reread its files.
                while started.elapsed() + KNOWN_AGAIN < limit && !is_known(client, service).await {
                    tokio::time::sleep(KNOWN_AGAIN).await;
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A request that a signal cancels at the service.
    fn cancellable(&self, client: &Client, service: &str, signals: &Signals) -> RequestBuilder {
        self.request(client, service).cancel_on(signals.stop())
    }

    fn request(&self, client: &Client, service: &str) -> RequestBuilder {
        let request = client.request(service).deadline(self.deadline.unwrap_or(DEADLINE));
        if self.idempotent { request.idempotent() } else { request }
    }
}

/// How long a call may take by default, without and with `--stream` or `--attach`.
const DEADLINE: Duration = Duration::from_secs(10);
const STREAM_DEADLINE: Duration = Duration::from_secs(600);

/// How long a stopped command may still take to write what is left.
const CLOSED_WITHIN: Duration = Duration::from_millis(200);

/// How often a service is asked whether it knows an agent.
const KNOWN_AGAIN: Duration = Duration::from_millis(200);

/// Whether the service knows the caller, as far as its hints tell. The request is not a valid call, so it runs nothing.
async fn is_known(client: &Client, service: &str) -> bool {
    let asked = client.request(service).deadline(Duration::from_secs(2)).send_raw("{}").await;
    !matches!(asked, Err(ClientError::Hint { hint: HintKind::Unauthenticated }))
}

pub(crate) fn credentials(path: Option<&Path>) -> Result<Credentials, Failure> {
    // An empty variable counts as not set.
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
        let failure = Failure::new(Exit::Usage, "as which agent? name its credentials with --creds or SEALWIRE_CREDS");
        return Err(failure.help(format!("for example: export SEALWIRE_CREDS={}", nearby())));
    };
    Credentials::load(path).or_fail(Exit::Input).map_err(|failure| {
        if path.exists() {
            return failure;
        }
        failure.help("`--creds` or SEALWIRE_CREDS names the file; a relative path is relative to the current folder")
    })
}

/// A credentials file in the current folder or in the one of `sealwire dev`, as an example.
fn nearby() -> String {
    let names = ["", "sealwire-dev/"].into_iter().flat_map(|folder| {
        let entries = std::fs::read_dir(if folder.is_empty() { "." } else { folder }).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names.into_iter().map(move |name| format!("{folder}{name}"))
    });
    // Only names that a shell takes without quotes.
    let is_plain = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    let found = names.filter(is_plain).find(|name| name.ends_with(".creds.json"));
    found.unwrap_or_else(|| "sealwire-dev/planner.creds.json".to_owned())
}

/// The arguments of `call`, `notify` and other commands that name a method: what is sent, and where.
#[derive(Args)]
struct Words {
    /// The service
    #[arg(value_name = "SERVICE")]
    service: String,
    /// The method
    #[arg(value_name = "METHOD")]
    method: String,
    /// The parameters: a JSON object (by name) or array (by position); `-` reads them from stdin
    #[arg(value_name = "PARAMS", allow_hyphen_values = true)]
    params: Option<String>,
    /// The rest of parameters that were not quoted
    #[arg(value_name = "MORE", hide = true)]
    more: Vec<String>,
    /// Publish on the method's own subject instead of the service's
    #[arg(long)]
    method_subject: bool,
}

impl Words {
    /// The parameters from the command line or stdin, exactly as written: `1e2` is not `100` to everybody. Catches beginners'
    /// mistakes before anything is sent.
    fn params(&self, command: &str) -> Result<Option<Box<RawValue>>, Failure> {
        self.check(command)?;
        let Some(argument) = self.params.clone() else { return Ok(None) };
        let text = crate::files::argument_or_stdin(Some(argument), "the parameters")?;
        let raw: Box<RawValue> = serde_json::from_str(&text).map_err(|error| {
            Failure::input(format!("the parameters are not JSON: {error}"))
                .help("quote them for the shell, for example '{\"a\":2,\"b\":3}' or '[2,3]'")
        })?;
        if !raw.get().starts_with(['{', '[']) {
            let failure = Failure::input("the parameters are neither an object nor an array");
            return Err(failure.help("JSON-RPC takes them by name, '{\"a\":2}', or by position, '[2]'"));
        }
        Ok(Some(raw))
    }

    fn check(&self, command: &str) -> Result<(), Failure> {
        let (service, method) = (self.service.as_str(), self.method.as_str());
        let (params, more) = (self.params.as_deref(), self.more.as_slice());
        let quoted =
            |word: &str| if word.contains([' ', '[', '{', '"']) { format!("'{word}'") } else { word.to_owned() };
        if Name::new(service).is_err() && MethodName::new(service).is_ok() {
            let failure = Failure::input(format!("`{service}` is the name of a method: SERVICE is missing"));
            // Service and method in the wrong order, or no service at all.
            let is_swapped = Name::new(method).is_ok()
                && (params.is_none() || params.is_some_and(|text| text.starts_with(['{', '['])));
            let (found, first) = if is_swapped { (method, None) } else { ("demo", Some(method)) };
            let words = first.into_iter().chain(params).chain(more.iter().map(String::as_str)).map(quoted);
            let words: String = words.map(|word| format!(" {word}")).collect();
            return Err(failure.help(format!("for example: sealwire {command} {found} {service}{words}")));
        }
        Name::new(service).or_fail(Exit::Input)?;
        MethodName::new(method).or_fail(Exit::Input)?;
        if !more.is_empty() {
            let failure = Failure::input("the parameters must be one JSON text, and these are several words");
            let words: Vec<&str> = params.into_iter().chain(more.iter().map(String::as_str)).collect();
            let quoted = match words.iter().map(|word| member(word)).collect::<Option<Vec<_>>>() {
                Some(members) => format!("'{{{}}}'", members.join(", ")),
                None => format!("'[{}]'", words.into_iter().map(json_word).collect::<Vec<_>>().join(", ")),
            };
            return Err(failure.help(format!("quote them as JSON: {quoted}")));
        }
        Ok(())
    }

    fn request(&self, request: RequestBuilder) -> RequestBuilder {
        if self.method_subject { request.on_method_subject() } else { request }
    }
}

/// Restores an object member that a shell has stripped of its quotes: `a:2`, from an unquoted `{"a":2,"b":3}`.
fn member(word: &str) -> Option<String> {
    let (name, value) = word.trim_matches(['{', '}', ',']).split_once(':')?;
    let name = name.trim_matches('"');
    Name::new(name).ok().map(|name| format!("\"{name}\": {}", json_word(value)))
}

/// A word as JSON: as it is if it is valid JSON, otherwise as a string.
fn json_word(word: &str) -> String {
    match serde_json::from_str::<Box<RawValue>>(word) {
        Ok(json) => json.get().to_owned(),
        Err(_) => serde_json::Value::from(word).to_string(),
    }
}

/// Why there is no connection.
fn unconnected(error: ClientError, credentials: &Credentials) -> Failure {
    let refused = matches!(error, ClientError::Connect(BusError::Refused { .. }));
    let failure = failure(error);
    if !refused {
        return failure;
    }
    let agent = credentials.agent();
    failure.help(format!(
        "the agent `{agent}` needs a user at the broker, in its credentials; for a broker of `sealwire dev`: sealwire dev \
         add-agent {agent}"
    ))
}

/// A signal came during something that runs nothing at the service, or that the service never confirms.
fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "stopped by a signal")
}

/// A signal came before anything was sent.
fn unsent() -> Failure {
    Failure::new(Exit::Interrupted, "stopped by a signal, before anything was sent")
}

/// The failure of a call that a signal ended.
fn ended_by_signal(is_confirmed: bool) -> Failure {
    Failure::new(
        Exit::Interrupted,
        if is_confirmed {
            "stopped by a signal: the service has cancelled the call"
        } else {
            "stopped by a signal: the service was told to cancel the call, and has not confirmed it; outcome unknown"
        },
    )
}

/// The failure of a call if a signal ended it.
fn stopped(error: &ClientError, signals: &Signals) -> Option<Failure> {
    match error {
        ClientError::Cancelled { sent: false } => Some(unsent()),
        ClientError::Cancelled { sent: true } => Some(ended_by_signal(false)),
        ClientError::Remote(error) if error.profile_code() == Some(code::CANCELLED) && signals.has_come() => {
            Some(ended_by_signal(true))
        }
        ClientError::Remote(error) if error.profile_code() == Some(code::APPROVAL_REQUIRED) && signals.has_come() => {
            Some(Failure::new(Exit::Interrupted, "stopped by a signal: the call waits for approval, and has not run"))
        }
        _ => None,
    }
}

/// The failure of a call, with its cause if our own files reveal it.
async fn failed(error: ClientError, credentials: &Credentials, service: &str) -> Failure {
    let unknown = matches!(error, ClientError::Hint { hint: HintKind::Unauthenticated });
    let failure = failure(error);
    if unknown { suspect::told(failure, credentials, service).await } else { failure }
}

/// The failure of a call.
fn failure(error: ClientError) -> Failure {
    let exit = exit(&error);
    let failure = Failure::of(exit, &error);
    let failure = match error.remote() {
        Some(rpc) => failure.rpc(rpc.clone()),
        None => failure,
    };
    match error {
        ClientError::NoResponders { .. } => failure.help("`--wait 10s` waits for a service that has just started"),
        ClientError::ResultTooLarge { .. } => failure.help("`--max-bytes` sets the limit"),
        ClientError::Token(_) => failure.help(
            "`sealwire token inspect` shows what it contains; for development: sealwire token issue … --out FILE",
        ),
        ClientError::Invalid(sealwire::errors::InvalidRequest::NoServiceKey { service }) => {
            failure.help(format!("sealwire keys pin CREDS --service {service} --kid … --x …"))
        }
        _ => failure,
    }
}

/// How a command ends because of an error: by its kind, and for an error of the service, by its code.
fn exit(error: &ClientError) -> Exit {
    match error.kind() {
        ErrorKind::Remote => match error.remote().and_then(RpcError::profile_code) {
            // A call that a policy change ended has run in part, so it is not `Denied`.
            Some(code::PERMISSION_DENIED) if !error.is_outcome_unknown() => Exit::Denied,
            Some(code::APPROVAL_REQUIRED) => Exit::Pending,
            // The service itself reports this; neither side knows how far the method got.
            Some(code::TIMEOUT) => Exit::Timeout,
            _ => Exit::Remote,
        },
        ErrorKind::Clock => Exit::Remote,
        // It still runs, or nobody knows what it did.
        ErrorKind::Task if matches!(error, ClientError::Task(TaskState::Working | TaskState::Unknown)) => Exit::Timeout,
        ErrorKind::Task => Exit::Remote,
        // The call ran, and its result is there, but not as it was asked for.
        ErrorKind::ResultTooLarge => Exit::Remote,
        ErrorKind::Decode if !error.is_outcome_unknown() => Exit::Remote,
        // The service signed it, so waiting or asking again does not help, and it says nothing about the outcome.
        ErrorKind::Protocol | ErrorKind::Decode => Exit::Protocol,
        ErrorKind::Hint | ErrorKind::Unverifiable => Exit::Unverified,
        // In both cases nothing more came, and nobody knows how far the method got.
        ErrorKind::Timeout | ErrorKind::StreamLost => Exit::Timeout,
        // Nothing was tried: the addresses or the files in the credentials are wrong.
        ErrorKind::Connect if is_ours(error) => Exit::Input,
        ErrorKind::Connect
        | ErrorKind::Disconnected
        | ErrorKind::Forbidden
        | ErrorKind::NoResponders
        | ErrorKind::ConnectionLost
        | ErrorKind::Busy => Exit::Transport,
        ErrorKind::Cancelled => Exit::Interrupted,
        ErrorKind::Credentials | ErrorKind::Invalid | ErrorKind::Token | ErrorKind::TooLarge => Exit::Input,
        // The command itself has closed its client, or goes on reading a stream that has ended.
        ErrorKind::Ended | ErrorKind::Closed => Exit::Bug,
        // A kind that this table does not know. The test below says so.
        _ => Exit::Bug,
    }
}

fn is_ours(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Connect(BusError::NoUrl | BusError::Member { .. } | BusError::Creds { .. } | BusError::Secret(_))
    )
}

/// How a message with several errors ends: the first that is no denial, or a denial.
fn of_several(mut errors: impl Iterator<Item = Exit>) -> Exit {
    let Some(first) = errors.next() else { return Exit::Ok };
    std::iter::once(first).chain(errors).find(|exit| *exit != Exit::Denied).unwrap_or(first)
}

#[cfg(test)]
mod tests;
