//! The stage of the scenario: a broker, a folder of throw-away files, and the demonstration service.
//! Never leaves anything behind.

use std::time::Duration;

use sealwire::{Credentials, ServeError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::audience::Audience;
use crate::demo_methods;
use crate::error::{Blame, LabError, OrFail as _};
use crate::sandbox::Sandbox;
use sealwire_nats_server::{self as nats_server, Found, ServerOptions};

/// A broker with the sandbox's users, and the sandbox.
#[derive(Debug)]
pub struct Stage {
    pub(super) sandbox: Sandbox,
    pub(super) url: String,
    // Dropped in this order: the broker ends before its folder is removed.
    _broker: nats_server::Running,
    _folder: tempfile::TempDir,
}

/// The service, running.
#[derive(Debug)]
pub struct RunningService {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

/// How long the service may take to become ready. Looking for other replicas takes half a second, and the replay guard cannot
/// vouch for messages until two seconds after its start.
pub(super) const READY: Duration = Duration::from_secs(30);

impl Stage {
    /// Starts a nats-server, and creates everything else.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn build(found: &Found, out: &dyn Audience) -> Result<Self, LabError> {
        let folder = nats_server::private(tempfile::Builder::new().prefix("sealwire-demo-"))
            .tempdir()
            .map_err(|error| LabError::new(Blame::Input, format!("cannot create a temporary folder: {error}")))?;
        let sandbox = Sandbox::new(folder.path())?;
        let options = ServerOptions { config: Some(sandbox.broker_config()), ..ServerOptions::default() };
        let broker = nats_server::spawn(found, &options).or_fail(Blame::Transport)?;
        let url = broker.url();
        sandbox.connect_to(&url)?;
        out.note(&format!("nats-server {} ({}) at {url}", found.version, found.origin));
        out.note("keys, tokens, policies and broker permissions: generated for this run only");
        Ok(Self { sandbox, url, _broker: broker, _folder: folder })
    }

    /// The credentials of an agent.
    pub(super) fn credentials(&self, agent: &str) -> Result<Credentials, LabError> {
        Credentials::load(self.sandbox.credentials_file(agent)).or_fail(Blame::Bug)
    }

    /// Starts the service.
    ///
    /// # Errors
    /// [`LabError`].
    pub async fn serve(&self) -> Result<RunningService, LabError> {
        let config = self.sandbox.config()?;
        let (builder, options) = config.builder().await.or_fail(Blame::Input)?;
        let service = builder.methods(demo_methods::router()).build().or_fail(Blame::Bug)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            service.serve(&config.nats, options, |_| (), shutdown).await
        });
        Ok(RunningService { stop, task })
    }
}

impl RunningService {
    /// Drains the service.
    ///
    /// # Errors
    /// [`LabError`].
    pub async fn stop(self) -> Result<(), LabError> {
        drop(self.stop);
        match self.task.await {
            Ok(served) => served.or_fail(Blame::Transport),
            Err(_) => Err(LabError::new(Blame::Bug, "the demonstration service panicked")),
        }
    }
}
