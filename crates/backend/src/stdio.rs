//! Programs that speak JSON-RPC 2.0 on their standard input and output, one object per line, in both directions.
//! Never gives a program more calls at a time than the configuration says, and never the caller's token.

mod call;
mod config;
mod event;
pub(crate) mod session;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sealwire::RpcError;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) use self::config::{PeerConfig, StdioConfig};
pub(crate) use self::session::Pushes;
use self::session::Session;
use crate::backend::{Backend, Call, Health};
use crate::child::{Launch, Supervisor};
use crate::mcp::Questions;
use crate::tally::{Tallied, Tally};

/// The processes of one program, or one server at the other end of a WebSocket.
#[derive(Debug)]
pub(crate) struct Sessions {
    shared: Arc<Shared>,
    timeout: Duration,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    stop: watch::Sender<bool>,
    /// That of the program, if it is one of ours.
    tally: Arc<Tally>,
}

/// What the sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    name: String,
    /// The running session of each process, if any.
    sessions: Mutex<Vec<Option<Arc<Session>>>>,
    health: watch::Sender<Health>,
    /// Whose turn it is among processes with equally few calls.
    turn: AtomicUsize,
}

/// How long a restarted program must run to count as available.
const SETTLED: Duration = Duration::from_secs(1);

/// How a program is used.
#[derive(Debug)]
pub(crate) struct PeerOptions {
    pub(crate) processes: usize,
    pub(crate) timeout: Duration,
    /// Whether requests carry the member `caller`.
    pub(crate) send_caller: bool,
    /// What the program may ask callers for.
    pub(crate) questions: Questions,
    pub(crate) pushes: Pushes,
}

impl Sessions {
    /// Starts the processes; they are kept running until [`Backend::stop`].
    pub(crate) fn start(launch: &Launch, how: PeerOptions) -> Self {
        let PeerOptions { processes, timeout, send_caller, questions, pushes } = how;
        let (shared, stop) = (Shared::new(&launch.name, processes), watch::Sender::new(false));
        let pushes = Arc::new(pushes);
        let process = |position: usize| {
            let (up, down, pushes) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&pushes));
            let (mut stopped, mut again) = (stop.subscribe(), false);
            Supervisor::new(launch.clone()).run(
                move |stdin, stdout| {
                    let session = Session::new(&up.name, timeout, send_caller, questions, Arc::clone(&pushes));
                    let (up, again) = (Arc::clone(&up), std::mem::replace(&mut again, true));
                    async move {
                        let (session, commands) = session;
                        let run = session.run(commands, stdin, stdout);
                        tokio::pin!(run);
                        // A program that keeps ending at once does not count as available in between.
                        if again && let Ok(reason) = tokio::time::timeout(SETTLED, &mut run).await {
                            return reason;
                        }
                        up.set(position, Ok(Arc::clone(&session)));
                        let reason = run.await;
                        up.set(position, Err(reason.clone()));
                        reason
                    }
                },
                move |reason| down.set(position, Err(reason)),
                async move { drop(stopped.wait_for(|stop| *stop).await) },
            )
        };
        let tasks = (0..processes).map(|position| tokio::spawn(process(position))).collect();
        Self { shared, timeout, tasks: Mutex::new(tasks), stop, tally: Arc::clone(&launch.tally) }
    }

    /// One session that `keep` keeps up until it is told to stop.
    pub(crate) fn keep<F: Future<Output = ()> + Send + 'static>(
        name: &str,
        timeout: Duration,
        keep: impl FnOnce(Arc<Shared>, watch::Receiver<bool>) -> F,
    ) -> Self {
        let (shared, stop) = (Shared::new(name, 1), watch::Sender::new(false));
        let task = tokio::spawn(keep(Arc::clone(&shared), stop.subscribe()));
        Self { shared, timeout, tasks: Mutex::new(vec![task]), stop, tally: Arc::default() }
    }
}

impl Shared {
    fn new(name: &str, sessions: usize) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            sessions: Mutex::new(vec![None; sessions]),
            health: watch::Sender::new(Health::Down("it is starting".to_owned())),
            turn: AtomicUsize::new(0),
        })
    }

    /// Records the new state of a session.
    pub(crate) fn set(&self, position: usize, now: Result<Arc<Session>, String>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let (session, reason) = match now {
            Ok(session) => (Some(session), String::new()),
            Err(reason) => (None, reason),
        };
        if let Some(place) = sessions.get_mut(position) {
            *place = session;
        }
        let health = if sessions.iter().any(Option::is_some) { Health::Up } else { Health::Down(reason) };
        // Under the lock, so that reports of two processes do not overtake each other.
        self.health.send_if_modified(|known| {
            let changed = *known != health;
            *known = health;
            changed
        });
    }

    /// The running process with the fewest calls; those with equally few take turns.
    fn session(&self) -> Option<Arc<Session>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let running = (0..sessions.len()).filter_map(|at| sessions.get((at + turn) % sessions.len())?.as_ref());
        running.min_by_key(|session| session.open()).map(Arc::clone)
    }
}

impl Backend for Sessions {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Box<RawValue>, RpcError>> {
        async move {
            let until = call.until;
            let made = async {
                let Some(session) = self.shared.session() else {
                    return Err(RpcError::dependency("the backend is not running"));
                };
                session.call(call).await
            };
            let late = || RpcError::dependency(format!("no answer within {} s", self.timeout.as_secs()));
            tokio::time::timeout_at(until, made).await.unwrap_or_else(|_| Err(late()))
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    fn tallied(&self) -> Tallied {
        self.tally.read()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        async move {
            self.stop.send_replace(true);
            let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
            for task in tasks {
                // A task that has panicked has ended as well.
                drop(task.await);
            }
        }
        .boxed()
    }
}
