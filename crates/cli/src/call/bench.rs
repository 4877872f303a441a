//! `sealwire bench`: makes calls as fast as they are answered, or at a fixed rate, and measures them.
//! Never counts a call as successful that has no verified result.

mod told;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::StreamExt as _;
use sealwire::BusConfig;
use sealwire::auth::read_secret;
use sealwire::client::{Client, ClientError, Credentials};
use sealwire_bench::{BARE_SUBJECTS, Bare, BenchError, Load, Plan, Shape, Target, Watched};
use serde_json::value::RawValue;

use super::{DEADLINE, Options, Words, exit, failed, unconnected};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{check_output, write_public};
use crate::output::Output;
use crate::runtime::Signals;
use crate::when;
use told::Told;

/// Put a service under load, and measure how many calls it answers and how long they take
///
/// The calls are real: the method runs for each of them. Without `--rate`, a constant number of calls (`--in-flight`) is in
/// progress, and each answer is followed by the next call. With `--rate`, calls are due at regular intervals, whatever happens to
/// earlier ones, and the latency of each counts from the moment it was due: a service that stalls is charged for every call it has
/// kept waiting. Latencies are those of calls with a result; all other calls are counted as errors.
#[derive(Args)]
#[command(after_help = "\
The exit code is 0 if every call has a result, otherwise that of the most
frequent error. Ctrl-C ends the run and prints what was measured so far.

Examples:
  sealwire bench --creds planner.creds.json math math/add '[2,3]'
  sealwire bench math math/add '[2,3]' --rate 500/s --duration 1m
  sealwire bench math math/add '[2,3]' --in-flight 1 --against bare
  sealwire bench demo text/echo '[\"{payload}\"]' --payload 256 --connections 4
  sealwire bench math math/add '[2,3]' --pid service=4711 --pid broker=4712
  sealwire bench math math/add '[2,3]' --svg latency.svg --json | jq .latency_us")]
pub(crate) struct Bench {
    /// The agent's credentials file, as created by `sealwire keys new-agent`
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    #[command(flatten)]
    words: Words,
    /// How many messages are in flight, 1 to 65536; default 64. With --rate: the most that may be, default 4096; a call that is
    /// due while there is no room waits, and the wait counts as latency
    #[arg(long, value_name = "N")]
    in_flight: Option<usize>,
    /// Send messages at a fixed rate, such as 500/s, whatever happens to earlier ones
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: Option<f64>,
    /// The number of connections, 1 to 256, each with its own thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// How long to measure, 100ms to 24h
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = when::duration)]
    duration: Duration,
    /// How long to make calls before measuring
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = when::duration)]
    warmup: Duration,
    /// Replace "{payload}" in the parameters with a text of this many bytes, up to 16777216
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    payload: Option<u32>,
    /// Send this many calls in each message, 1 to 50; each call is counted, and latencies are those of the messages
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Accept what the method sends while it runs, and count it as well
    #[arg(long, conflicts_with = "batch")]
    stream: bool,
    /// How long a call may take
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    deadline: Option<Duration>,
    /// How long to wait for a service that is not listening yet
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    wait: Option<Duration>,
    /// Compare with `bare` NATS: requests and answers of the same size with one header each, as many in flight, through the same
    /// broker with its usual client library. The two take turns of a second each and share the measured time
    #[arg(long, value_name = "WHAT", conflicts_with = "stream")]
    against: Option<Against>,
    /// The broker login for bare requests: a JSON file with the members of `nats` in credentials. Default: bench.nats.json next to
    /// the credentials, which `sealwire dev` writes, otherwise the user of the credentials
    #[arg(long, value_name = "FILE", requires = "against")]
    bare_login: Option<PathBuf>,
    /// Also report the CPU time of a process on this machine, such as service=4711 or broker=4712; repeat for several
    #[arg(long = "pid", value_name = "NAME=PID", value_parser = watched)]
    pids: Vec<Watched>,
    /// Draw the latency curves into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Against {
    Bare,
}

/// What `--payload` replaces.
const PAYLOAD: &str = "\"{payload}\"";
/// Enough to keep a service busy, and within what a service allows one agent.
const IN_FLIGHT: usize = 64;
/// With `--rate`, this is only an upper bound.
const IN_FLIGHT_AT_A_RATE: usize = 4096;
/// The broker login of bare requests, next to the credentials of `sealwire dev`.
pub(crate) const BARE_LOGIN: &str = "bench.nats.json";

fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").and_then(|number| number.parse::<f64>().ok());
    number
        .filter(|rate| rate.is_finite() && *rate > 0.0)
        .ok_or_else(|| "write how many per second, such as 500/s".to_owned())
}

fn watched(text: &str) -> Result<Watched, String> {
    let wrong = || "write a name and a process id, such as service=4711".to_owned();
    let (name, pid) = text.split_once('=').ok_or_else(wrong)?;
    let pid = pid.parse().ok().filter(|pid| *pid > 0).ok_or_else(wrong)?;
    match name {
        "" => Err(wrong()),
        "client" | "responder" => Err(format!("`{name}` is always reported: choose another name")),
        name => Ok(Watched { name: name.to_owned(), pid }),
    }
}

impl Bench {
    pub(crate) fn run(mut self, out: &Output) -> Result<Exit, Failure> {
        let params = self.words.params("bench")?;
        let params = self.filled(params)?;
        if let Some(svg) = &self.svg {
            // So that nobody measures for an hour only to learn that the file cannot be written.
            check_output(svg, "picture", |text| text.starts_with("<svg"))?;
        }
        let options = Options { creds: self.creds.take(), deadline: self.deadline, wait: self.wait, idempotent: false };
        let creds = options.creds.clone();
        let service = self.words.service.clone();
        // Report mistakes before anything is sent.
        self.plan(super::credentials(creds.as_deref())?, params.clone(), None).check().or_fail(Exit::Usage)?;
        let measured =
            options.run_until_stopped(&service, out, async |client: Client, signals: Signals, credentials| {
                let first = signals.unless_stopped(self.first(&options, &client, &params, &credentials)).await;
                let result_bytes = first.ok_or_else(stopped)??;
                let bare = match self.against {
                    Some(Against::Bare) => {
                        Some(Bare { bus: self.login(creds.as_deref(), &credentials)?, result_bytes })
                    }
                    None => None,
                };
                let plan = self.plan(credentials.clone(), params.clone(), bare);
                let mut bar = out.bar();
                let report = sealwire_bench::run(plan, signals.stop(), |progress| {
                    bar.show(progress.share, Some(1.0), &format!("{} calls", progress.done));
                });
                let report = report.await;
                bar.clear();
                report.map_err(|error| self.unmeasured(error, &credentials)).map(|report| (report, credentials))
            })?;
        let (report, credentials) = measured;
        let told = Told::new(&self, &credentials, &report);
        out.tell(&told.json(), || told.text())?;
        if let Some(svg) = &self.svg {
            write_public(svg, &told.picture())?;
        }
        Ok(told.exit())
    }

    /// The parameters with the payload filled in.
    fn filled(&self, params: Option<Box<RawValue>>) -> Result<Option<Box<RawValue>>, Failure> {
        let Some(bytes) = self.payload else { return Ok(params) };
        let text = params.as_ref().map_or("", |params| params.get());
        if !text.contains(PAYLOAD) {
            let failure = Failure::new(Exit::Usage, "--payload needs a placeholder in the parameters");
            return Err(failure.help("write \"{payload}\" where it belongs, for example '[\"{payload}\"]'"));
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let text = text.replace(PAYLOAD, &format!("\"{}\"", "x".repeat(bytes)));
        RawValue::from_string(text).map(Some).or_fail(Exit::Bug)
    }

    /// Makes one call, to find out whether there is anything to measure, and how large the result is. Errors that the service
    /// answers with are counted later.
    async fn first(
        &self,
        options: &Options,
        client: &Client,
        params: &Option<Box<RawValue>>,
        credentials: &Credentials,
    ) -> Result<usize, Failure> {
        let (service, method) = (&self.words.service, &self.words.method);
        let request = self.words.request(options.request(client, service));
        let answer = if self.stream {
            let mut stream = request.stream::<Box<RawValue>>(method, params);
            // The stream yields an error only once, here.
            let mut error = None;
            while let Some(item) = stream.next().await {
                error = item.err();
            }
            match error {
                Some(error) => Err(error),
                None => stream.finish::<Box<RawValue>>().await,
            }
        } else {
            request.call::<Box<RawValue>>(method, params).await
        };
        match answer {
            Ok(result) => Ok(result.get().len()),
            Err(error) if matches!(exit(&error), Exit::Denied | Exit::Remote | Exit::Timeout) => Ok(0),
            Err(error) => Err(failed(error, credentials, service).await),
        }
    }

    /// The broker login of bare requests.
    fn login(&self, creds: Option<&Path>, credentials: &Credentials) -> Result<BusConfig, Failure> {
        let beside = creds.and_then(Path::parent).map(|folder| folder.join(BARE_LOGIN)).filter(|file| file.exists());
        let Some(file) = self.bare_login.clone().or(beside) else { return Ok(credentials.bus()) };
        let text = read_secret(&file).or_fail(Exit::Input)?;
        let bus: BusConfig = serde_json::from_str(&text).map_err(|error| {
            // Serde's own message is left out: it may quote a password.
            let (line, column) = (error.line(), error.column());
            let failure = Failure::input(format!("`{}`, line {line}, column {column}: not a broker login", file.display()));
            failure.help(r#"for example {"urls": ["nats://127.0.0.1:4222"], "user": "bench", "password_file": "bench.password"}"#)
        })?;
        Ok(bus.relative_to(file.parent().unwrap_or(Path::new(""))))
    }

    fn load(&self) -> Load {
        match self.rate {
            Some(per_second) => {
                let in_flight = self.in_flight.unwrap_or(IN_FLIGHT_AT_A_RATE);
                Load::Rate { per_second, in_flight }
            }
            None => Load::InFlight(self.in_flight.unwrap_or(IN_FLIGHT.max(self.connections))),
        }
    }

    fn plan(&self, credentials: Credentials, params: Option<Box<RawValue>>, bare: Option<Bare>) -> Plan {
        let shape = match (self.batch, self.stream) {
            (Some(calls), _) => Shape::Batch(calls),
            (None, true) => Shape::Stream,
            (None, false) => Shape::Single,
        };
        let target = Target {
            credentials,
            service: self.words.service.clone(),
            method: self.words.method.clone(),
            params,
            deadline: self.deadline.unwrap_or(DEADLINE),
            on_method_subject: self.words.method_subject,
            shape,
        };
        let Self { connections, duration, warmup, .. } = *self;
        Plan { target, load: self.load(), connections, warmup, duration, bare, watched: self.pids.clone() }
    }

    fn unmeasured(&self, error: BenchError, credentials: &Credentials) -> Failure {
        match error {
            BenchError::Client(error @ ClientError::Connect(_)) => unconnected(error, credentials),
            BenchError::Client(error) => super::failure(error),
            BenchError::Stopped => stopped(),
            BenchError::BareForbidden(_) => Failure::of(Exit::Transport, &error).help(format!(
                "bare requests need a broker user that may publish and subscribe to `{BARE_SUBJECTS}`, and agents may not: name its \
                 login with --bare-login"
            )),
            BenchError::Bare(_) => Failure::of(Exit::Transport, &error),
            BenchError::Plan(_) => Failure::of(Exit::Usage, &error),
            BenchError::NoProcess { .. } | BenchError::Thread(_) => Failure::of(Exit::Input, &error),
            _ => Failure::of(Exit::Bug, &error),
        }
    }
}

fn stopped() -> Failure {
    Failure::new(Exit::Interrupted, "stopped by a signal, before anything was measured")
}
