//! The runtime of asynchronous commands, and the signals that end them.
//! Never lets the process hang: a second signal ends it at once, and so does the end of the first one's grace period.

use std::future::Future;
use std::io::IsTerminal as _;
use std::sync::Once;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::exit::{Exit, Failure};

/// Runs `work` on its own runtime and does not wait for the runtime to shut down: whatever still blocks one of its threads,
/// such as a DNS lookup or a hanging file system, ends with the process.
pub(crate) fn block_on<F: Future>(work: F) -> Result<F::Output, Failure> {
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(no_runtime)?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}

fn no_runtime(error: std::io::Error) -> Failure {
    Failure::input(format!("cannot start an event loop or a thread: {error}"))
}

/// Any number of calls wait for the same signal.
static LOGGED: Once = Once::new();

/// SIGTERM and SIGINT, and SIGHUP from a terminal. The first asks the command to stop. The second ends the process, with the
/// exit code that shells report for a process which that signal ended.
#[derive(Debug, Clone)]
pub(crate) struct Signals(watch::Receiver<Option<&'static str>>);

impl Signals {
    /// Listens from now on, on its own thread. After the first signal, the process ends when `grace`, if given, is over.
    /// Services give one.
    ///
    /// SIGHUP also stops a service that was started on a terminal, since the terminal has then gone. Any other service ignores
    /// it: it was sent to make the service reread its files, which services do without being asked.
    pub(crate) fn listen(grace: Option<Duration>) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_runtime)?;
        let listening = {
            let _inside = runtime.enter();
            let hangup = grace.map(|_| listen(SignalKind::hangup())).transpose()?.filter(|_| is_on_terminal());
            SignalListener {
                terminate: listen(SignalKind::terminate())?,
                interrupt: listen(SignalKind::interrupt())?,
                hangup,
            }
        };
        let (tell, told) = watch::channel(None);
        let thread = std::thread::Builder::new().name("signals".to_owned());
        let spawned = thread.spawn(move || runtime.block_on(listening.obey(&tell, grace)));
        spawned.map_err(no_runtime)?;
        Ok(Self(told))
    }

    /// Completes at the first signal, at once if it has already come, which is logged once.
    pub(crate) fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut told = self.0.clone();
        async move {
            // `Err` cannot happen: the thread lives as long as the process.
            if let Ok(name) = told.wait_for(Option::is_some).await {
                LOGGED.call_once(|| tracing::info!(target: "sealwire::command", "{}", name.unwrap_or_default()));
            }
        }
    }

    /// Whether a signal has come.
    pub(crate) fn has_come(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// The outcome of `work`, or `None` if a signal came first; `work` is then dropped.
    pub(crate) async fn unless_stopped<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.stop() => None,
            done = work => Some(done),
        }
    }
}

/// Whether the process was started on a terminal, which it was not with `nohup`.
fn is_on_terminal() -> bool {
    std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal()
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::new(Exit::Bug, format!("cannot listen for signals: {error}")))
}

struct SignalListener {
    terminate: Signal,
    interrupt: Signal,
    /// Only the first one counts: closing a terminal may send several.
    hangup: Option<Signal>,
}

impl SignalListener {
    async fn obey(mut self, tell: &watch::Sender<Option<&'static str>>, grace: Option<Duration>) {
        let hangup = self.hangup.take();
        let hung_up = async {
            match hangup {
                Some(mut hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let first = tokio::select! {
            (first, _) = self.next() => first,
            _ = hung_up => "SIGHUP",
        };
        tell.send_replace(Some(first));
        // Nothing is logged here: a write to stderr blocks if its reader has stopped reading.
        let code = match grace {
            Some(grace) => match tokio::time::timeout(grace, self.next()).await {
                Ok((_, code)) => code,
                Err(_) => Exit::Timeout.code().into(),
            },
            None => self.next().await.1,
        };
        std::process::exit(code);
    }

    async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", Exit::Terminated.code().into()),
            _ = self.interrupt.recv() => ("SIGINT", Exit::Interrupted.code().into()),
        }
    }
}
