//! One MCP client that sends one message per line.
//! Never answers a cancelled request, nor any request twice.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire::client::TraceContext;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::message::{
    Asked, Cancelled, Capabilities, Era, Fault, Id, Legacy, MODERN, Message, Outcome, Response, modern, notification,
};
use super::offers::Offers;
use super::outbox::{Line, Outbox};
use super::server::{FRESH, Peer, Server, fingerprint};
use super::{Ended, LIST_CHANGED, Options, SUBSCRIPTION};
use crate::bus::Bus;
use crate::caller::Agent;
use crate::catalogue::{Exposed, Services};
use crate::json;

/// One client.
struct Door {
    server: Server,
    peer: Peer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What `initialize` negotiated.
    legacy: Option<(Legacy, Capabilities)>,
    /// The fingerprint that the client knows; it is notified when that changes.
    told: Option<Vec<u8>>,
    /// Requests in progress, and how to stop each.
    running: HashMap<Id, oneshot::Sender<()>>,
    listening: Vec<Id>,
}

/// The most requests in progress.
const RUNNING: usize = 32;
/// The most subscriptions to changes, which do not count as requests.
const LISTENING: usize = 8;

/// Serves one client until its input ends.
///
/// # Errors
/// [`Ended`].
///
/// Cancel safety: dropping the future cancels the requests in progress.
pub async fn serve(
    bus: Bus,
    options: Options,
    mut input: mpsc::Receiver<io::Result<Vec<u8>>>,
    write: impl FnOnce(mpsc::Receiver<Line>),
) -> Result<(), Ended> {
    let (out, lines) = Outbox::new();
    write(lines);
    let Options { services, deadline, refresh } = options;
    let services =
        services.into_iter().map(|service| Exposed { service, deadline, allows: Box::new(|_| true) }).collect();
    let server = Server::new(Services::new(Arc::new(bus), services), refresh, FRESH, None, Offers::new(refresh));
    let caller = Arc::new(Agent(server.agent().into()));
    let peer = Peer { name: server.agent().into(), caller, out, trace: TraceContext::default(), observer: None };
    let door = Arc::new(Door { server, peer, state: Mutex::default() });
    let mut tasks = JoinSet::new();
    let mut look = tokio::time::interval(refresh);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    look.tick().await;
    let ended = loop {
        tokio::select! {
            () = door.peer.out.stalled() => break Err(Ended::Stalled),
            Some(done) = tasks.join_next() => {
                if let Err(error) = done
                    && error.is_panic()
                {
                    tracing::error!(target: "sealwire::door", "a request panicked");
                }
            }
            _ = look.tick() => {
                door.server.tidy();
                if door.state().is_watched() {
                    let door = Arc::clone(&door);
                    tasks.spawn(async move { door.look().await });
                }
            }
            line = input.recv() => match line {
                None => break Ok(()),
                Some(Err(error)) => break Err(error.into()),
                Some(Ok(line)) => door.take(&line, &mut tasks, true).await,
            },
        }
    };
    // Requests in progress are dropped, which cancels them at the services.
    tasks.shutdown().await;
    door.server.close().await;
    ended
}

impl Door {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles one line from the client.
    async fn take(self: &Arc<Self>, line: &[u8], tasks: &mut JoinSet<()>, may_be_batch: bool) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let Ok(text) = std::str::from_utf8(line) else {
            return self.refuse(Fault::new(-32700, "not JSON: it is not UTF-8")).await;
        };
        let message = match json::object::<Message<'_>>(text) {
            Ok(message) if message.jsonrpc.as_deref() == Some("2.0") => message,
            Ok(_) => return self.refuse(Fault::new(-32600, "`jsonrpc` must be \"2.0\"")).await,
            Err(error) => {
                let entries = serde_json::from_str::<Vec<&RawValue>>(text).ok().filter(|_| may_be_batch);
                let takes_batches =
                    self.state().legacy.as_ref().is_some_and(|(version, _)| *version == Legacy::V2025_03_26);
                return match entries {
                    Some(entries) if takes_batches && (1..=RUNNING).contains(&entries.len()) => {
                        for entry in entries {
                            Box::pin(self.take(entry.get().as_bytes(), tasks, false)).await;
                        }
                    }
                    Some(_) => self.refuse(Fault::new(-32600, "each line must be one message, not a batch")).await,
                    None if error.is_data() => self.refuse(Fault::new(-32600, format!("not a message: {error}"))).await,
                    None => self.refuse(Fault::new(-32700, format!("not JSON: {error}"))).await,
                };
            }
        };
        match (&message.method, message.id) {
            (Some(method), Some(id)) => match serde_json::from_str::<Id>(id.get()) {
                Ok(id) => self.start(id, method, message.params, tasks).await,
                Err(_) => self.refuse(Fault::new(-32600, "`id` must be a string or a whole number")).await,
            },
            (Some(method), None) => self.note(method, message.params),
            // Nothing may be waiting for it any more.
            (None, Some(id)) => drop(self.server.answered(&self.peer.name, id, message.result, message.error)),
            (None, None) => self.refuse(Fault::new(-32600, "`method` is missing")).await,
        }
    }

    async fn refuse(&self, fault: Fault) {
        self.peer.out.send(&Response::new(None, &Err(fault))).await;
    }

    fn note(&self, method: &str, params: Option<&RawValue>) {
        if method == "notifications/cancelled"
            && let Some(Ok(cancelled)) = params.map(|params| json::object::<Cancelled>(params.get()))
        {
            let mut state = self.state();
            state.listening.retain(|id| *id != cancelled.request);
            if let Some(stop) = state.running.remove(&cancelled.request) {
                // Fails if the request has just ended.
                let _ = stop.send(());
            }
        }
    }

    async fn start(self: &Arc<Self>, id: Id, method: &str, params: Option<&RawValue>, tasks: &mut JoinSet<()>) {
        let (stop, stopped) = oneshot::channel();
        let refused = {
            let mut state = self.state();
            if state.running.contains_key(&id) || state.listening.contains(&id) {
                Some(Fault::new(-32600, "a request with this id is under way"))
            } else if state.running.len() >= RUNNING {
                Some(Fault::internal(format!("{RUNNING} requests are under way: wait for one of them")))
            } else {
                state.running.insert(id.clone(), stop);
                None
            }
        };
        if let Some(fault) = refused {
            return self.peer.out.send(&Response::new(Some(&id), &Err(fault))).await;
        }
        if method == "initialize" {
            // Handled at once, because the next line is in the revision negotiated here.
            let outcome = self.initialize(params);
            self.state().running.remove(&id);
            return self.peer.out.send(&Response::new(Some(&id), &outcome)).await;
        }
        let (door, method, params) = (Arc::clone(self), method.to_owned(), params.map(ToOwned::to_owned));
        tasks.spawn(async move {
            let outcome = tokio::select! {
                biased;
                // A cancelled request gets no answer.
                _ = stopped => None,
                outcome = door.outcome(&id, &method, params.as_deref()) => outcome,
            };
            let was_running = door.state().running.remove(&id).is_some();
            if let (Some(outcome), true) = (outcome, was_running) {
                door.peer.out.send(&Response::new(Some(&id), &outcome)).await;
            }
        });
    }

    fn initialize(&self, params: Option<&RawValue>) -> Outcome {
        let (version, capabilities, result) = self.server.initialize(&*self.peer.caller, params)?;
        self.state().legacy = Some((version, capabilities));
        Ok(result)
    }

    /// `None` for a request that is not answered yet.
    async fn outcome(&self, id: &Id, method: &str, params: Option<&RawValue>) -> Option<Outcome> {
        let mut asked = match Asked::read(params) {
            Ok(asked) => asked,
            Err(fault) => return Some(Err(fault)),
        };
        let (era, capabilities) = match self.era(&asked) {
            Ok(era) => era,
            Err(fault) => return Some(Err(fault)),
        };
        if (method, era) == ("subscriptions/listen", Era::Modern) {
            return self.listen(id, asked.notifications.tools).await.err().map(Err);
        }
        if method == "tools/list" && asked.cursor.is_none() {
            // `Server::outcome` makes the list from the same offer.
            match self.server.listed(&*self.peer.caller).await {
                Ok(offer) => self.state().told = Some(fingerprint(&offer)),
                Err(fault) => return Some(Err(fault)),
            }
        }
        let peer = Peer { trace: asked.meta.trace(&self.peer.trace), ..self.peer.clone() };
        Some(self.server.outcome(&peer, era, &capabilities, method, &mut asked).await)
    }

    /// The revision of a request, and its client's capabilities.
    fn era(&self, asked: &Asked) -> Result<(Era, Capabilities), Fault> {
        if let Some(capabilities) = modern(&asked.meta)? {
            return Ok((Era::Modern, capabilities));
        }
        match &self.state().legacy {
            Some((version, capabilities)) => Ok((Era::Legacy(*version), capabilities.clone())),
            None => Err(Fault::params(format!(
                "set `io.modelcontextprotocol/protocolVersion` in `_meta` to {MODERN}, or begin with `initialize`"
            ))),
        }
    }

    async fn listen(&self, id: &Id, tools: bool) -> Result<(), Fault> {
        {
            let mut state = self.state();
            if state.listening.len() >= LISTENING {
                return Err(Fault::internal(format!("{LISTENING} subscriptions are open: end one of them")));
            }
            state.running.remove(id);
            if tools {
                state.listening.push(id.clone());
            }
        }
        let granted = if tools { json!({ "toolsListChanged": true }) } else { json!({}) };
        let params = json!({ "_meta": { SUBSCRIPTION: id }, "notifications": granted });
        self.peer.out.send(&notification("notifications/subscriptions/acknowledged", &params)).await;
        Ok(())
    }

    /// Checks whether what the agent may call has changed, and notifies the client if so.
    async fn look(&self) {
        // An outage is not a change.
        let Ok(offer) = self.server.offer(&*self.peer.caller, Duration::ZERO).await else { return };
        let now = fingerprint(&offer);
        let (listening, legacy) = {
            let mut state = self.state();
            match state.told.replace(now.clone()) {
                Some(told) if told != now => (state.listening.clone(), state.legacy.is_some()),
                _ => return,
            }
        };
        for id in listening {
            let params = json!({ "_meta": { SUBSCRIPTION: id } });
            self.peer.out.send(&notification(LIST_CHANGED, &params)).await;
        }
        if legacy {
            self.peer.out.send(&json!({ "jsonrpc": "2.0", "method": LIST_CHANGED })).await;
        }
    }
}

impl State {
    fn is_watched(&self) -> bool {
        self.told.is_some() && (self.legacy.is_some() || !self.listening.is_empty())
    }
}
