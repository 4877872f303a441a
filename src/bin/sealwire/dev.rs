//! `sealwire dev`: the demonstration's set-up, kept running, with credentials to try things with.
//! Never reuses keys of an earlier run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use sealwire::service::{Running, State};
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::nats_server::{self, ServerOptions};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::sandbox::{AGENTS, SERVICE, Sandbox, TOOLS_USER};
use crate::serve;

/// Keep a whole set-up running on this machine, and print what to try
///
/// Starts a real nats-server and the demonstration service, and writes configuration, keys, tokens, policies and one
/// credentials file per agent into a folder. Edit the policies there while it runs: they are read again when they change.
/// Ends with Ctrl-C; the folder stays, its keys are of no use to the next run.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire dev
  sealwire dev --folder /tmp/sealwire-dev --port 4333

Then, in a second terminal:
  sealwire call --creds sealwire-dev/planner.creds.json demo math/add '[2, 3]'")]
pub(crate) struct Dev {
    /// Where everything is written; an earlier run's files there are replaced
    #[arg(long, value_name = "FOLDER", default_value = "sealwire-dev")]
    folder: PathBuf,
    /// The broker's port on 127.0.0.1; any free one by default
    #[arg(long)]
    port: Option<u16>,
}

/// Written into the folder, so that a later run knows that it may replace what is there.
const MARK: &str = ".sealwire-dev";
/// How often new tokens are written: three times in the life of one.
const REFRESH: Duration = Duration::from_secs(300);

impl Dev {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        prepare(&self.folder)?;
        let found = nats_server::find().or_fail(Exit::Transport)?;
        let sandbox = Sandbox::new(&self.folder)?;
        let options =
            ServerOptions { config: Some(sandbox.broker_config()), port: self.port, ..ServerOptions::default() };
        let broker = nats_server::spawn(&found, &options).or_fail(Exit::Transport)?;
        let url = broker.url();
        sandbox.connect_to(&url)?;
        let config = sandbox.config()?;
        let signals = Signals::listen(Some(serve::grace(&config)))?;
        let result = block_on(async {
            let (service, options) = serve::service(&config, None).await?;
            let (tell, handle) = tokio::sync::oneshot::channel::<Running>();
            let announce = async {
                let Ok(running) = handle.await else { return Ok(()) };
                let ready = running.state().wait_for(|state| *state == State::Ready).await.is_ok();
                if ready {
                    out.result(&self.summary(&url), || self.text(&url, &sandbox))?;
                }
                let mut ticks = tokio::time::interval(REFRESH);
                loop {
                    ticks.tick().await;
                    sandbox.refresh_tokens()?;
                }
            };
            let serving = service.serve(&config.nats, options, |running| drop(tell.send(running)), signals.stop());
            tokio::select! {
                served = serving => served.or_fail(Exit::Transport),
                failed = announce => failed,
            }
        })?;
        drop(broker);
        result.map(|()| Exit::Ok)
    }

    fn summary(&self, url: &str) -> serde_json::Value {
        let agents: Vec<_> = AGENTS
            .iter()
            .map(|(name, roles, ..)| {
                json!({ "agent": name, "roles": roles, "credentials": self.folder.join(format!("{name}.creds.json")) })
            })
            .collect();
        json!({ "ready": true, "url": url, "folder": self.folder, "service": SERVICE, "agents": agents })
    }

    fn text(&self, url: &str, sandbox: &Sandbox) -> String {
        let folder = self.folder.display();
        let mut text = format!("The service `{SERVICE}` takes messages; the broker is at {url}.\n\nAgents:\n");
        for (name, roles, _, what) in AGENTS {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<9} {what}; roles {roles:?}, credentials {folder}/{name}.creds.json");
        }
        let _ = write!(
            text,
            "\nTry, in a second terminal:\n\
             \x20 export SEALWIRE_CREDS={folder}/planner.creds.json\n\
             \x20 sealwire call {SERVICE} math/add '{{\"a\": 2, \"b\": 3}}'\n\
             \x20 sealwire call {SERVICE} math/add '[2, 3]'\n\
             \x20 sealwire notify {SERVICE} log/append '{{\"msg\": \"hello\"}}'\n\
             \x20 sealwire batch {SERVICE} '[{{\"method\": \"math/add\", \"params\": [1, 2]}}, {{\"method\": \"math/reset\"}}]'\n\
             \x20 sealwire call {SERVICE} bank/transfer '{{\"to\": \"alice\", \"amount\": 5000}}'     # denied\n\
             \x20 sealwire call --creds {folder}/teller.creds.json {SERVICE} bank/transfer '{{\"to\": \"alice\", \"amount\": 5000}}'\n\
             \x20 sealwire policy explain --dir {folder}/policies --agent planner --role calculator --method math/reset\n\
             \x20 nats --server nats://{TOOLS_USER}:{}@{} --inbox-prefix _INBOX.{TOOLS_USER} service ls     # if you have the nats command\n\
             \nEdit {folder}/policies while it runs. Ctrl-C ends it.",
            sandbox.password(TOOLS_USER),
            url.trim_start_matches("nats://"),
        );
        text
    }
}

/// Makes the folder, or empties one of an earlier run.
fn prepare(folder: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| Failure::input(format!("`{}`: {error}", folder.display()));
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
        Ok(mut entries) => {
            let empty = entries.next().is_none();
            if !empty && !folder.join(MARK).exists() {
                return Err(Failure::input(format!(
                    "`{}` has files in it that an earlier `sealwire dev` did not write: give another `--folder`",
                    folder.display()
                )));
            }
            std::fs::remove_dir_all(folder).map_err(fail)?;
        }
    }
    std::fs::create_dir_all(folder).map_err(fail)?;
    restrict(folder).map_err(fail)?;
    std::fs::write(folder.join(MARK), "").map_err(fail)
}

#[cfg(unix)]
fn restrict(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
}

#[cfg(not(unix))]
fn restrict(_folder: &Path) -> std::io::Result<()> {
    Ok(())
}
