//! `sealwire init`: creates the user's own service and its first caller, as a project that builds and runs.
//! Never writes into a folder that is not empty, and never leaves one half written.

mod files;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use sealwire::Name;
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::output::Output;
use files::Files;
use sealwire_nats_server as nats_server;

/// Create a project in an empty folder: a service and a client, with keys, configuration, a policy and its tests
///
/// The agent's token renews itself. Nothing is started; the command prints what to run, and how to add agents, roles, methods
/// and replicas.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire init hello
  sealwire init hello --service math --agent planner --port 4333
  sealwire init . --url nats://127.0.0.1:4222")]
pub(crate) struct Init {
    /// The folder; created if there is none
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// The service's name
    #[arg(long, value_name = "NAME", default_value = files::SERVICE)]
    service: Name,
    /// The name of the first agent that may call it
    #[arg(long, value_name = "NAME", default_value = files::AGENT)]
    agent: Name,
    /// The language of the programs
    #[arg(long, value_enum, default_value_t)]
    language: Language,
    /// The port on 127.0.0.1 for a broker that you will start
    #[arg(long, default_value_t = 4222)]
    port: u16,
    /// The URL of a broker that is already running, with JetStream and without users
    #[arg(long, value_name = "URL", conflicts_with = "port")]
    url: Option<String>,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Language {
    /// A Cargo project
    #[default]
    Rust,
}

impl Init {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Language::Rust = self.language;
        if self.service.as_str() == "rpc" {
            let failure = Failure::input("a service named `rpc` would have method names that are the library's own");
            return Err(failure.help("choose another name with `--service`"));
        }
        let folder = self.folder.display().to_string();
        let url = match &self.url {
            Some(url) => url.clone(),
            None if nats_server::is_free(self.port) => format!("nats://127.0.0.1:{}", self.port),
            None => {
                let port = self.port;
                let failure = Failure::input(format!("port {port} of 127.0.0.1 is in use, and nothing was written"));
                return Err(failure.help(format!(
                    "choose another `--port` for your own broker, or use the one there with `--url nats://127.0.0.1:{port}`"
                )));
            }
        };
        let Self { service, agent, .. } = &self;
        let broker = self.url.is_none().then(|| format!("sealwire nats-server --port {}", self.port));
        let programs = ["service", "client"].map(|program| format!("cargo run --bin {program}"));
        let run: Vec<String> = broker.into_iter().chain(programs).collect();
        Files { folder: &self.folder, service, agent, url: &url, run: &run }.write()?;

        let result = json!({ "folder": self.folder, "service": service, "agent": agent, "url": url, "run": run });
        out.result(&result, || {
            let place = if self.folder == Path::new(".") { String::new() } else { format!(", in {folder}") };
            let run: String = run.iter().map(|line| format!("  {line}\n")).collect();
            format!(
                "made the service `{service}` and its agent `{agent}` in {folder}\n\n\
                 Run each of these in its own terminal{place}:\n{run}\n\
                 To add more while they run:\n\
                 \x20 an agent    sealwire keys new-agent indexer --config sealwire.toml --role calculator\n\
                 \x20 a role      printf '\\n[role.auditor]\\nallow = [\"{service}/add\"]\\n' >> policies/{service}.toml\n\
                 \x20 a method    printf '\\n[method.\"{service}/sub\"]\\n' >> policies/{service}.toml    # once src/bin/service.rs has it\n\
                 \x20 a replica   cargo run --bin service\n\n\
                 README.md explains what each file is."
            )
        })?;
        Ok(Exit::Ok)
    }
}
