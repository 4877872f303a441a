//! `sealwire nats-server`: a broker to try things with.
//! Never listens beyond this machine, and is no way to run a broker in production.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::nats_server::{self, ServerOptions};
use crate::output::Output;
use crate::serve::{runtime, stop_signal};

/// Run a nats-server on this machine, without users: to try things with
///
/// Found on PATH, or fetched once and checked by its hash. Ends with Ctrl-C; what JetStream stored is removed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire nats-server
  sealwire nats-server --port 4333")]
pub(crate) struct Server {
    /// The port on 127.0.0.1
    #[arg(long, default_value_t = 4222)]
    port: u16,
}

impl Server {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let found = nats_server::find().or_fail(Exit::Transport)?;
        let options = ServerOptions { port: Some(self.port), ..ServerOptions::default() };
        let mut broker = nats_server::spawn(&found, &options).or_fail(Exit::Transport)?;
        let url = broker.url();
        out.result(&json!({ "url": url, "version": found.version.to_string() }), || {
            format!("nats-server {} at {url}; Ctrl-C ends it", found.version)
        })?;
        runtime()?.block_on(async {
            let (_task, stopped) = stop_signal()?;
            let mut stopped = std::pin::pin!(stopped);
            loop {
                tokio::select! {
                    () = &mut stopped => return Ok(()),
                    () = tokio::time::sleep(Duration::from_secs(2)) => {
                        if tokio::net::TcpStream::connect(("127.0.0.1", broker.port())).await.is_err() {
                            return Err(Failure::new(Exit::Transport, format!("nats-server ended:\n{}", broker.log())));
                        }
                    }
                }
            }
        })?;
        broker.kill();
        Ok(Exit::Ok)
    }
}
