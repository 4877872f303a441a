//! `sealwire init`: creates the user's own service and its first caller, as a project that builds and runs.
//! Never overwrites a file, never mixes a program of its own with others in a folder, and never leaves a folder half written.

mod files;

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::Name;
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::output::Output;
use files::{Files, Language};
use sealwire_nats_server as nats_server;

/// Create a project: a service and a client, with keys, configuration, a policy and its tests
///
/// In an empty folder, it begins with programs in Rust, or in Python with `--language python` (the package `sealwire`) or `stdio`
/// (nothing but Python). In a folder with Python files it adds configuration, keys and a policy to the program that is there, as
/// `--language none` does everywhere. The agent's token renews itself. Nothing is started; the command prints what to run, and how to add agents, roles, methods and replicas.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire init hello
  sealwire init hello --service math --agent planner --port 4333
  sealwire init hello --language python
  sealwire init . --language none          # beside a program of your own
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
    /// What to begin with [default: rust; none in a folder with Python files]
    #[arg(long, value_enum)]
    language: Option<Language>,
    /// The port on 127.0.0.1 for a broker that you will start; 0 for any that is free now
    #[arg(long, default_value_t = 4222)]
    port: u16,
    /// The URL of a broker that is already running, with JetStream and without users
    #[arg(long, value_name = "URL", conflicts_with = "port")]
    url: Option<String>,
}

impl Init {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let language = self.language.unwrap_or_else(|| files::language(&self.folder));
        let port = if self.port == 0 { free_port()? } else { self.port };
        if self.service.as_str() == "rpc" {
            let failure = Failure::input("a service named `rpc` would have method names that are the library's own");
            return Err(failure.help("choose another name with `--service`"));
        }
        let folder = self.folder.display().to_string();
        let url = match &self.url {
            Some(url) => url.clone(),
            None if nats_server::is_free(port) => format!("nats://127.0.0.1:{port}"),
            None => {
                let failure = Failure::input(format!("port {port} of 127.0.0.1 is in use, and nothing was written"));
                return Err(failure.help(format!(
                    "choose another `--port` for your own broker, or use the one there with `--url nats://127.0.0.1:{port}`"
                )));
            }
        };
        let Self { service, agent, .. } = &self;
        let broker = self.url.is_none().then(|| format!("sealwire nats-server --port {port}"));
        let call = format!("sealwire call --creds {agent}.creds.json {service} {service}/add '[2, 3]' --wait 10s");
        let programs = match language {
            Language::Rust => ["service", "client"].map(|program| format!("cargo run --bin {program}")),
            Language::Python => ["service", "client"].map(|program| format!("python3 {program}.py")),
            Language::Stdio => ["sealwire serve".to_owned(), call],
            Language::None => {
                let method = format!("{service}/add(a: number, b: number)");
                [format!("sealwire serve stdio --method '{method}' -- python3 YOUR_PROGRAM.py"), call]
            }
        };
        let run: Vec<String> = broker.into_iter().chain(programs).collect();
        Files { folder: &self.folder, language, service, agent, url: &url, run: &run }.write()?;

        let result = json!({ "folder": folder, "service": service, "agent": agent, "url": url, "run": run });
        out.result(&result, || {
            let place = if self.folder == Path::new(".") { String::new() } else { format!(", in {folder}") };
            let run: String = run.iter().map(|line| format!("  {line}\n")).collect();
            format!(
                "made the service `{service}` and its agent `{agent}` in {folder}\n\n\
                 Run each of these in its own terminal{place}:\n{run}\n{}",
                more(language, service)
            )
        })?;
        Ok(Exit::Ok)
    }
}

/// What to do next.
fn more(language: Language, service: &Name) -> String {
    let agent =
        |role: &str| format!("  an agent    sealwire keys new-agent indexer --config sealwire.toml --role {role}\n");
    let role = format!(
        "  a role      printf '\\n[role.auditor]\\nallow = [\"{service}/add\"]\\n' >> policies/{service}.toml\n"
    );
    match language {
        Language::Rust | Language::Python => {
            let (program, run) = match language {
                Language::Rust => ("src/bin/service.rs", "cargo run --bin service"),
                _ => ("service.py", "python3 service.py"),
            };
            format!(
                "To add more while they run:\n{}{role}\
                 \x20 a method    printf '\\n[method.\"{service}/sub\"]\\n' >> policies/{service}.toml    # once {program} has it\n\
                 \x20 a replica   {run}\n\nREADME.md explains what each file is.",
                agent("calculator")
            )
        }
        Language::Stdio => format!(
            "To add more while they run:\n{}{role}\x20 a replica   sealwire serve\n\nREADME.md explains what each file is.",
            agent("calculator")
        ),
        Language::None => format!(
            "Name your program and its methods there; `[[backend]]` in sealwire.toml describes it for good (docs/backends.md).\n\n\
             To add more while they run:\n{}\
             \x20 a rule      policies/{service}.toml lets every agent with the role `user` call everything; docs/policies.md says how to \
             be stricter\n",
            agent("user")
        ),
    }
}

/// A port of 127.0.0.1 on which nothing listens now.
fn free_port() -> Result<u16, Failure> {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    free.map(|address| address.port()).map_err(|error| Failure::input(format!("no port of 127.0.0.1 is free: {error}")))
}
