//! The state of a server: whether it is available, what its tools are, and which of them may be called.
//! Never allows a call to a tool whose definition is not the approved one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sealwire::{MethodName, RpcError};
use tokio::sync::watch;
use tokio::time::Instant;

use super::START;
use super::conversation::{Conversation, Refusal};
use super::listing::{self, Definition, SchemaFault};
use super::naming::Naming;
use super::session::{Session, over};
use crate::backend::Health;
use crate::child::brief;
use crate::pins::{Change, Pins, Standing};
use crate::schema::{SchemaError, apart};

/// How often a server that announces no changes is asked for its tools again.
const LOOK: Duration = Duration::from_secs(300);
/// The shortest pause between two listings: a server that always announces changes must not keep the service busy.
const AGAIN: Duration = Duration::from_secs(1);
/// How old a listing may be that cannot be renewed.
const STALE: Duration = Duration::from_secs(LOOK.as_secs() + 60);
/// How many tools the log names when they have changed together.
const TOLD: usize = 20;
/// The shortest pause before a stream of changes that has ended is opened again.
const LISTEN: Duration = Duration::from_secs(10);

/// What calls, the connection to the server and the lock file share.
#[derive(Debug)]
pub(super) struct Shared {
    naming: Naming,
    pins: Arc<Pins>,
    /// The methods of the tools, settled when the service starts.
    pub(super) methods: OnceLock<BTreeMap<String, MethodName>>,
    timeout: Duration,
    pub(super) health: watch::Sender<Health>,
    state: Mutex<State>,
    /// Whether it ended when it was asked in the newer way: then it accepts nothing before the handshake.
    only_handshake: AtomicBool,
    /// How often it has ended.
    pub(super) ends: AtomicU32,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) session: Option<Arc<Session>>,
    pub(super) tools: Arc<BTreeMap<String, Definition>>,
    /// How many changes the listing includes. Once there are more, no tool is called by this listing.
    pub(super) changes: u64,
    /// Why they could not be listed again, at the last attempt.
    pub(super) unlisted: Option<String>,
    /// Whether it was reported which tools the configuration names and the server does not have.
    misnamed: bool,
    /// The standings as last reported.
    standings: BTreeMap<String, &'static str>,
    faults: Faults,
}

/// Why new calls are not made although the session goes on.
#[derive(Debug, Default)]
struct Faults {
    /// It gives no sign of life.
    health: Option<String>,
    /// It is no longer known what its tools are.
    listing: Option<String>,
}

impl Shared {
    pub(super) fn new(naming: Naming, timeout: Duration, pins: Arc<Pins>) -> Self {
        Self {
            naming,
            pins,
            methods: OnceLock::new(),
            timeout,
            health: watch::Sender::new(Health::Down("it is starting".to_owned())),
            state: Mutex::default(),
            only_handshake: AtomicBool::new(false),
            ends: AtomicU32::new(0),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.naming.backend
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns what the server is and can do, and keeps that current; returns why that is no longer possible.
    pub(super) async fn attend(&self, conversation: &Arc<Conversation>) -> String {
        // If it ends now, the other way is tried after its restart.
        let probe = conversation.http().is_some() || !self.only_handshake.fetch_xor(true, Ordering::Relaxed);
        let session = match Session::open(Arc::clone(conversation), probe, self.timeout.max(START)).await {
            Ok(session) => Arc::new(session),
            Err(reason) => return brief(&reason),
        };
        self.only_handshake.store(!probe, Ordering::Relaxed);
        tokio::select! {
            reason = session.hangs(self.timeout, |fault| {
                if fault.is_none() {
                    // It may be another server now.
                    conversation.change();
                }
                self.faulty(&session, |faults| faults.health = fault);
            }) => reason,
            reason = self.keep_listed(&session) => reason,
            () = conversation.is_lost() => Refusal::Lost.to_string(),
        }
    }

    /// Lists its tools, and again when they change; returns why that is no longer possible.
    async fn keep_listed(&self, session: &Arc<Session>) -> String {
        let mut lock = self.pins.lock();
        let mut news = None;
        // When to open the stream of changes, and the pause after the server could not open it.
        let (mut listen, mut later) = (Instant::now(), LISTEN);
        let (mut last, mut wait) = (None, AGAIN);
        loop {
            let opened = Instant::now();
            if news.is_none() && opened >= listen {
                news = session.listen().await;
                listen = opened + LOOK;
            }
            let changes = session.conversation().changes();
            let tools = if session.capabilities.tools {
                let tools = tokio::time::timeout(self.timeout, listing::tools(session)).await;
                tools.unwrap_or_else(|_| Err("it does not answer `tools/list`".to_owned())).map_err(|why| brief(&why))
            } else {
                Ok(BTreeMap::new())
            };
            let listed = Instant::now();
            let pause = match (tools, last) {
                (Ok(mut tools), _) => {
                    self.try_out(&mut tools).await;
                    self.up(session, tools, changes);
                    (last, wait) = (Some(listed), AGAIN);
                    LOOK
                }
                (Err(reason), None) => return reason,
                // Calls under way go on. So do calls by the last listing, for a while, unless there were changes since.
                (Err(reason), Some(last)) => {
                    self.state().unlisted = Some(reason.clone());
                    // Calls may wait for this.
                    self.health.send_modify(|_| ());
                    if last.elapsed() > STALE {
                        self.faulty(session, |faults| faults.listing = Some(reason));
                    }
                    wait = (wait * 2).min(LISTEN);
                    wait
                }
            };
            let again = tokio::time::sleep(pause);
            tokio::pin!(again);
            loop {
                tokio::select! {
                    () = session.conversation().unsure.notified() => {
                        tokio::time::sleep_until(listed + AGAIN).await;
                        break;
                    }
                    () = &mut again => break,
                    () = tokio::time::sleep_until(listen), if news.is_none() => break,
                    ended = over(&mut news) => match ended {
                        // The server may have a stream once it has recovered.
                        Some(Refusal::Status(429 | 500 | 502..)) => {
                            listen = Instant::now() + later;
                            later = (later * 2).min(LOOK);
                        }
                        // There is no such stream.
                        Some(Refusal::Server(_) | Refusal::Status(_) | Refusal::Failed(_)) => {}
                        // A change may have been missed: it may be another server by now, with other tools.
                        _ => {
                            (listen, later) = (opened + LISTEN, LISTEN);
                            session.conversation().change();
                        }
                    },
                    Ok(()) = lock.changed() => {
                        let mut tools = BTreeMap::clone(&self.listed());
                        self.try_out(&mut tools).await;
                        let mut state = self.state();
                        state.tools = Arc::new(tools);
                        self.judge(&mut state);
                    }
                }
            }
        }
    }

    fn listed(&self) -> Arc<BTreeMap<String, Definition>> {
        Arc::clone(&self.state().tools)
    }

    /// Finds approved tools that cannot be used because their schemas cannot be compiled: once per definition, and one after the other.
    async fn try_out(&self, tools: &mut BTreeMap<String, Definition>) {
        let (lock, before) = (self.pins.lock().borrow().clone(), self.listed());
        for (name, definition) in tools.iter_mut().filter(|(_, definition)| definition.tried.is_none()) {
            let (Ok(pin), Ok(schemas)) = (&definition.pin, &definition.usable) else { continue };
            if lock.standing(self.name(), name, pin) != Standing::Approved {
                continue;
            }
            let known =
                before.get(name).filter(|known| known.pin == definition.pin).and_then(|known| known.tried.clone());
            let found = match known {
                Some(known) => known,
                None => {
                    let schemas = schemas.clone();
                    match apart::READING.run(move || schemas.try_out()).await {
                        // There is no thread for it now; a call will find out.
                        Err(_) | Ok(Err(SchemaFault { error: SchemaError::Failed(_), .. })) => continue,
                        Ok(found) => found.map_err(|fault| fault.to_string()),
                    }
                }
            };
            definition.found(found);
        }
    }

    /// Whether exactly this definition was approved.
    pub(super) fn is_approved(&self, definition: &Definition) -> Result<(), RpcError> {
        let standing = match &definition.pin {
            Ok(pin) => self.pins.lock().borrow().standing(self.name(), &definition.name, pin),
            Err(_) => Standing::New,
        };
        match standing {
            Standing::Approved => Ok(()),
            standing => Err(RpcError::dependency("the tool's definition is not approved")
                .with_data(&serde_json::json!({ "tool": standing }))),
        }
    }

    /// Whether the tool is, by the server's own word, still what it was when the call began, and still approved.
    pub(super) fn is_same(&self, session: &Session, definition: &Definition) -> Result<(), RpcError> {
        let is_same = {
            let state = self.state();
            let listed = state.tools.get(&definition.name);
            session.conversation().changes() == state.changes && listed.is_some_and(|now| now.pin == definition.pin)
        };
        if !is_same {
            return Err(RpcError::dependency("the tool may have changed by now"));
        }
        self.is_approved(definition)
    }

    /// Reports changes of the tools to the log and to subscribers.
    fn tell(&self, state: &mut State) {
        let lock = self.pins.lock().borrow().clone();
        let mut now = BTreeMap::new();
        for definition in state.tools.values() {
            let standing = match (&definition.pin, &definition.usable) {
                (Ok(_), Err(_)) | (Err(_), _) => "unusable",
                (Ok(pin), Ok(_)) => match lock.standing(self.name(), &definition.name, pin) {
                    Standing::Approved => "approved",
                    Standing::New => "new",
                    Standing::Changed => "changed",
                },
            };
            now.insert(definition.name.clone(), standing);
        }
        for name in state.standings.keys().filter(|name| !state.tools.contains_key(*name)) {
            now.insert(name.clone(), "gone");
        }
        let (backend, mut changed) = (self.name(), 0);
        for (name, standing) in now.iter().filter(|(name, standing)| state.standings.get(*name) != Some(*standing)) {
            changed += 1;
            let tool = brief(name);
            match *standing {
                _ if changed > TOLD => {}
                "approved" => tracing::info!(target: "sealwire::backend", backend, "the tool `{tool}` is approved"),
                "gone" => tracing::warn!(target: "sealwire::backend", backend, "the server has no tool `{tool}` now"),
                "unusable" => {
                    let reason = state.tools.get(name).and_then(|definition| definition.fault()).map(brief);
                    tracing::warn!(target: "sealwire::backend", backend, reason, "the tool `{tool}` cannot be used");
                }
                standing => tracing::warn!(
                    target: "sealwire::backend", backend, standing,
                    "the tool `{tool}` is off until its definition is approved: see `sealwire tools diff`"
                ),
            }
            // Not at the start, which is no change.
            if !state.standings.is_empty()
                && let Some(method) = self.methods.get().and_then(|methods| methods.get(name))
            {
                // Both are short enough to publish.
                drop(self.pins.changes.publish(&Change { method: method.to_string(), standing }));
            }
        }
        if changed > TOLD {
            let others = changed - TOLD;
            tracing::warn!(target: "sealwire::backend", backend, "{others} other tools have changed: see `sealwire tools list`");
        }
        // That a tool is gone is reported once, and remembered only for methods: a server may list ever new tools.
        now.retain(|name, standing| {
            *standing != "gone" || self.methods.get().is_some_and(|methods| methods.contains_key(name))
        });
        state.standings = now;
    }

    fn up(&self, session: &Arc<Session>, tools: BTreeMap<String, Definition>, changes: u64) {
        let mut state = self.state();
        (state.session, state.tools) = (Some(Arc::clone(session)), Arc::new(tools));
        (state.changes, state.unlisted) = (changes, None);
        // Its answer is a sign of life, too.
        state.faults = Faults::default();
        self.judge(&mut state);
        self.tell_misnamed(&mut state);
        self.health.send_replace(Health::Up);
    }

    /// Reports once which tools the configuration names and the server does not have: if mistyped, they keep their own names.
    fn tell_misnamed(&self, state: &mut State) {
        if std::mem::replace(&mut state.misnamed, true) {
            return;
        }
        let aliases = self.naming.aliases.iter().filter(|(tool, _)| !state.tools.contains_key(*tool));
        for (tool, method) in aliases {
            let (backend, tool, method) = (self.name(), brief(tool), brief(method));
            tracing::warn!(
                target: "sealwire::backend", backend,
                "the server has no tool `{tool}`, which the configuration names `{method}`: see `sealwire tools list`"
            );
        }
    }

    /// Finds tools that cannot be methods because their names belong to somebody else now.
    pub(super) fn judge(&self, state: &mut State) {
        self.naming.judge(Arc::make_mut(&mut state.tools));
        self.tell(state);
    }

    /// Sets or clears a reason why no new calls are made in this session.
    fn faulty(&self, session: &Arc<Session>, change: impl FnOnce(&mut Faults)) {
        let mut state = self.state();
        if !state.session.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            return;
        }
        change(&mut state.faults);
        let fault = state.faults.health.as_ref().or(state.faults.listing.as_ref()).cloned();
        let health = fault.map_or(Health::Up, Health::Down);
        if let Health::Down(reason) = &health
            && *self.health.borrow() == Health::Up
        {
            let backend = self.name();
            tracing::warn!(target: "sealwire::backend", backend, reason, "the server does not answer: new calls are refused until it does");
        }
        self.health.send_replace(health);
    }

    /// The server has ended the session, and calls wait for the next one. Returns `false` if no calls were made in this one.
    pub(super) fn lost(&self, conversation: &Arc<Conversation>) -> bool {
        let mut state = self.state();
        state.session.take_if(|session| Arc::ptr_eq(session.conversation(), conversation)).is_some()
    }

    pub(super) fn down(&self, reason: String) {
        let mut state = self.state();
        state.session = None;
        self.health.send_replace(Health::Down(reason));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::value::RawValue;

    fn tool(name: &str) -> Result<Definition, String> {
        let raw = format!(r#"{{"name": "{name}", "inputSchema": {{"type": "object"}}}}"#);
        listing::read(&RawValue::from_string(raw).unwrap(), false)
    }

    fn shared() -> Shared {
        let naming =
            Naming { backend: "server".to_owned(), prefix: None, aliases: BTreeMap::new(), names: Arc::default() };
        Shared::new(naming, START, Arc::new(Pins::none()))
    }

    fn list(shared: &Shared, names: &[String]) -> BTreeMap<String, &'static str> {
        let tools = names.iter().map(|name| (name.clone(), tool(name).unwrap())).collect();
        let mut state = shared.state();
        state.tools = Arc::new(tools);
        shared.tell(&mut state);
        state.standings.clone()
    }

    /// Counts log events.
    #[derive(Default)]
    struct Counted(Arc<AtomicU32>);

    impl tracing::Subscriber for Counted {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn of_tools_that_come_and_go_few_are_told_and_only_methods_remembered() {
        let (shared, counted) = (shared(), Counted::default());
        let told = Arc::clone(&counted.0);
        // Only this test may log this: that nobody is interested in an event is remembered for all threads.
        tracing::subscriber::with_default(counted, || {
            list(&shared, &["kept".to_owned()]);
            shared.methods.set(BTreeMap::from([("kept".to_owned(), MethodName::new("kept").unwrap())])).unwrap();
            for round in 0..10 {
                told.store(0, Ordering::Relaxed);
                let names: Vec<String> = (0..100).map(|n| format!("tool{round}x{n}")).collect();
                let standings = list(&shared, &names);
                assert_eq!(standings.len(), names.len() + 1);
                assert_eq!(standings["kept"], "gone");
                assert_eq!(told.load(Ordering::Relaxed), 21);
            }
            assert_eq!(list(&shared, &["kept".to_owned()]), BTreeMap::from([("kept".to_owned(), "new")]));
        });
    }

    #[test]
    fn no_tool_has_an_endless_name() {
        assert!(tool(&"x".repeat(256)).is_ok());
        assert!(tool(&"x".repeat(257)).unwrap_err().contains("256"));
    }
}
