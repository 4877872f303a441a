//! `sealwire serve`: serves programs, or the demonstration methods, as a configuration file says.
//! Never starts with a configuration, key or policy that has an error.

mod check;
mod demo_policy;
pub(crate) mod quick;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::{Args, Subcommand};
use sealwire::configure::RecordConfig;
use sealwire::internal::files::locate_file;
use sealwire::metrics::Telemetry;
use sealwire::serve::State;
use sealwire::traces::Traces;
use sealwire::{BuildError, Config, Router, Running, ServeError, ServeOptions, Service};
use sealwire_backend::BackendConfig;
use sealwire_backend::{Backends, Lock};
use serde_json::json;

pub(crate) use demo_policy::policy;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::traces::close;
use crate::{files, policies, project};
use sealwire_lab::demo_methods;

/// Put programs behind the bus, as a configuration file says
///
/// Each `[[backend]]` in the file is a program whose tools become methods (docs/backends.md). If the file has none, the
/// commands below serve a single program or the demonstration methods; all other settings still come from the file.
///
/// Runs until SIGTERM or SIGINT, then finishes the calls it has accepted and ends. That takes at most `limits.drain_s` (30)
/// seconds plus twenty, whatever the broker and the programs do; a second signal ends it at once. Keys, token keys, denylist
/// and policies are reread when they change. SIGHUP is not needed for that and is ignored, unless it comes because the terminal
/// that the service was started on is closed. One line on stdout says when the service takes messages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire serve --config sealwire.toml
  sealwire serve --config sealwire.toml --check  # connect to nothing
  sealwire serve --config sealwire.toml --record records
  sealwire serve stdio --method 'clock/now(zone: string)' -- python3 clock.py
  sealwire serve mcp -- mcp-server-time
  sealwire serve mcp --url https://tools.example/mcp
  sealwire serve demo

A small configuration:
  environment = \"dev\"
  service = \"demo\"
  [nats]
  urls = [\"nats://127.0.0.1:4222\"]
  [keys]
  ring = \"demo.ring.json\"
  [[tokens.issuer]]
  issuer = \"https://idp.example\"
  jwks = \"jwks.json\"
  [policy]
  folder = \"policies\"")]
pub(crate) struct Serve {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    what: Option<Source>,
}

/// The options of `serve` and all its subcommands.
#[derive(Args)]
struct Options {
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE", default_value = "sealwire.toml")]
    config: PathBuf,
    /// Check configuration, keys and policies without connecting to anything, then exit. Also works for a program of your own,
    /// with the methods that its policies declare
    #[arg(long, global = true)]
    check: bool,
    /// Keep this instance's id and state in a file while it runs, for `sealwire ping --own`
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "check")]
    state_file: Option<PathBuf>,
    /// Record decisions and outcomes in this folder, for `sealwire records` and `sealwire policy learn`: the `[record]` of the
    /// configuration, with this folder (docs/records.md)
    #[arg(long, global = true, value_name = "DIR", conflicts_with = "check")]
    record: Option<PathBuf>,
}

/// What is served instead of the file's backends.
#[derive(Subcommand)]
enum Source {
    /// Serve the demonstration methods, as `sealwire dev` and the cluster do
    #[command(after_help = "\
Examples:
  sealwire serve demo --config sealwire.toml")]
    Demo,
    Stdio(quick::Stdio),
    Exec(quick::Exec),
    Mcp(quick::Mcp),
    Http(quick::Http),
    Ws(quick::Ws),
}

impl Serve {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Options { config: path, check, state_file, record } = self.options;
        let (mut config, mut backends) = project::load(&path)?;
        if let Some(folder) = record {
            config.record.get_or_insert_with(|| RecordConfig::in_folder(&folder)).folder = folder.clone();
        }
        let is_demo = matches!(self.what, Some(Source::Demo));
        let is_named = self.what.is_some();
        let mut given = match self.what {
            None => std::mem::take(&mut backends),
            Some(Source::Demo) => Vec::new(),
            Some(Source::Stdio(quick)) => vec![quick.backend()?],
            Some(Source::Exec(quick)) => vec![quick.backend()?],
            Some(Source::Mcp(quick)) => vec![quick.backend()?],
            Some(Source::Http(quick)) => vec![quick.backend()?],
            Some(Source::Ws(quick)) => vec![quick.backend()?],
        };
        if let Some(first) = backends.first() {
            let text = format!("backend `{}` in `{}`: only `sealwire serve` runs backends", first.name, path.display());
            return Err(
                Failure::input(text).help("leave out what follows `serve`, or take the backends out of the file")
            );
        }
        for backend in &mut given {
            backend.files = config.files.clone();
        }
        if check {
            return check::run(&config, &given, &lock_beside(&path), is_demo, out);
        }
        if given.is_empty() && !is_named {
            let failure =
                Failure::input(format!("`{}` has no `[[backend]]`: there is nothing to serve", path.display()));
            return Err(failure.help(
                "describe a program (docs/backends.md), or name one: sealwire serve stdio --method NAME -- COMMAND; \
                 the demonstration methods are served by: sealwire serve demo",
            ));
        }
        let outputs =
            [("the state of the replay guard", &config.replay.state), ("the state of this instance", &state_file)];
        files::check_apart(outputs.into_iter().filter_map(|(what, path)| Some((what, path.as_deref()?))))?;
        if let Some(path) = &state_file {
            files::check_output(path, "state of an instance", is_state)?;
        }
        let signals = Signals::listen(Some(grace(&config) + Backends::STOPPING.max(Traces::CLOSING)))?;
        let outcome = block_on(async {
            // Before anything that may take long, so that `/livez` is there.
            let telemetry = Telemetry::start(&config.telemetry).await.or_fail(Exit::Input)?;
            let traces = config.traces().or_fail(Exit::Input)?.map(Traces::start);
            if let (Some(telemetry), Some(traces)) = (&telemetry, &traces) {
                telemetry.report(traces);
            }
            let backends = if given.is_empty() {
                None
            } else {
                let lock = lock_beside(&path);
                let Some(started) = signals.unless_stopped(Backends::start(&given, &lock)).await else { return Ok(()) };
                Some(started.or_fail(Exit::Input)?)
            };
            if let (Some(telemetry), Some(backends)) = (&telemetry, &backends) {
                telemetry.report(backends);
            }
            let built = signals.unless_stopped(async {
                match &backends {
                    None => service(&config, demo_methods::router()).await,
                    Some(backends) => {
                        let (service, mut options) = service(&config, backends.router()).await?;
                        options.description = format!("{} behind sealwire", names(&given));
                        options.interrupted = Some(backends.down());
                        Ok((service, options))
                    }
                }
            });
            let served = match built.await {
                None => Ok(()),
                Some(Err(failure)) => Err(failure),
                Some(Ok((service, options))) => {
                    if let Some(traces) = &traces {
                        service.trace(traces.tracer());
                    }
                    let started = |running: &Running| {
                        if let Some(telemetry) = &telemetry {
                            telemetry.show(&service, running.clone());
                        }
                    };
                    serve(&service, &config, options, out, state_file.as_deref(), started, signals.stop()).await
                }
            };
            let stopping = async {
                if let Some(backends) = backends {
                    backends.stop().await;
                }
            };
            tokio::join!(stopping, close(traces));
            served
        })?;
        outcome.map(|()| Exit::Ok)
    }
}

/// The file of approved tool definitions, next to the configuration.
pub(crate) fn lock_beside(config: &Path) -> PathBuf {
    config.with_file_name(Lock::FILE)
}

fn names(backends: &[BackendConfig]) -> String {
    backends.iter().map(|backend| backend.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The service of a configuration, with the demonstration methods.
pub(crate) async fn demonstration(config: &Config) -> Result<(Service, ServeOptions), Failure> {
    service(config, demo_methods::router()).await
}

/// The service of a configuration, with these methods.
async fn service<S: Send + Sync + 'static>(
    config: &Config,
    methods: Router<S>,
) -> Result<(Service, ServeOptions), Failure> {
    let (builder, mut options) = config.builder().await.or_fail(Exit::Input)?;
    "The demonstration methods of sealwire".clone_into(&mut options.description);
    let service = builder.methods(methods).build().map_err(|error| match error {
        BuildError::Policy(errors) => policies::refused(&config.policy.folder, &errors),
        BuildError::Methods(_) => Failure::of(Exit::Input, &error),
        error => Failure::of(Exit::Bug, &error),
    })?;
    Ok((service, options))
}

/// Whether a file contains the state that [`serve`] writes, and may thus be overwritten and finally removed.
fn is_state(text: &str) -> bool {
    let members = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).unwrap_or_default();
    members.keys().eq(["instance", "state"])
}

/// Serves until `shutdown`. Reports once that the service takes messages, and keeps its state in a file if asked to.
async fn serve(
    service: &Service,
    config: &Config,
    options: ServeOptions,
    out: &Output,
    state_file: Option<&Path>,
    on_start: impl FnOnce(&Running),
    shutdown: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let (started, handle) = tokio::sync::oneshot::channel::<Running>();
    let announce = async {
        let Ok(running) = handle.await else { return Ok(()) };
        let (audience, subject) = (service.endpoint().audience().to_string(), service.endpoint().subscription());
        let (instance, mut state, mut said, mut kept) = (running.instance(), running.state(), false, false);
        loop {
            let now = state.borrow_and_update().clone();
            if let Some(path) = state_file {
                let written =
                    files::write_public(path, &json!({ "instance": instance, "state": now.as_str() }).to_string());
                match written {
                    Ok(()) => kept = true,
                    // Go on: calls are in progress, and `ping --own` needs only the instance id from the file, which stays valid.
                    Err(failure) if kept => {
                        tracing::warn!(target: "sealwire::command", "cannot write the state file: {}", failure.to_text().trim_start_matches("error: "));
                    }
                    Err(failure) => return Err(failure),
                }
            }
            if now == State::Ready && !said {
                said = true;
                let result = json!({ "ready": true, "audience": audience, "subject": subject, "instance": instance });
                out.tell(&result, || format!("{audience} takes messages on {subject}"))?;
            }
            if state.changed().await.is_err() {
                return Ok(());
            }
        }
    };
    let tell = |running| {
        on_start(&running);
        drop(started.send(running));
    };
    let mut serving = pin!(service.serve(&config.nats, options, tell, shutdown));
    let served = tokio::select! {
        served = &mut serving => served,
        announced = announce => {
            announced?;
            serving.await
        }
    };
    if let Some(path) = state_file.and_then(|path| locate_file(path).ok()) {
        // A file that cannot be removed does no harm: nobody answers under that id any more.
        drop(std::fs::remove_file(path));
    }
    served.map_err(|error| {
        let exit = match &error {
            ServeError::Drain(_) => Exit::Timeout,
            _ => Exit::Transport,
        };
        Failure::of(exit, &error)
    })
}

/// How long after the first signal the process ends even if something hangs: the library's own bound, plus time to report.
pub(crate) fn grace(config: &Config) -> Duration {
    Duration::from_secs(config.limits.drain_s) + Service::LEAVING + Duration::from_secs(2)
}
