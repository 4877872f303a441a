//! `sealwire nats-server`: a broker to try things out with, not for production.
//! Never listens beyond this machine.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use sealwire_nats_server::{self as nats_server, Environment, Found, ServerOptions};

/// Run a nats-server without users on this machine, to try things out
///
/// Uses the nats-server on PATH, or downloads one once and checks its hash. Ctrl-C or SIGTERM ends it and removes everything that
/// JetStream stored.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire nats-server
  sealwire nats-server --port 4333")]
pub(crate) struct Server {
    /// The port on 127.0.0.1; 0 for any that is free
    #[arg(long, default_value_t = 4222)]
    port: u16,
}

/// Finds or downloads a nats-server, and reports what takes time and which servers were passed over.
pub(crate) fn found(out: &Output) -> Result<Found, Failure> {
    let _working = out.working("getting a nats-server");
    nats_server::find_in(&Environment::of_process(), &mut |note| out.note(&format!("note: {note}")))
        .or_fail(Exit::Transport)
}

impl Server {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        // Checked first, so that no server is downloaded in vain.
        if !nats_server::is_free(self.port) {
            return Err(Failure::of(Exit::Input, &nats_server::RunError::PortInUse(self.port)));
        }
        let found = found(out)?;
        let options = ServerOptions { port: Some(self.port).filter(|port| *port != 0), ..ServerOptions::default() };
        let mut broker = nats_server::spawn(&found, &options).or_fail(Exit::Transport)?;
        let signals = Signals::listen(None)?;
        let url = broker.url();
        out.result(&json!({ "url": url, "version": found.version.to_string() }), || {
            format!("nats-server {} at {url}; Ctrl-C ends it", found.version)
        })?;
        let ended = block_on(signals.unless_stopped(async {
            loop {
                tokio::time::sleep(Duration::from_millis(200)).await;
                if let Some(status) = broker.ended() {
                    return status;
                }
            }
        }))?;
        match ended {
            None => Ok(Exit::Ok),
            Some(status) => Err(Failure::new(
                Exit::Transport,
                format!("nats-server ended with {status}; the end of its log:\n{}", broker.log_end()),
            )),
        }
    }
}
