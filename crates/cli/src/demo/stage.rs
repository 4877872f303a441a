//! The stage of the scenario: a broker, a folder of throw-away files, and the demonstration service.
//! Never leaves anything behind.

use std::time::Duration;

use sealwire::client::Credentials;
use sealwire::service::ServeError;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::sandbox::Sandbox;
use crate::{serve, server};
use sealwire_nats_server::{self as nats_server, ServerOptions};

/// A broker with the sandbox's users, and the sandbox.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) sandbox: Sandbox,
    pub(crate) url: String,
    // Dropped in this order: the broker ends before its folder is removed.
    _broker: nats_server::Running,
    _folder: tempfile::TempDir,
}

/// The service, running.
pub(crate) struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

/// How long the service may take to become ready. Looking for other replicas takes half a second, and the replay guard cannot
/// vouch for messages until two seconds after its start.
pub(super) const READY: Duration = Duration::from_secs(30);

impl Stage {
    /// Finds or downloads a nats-server, starts it, and creates everything else.
    pub(crate) fn build(out: &Output) -> Result<Self, Failure> {
        let found = server::found(out)?;
        let folder = nats_server::private(tempfile::Builder::new().prefix("sealwire-demo-"))
            .tempdir()
            .map_err(|error| Failure::input(format!("cannot create a temporary folder: {error}")))?;
        let sandbox = Sandbox::new(folder.path())?;
        let options = ServerOptions { config: Some(sandbox.broker_config()), ..ServerOptions::default() };
        let broker = nats_server::spawn(&found, &options).or_fail(Exit::Transport)?;
        let url = broker.url();
        sandbox.connect_to(&url)?;
        out.note(&format!("nats-server {} ({}) at {url}", found.version, found.origin));
        out.note("keys, tokens, policies and broker permissions: generated for this run only");
        Ok(Self { sandbox, url, _broker: broker, _folder: folder })
    }

    /// The credentials of an agent.
    pub(super) fn credentials(&self, agent: &str) -> Result<Credentials, Failure> {
        Credentials::load(self.sandbox.credentials_file(agent)).or_fail(Exit::Bug)
    }

    /// Starts the service.
    pub(crate) async fn serve(&self) -> Result<Serving, Failure> {
        let config = self.sandbox.config()?;
        let (service, options) = serve::demonstration(&config).await?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async { drop(stopped.await) };
            service.serve(&config.nats, options, |_| (), shutdown).await
        });
        Ok(Serving { stop, task })
    }
}

impl Serving {
    /// Drains the service.
    pub(crate) async fn stop(self) -> Result<(), Failure> {
        drop(self.stop);
        match self.task.await {
            Ok(served) => served.or_fail(Exit::Transport),
            Err(_) => Err(Failure::bug()),
        }
    }
}
