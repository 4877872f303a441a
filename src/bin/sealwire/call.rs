//! What the commands that talk to a service have in common: whose credentials, how long, and how an error is told.
//! Never prints anything as a result that was not verified.

pub(crate) mod batch;
pub(crate) mod notify;
pub(crate) mod reach;
mod repeat;
pub(crate) mod send;
pub(crate) mod single;
mod suspect;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use sealwire::client::{Client, ClientError, Credentials, ErrorKind, HintKind, RequestBuilder};
use sealwire::rpc::{RpcError, code};
use sealwire::{BusError, MethodName, Name};
use serde_json::value::RawValue;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::when;

/// As whom, and how.
#[derive(Args)]
pub(crate) struct Options {
    /// The agent's credentials file, as `sealwire keys new-agent` makes it
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: PathBuf,
    /// How long all of it may take; the service is told, and starts nothing after it
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = when::duration)]
    deadline: Duration,
    /// How long to wait for a service that does not listen yet, such as one that has just started; then it is sent once
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    wait: Option<Duration>,
    /// Running it twice does no harm: it is sent again after a refusal or a lost connection, while the deadline allows
    #[arg(long)]
    idempotent: bool,
}

impl Options {
    /// Connects, does `work`, and waits until everything is written.
    fn run<T, W, F>(&self, service: &str, out: &Output, work: W) -> Result<T, Failure>
    where
        W: FnOnce(Client) -> F,
        F: Future<Output = Result<T, ClientError>>,
    {
        let credentials = credentials(&self.creds)?;
        block_on(async {
            let client =
                Client::connect(credentials.clone()).await.map_err(|error| unconnected(error, &credentials))?;
            let done = match self.listened(&client, service, out).await {
                Ok(()) => work(client.clone()).await,
                Err(error) => Err(error),
            };
            client.close().await;
            match done {
                Err(error @ ClientError::Hint { hint: HintKind::Unauthenticated }) => {
                    Err(suspect::told(failure(error), &credentials, service).await)
                }
                done => done.map_err(failure),
            }
        })?
    }

    /// Connects and repeats `work` until a signal comes, even if that is before there is a connection.
    fn run_until_stopped<F>(
        &self,
        service: &str,
        out: &Output,
        work: impl FnOnce(Client, Signals) -> F,
    ) -> Result<Exit, Failure>
    where
        F: Future<Output = Result<Exit, Failure>>,
    {
        let credentials = credentials(&self.creds)?;
        let signals = Signals::listen(None)?;
        block_on(async {
            let Some(client) = signals.unless_stopped(Client::connect(credentials.clone())).await else {
                return Ok(Exit::Interrupted);
            };
            let client = client.map_err(|error| unconnected(error, &credentials))?;
            let done = match signals.unless_stopped(self.listened(&client, service, out)).await {
                None => Ok(Exit::Interrupted),
                Some(Err(error)) => Err(failure(error)),
                Some(Ok(())) => work(client.clone(), signals.clone()).await,
            };
            // A broker that is silent takes nothing, and a call that was given up has nothing to write.
            signals.unless_stopped(client.close()).await;
            done
        })?
    }

    /// Waits for the service, if asked to.
    async fn listened(&self, client: &Client, service: &str, out: &Output) -> Result<(), ClientError> {
        match self.wait {
            Some(limit) => {
                let _working = out.working(&format!("waiting for the service `{service}`"));
                client.wait_for(service, limit).await
            }
            None => Ok(()),
        }
    }

    fn request(&self, client: &Client, service: &str) -> RequestBuilder {
        let request = client.request(service).deadline(self.deadline);
        if self.idempotent { request.idempotent() } else { request }
    }
}

fn credentials(path: &Path) -> Result<Credentials, Failure> {
    Credentials::load(path).or_fail(Exit::Input).map_err(|failure| {
        if path.exists() {
            return failure;
        }
        failure.help("`--creds` or SEALWIRE_CREDS names the file; a relative path begins in the current folder")
    })
}

/// Finds the mistakes of a first try before anything is sent. `more` is what was written behind the parameters.
fn check_words(
    command: &str,
    service: &str,
    method: &str,
    params: Option<&str>,
    more: &[String],
) -> Result<(), Failure> {
    let quoted = |word: &str| if word.contains([' ', '[', '{', '"']) { format!("'{word}'") } else { word.to_owned() };
    if Name::new(service).is_err() && MethodName::new(service).is_ok() {
        let failure = Failure::input(format!("`{service}` is the name of a method: SERVICE is missing"));
        // The two in the wrong order, or the first one left out.
        let is_swapped =
            Name::new(method).is_ok() && (params.is_none() || params.is_some_and(|text| text.starts_with(['{', '['])));
        let (found, first) = if is_swapped { (method, None) } else { ("demo", Some(method)) };
        let words = first.into_iter().chain(params).chain(more.iter().map(String::as_str)).map(quoted);
        let words: String = words.map(|word| format!(" {word}")).collect();
        return Err(failure.help(format!("for example: sealwire {command} {found} {service}{words}")));
    }
    Name::new(service).or_fail(Exit::Input)?;
    MethodName::new(method).or_fail(Exit::Input)?;
    if !more.is_empty() {
        let failure = Failure::input("the parameters are one JSON text, and this is several");
        let words: Vec<&str> = params.into_iter().chain(more.iter().map(String::as_str)).collect();
        let quoted = match words.iter().map(|word| member(word)).collect::<Option<Vec<_>>>() {
            Some(members) => format!("'{{{}}}'", members.join(", ")),
            None => format!("'[{}]'", words.into_iter().map(json_word).collect::<Vec<_>>().join(", ")),
        };
        return Err(failure.help(format!("quote them as JSON: {quoted}")));
    }
    Ok(())
}

/// What a shell leaves of a member of an object that was not quoted: `a:2`, of `{"a":2,"b":3}`.
fn member(word: &str) -> Option<String> {
    let (name, value) = word.trim_matches(['{', '}', ',']).split_once(':')?;
    let name = name.trim_matches('"');
    Name::new(name).ok().map(|name| format!("\"{name}\": {}", json_word(value)))
}

/// A word as JSON: what is none is a string.
fn json_word(word: &str) -> String {
    match serde_json::from_str::<Box<RawValue>>(word) {
        Ok(json) => json.get().to_owned(),
        Err(_) => serde_json::Value::from(word).to_string(),
    }
}

/// The parameters on the command line or on stdin, kept as they were written: `1e2` is not `100` to everybody.
fn params(argument: Option<String>) -> Result<Option<Box<RawValue>>, Failure> {
    let Some(argument) = argument else { return Ok(None) };
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

/// What a call came to, if not to a result.
fn failure(error: ClientError) -> Failure {
    let exit = exit(&error);
    let failure = Failure::of(exit, &error);
    let failure = match error.remote() {
        Some(rpc) => failure.rpc(rpc.clone()),
        None => failure,
    };
    match error {
        ClientError::NoResponders { .. } => failure.help("`--wait 10s` waits for a service that has just started"),
        ClientError::Token(_) => failure
            .help("see what it says with `sealwire token inspect`; for development: sealwire token issue … --out FILE"),
        ClientError::Invalid(sealwire::client::InvalidRequest::NoServiceKey { service }) => {
            failure.help(format!("sealwire keys pin CREDS --service {service} --kid … --x …"))
        }
        _ => failure,
    }
}

/// The exit code of each kind of error.
fn exit(error: &ClientError) -> Exit {
    match error.kind() {
        ErrorKind::Remote => match error.remote().map(RpcError::code) {
            Some(code::PERMISSION_DENIED) => Exit::Denied,
            // The service says so itself; neither side knows how far the method got.
            Some(code::TIMEOUT) => Exit::Timeout,
            _ => Exit::Remote,
        },
        ErrorKind::Protocol | ErrorKind::Decode | ErrorKind::Clock => Exit::Remote,
        ErrorKind::Hint | ErrorKind::Unverifiable => Exit::Unverified,
        ErrorKind::Timeout => Exit::Timeout,
        ErrorKind::Connect
        | ErrorKind::Disconnected
        | ErrorKind::Forbidden
        | ErrorKind::NoResponders
        | ErrorKind::ConnectionLost
        | ErrorKind::Busy => Exit::Transport,
        ErrorKind::Credentials | ErrorKind::Invalid | ErrorKind::Token | ErrorKind::TooLarge => Exit::Input,
        _ => Exit::Bug,
    }
}
