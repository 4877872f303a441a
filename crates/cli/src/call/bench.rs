//! `sealwire bench`: calls as fast as they are answered, or at a rate, and what became of them.
//! Never says that a call went well which has no verified result.

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

/// Load a service with calls, and measure how many it answers and how long they take
///
/// The calls are real ones: the method runs as often as they are counted. Without `--rate`, `--in-flight` calls are under way at
/// any time, and each that is answered is followed by another. With it, calls are due at equal distances whatever becomes of
/// those before, and the latency of each counts from when it was due, so a service that stalls is charged for all the calls that it
/// has kept waiting. Latencies are of calls with a result; all others are counted as errors.
#[derive(Args)]
#[command(after_help = "\
Ends with 0 if every call has a result, and else with the code of the most
frequent error. Ctrl-C ends it, and prints what was measured until then.

Examples:
  sealwire bench --creds planner.creds.json math math/add '[2,3]'
  sealwire bench math math/add '[2,3]' --rate 500/s --duration 1m
  sealwire bench math math/add '[2,3]' --in-flight 1 --against bare
  sealwire bench demo text/echo '[\"{payload}\"]' --payload 256 --connections 4
  sealwire bench math math/add '[2,3]' --pid service=4711 --pid broker=4712
  sealwire bench math math/add '[2,3]' --svg latency.svg --json | jq .latency_us")]
pub(crate) struct Bench {
    /// The agent's credentials file, as `sealwire keys new-agent` makes it
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    #[command(flatten)]
    words: Words,
    /// How many messages are under way, 1 to 65536; 64 by default. With --rate: the most, 4096 by default; a call that is due and
    /// finds no place waits, and its latency goes on
    #[arg(long, value_name = "N")]
    in_flight: Option<usize>,
    /// How many messages are sent, such as 500/s, whatever becomes of those before
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: Option<f64>,
    /// Over how many connections, 1 to 256, each with a thread of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// How long is measured, 100ms to 24h
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = when::duration)]
    duration: Duration,
    /// How long calls are made before that
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = when::duration)]
    warmup: Duration,
    /// Put a text of so many bytes, up to 16777216, in place of "{payload}" in the parameters
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    payload: Option<u32>,
    /// Send so many calls in a message, 1 to 50; each is counted, and the latency is that of the message
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Take what the method sends while it runs, and count that, too
    #[arg(long, conflicts_with = "batch")]
    stream: bool,
    /// How long a call may take
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    deadline: Option<Duration>,
    /// How long to wait for a service that does not listen yet
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    wait: Option<Duration>,
    /// Compare with `bare`: requests and answers of the same size with one header each, as many in flight, through the same broker by
    /// way of its usual client library. The two take turns of a second, and the time that is measured is shared between them
    #[arg(long, value_name = "WHAT", conflicts_with = "stream")]
    against: Option<Against>,
    /// As whom bare requests are made: a JSON file with members as of `nats` in credentials. By default bench.nats.json beside the
    /// credentials, as `sealwire dev` writes it, or else the user of the credentials
    #[arg(long, value_name = "FILE", requires = "against")]
    bare_login: Option<PathBuf>,
    /// Tell the processor time of a process on this machine, too, such as service=4711 or broker=4712; may be repeated
    #[arg(long = "pid", value_name = "NAME=PID", value_parser = watched)]
    pids: Vec<Watched>,
    /// Draw the latencies into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Against {
    Bare,
}

/// What is put into the place of the payload.
const PAYLOAD: &str = "\"{payload}\"";
/// Enough to keep a service busy, and within what services grant one agent.
const IN_FLIGHT: usize = 64;
/// At a rate it is only a bound.
const IN_FLIGHT_AT_A_RATE: usize = 4096;
/// Beside the credentials of `sealwire dev`.
pub(crate) const BARE_LOGIN: &str = "bench.nats.json";

fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").and_then(|number| number.parse::<f64>().ok());
    number
        .filter(|rate| rate.is_finite() && *rate > 0.0)
        .ok_or_else(|| "write how many a second, such as 500/s".to_owned())
}

fn watched(text: &str) -> Result<Watched, String> {
    let wrong = || "write a name and the number of a process, such as service=4711".to_owned();
    let (name, pid) = text.split_once('=').ok_or_else(wrong)?;
    let pid = pid.parse().ok().filter(|pid| *pid > 0).ok_or_else(wrong)?;
    match name {
        "" => Err(wrong()),
        "client" | "responder" => Err(format!("`{name}` is told in any case: choose another name")),
        name => Ok(Watched { name: name.to_owned(), pid }),
    }
}

impl Bench {
    pub(crate) fn run(mut self, out: &Output) -> Result<Exit, Failure> {
        let params = self.words.params("bench")?;
        let params = self.filled(params)?;
        if let Some(svg) = &self.svg {
            // Nobody measures for an hour to learn that its folder is not there.
            check_output(svg, "picture", |text| text.starts_with("<svg"))?;
        }
        let options = Options { creds: self.creds.take(), deadline: self.deadline, wait: self.wait, idempotent: false };
        let creds = options.creds.clone();
        let service = self.words.service.clone();
        // Before anything is sent.
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

    /// The parameters with the payload in its place.
    fn filled(&self, params: Option<Box<RawValue>>) -> Result<Option<Box<RawValue>>, Failure> {
        let Some(bytes) = self.payload else { return Ok(params) };
        let text = params.as_ref().map_or("", |params| params.get());
        if !text.contains(PAYLOAD) {
            let failure = Failure::new(Exit::Usage, "--payload has no place in the parameters");
            return Err(failure.help("write \"{payload}\" where it goes, for example '[\"{payload}\"]'"));
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let text = text.replace(PAYLOAD, &format!("\"{}\"", "x".repeat(bytes)));
        RawValue::from_string(text).map(Some).or_fail(Exit::Bug)
    }

    /// Makes one call, which says whether there is anything to measure, and how large its result is. What the service answers is
    /// counted later.
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
            // An error is given out here, and only once.
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

    /// As whom bare requests are made.
    fn login(&self, creds: Option<&Path>, credentials: &Credentials) -> Result<BusConfig, Failure> {
        let beside = creds.and_then(Path::parent).map(|folder| folder.join(BARE_LOGIN)).filter(|file| file.exists());
        let Some(file) = self.bare_login.clone().or(beside) else { return Ok(credentials.bus()) };
        let text = read_secret(&file).or_fail(Exit::Input)?;
        let bus: BusConfig = serde_json::from_str(&text).map_err(|error| {
            // Not what serde quotes, which may be a password.
            let (line, column) = (error.line(), error.column());
            let failure = Failure::input(format!("`{}`, line {line}, column {column}: no login at a broker", file.display()));
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
                "bare requests need a user of the broker that may publish and subscribe `{BARE_SUBJECTS}`, which is no agent: name its \
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
