//! One MCP client that sends one message per line.
//! Never answers a cancelled request, nor any request twice.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire::internal::client::TraceContext;
use sealwire::internal::trace::Trace;
use sealwire_mcp::{
    ClientCapabilities, Id, Message, RequestParams, Revision, SubscriptionFilter, cancelled, json, raw,
};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::message::{Fault, Outcome, Response, declared, trace};
use super::news::{Digests, Lists, acknowledged, news, told_of, updated};
use super::offers::Offers;
use super::outbox::{Line, Outbox};
use super::peer::Peer;
use super::server::{FRESH, Server};
use super::sessions::{Heard, Parking, SessionStream};
use super::tasks::tasks_are_known;
use super::watch::{Watch, within_bounds};
use super::{Ended, Options};
use crate::agent::Agent;
use crate::bus::Bus;
use crate::catalogue::{Exposed, Services};

/// One client.
struct Gateway {
    server: Arc<Server>,
    peer: Peer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What `initialize` negotiated.
    legacy: Option<(Revision, ClientCapabilities)>,
    /// The lists as the client knows them; it is notified when they change.
    told: Option<Digests>,
    /// Tells it of the resources that it watches since `initialize`.
    watching: JoinSet<()>,
    /// Requests in progress, and how to stop each.
    running: HashMap<Id, oneshot::Sender<()>>,
    listening: HashMap<Id, Subscription>,
}

/// A subscription to changes.
#[derive(Default)]
struct Subscription {
    lists: Lists,
    /// Nothing is told before that.
    is_acknowledged: bool,
    /// Tells the client of the resources that it watches.
    watching: JoinSet<()>,
}

/// The most requests in progress.
const RUNNING: usize = 32;
/// The most subscriptions to changes, which do not count as requests.
const LISTENING: usize = 8;

/// Serves one client until its input ends and every request that came before is answered, or until `stop` completes, which cancels them.
///
/// # Errors
/// [`Ended`].
///
/// Cancel safety: dropping the future cancels the requests in progress.
pub async fn serve(
    bus: Bus,
    options: Options,
    mut input: mpsc::Receiver<io::Result<Option<Vec<u8>>>>,
    stop: impl Future<Output = ()>,
    write: impl FnOnce(mpsc::Receiver<Line>),
) -> Result<(), Ended> {
    let (out, lines) = Outbox::new();
    write(lines);
    let Options { services, deadline, refresh } = options;
    let services =
        services.into_iter().map(|service| Exposed { service, deadline, allows: Box::new(|_| true) }).collect();
    let caller = Arc::new(Agent::of(&bus));
    let server = Server::new(
        Services::new(Arc::new(bus), services),
        refresh,
        FRESH,
        None,
        (Offers::new(refresh), Parking::default()),
    );
    let server = Arc::new(server);
    let name: Arc<str> = server.agent().into();
    let peer = Peer {
        principal: Arc::clone(&name),
        name,
        has_session: true,
        caller,
        out,
        trace: TraceContext::default(),
        around: Trace::default(),
        observer: None,
    };
    let gateway = Arc::new(Gateway { server, peer, state: Mutex::default() });
    let mut tasks = JoinSet::new();
    let mut look = tokio::time::interval(refresh);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    look.tick().await;
    let mut is_over = false;
    let mut stop = std::pin::pin!(stop);
    let ended = loop {
        if is_over && tasks.is_empty() {
            break Ok(());
        }
        tokio::select! {
            () = &mut stop => break Ok(()),
            () = gateway.peer.out.stalled() => {
                break Err(if gateway.peer.out.is_closed() { Ended::Closed } else { Ended::Stalled });
            }
            Some(done) = tasks.join_next() => {
                if let Err(error) = done
                    && error.is_panic()
                {
                    tracing::error!(target: "sealwire::gateway", "a request panicked");
                }
            }
            _ = look.tick() => {
                gateway.server.tidy();
                if !is_over && gateway.state().is_watched() {
                    let gateway = Arc::clone(&gateway);
                    tasks.spawn(async move { gateway.look().await });
                }
            }
            line = input.recv(), if !is_over => match line {
                // Its calls end by their deadlines at the latest.
                None => {
                    is_over = true;
                    gateway.server.nobody_answers();
                }
                Some(Err(error)) => break Err(error.into()),
                Some(Ok(None)) => break Err(Ended::TooLong),
                Some(Ok(Some(line))) => gateway.take(&line, &mut tasks, true).await,
            },
        }
    };
    // Requests that are still in progress are dropped, which cancels them at the services.
    tasks.shutdown().await;
    gateway.server.close().await;
    ended
}

impl Gateway {
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
                    self.state().legacy.as_ref().is_some_and(|(version, _)| *version == Revision::V2025_03_26);
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
            (None, Some(id)) => drop(self.server.questions.answer(&self.peer.name, id, message.result, message.error)),
            (None, None) => self.refuse(Fault::new(-32600, "`method` is missing")).await,
        }
    }

    async fn refuse(&self, fault: Fault) {
        self.peer.out.send(&Response::new(None, &Err(fault))).await;
    }

    fn note(&self, method: &str, params: Option<&RawValue>) {
        if method == "notifications/cancelled"
            && let Some(request) = cancelled(params)
        {
            let mut state = self.state();
            state.listening.remove(&request);
            if let Some(stop) = state.running.remove(&request) {
                // Fails if the request has just ended.
                let _ = stop.send(());
            }
        }
    }

    async fn start(self: &Arc<Self>, id: Id, method: &str, params: Option<&RawValue>, tasks: &mut JoinSet<()>) {
        let (stop, stopped) = oneshot::channel();
        let refused = {
            let mut state = self.state();
            if state.running.contains_key(&id) || state.listening.contains_key(&id) {
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
            let outcome = Box::pin(self.initialize(params)).await;
            self.state().running.remove(&id);
            return self.peer.out.send(&Response::new(Some(&id), &outcome)).await;
        }
        let (gateway, method, params) = (Arc::clone(self), method.to_owned(), params.map(ToOwned::to_owned));
        tasks.spawn(async move {
            let outcome = tokio::select! {
                biased;
                // A cancelled request gets no answer.
                _ = stopped => None,
                outcome = gateway.outcome(&id, &method, params.as_deref()) => outcome,
            };
            let was_running = gateway.state().running.remove(&id).is_some();
            if let (Some(outcome), true) = (outcome, was_running) {
                gateway.peer.out.send(&Response::new(Some(&id), &outcome)).await;
            }
        });
    }

    async fn initialize(&self, params: Option<&RawValue>) -> Outcome {
        let (version, capabilities, result) = self.server.initialize(&*self.peer.caller, params).await?;
        // Nothing gets lost on a pipe.
        let heard = self.server.heard(&self.peer.name, &self.peer.caller, Heard::All, None);
        let mut state = self.state();
        state.legacy = Some((version, capabilities));
        state.watching = JoinSet::new();
        let out = self.peer.out.clone();
        state.watching.spawn(tell_session(heard, out));
        Ok(result)
    }

    /// `None` for a request that is not answered yet.
    async fn outcome(&self, id: &Id, method: &str, params: Option<&RawValue>) -> Option<Outcome> {
        let mut asked = match RequestParams::read(params).map_err(Fault::of_params) {
            Ok(asked) => asked,
            Err(fault) => return Some(Err(fault)),
        };
        let (revision, capabilities) = match self.revision(&asked) {
            Ok(revision) => revision,
            // Revisions with a handshake, `ping`: any time; and "the client SHOULD NOT send requests other than pings" before the handshake.
            Err(_) if method == "ping" && asked.meta.version.is_none() => return Some(Ok(raw(&json!({})))),
            Err(fault) => return Some(Err(fault)),
        };
        if (method, revision) == ("subscriptions/listen", Revision::V2026_07_28) {
            return match tasks_are_known(capabilities, &asked.notifications) {
                Ok(()) => Box::pin(self.listen(id, asked.notifications)).await.err().map(Err),
                Err(fault) => Some(Err(fault)),
            };
        }
        if method.ends_with("/list") && asked.cursor.is_none() {
            // `Server::outcome` makes the list of tools from the same offer.
            match self.server.listed(&*self.peer.caller).await {
                Ok(offer) => {
                    let now = Digests::of(&offer);
                    self.state().told.get_or_insert_with(|| now.clone()).learn(method, &now);
                }
                Err(fault) => return Some(Err(fault)),
            }
        }
        let peer = Peer { trace: trace(&asked.meta, &self.peer.trace), ..self.peer.clone() };
        Some(self.server.outcome(&peer, revision, capabilities, method, &mut asked).await)
    }

    /// The revision of a request, and what its client can be asked for.
    fn revision(&self, asked: &RequestParams) -> Result<(Revision, ClientCapabilities), Fault> {
        if let Some(capabilities) = declared(&asked.meta)? {
            return Ok((Revision::V2026_07_28, capabilities));
        }
        match &self.state().legacy {
            Some((version, capabilities)) => Ok((*version, *capabilities)),
            None => Err(Fault::params(format!(
                "set `io.modelcontextprotocol/protocolVersion` in `_meta` to {}, or begin with `initialize`",
                Revision::V2026_07_28.as_str()
            ))),
        }
    }

    async fn listen(&self, id: &Id, wanted: SubscriptionFilter) -> Result<(), Fault> {
        let full = || Fault::internal(format!("{LISTENING} subscriptions are open: end one of them"));
        within_bounds(&wanted.uris)?;
        if self.state().listening.len() >= LISTENING {
            return Err(full());
        }
        let offer = self.server.listed(&*self.peer.caller).await;
        let told = offer.as_ref().map(|offer| told_of(offer)).unwrap_or(Lists { tools: true, ..Lists::default() });
        let lists = Lists::of(&wanted).within(told);
        let (watch, uris) = match wanted.uris.is_empty() {
            true => (None, wanted.uris),
            false => {
                let watch = self.server.watch(&self.peer.caller, wanted.uris);
                let uris = watch.settled(1).await.granted;
                (Some(watch), uris)
            }
        };
        {
            let mut state = self.state();
            if state.listening.len() >= LISTENING {
                return Err(full());
            }
            // It may have been cancelled meanwhile.
            let Some(_) = state.running.remove(id) else { return Ok(()) };
            if let Ok(offer) = &offer {
                state.told.get_or_insert_with(|| Digests::of(offer));
            }
            if !(lists.is_empty() && uris.is_empty()) {
                state.listening.insert(id.clone(), Subscription { lists, ..Subscription::default() });
            }
        }
        self.peer.out.send(&acknowledged(id, lists, &uris)).await;
        if let Some(subscription) = self.state().listening.get_mut(id) {
            subscription.is_acknowledged = true;
            if let Some(watch) = watch {
                let (out, id) = (self.peer.out.clone(), id.clone());
                subscription.watching.spawn(async move { tell(&watch, &out, &id).await });
            }
        }
        Ok(())
    }

    /// Checks whether what the agent may call has changed, and notifies the client if so.
    async fn look(&self) {
        // An outage is not a change.
        let Ok(offer) = self.server.offer(&*self.peer.caller, Duration::ZERO).await else { return };
        let now = Digests::of(&offer);
        let mut changes = Vec::new();
        {
            let mut state = self.state();
            if state.listening.values().any(|subscription| !subscription.is_acknowledged) {
                return;
            }
            let told = state.told.replace(now.clone());
            for (id, subscription) in &state.listening {
                let lists = now.changed(told.as_ref(), subscription.lists);
                changes.extend(lists.notifications().map(|method| news(method, Some(id), None)));
            }
            // Without a subscription, a client that has never got a list has none that could change.
            if let (Some(_), Some(told)) = (&state.legacy, &told) {
                let lists = now.changed(Some(told), Lists::ALL);
                changes.extend(lists.notifications().map(|method| news(method, None, None)));
            }
        }
        for change in changes {
            self.peer.out.send(&change).await;
        }
    }
}

/// Tells a client of the resources that change, one message after the other: what changes meanwhile is told once.
async fn tell(watch: &Watch, out: &Outbox, id: &Id) {
    let mut updates = watch.updates();
    loop {
        for uri in updates.next().await {
            out.send(&updated(Some(id), &uri)).await;
        }
    }
}

/// The same, for what a session watches.
async fn tell_session(mut heard: SessionStream, out: Outbox) {
    loop {
        for (_, subject) in heard.next().await {
            out.send(&subject.message()).await;
        }
    }
}

impl State {
    fn is_watched(&self) -> bool {
        !self.listening.is_empty() || (self.told.is_some() && self.legacy.is_some())
    }
}
