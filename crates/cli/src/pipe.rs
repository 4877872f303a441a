//! `sealwire pipe`: a service on standard input and output, for programs that speak JSON-RPC to a child.
//! Never writes anything to standard output but answers.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::Name;
use sealwire::configure::TelemetryConfig;
use sealwire::traces::Traces;
use sealwire_gateway::pipe::{self, Ended, Options};
use sealwire_gateway::{Bus, stdio};

use crate::call::credentials;
use crate::exit::{Exit, Failure};
use crate::mcp::no_thread;
use crate::runtime::{Signals, block_on};
use crate::traces::{close, of_agent};
use crate::when;

/// Call a service in JSON-RPC 2.0 on stdin and stdout, one message on each line
///
/// For programs that start a child and speak JSON-RPC with it. Each call is signed as the agent of `--creds`, and each answer verified. Calls
/// are answered as they end, which may be in another order; see docs/gateway/stdio.md.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire pipe --creds planner.creds.json demo
  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}' | sealwire pipe demo")]
pub(crate) struct Pipe {
    /// The agent's credentials file, as created by `sealwire keys new-agent`
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    /// How long each message may take, up to 10m
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = when::duration)]
    deadline: Duration,
    /// The service
    #[arg(value_name = "SERVICE")]
    service: Name,
}

/// How long the last answers may take to be read.
const READ: Duration = Duration::from_secs(60);

impl Pipe {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let Self { creds, deadline, service } = self;
        let credentials = credentials(creds.as_deref())?;
        let deadline = deadline.clamp(Duration::from_millis(100), Duration::from_secs(600));
        let options = Options { service: service.to_string(), deadline };
        let signals = Signals::listen(None)?;
        block_on(async {
            // There is no file: only variables can say where.
            let traces = of_agent(&TelemetryConfig::default(), &credentials)?.map(Traces::start);
            let bus = Bus::new(credentials);
            if let Some(traces) = &traces {
                bus.trace(traces.tracer());
            }
            let input = stdio::lines().map_err(|error| no_thread(&error))?;
            let mut written = None;
            let (stop, stopped) = (signals.clone(), signals.clone());
            let served = pipe::serve(
                bus,
                options,
                input,
                move || stop.stop(),
                |lines| {
                    written = Some(stdio::output(lines));
                },
            )
            .await;
            close(traces).await;
            let is_read = match written {
                // Whoever stops this waits for nobody who does not read. What was read was read, however late that is heard of here.
                Some(Ok(written)) => tokio::select! {
                    biased;
                    _ = written => true,
                    () = tokio::time::sleep(READ) => false,
                    () = async { stopped.stop().await; tokio::time::sleep(pipe::LAST).await; } => false,
                },
                Some(Err(error)) => return Err(no_thread(&error)),
                None => true,
            };
            match served {
                // Closing the pipe is how a client leaves.
                Err(Ended::Closed) => Ok(Exit::Ok),
                Err(ended @ Ended::Input(_)) => Err(Failure::input(ended.to_string())),
                Err(ended) => Err(Failure::new(Exit::Timeout, ended.to_string())),
                Ok(_) if !is_read && !signals.has_come() => {
                    Err(Failure::new(Exit::Timeout, Ended::Stalled.to_string()))
                }
                Ok(served) if served.cancelled > 0 => {
                    let message = format!("stopped by a signal, which cancelled {} messages", served.cancelled);
                    Err(Failure::new(Exit::Interrupted, message))
                }
                Ok(_) if !is_read => {
                    Err(Failure::new(Exit::Interrupted, "stopped by a signal, with answers that nobody has read"))
                }
                Ok(served) if served.unsent > 0 => {
                    Err(Failure::new(Exit::Transport, format!("{} notifications were not sent", served.unsent)))
                }
                Ok(_) => Ok(Exit::Ok),
            }
        })?
    }
}
