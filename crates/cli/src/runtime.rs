//! The runtime of commands that wait for something, and the signals that end them.
//! Never lets what hangs keep the process: a second signal ends it at once, and so does the time that the first one grants.

use std::future::Future;
use std::io::IsTerminal as _;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::exit::{Exit, Failure};

/// Runs `work` on a runtime of its own, and leaves that behind: what still blocks one of its threads, such as the look-up
/// of a name or a file system that hangs, ends with the process.
pub(crate) fn block_on<F: Future>(work: F) -> Result<F::Output, Failure> {
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(no_runtime)?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}

fn no_runtime(error: std::io::Error) -> Failure {
    Failure::input(format!("the operating system does not give what it takes to wait: {error}"))
}

/// SIGTERM and SIGINT, and of a terminal SIGHUP: the first asks to stop, the second ends the process with the code that shells give to a process
/// that was ended by that signal.
#[derive(Debug, Clone)]
pub(crate) struct Signals(watch::Receiver<Option<&'static str>>);

impl Signals {
    /// Listens from now on, on a thread that does nothing else. What was asked to stop has `grace` for it, if any is
    /// given, as for services; then the process ends.
    ///
    /// A service that was started on a terminal is asked to stop by SIGHUP, too, since that is gone then. Any other passes over
    /// it: it was sent to have files read again, which services do by themselves.
    pub(crate) fn listen(grace: Option<Duration>) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_runtime)?;
        let listening = {
            let _inside = runtime.enter();
            let hangup = grace.map(|_| listen(SignalKind::hangup())).transpose()?.filter(|_| is_on_terminal());
            Listening {
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

    /// Completes with the first signal, also if that came before.
    pub(crate) fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut told = self.0.clone();
        async move {
            // The thread ends with the process only.
            if let Ok(name) = told.wait_for(Option::is_some).await {
                tracing::info!(target: "sealwire::command", "{}", name.unwrap_or_default());
            }
        }
    }

    /// Whether one has come.
    pub(crate) fn has_come(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// What `work` came to, or `None` if a signal came first; then it is given up.
    pub(crate) async fn unless_stopped<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.stop() => None,
            done = work => Some(done),
        }
    }
}

/// What `nohup` starts is not.
fn is_on_terminal() -> bool {
    std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal()
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::new(Exit::Bug, format!("no signals: {error}")))
}

struct Listening {
    terminate: Signal,
    interrupt: Signal,
    /// Only the first: a terminal that is closed may send several.
    hangup: Option<Signal>,
}

impl Listening {
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
        // Nothing is written here: whoever reads stderr may have stopped to.
        let code = match grace {
            Some(grace) => match tokio::time::timeout(grace, self.next()).await {
                Ok((_, code)) => code,
                Err(_) => Exit::Timeout as i32,
            },
            None => self.next().await.1,
        };
        std::process::exit(code);
    }

    async fn next(&mut self) -> (&'static str, i32) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", Exit::Terminated as i32),
            _ = self.interrupt.recv() => ("SIGINT", Exit::Interrupted as i32),
        }
    }
}
