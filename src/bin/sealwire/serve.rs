//! `sealwire serve`: the demonstration methods behind a configuration file.
//! Never starts with a configuration, key or policy that has an error.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use sealwire::policy::{Finding, Methods, PolicySet};
use sealwire::service::{BUILTIN_METHODS, BuildError, Running, ServeError, ServeOptions, Service, State};
use sealwire::{Config, MethodName};
use serde_json::json;

use crate::demo_methods;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files;
use crate::output::Output;
use crate::record::Recorder;
use crate::runtime::{Signals, block_on};

/// Serve the demonstration methods as a configuration file says
///
/// Runs until SIGTERM or SIGINT, then finishes what it has accepted and ends. That takes `limits.drain_s` (30) seconds and
/// ten more at most, whatever the broker does; a second signal ends it at once. Keys, token keys, denylist and policies are
/// read again when they change. One line on stdout says that the service takes messages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire serve --config sealwire.toml
  sealwire serve --config sealwire.toml --check  # connect to nothing
  sealwire serve --config sealwire.toml --record-decisions decisions.jsonl

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
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check configuration, keys and policies, and end
    #[arg(long)]
    check: bool,
    /// A file in which to keep this instance's id and state while it runs, for `sealwire ping --own`
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    state_file: Option<PathBuf>,
    /// Add every decision of the policy to this file, as a line of JSON with the declared parameters only, for
    /// `sealwire policy diff --replay`; never holds up a call: what the file is too slow for is left out and counted
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    record_decisions: Option<PathBuf>,
}

impl Serve {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let config = Config::load(&self.config).or_fail(Exit::Input)?;
        if self.check {
            return check(&config, out);
        }
        let recorder = self.record_decisions.as_deref().map(Recorder::open).transpose()?;
        let signals = Signals::listen(Some(grace(&config)))?;
        let outcome = block_on(async {
            let Some(built) = signals.unless_stopped(service(&config, recorder.as_ref())).await else { return Ok(()) };
            let (service, options) = built?;
            serve(&service, &config, options, out, self.state_file.as_deref(), signals.stop()).await
        })?;
        recorder.map(Recorder::finish);
        outcome.map(|()| Exit::Ok)
    }
}

/// Reads everything as the service would.
fn check(config: &Config, out: &Output) -> Result<Exit, Failure> {
    config.check().or_fail(Exit::Input)?;
    let (policy, warnings) = policy(config)?;
    for warning in warnings {
        out.warning(&warning.to_string());
    }
    let (audience, revision) = (format!("{}/{}", config.environment, config.service), policy.revision().to_string());
    let result = json!({ "audience": audience, "policy": revision });
    out.result(&result, || format!("{audience}: everything can be read; policy {revision}"))?;
    Ok(Exit::Ok)
}

/// The policy of a configuration, for the demonstration methods.
pub(crate) fn policy(config: &Config) -> Result<(PolicySet, Vec<Finding>), Failure> {
    let router = demo_methods::router();
    let names = router.names().chain(BUILTIN_METHODS);
    let methods = names.filter_map(|name| MethodName::new(name).ok()).collect::<Methods>();
    PolicySet::load(&config.policy.folder, &methods).or_fail(Exit::PolicyInvalid)
}

/// The service of a configuration, with the demonstration methods.
pub(crate) async fn service(config: &Config, recorder: Option<&Recorder>) -> Result<(Service, ServeOptions), Failure> {
    let (builder, mut options) = config.builder().await.or_fail(Exit::Input)?;
    "The demonstration methods of sealwire".clone_into(&mut options.description);
    let mut builder = builder.methods(demo_methods::router());
    if let Some(recorder) = recorder {
        builder = builder.decisions(recorder.sink());
    }
    let service = builder.build().map_err(|error| match error {
        BuildError::Policy(_) => Failure::of(Exit::PolicyInvalid, &error),
        error => Failure::of(Exit::Bug, &error),
    })?;
    Ok((service, options))
}

/// Serves until `shutdown`. Says once when the service takes messages, and keeps its state in a file if asked to.
async fn serve(
    service: &Service,
    config: &Config,
    options: ServeOptions,
    out: &Output,
    state_file: Option<&Path>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let (started, handle) = tokio::sync::oneshot::channel::<Running>();
    let announce = async {
        let Ok(running) = handle.await else { return Ok(()) };
        let (audience, subject) = (service.endpoint().audience().to_string(), service.endpoint().subscription());
        let (instance, mut state, mut said) = (running.instance(), running.state(), false);
        loop {
            let now = state.borrow_and_update().clone();
            if let Some(path) = state_file {
                files::write_public(path, &json!({ "instance": instance, "state": now.as_str() }).to_string())?;
            }
            if now == State::Ready && !said {
                said = true;
                let result = json!({ "ready": true, "audience": audience, "subject": subject, "instance": instance });
                out.result(&result, || format!("{audience} takes messages on {subject}"))?;
            }
            if state.changed().await.is_err() {
                return Ok(());
            }
        }
    };
    let mut serving = pin!(service.serve(&config.nats, options, |running| drop(started.send(running)), shutdown));
    let served = tokio::select! {
        served = &mut serving => served,
        announced = announce => {
            announced?;
            serving.await
        }
    };
    if let Some(path) = state_file {
        // Where it cannot be removed it is of no use either: nobody answers under that id any more.
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

/// How long after the first signal the process ends whatever hangs: the library's own bound, and time to tell.
pub(crate) fn grace(config: &Config) -> Duration {
    Duration::from_secs(config.limits.drain_s) + Service::LEAVING + Duration::from_secs(2)
}
