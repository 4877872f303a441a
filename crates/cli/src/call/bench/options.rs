//! The options of `sealwire bench`.
//! Never a plan by themselves: what is left out depends on other options.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use sealwire_lab::bench::{Load, WatchedProcess};

use super::super::Words;
use crate::when;

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
  sealwire bench math math/add '[2,3]' --json | jq .latency_us")]
pub(crate) struct Bench {
    /// The agent's credentials file, as created by `sealwire keys new-agent`
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    pub(super) creds: Option<PathBuf>,
    #[command(flatten)]
    pub(super) words: Words,
    /// How many messages are in flight, 1 to 65536; default 64. With --rate: the most that may be, default 4096; a call that is
    /// due while there is no room waits, and the wait counts as latency
    #[arg(long, value_name = "N")]
    pub(super) in_flight: Option<usize>,
    /// Send messages at a fixed rate, such as 500/s, whatever happens to earlier ones
    #[arg(long, value_name = "N/s", value_parser = rate)]
    pub(super) rate: Option<f64>,
    /// The number of connections, 1 to 256, each with its own thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) connections: usize,
    /// How long to measure, 100ms to 24h
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = when::duration)]
    pub(super) duration: Duration,
    /// How long to make calls before measuring
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = when::duration)]
    pub(super) warmup: Duration,
    /// Replace "{payload}" in the parameters with a text of this many bytes, up to 16777216
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub(super) payload: Option<u32>,
    /// Send this many calls in each message, 1 to 50; each call is counted, and latencies are those of the messages
    #[arg(long, value_name = "N")]
    pub(super) batch: Option<usize>,
    /// Accept what the method sends while it runs, and count it as well
    #[arg(long, conflicts_with = "batch")]
    pub(super) stream: bool,
    /// How long a call may take
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    pub(super) deadline: Option<Duration>,
    /// How long to wait for a service that is not listening yet
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    pub(super) wait: Option<Duration>,
    /// Compare with `bare` NATS: requests and answers of the same size with one header each, as many in flight, through the same
    /// broker with its usual client library. The two take turns of a second each and share the measured time
    #[arg(long, value_name = "WHAT", conflicts_with = "stream")]
    pub(super) against: Option<Baseline>,
    /// The broker login for bare requests: a JSON file with the members of `nats` in credentials. Default: bench.nats.json next to
    /// the credentials, which `sealwire dev` writes, otherwise the user of the credentials
    #[arg(long, value_name = "FILE", requires = "against")]
    pub(super) bare_login: Option<PathBuf>,
    /// Also report the CPU time of a process on this machine, such as service=4711 or broker=4712; repeat for several
    #[arg(long = "pid", value_name = "NAME=PID", value_parser = watched)]
    pub(super) pids: Vec<WatchedProcess>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Baseline {
    Bare,
}

/// Enough to keep a service busy, and within what a service allows one agent.
const IN_FLIGHT: usize = 64;
/// With `--rate`, this is only an upper bound.
const IN_FLIGHT_AT_A_RATE: usize = 4096;

impl Bench {
    pub(super) fn load(&self) -> Load {
        match self.rate {
            Some(per_second) => {
                let in_flight = self.in_flight.unwrap_or(IN_FLIGHT_AT_A_RATE);
                Load::Rate { per_second, in_flight }
            }
            None => Load::InFlight(self.in_flight.unwrap_or(IN_FLIGHT.max(self.connections))),
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").and_then(|number| number.parse::<f64>().ok());
    number
        .filter(|rate| rate.is_finite() && *rate > 0.0)
        .ok_or_else(|| "write how many per second, such as 500/s".to_owned())
}

fn watched(text: &str) -> Result<WatchedProcess, String> {
    let wrong = || "write a name and a process id, such as service=4711".to_owned();
    let (name, pid) = text.split_once('=').ok_or_else(wrong)?;
    let pid = pid.parse().ok().filter(|pid| *pid > 0).ok_or_else(wrong)?;
    match name {
        "" => Err(wrong()),
        "client" | "responder" => Err(format!("`{name}` is always reported: choose another name")),
        name => Ok(WatchedProcess { name: name.to_owned(), pid }),
    }
}
