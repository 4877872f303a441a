//! `sealwire dev`: keeps the demonstration's setup running, with credentials to try things out.
//! Never takes a folder that another `sealwire dev` uses, and never discards what is in it unless told to.

mod add_agent;
mod folder;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use sealwire::Running;
use sealwire::serve::State;
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::{files, serve, server};
use folder::{Folder, Member, Place};
use sealwire_lab::layout;
use sealwire_lab::parties::{AGENTS, SERVICE};
use sealwire_lab::sandbox::{FOLDER, TOOLS_USER};
use sealwire_nats_server::{self as nats_server, RunError, ServerOptions};

/// Run a complete setup on this machine, and print what to try
///
/// Starts a real nats-server and the demonstration service, and writes configuration, keys, tokens, policies and one
/// credentials file per agent into a folder. You can edit the policies there while it runs: the service rereads them when
/// they change. Ctrl-C or SIGTERM ends it, usually at once and within 40 seconds at most; it also ends if its nats-server
/// does. The folder remains, and the next run uses it again.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  sealwire dev
  sealwire dev --folder /tmp/sealwire-dev --port 4333
  sealwire dev --fresh

Then, in a second terminal:
  sealwire call --creds sealwire-dev/planner.creds.json demo math/add '[2, 3]'
  sealwire dev add-agent indexer --role calculator"
)]
pub(crate) struct Dev {
    #[command(flatten)]
    place: Place,
    /// The broker's port on 127.0.0.1, or 0 for any that is free. Default: that of the last run if it is free, otherwise any
    #[arg(long)]
    port: Option<u16>,
    /// Start afresh: replace the keys, tokens, agents and policies of an earlier run, and nothing else
    #[arg(long)]
    fresh: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    AddAgent(add_agent::AddAgent),
}

/// How often new tokens are written: three times in the lifetime of one.
const REFRESH: Duration = Duration::from_secs(300);
/// How often the broker and the list of agents are checked.
const LOOK: Duration = Duration::from_millis(200);

impl Dev {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        if let Some(Command::AddAgent(command)) = self.command {
            return command.run(out);
        }
        // Check everything else before the folder is marked as taken.
        if let Some(port) = self.port.filter(|port| !nats_server::is_free(*port)) {
            return Err(Failure::of(Exit::Input, &RunError::PortInUse(port)));
        }
        Folder::check(&self.place.folder)?;
        let found = server::found(out)?;
        let folder = Folder::take(&self.place.folder)?;
        // By default, the port of the last run if it is still free.
        let port = match self.port {
            Some(port) => Some(port).filter(|port| *port != 0),
            None => folder.port().filter(|port| nats_server::is_free(*port)),
        };
        let kept = folder.is_complete() && !self.fresh;
        if !kept {
            folder.fill(self.fresh)?;
        }
        folder.admit_bench()?;
        let config = Some(folder.broker_config()?);
        let broker = nats_server::spawn(&found, &ServerOptions { config, port, ..ServerOptions::default() });
        let mut broker = broker.or_fail(Exit::Transport)?;
        let url = broker.url();
        folder.connect_to(&url)?;
        folder.write_logins(&url)?;
        folder.refresh_tokens()?;
        let config = folder.config()?;
        let signals = Signals::listen(Some(serve::grace(&config)))?;
        block_on(async {
            let (service, options) = serve::demonstration(&config).await?;
            let (tell, handle) = tokio::sync::oneshot::channel::<Running>();
            let announce = async {
                let Ok(running) = handle.await else { return Ok(()) };
                if running.state().wait_for(|state| *state == State::Ready).await.is_err() {
                    return Ok(());
                }
                let members = folder.members()?;
                out.result(&summary(&url, &folder, &members), || text(&url, &folder, &members, kept))
            };
            let mut failed = None;
            let stop = async {
                let care = async {
                    announce.await?;
                    Ok(std::future::pending::<std::convert::Infallible>().await)
                };
                tokio::select! {
                    () = signals.stop() => {}
                    Err(failure) = care => failed = Some(failure),
                    failure = look_after(&mut broker, &folder) => failed = Some(failure),
                }
            };
            let served = service.serve(&config.nats, options, |running| drop(tell.send(running)), stop).await;
            // If the broker has ended, the service fails, too, but its errors are not the reason.
            failed.map_or_else(|| served.or_fail(Exit::Transport), Err)
        })??;
        Ok(Exit::Ok)
    }
}

/// Adds new agents to the broker's users and writes new tokens, for as long as the broker runs.
async fn look_after(broker: &mut nats_server::Running, folder: &Folder) -> Failure {
    let (mut known, mut refreshed, mut said) = (folder.members().unwrap_or_default(), Instant::now(), String::new());
    loop {
        tokio::time::sleep(LOOK).await;
        if let Some(status) = broker.ended() {
            return ended(broker, status);
        }
        let looked = folder.members().and_then(|members| {
            if members != known {
                broker.reload(folder.broker_config()?).or_fail(Exit::Transport)?;
                known = members;
                tracing::info!(target: "sealwire::dev", agents = known.len(), "the broker's users were reloaded");
            }
            if refreshed.elapsed() > REFRESH {
                folder.refresh_tokens()?;
                refreshed = Instant::now();
            }
            Ok(())
        });
        // Somebody may be writing at this moment; an error that persists is logged once.
        let wrong = looked.err().map(|failure| failure.to_text()).unwrap_or_default();
        if !wrong.is_empty() && wrong != said {
            tracing::warn!(target: "sealwire::dev", "{wrong}");
        }
        said = wrong;
    }
}

fn ended(broker: &nats_server::Running, status: ExitStatus) -> Failure {
    let message = format!("nats-server ended with {status}, and so does this");
    let failure = Failure::new(Exit::Transport, message);
    let log = broker.log_end();
    // The log of a server that was killed does not say why.
    let failure = if status.code().is_some() { failure.cause(format!("the end of its log:\n{log}")) } else { failure };
    failure.help("start it again with `sealwire dev`: keys, agents and policies are still there")
}

fn credentials(folder: &Path, member: &Member) -> PathBuf {
    layout::credentials(folder, member.agent.as_str())
}

fn summary(url: &str, folder: &Folder, members: &[Member]) -> serde_json::Value {
    let agents: Vec<_> = members
        .iter()
        .map(|member| {
            json!({ "agent": member.agent, "roles": member.roles, "credentials": files::shown(&credentials(folder.path(), member)) })
        })
        .collect();
    json!({ "ready": true, "url": url, "folder": files::shown(folder.path()), "service": SERVICE, "agents": agents })
}

fn text(url: &str, place: &Folder, members: &[Member], kept: bool) -> String {
    let folder = place.path().display();
    let mut text = format!("The service `{SERVICE}` takes messages; the broker is at {url}.\n");
    if kept {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "Keys, agents and policies are those of the last run; `--fresh` makes new ones.");
    }
    text.push_str("\nAgents:\n");
    for member in members {
        let what = AGENTS.iter().find(|(name, ..)| *name == member.agent.as_str()).map_or("yours", |(.., what)| what);
        let file = credentials(place.path(), member);
        let _ =
            writeln!(text, "  {:<9} {what}; roles {:?}, credentials {}", member.agent, member.roles, file.display());
    }
    let elsewhere = if place.path() == Path::new(FOLDER) { String::new() } else { format!(" --folder {folder}") };
    let _ = write!(
        text,
        "\nTry, in a second terminal:\n\
         \x20 export SEALWIRE_CREDS={folder}/planner.creds.json\n\
         \x20 sealwire call {SERVICE} math/add '{{\"a\": 2, \"b\": 3}}'\n\
         \x20 sealwire call {SERVICE} math/add '[2, 3]'\n\
         \x20 sealwire notify {SERVICE} log/append '{{\"msg\": \"hello\"}}'\n\
         \x20 sealwire batch {SERVICE} '[{{\"method\": \"math/add\", \"params\": [1, 2]}}, {{\"method\": \"math/reset\"}}]'\n\
         \x20 sealwire call {SERVICE} bank/transfer '{{\"to\": \"alice\", \"amount\": 5000}}'     # denied\n\
         \x20 sealwire call {SERVICE} text/echo '[\"signed one by one, and in order\"]' --stream\n\
         \x20 sealwire call {SERVICE} job/run '{{\"steps\": 50}}' --stream     # Ctrl-C cancels it\n\
         \x20 sealwire watch {SERVICE} clock/ticks\n\
         \x20 sealwire call --creds {folder}/teller.creds.json {SERVICE} bank/transfer '{{\"to\": \"alice\", \"amount\": 5000}}'\n\
         \x20 sealwire policy explain --dir {folder}/policies --agent planner --role calculator --method math/reset\n\
         \x20 sealwire bench {SERVICE} math/add '[2, 3]' --against bare\n\
         \x20 sealwire top --login {folder}/tools.nats.json\n\
         \x20 sealwire dev add-agent indexer --role calculator{elsewhere}\n\
         \x20 nats --server {url} --user {TOOLS_USER} --password \"$(cat {folder}/{TOOLS_USER}.password)\" \
         --inbox-prefix _INBOX.{TOOLS_USER} service ls     # if you have the nats command\n\
         \nEdit {folder}/policies while it runs; the next run uses them, too. Ctrl-C ends it."
    );
    text
}
