//! `sealwire mcp`: an MCP server on standard input and output, whose tools are the methods that an agent may call.
//! Never writes anything to standard output but messages of the protocol.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::configure::TelemetryConfig;
use sealwire::traces::Traces;
use sealwire::{Credentials, Name};
use sealwire_gateway::mcp::{self, Ended, Options};
use sealwire_gateway::{Bus, stdio};

use crate::call::credentials;
use crate::exit::{Exit, Failure};
use crate::runtime::{Signals, block_on};
use crate::traces::{close, of_agent};
use crate::when;

/// Run an MCP (Model Context Protocol) server on stdin and stdout, whose tools are the methods that an agent may call
///
/// For clients that start their own servers. Each call is signed as the agent of `--creds`, and the service decides on it, whoever the
/// client is. The service also says which tools this agent has (`sealwire discover`); see docs/gateway/stdio.md.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire mcp --creds planner.creds.json --service math
  claude mcp add bus -- sealwire mcp --creds /home/me/planner.creds.json")]
pub(crate) struct Mcp {
    /// The agent's credentials file, as created by `sealwire keys new-agent`
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    /// A service to offer as tools; repeat for several [default: the services whose keys the credentials contain]
    #[arg(long = "service", value_name = "NAME")]
    services: Vec<Name>,
    /// How long a call may take, including questions to people, up to 10m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = when::duration)]
    deadline: Duration,
    /// How often to ask the services whether the callable methods have changed, 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = when::duration)]
    refresh: Duration,
}

impl Mcp {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let Self { creds, services, deadline, refresh } = self;
        let credentials = credentials(creds.as_deref())?;
        let services = named(services, &credentials)?;
        let (deadline, refresh) = (
            deadline.clamp(Duration::from_millis(100), Duration::from_secs(600)),
            refresh.clamp(Duration::from_secs(1), Duration::from_secs(3_600)),
        );
        let options = Options { services, deadline, refresh };
        let signals = Signals::listen(None)?;
        block_on(async {
            // There is no file: only variables can say where.
            let traces = of_agent(&TelemetryConfig::default(), &credentials)?.map(Traces::start);
            let bus = Bus::new(credentials);
            if let Some(traces) = &traces {
                bus.trace(traces.tracer());
            }
            let input = stdio::lines().map_err(|error| no_thread(&error))?;
            let mut output = None;
            let serving = mcp::serve(bus, options, input, signals.stop(), |lines| {
                output = Some(stdio::output(lines));
            });
            let ended = serving.await;
            close(traces).await;
            let written = output.transpose().map_err(|error| no_thread(&error))?;
            match ended {
                // Nobody waits for a client after a signal.
                Ok(()) if signals.has_come() => Ok(Exit::Ok),
                Ok(()) | Err(Ended::Closed) => match written {
                    // What was answered last is still on its way.
                    Some(written) => match tokio::time::timeout(WRITTEN, written).await {
                        Err(_) => Err(unread(&Ended::Stalled)),
                        Ok(Ok(Err(error))) => Err(unwritten(&error)),
                        Ok(_) => Ok(Exit::Ok),
                    },
                    None => Ok(Exit::Ok),
                },
                Err(ended @ (Ended::Input(_) | Ended::TooLong)) => Err(Failure::input(ended.to_string())),
                Err(ended) => Err(unread(&ended)),
            }
        })?
    }
}

/// How long the client may take to read what was answered last.
const WRITTEN: Duration = Duration::from_secs(60);

/// A client that has gone is no failure; anything else is.
fn unwritten(error: &std::io::Error) -> Failure {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        tracing::warn!(target: "sealwire::gateway", "the client has closed its end of standard output");
        return Failure::new(Exit::Ok, "");
    }
    Failure::input(format!("cannot write to standard output: {error}"))
}

fn unread(ended: &Ended) -> Failure {
    Failure::new(Exit::Timeout, ended.to_string())
}

fn named(services: Vec<Name>, credentials: &Credentials) -> Result<Vec<String>, Failure> {
    let mut names: Vec<String> = match services.is_empty() {
        true => credentials.services().map(ToString::to_string).collect(),
        false => services.iter().map(ToString::to_string).collect(),
    };
    names.sort();
    names.dedup();
    if names.is_empty() {
        let failure = Failure::new(Exit::Usage, "which services? the credentials name none");
        return Err(failure.help("name each with --service, for example: --service demo"));
    }
    Ok(names)
}

pub(crate) fn no_thread(error: &std::io::Error) -> Failure {
    Failure::input(format!("cannot start a thread: {error}"))
}
