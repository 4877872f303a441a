//! `sealwire gateway`: services over HTTP, for callers that do not speak Sealwire.
//! Never starts with a configuration that has an error, nor where more callers can reach it than its configuration allows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sealwire::Credentials;
use sealwire::metrics::Telemetry;
use sealwire::traces::Traces;
use sealwire_gateway::http::{APPROVALS_PAGE, Gateway as Http, GatewayConfig, NotReady, OpenError, ready, show};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{make_folder, shown, write_new};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::traces::{close, of_agent};

/// Run a gateway over HTTP, through which callers that do not speak Sealwire can call services
///
/// Callers post JSON-RPC 2.0 to /rpc/SERVICE, and MCP to /mcp/SERVICE. The gateway signs each call as its own agent, and the service
/// decides on it; see docs/gateway/README.md.
///
/// Runs until SIGTERM or SIGINT, then finishes the calls in progress and ends. That takes at most `leave_s` (0) plus `drain_s` (30)
/// seconds and a few more; a second signal ends it at once. One line on stdout says where it listens.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire gateway --config gateway.toml
  sealwire gateway --config gateway.toml --ready
  sealwire gateway --write-page approvals

A small configuration:
  [gateway]
  listen = \"127.0.0.1:8480\"
  credentials = \"planner.creds.json\"
  [[gateway.expose]]
  service = \"demo\"

  curl -d '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"math/add\",\"params\":[2,3]}' \\
      -H 'content-type: application/json' http://127.0.0.1:8480/rpc/demo")]
pub(crate) struct Gateway {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
    /// Check configuration and credentials, then exit
    #[arg(long)]
    check: bool,
    /// Ask the gateway that runs on this machine with this configuration whether it takes requests, then exit: for health checks
    #[arg(long, conflicts_with = "check")]
    ready: bool,
    /// Write the page on which people approve calls, for another web server, to files in this folder that are not there yet, then exit
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["config", "check", "ready"])]
    write_page: Option<PathBuf>,
}

/// What ending takes in addition to the requests in progress.
const LEAVING: Duration = Duration::from_secs(5);

/// Open files in addition to accepted connections: the broker's, files being read, and connections being turned away.
const FILES: u64 = 128;

/// The open files needed. With replicas, as many connections again from them and to them, and those for telling all of them at once.
fn files(config: &GatewayConfig) -> u64 {
    let connections = config.connections as u64;
    FILES + if config.replicas.is_some() { 3 * connections + TELLING } else { connections }
}

/// The most connections on which a gateway tells the others something at a time.
const TELLING: u64 = 256;

/// Makes sure that this many connections can be open: otherwise idle ones could take the files that the broker's needs.
fn allow_files(connections: usize, needed: u64) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum });
    raised.map_err(|_| {
        let most = limit.maximum.or(limit.current).unwrap_or_default();
        Failure::input(format!(
            "`connections` is {connections}, which takes {needed} open files, but this process may have only {most}: lower it, or \
             raise the limit (`ulimit -n`, `LimitNOFILE` of systemd)"
        ))
    })
}

async fn bound(key: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| Failure::input(format!("`{key}` is {address}: {error}")))
}

/// The gateway, with the dialects that this command was built with.
#[cfg(feature = "a2a")]
async fn open(config: GatewayConfig, credentials: Credentials) -> Result<Http, OpenError> {
    let gateway = Http::open(config, credentials).await?;
    let agents = sealwire_gateway_a2a::A2a::new(&gateway)?;
    Ok(gateway.with_dialect(agents))
}

#[cfg(not(feature = "a2a"))]
async fn open(config: GatewayConfig, credentials: Credentials) -> Result<Http, OpenError> {
    Http::open(config, credentials).await
}

/// Refuses a configuration that needs what this command was built without.
fn check_features(config: &GatewayConfig) -> Result<(), Failure> {
    let needs_a2a = config.card_key.is_some() || config.expose.iter().any(|expose| expose.a2a.is_some());
    match needs_a2a && !cfg!(feature = "a2a") {
        true => Err(Failure::input(
            "the configuration uses A2A (`a2a`, `card_key`), and this command was built without it: build it with \
             the feature `a2a`, or take these keys out",
        )),
        false => Ok(()),
    }
}

impl Gateway {
    fn is_ready(config: &GatewayConfig, out: &Output) -> Result<Exit, Failure> {
        block_on(ready(config))?.map_err(|error| match error {
            NotReady::Config(_) => Failure::of(Exit::Input, &error),
            _ => Failure::of(Exit::Transport, &error),
        })?;
        out.tell(&json!({ "ready": true, "listen": config.listen }), || "it takes requests".to_owned())?;
        Ok(Exit::Ok)
    }

    /// Writes the files of the page, and says the digest of the first, which has those of the others in it.
    fn write_page(folder: &Path, out: &Output) -> Result<Exit, Failure> {
        make_folder(folder)?;
        for (name, text) in APPROVALS_PAGE {
            write_new(&folder.join(name), text)?;
        }
        let [(name, text), ..] = APPROVALS_PAGE;
        let digest = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let path = folder.join(name);
        out.result(&json!({ "page": shown(&path), "sha256": digest }), || {
            format!("wrote {}\nits SHA-256 digest, which covers the other files: {digest}", path.display())
        })?;
        Ok(Exit::Ok)
    }

    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        if let Some(folder) = &self.write_page {
            return Self::write_page(folder, out);
        }
        let config = GatewayConfig::load(&self.config).or_fail(Exit::Input)?;
        check_features(&config)?;
        if self.ready {
            return Self::is_ready(&config, out);
        }
        let credentials = Credentials::load(&config.credentials).or_fail(Exit::Input)?;
        let (agent, listen, connections) = (credentials.agent().to_string(), config.listen, config.connections);
        let scheme = if config.tls_cert.is_some() { "https" } else { "http" };
        let needed = files(&config);
        let others = config.replicas.as_ref().map(|replicas| replicas.listen);
        let signals = Signals::listen(Some(config.leave() + config.drain() + LEAVING + Traces::CLOSING))?;
        if self.check {
            of_agent(&config.telemetry, &credentials)?;
            let opened = block_on(signals.unless_stopped(open(config, credentials)))?;
            opened.transpose().or_fail(Exit::Input)?;
            out.result(&json!({ "valid": true, "agent": agent, "listen": listen }), || {
                format!("valid: {agent} would listen on {listen}")
            })?;
            return Ok(Exit::Ok);
        }
        block_on(async {
            let telemetry = Telemetry::start(&config.telemetry).await.or_fail(Exit::Input)?;
            let traces = of_agent(&config.telemetry, &credentials)?.map(Traces::start);
            if let (Some(telemetry), Some(traces)) = (&telemetry, &traces) {
                telemetry.report(traces);
            }
            let Some(opened) = signals.unless_stopped(open(config, credentials)).await else {
                return Ok(Exit::Ok);
            };
            let gateway = Arc::new(opened.or_fail(Exit::Input)?);
            if let Some(telemetry) = &telemetry {
                show(&gateway, telemetry);
            }
            if let Some(traces) = &traces {
                gateway.trace(traces.tracer());
            }
            allow_files(connections, needed)?;
            let listener = bound("listen", listen).await?;
            let others = match others {
                Some(others) => Some(bound("listen` of `replicas", others).await?),
                None => None,
            };
            let listens = listener.local_addr().map_err(|error| Failure::input(error.to_string()))?;
            out.tell(&json!({ "ready": true, "agent": agent, "listen": listens }), || {
                format!("{agent} answers on {scheme}://{listens}")
            })?;
            let served = gateway.serve(listener, others, signals.stop()).await;
            close(traces).await;
            served.map(|()| Exit::Ok).map_err(|error| Failure::of(Exit::Timeout, &error))
        })?
    }
}
