//! The state of a server: whether it is available, what its tools and prompts are, and which of them may be used.
//! Never allows a call to a tool, or a request for a prompt, whose definition is not the approved one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sealwire::{MethodName, RpcError};
use sealwire_mcp::Revision;
use tokio::sync::watch;
use tokio::time::Instant;

use super::conversation::JsonRpcPeer;
use super::listing::{self, Definition, ServerList, ToolSchemaError};
use super::naming::Naming;
use super::options::{START, ServerOptions};
use super::questions::Questions;
use super::session::{Session, over};
use super::types::Refusal;
use super::upstream;
use super::watches::Watches;
use crate::backend::Health;
use crate::child::{Rate, brief};
use crate::pins::{ApprovalState, Change, Kind, Lock, Pins};
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
    /// What the server may ask callers for.
    questions: Questions,
    /// The revision that is spoken, if the configuration says.
    revision: Option<Revision>,
    /// Whether resources and prompts are offered.
    resources: bool,
    prompts: bool,
    pub(super) health: watch::Sender<Health>,
    /// Who watches resources.
    pub(super) watches: Arc<Watches>,
    state: Mutex<State>,
    /// Bounds what goes into the log of entries that cannot be used.
    complaints: Mutex<Rate>,
    /// Whether it ended when it was asked in the newer way: then it accepts nothing before the handshake.
    only_handshake: AtomicBool,
    /// How often it has ended.
    pub(super) ends: AtomicU32,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) session: Option<Arc<Session>>,
    pub(super) tools: Arc<BTreeMap<String, Definition>>,
    pub(super) prompts: Arc<BTreeMap<String, Definition>>,
    /// A digest of its resources, if it announces changes of their list; they need no approval, and nothing else of them is kept.
    pub(super) resources: Option<String>,
    /// Why it is not known what its prompts are.
    pub(super) unprompted: Option<String>,
    /// What is in its lists without a name to be known by.
    pub(super) nameless: Vec<String>,
    /// How many changes the listing includes. Once there are more, no tool is called by this listing.
    pub(super) changes: u64,
    /// Why they could not be listed again, at the last attempt.
    pub(super) unlisted: Option<String>,
    /// Whether it was reported which tools the configuration names and the server does not have.
    misnamed: bool,
    /// The standings as last reported.
    standings: BTreeMap<(Kind, String), &'static str>,
    faults: Faults,
}

/// Why new calls are not made although the session goes on.
#[derive(Debug, Default)]
struct Faults {
    /// It gives no sign of life.
    health: Option<String>,
    /// It is no longer known what its tools are.
    listing: Option<String>,
    /// Nothing of it can be used although it is there.
    nothing: Option<String>,
}

impl Shared {
    pub(super) fn new(how: &ServerOptions) -> Self {
        let ServerOptions { naming, timeout, pins, questions, revision, resources, prompts, .. } = how.clone();
        Self {
            naming,
            pins,
            methods: OnceLock::new(),
            timeout,
            questions,
            revision,
            resources,
            prompts,
            complaints: Mutex::new(Rate::new(std::time::Instant::now())),
            health: watch::Sender::new(Health::Down("it is starting".to_owned())),
            watches: Arc::default(),
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
    pub(super) async fn attend(&self, conversation: &Arc<JsonRpcPeer>) -> String {
        // If it ends now, the other way is tried after its restart.
        let probe = match self.revision {
            Some(revision) => revision == Revision::V2026_07_28,
            None => conversation.http().is_some() || !self.only_handshake.fetch_xor(true, Ordering::Relaxed),
        };
        let (asked, patience) = (Arc::clone(conversation), self.timeout.max(START));
        let session = match Session::open(asked, self.questions, self.revision, probe, patience).await {
            Ok(session) => Arc::new(session),
            Err(reason) => return brief(&reason),
        };
        self.only_handshake.store(!probe, Ordering::Relaxed);
        self.tell_what_is_not_offered(&session);
        tokio::select! {
            reason = session.until_unresponsive(self.timeout, |fault| {
                if fault.is_none() {
                    // It may be another server now.
                    conversation.change();
                }
                self.faulty(&session, |faults| faults.health = fault);
            }) => reason,
            reason = self.keep_listed(&session) => reason,
            never = upstream::keep(&self.watches, &session) => match never {},
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
                news = session.listen(self.prompts, self.resources).await;
                listen = opened + LOOK;
            }
            let changes = session.conversation().changes();
            let tools = self.list(session, Kind::Tool, session.capabilities.tools).await;
            let wanted = self.prompts && session.capabilities.prompts && tools.is_ok();
            // Without them, the tools go on.
            let prompts = self.list(session, Kind::Prompt, wanted).await;
            self.look_at_resources(session).await;
            let listed = Instant::now();
            let pause = match (tools, last) {
                (Ok(mut tools), _) => {
                    self.try_out(&mut tools.all).await;
                    self.up(session, tools, prompts, changes);
                    (last, wait) = (Some(listed), AGAIN);
                    LOOK
                }
                (Err(reason), None) => return reason,
                // Calls under way go on. So do calls by the last listing, for a while, unless there were changes since.
                (Err(reason), Some(last)) => {
                    let is_changed = {
                        let mut state = self.state();
                        state.unlisted = Some(reason.clone());
                        state.changes != session.conversation().changes()
                    };
                    // Calls may wait for this.
                    self.health.send_modify(|_| ());
                    if last.elapsed() > STALE {
                        self.faulty(session, |faults| faults.listing = Some(reason));
                    } else if is_changed {
                        let reason = format!("its tools have changed, and cannot be listed: {reason}");
                        self.faulty(session, |faults| faults.nothing = Some(reason));
                    }
                    wait = (wait * 2).min(LISTEN);
                    wait
                }
            };
            let again = tokio::time::sleep(pause);
            tokio::pin!(again);
            loop {
                tokio::select! {
                    () = session.conversation().tools_changed.notified() => {
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
                        Some(Refusal::Server(_) | Refusal::Status(_)) => {}
                        Some(Refusal::Failed(reason)) => {
                            let (backend, reason) = (self.name(), brief(&reason));
                            tracing::warn!(target: "sealwire::backend", backend, reason, "its stream of changes is of no use");
                        }
                        // A change may have been missed: it may be another server by now, with other tools.
                        _ => {
                            (listen, later) = (opened + LISTEN, LISTEN);
                            session.conversation().change();
                        }
                    },
                    Ok(()) = lock.changed() => {
                        let mut tools = BTreeMap::clone(&self.listed());
                        self.try_out(&mut tools).await;
                        {
                            let mut state = self.state();
                            state.tools = Arc::new(tools);
                            self.judge(&mut state);
                        }
                        self.faulty(session, |_| ());
                    }
                }
            }
        }
    }

    /// One of its lists, if it is `wanted`.
    async fn list(&self, session: &Session, kind: Kind, wanted: bool) -> Result<ServerList, String> {
        if !wanted {
            return Ok(ServerList::default());
        }
        let listed = tokio::time::timeout(self.timeout, listing::list(session, kind)).await;
        listed.unwrap_or_else(|_| Err(format!("it does not list its {kind}s"))).map_err(|why| brief(&why))
    }

    /// Finds out whether the list of its resources has changed. If that fails, it has not.
    async fn look_at_resources(&self, session: &Session) {
        if self.resources && session.capabilities.resources && session.capabilities.resources_change {
            let digest = tokio::time::timeout(self.timeout, listing::resources(session)).await;
            match digest.unwrap_or_else(|_| Err("it does not list its resources".to_owned())) {
                Ok(digest) => self.state().resources = Some(digest),
                Err(reason) => {
                    let (backend, reason) = (self.name(), brief(&reason));
                    tracing::info!(target: "sealwire::backend", backend, reason, "its resources may have changed");
                }
            }
        }
    }

    /// Reports what the server has and the configuration does not offer.
    fn tell_what_is_not_offered(&self, session: &Session) {
        let backend = self.name();
        for (there, offered, what) in [
            (session.capabilities.resources, self.resources, "resources"),
            (session.capabilities.prompts, self.prompts, "prompts"),
        ] {
            if there && !offered {
                tracing::info!(target: "sealwire::backend", backend, "its {what} are not offered: that takes `{what} = true`");
            } else if offered && !there {
                tracing::warn!(target: "sealwire::backend", backend, "the server has no {what}, which the configuration offers");
            }
        }
    }

    /// Reports entries of lists that cannot be used.
    pub(super) fn complain(&self, wrong: &[String]) {
        let mut rate = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        for reason in wrong {
            if let Some(left_out) = rate.check(std::time::Instant::now()) {
                let (backend, reason) = (self.name(), brief(reason));
                tracing::warn!(target: "sealwire::backend", backend, left_out, "what the server lists cannot be used: {reason}");
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
            let (Ok(pin), Ok(Some(schemas))) = (&definition.pin, &definition.usable) else { continue };
            if lock.standing(self.name(), Kind::Tool, name, pin) != ApprovalState::Approved {
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
                        Err(_) | Ok(Err(ToolSchemaError { error: SchemaError::Failed(_), .. })) => continue,
                        Ok(found) => found.map_err(|fault| fault.to_string()),
                    }
                }
            };
            if let Ok(unchecked) = &found
                && !unchecked.is_empty()
            {
                let (backend, tool, what) = (self.name(), brief(name), brief(&unchecked.join(", ")));
                tracing::warn!(
                    target: "sealwire::backend", backend,
                    "of the arguments and results of `{tool}`, this is left to the server to check: {what}"
                );
            }
            definition.found(found);
        }
    }

    /// Whether exactly this definition was approved.
    pub(super) fn is_approved(&self, definition: &Definition) -> Result<(), RpcError> {
        let standing = match &definition.pin {
            Ok(pin) => self.pins.lock().borrow().standing(self.name(), definition.kind, &definition.name, pin),
            Err(_) => ApprovalState::New,
        };
        match (standing, definition.kind) {
            (ApprovalState::Approved, _) => Ok(()),
            (standing, Kind::Tool) => Err(RpcError::dependency("the tool's definition is not approved")
                .with_data(&serde_json::json!({ "tool": standing }))),
            (standing, Kind::Prompt) => Err(RpcError::dependency("the prompt's definition is not approved")
                .with_data(&serde_json::json!({ "prompt": standing }))),
        }
    }

    /// Whether it can be used, and is what was approved.
    fn is_good(&self, lock: &Lock, definition: &Definition) -> bool {
        let pin = definition.pin.as_ref().ok().filter(|_| definition.usable.is_ok());
        let standing = pin.map(|pin| lock.standing(self.name(), definition.kind, &definition.name, pin));
        standing == Some(ApprovalState::Approved)
    }

    /// The prompts that can be used, and are what was approved.
    pub(super) fn good_prompts(&self) -> Vec<Definition> {
        let (lock, prompts) = (self.pins.lock().borrow().clone(), Arc::clone(&self.state().prompts));
        prompts.values().filter(|prompt| self.is_good(&lock, prompt)).cloned().collect()
    }

    /// Whether a tool or prompt is, by the server's own word, still what it was when the call began, and still approved.
    pub(super) fn is_same(&self, session: &Session, definition: &Definition) -> Result<(), RpcError> {
        let is_same = {
            let state = self.state();
            let listed = match definition.kind {
                Kind::Tool => state.tools.get(&definition.name),
                Kind::Prompt => state.prompts.get(&definition.name),
            };
            session.conversation().changes() == state.changes && listed.is_some_and(|now| now.pin == definition.pin)
        };
        if !is_same {
            return Err(RpcError::dependency(format!("the {} may have changed by now", definition.kind)));
        }
        self.is_approved(definition)
    }

    /// Reports changes of the tools and prompts to the log and to subscribers.
    fn tell(&self, state: &mut State) {
        let lock = self.pins.lock().borrow().clone();
        let mut now = BTreeMap::new();
        for definition in state.tools.values().chain(state.prompts.values()) {
            let standing = match (&definition.pin, &definition.usable) {
                (Ok(_), Err(_)) | (Err(_), _) => "unusable",
                (Ok(pin), Ok(_)) => match lock.standing(self.name(), definition.kind, &definition.name, pin) {
                    ApprovalState::Approved => "approved",
                    ApprovalState::New => "new",
                    ApprovalState::Changed => "changed",
                },
            };
            now.insert((definition.kind, definition.name.clone()), standing);
        }
        for key in state.standings.keys() {
            now.entry(key.clone()).or_insert("gone");
        }
        let (backend, mut changed) = (self.name(), 0);
        for ((kind, name), standing) in
            now.iter().filter(|(key, standing)| state.standings.get(*key) != Some(*standing))
        {
            changed += 1;
            let shown = brief(name);
            match *standing {
                _ if changed > TOLD => {}
                "approved" => tracing::info!(target: "sealwire::backend", backend, "the {kind} `{shown}` is approved"),
                "gone" => {
                    tracing::warn!(target: "sealwire::backend", backend, "the server has no {kind} `{shown}` now")
                }
                "unusable" => {
                    let all = if *kind == Kind::Tool { &state.tools } else { &state.prompts };
                    let reason = all.get(name).and_then(|definition| definition.fault()).map(brief);
                    tracing::warn!(target: "sealwire::backend", backend, reason, "the {kind} `{shown}` cannot be used");
                }
                standing => tracing::warn!(
                    target: "sealwire::backend", backend, standing,
                    "the {kind} `{shown}` is off until its definition is approved: see `sealwire tools diff`"
                ),
            }
            // Not at the start, which is no change.
            if !state.standings.is_empty()
                && let Some((method, prompt)) = self.heard_of(*kind, name)
            {
                // All are short enough to publish.
                drop(self.pins.changes.publish(&Change { method, prompt, standing }));
            }
        }
        if changed > TOLD {
            let others = changed - TOLD;
            tracing::warn!(target: "sealwire::backend", backend, "{others} others have changed: see `sealwire tools list`");
        }
        // That a tool is gone is reported once, and remembered only for methods: a server may list ever new tools.
        now.retain(|(kind, name), standing| {
            *standing != "gone"
                || *kind == Kind::Tool && self.methods.get().is_some_and(|methods| methods.contains_key(name))
        });
        state.standings = now;
    }

    /// The method on which subscribers hear of a tool or prompt, and the prompt; `None` if there is none.
    fn heard_of(&self, kind: Kind, name: &str) -> Option<(String, Option<String>)> {
        match kind {
            Kind::Tool => Some((self.methods.get()?.get(name)?.to_string(), None)),
            Kind::Prompt => Some((self.naming.get_prompt()?, Some(name.to_owned()))),
        }
    }

    fn up(&self, session: &Arc<Session>, tools: ServerList, prompts: Result<ServerList, String>, changes: u64) {
        let mut state = self.state();
        let (prompts, unprompted) = match prompts {
            Ok(prompts) => (prompts, None),
            Err(reason) => (ServerList::default(), Some(reason)),
        };
        (state.session, state.tools) = (Some(Arc::clone(session)), Arc::new(tools.all));
        (state.changes, state.unlisted) = (changes, None);
        state.prompts = Arc::new(prompts.all);
        if state.unprompted != unprompted
            && let Some(reason) = &unprompted
        {
            let backend = self.name();
            tracing::warn!(target: "sealwire::backend", backend, reason, "its prompts cannot be used");
        }
        state.unprompted = unprompted;
        let mut nameless = tools.nameless;
        nameless.extend(prompts.nameless);
        if state.nameless != nameless {
            self.complain(&nameless);
            state.nameless = nameless;
        }
        // Its answer is a sign of life, too.
        state.faults = Faults::default();
        self.judge(&mut state);
        self.tell_misnamed(&mut state);
        self.settle(&mut state);
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
        self.settle(&mut state);
    }

    /// Says whether the server is available, by what is known of it.
    fn settle(&self, state: &mut State) {
        let Faults { health, listing, nothing } = &state.faults;
        let now = match (health.as_ref().or(listing.as_ref()), nothing) {
            (Some(reason), _) => Health::Down(reason.clone()),
            (None, Some(reason)) => Health::Limited(reason.clone()),
            (None, None) if self.has_nothing(state) => {
                Health::Limited("none of its approved tools can be used: see `sealwire tools list`".to_owned())
            }
            (None, None) => Health::Up,
        };
        let before = self.health.borrow().clone();
        let backend = self.name();
        match (&now, &before) {
            (Health::Down(reason), Health::Up | Health::Limited(_)) => {
                tracing::warn!(target: "sealwire::backend", backend, reason, "the server does not answer: new calls are refused until it does");
            }
            (Health::Limited(reason), before) if before != &now => {
                tracing::warn!(target: "sealwire::backend", backend, reason, "nothing of the server can be used");
            }
            _ => {}
        }
        self.health.send_replace(now);
    }

    /// Whether something was approved, and nothing of it can be used.
    fn has_nothing(&self, state: &State) -> bool {
        let lock = self.pins.lock().borrow().clone();
        let is_approved =
            lock.pins(self.name(), Kind::Tool).chain(lock.pins(self.name(), Kind::Prompt)).next().is_some();
        let capabilities = state.session.as_ref().map(|session| session.capabilities).unwrap_or_default();
        is_approved
            && !(self.resources && capabilities.resources)
            && !state.tools.values().chain(state.prompts.values()).any(|definition| self.is_good(&lock, definition))
    }

    /// The server has ended the session, and calls wait for the next one. Returns `false` if no calls were made in this one.
    pub(super) fn lost(&self, conversation: &Arc<JsonRpcPeer>) -> bool {
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
        listing::read(&RawValue::from_string(raw).unwrap(), Kind::Tool, false)
    }

    fn shared() -> Shared {
        let naming =
            Naming { backend: "server".to_owned(), prefix: None, aliases: BTreeMap::new(), names: Arc::default() };
        let (pins, send_caller, revision, questions) = (Arc::new(Pins::none()), false, None, Questions::new(&[]));
        let (resources, prompts) = (false, false);
        Shared::new(&ServerOptions {
            naming,
            timeout: START,
            send_caller,
            questions,
            pins,
            revision,
            resources,
            prompts,
        })
    }

    fn list(shared: &Shared, names: &[String]) -> BTreeMap<(Kind, String), &'static str> {
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
                assert_eq!(standings[&(Kind::Tool, "kept".to_owned())], "gone");
                assert_eq!(told.load(Ordering::Relaxed), 21);
            }
            let kept = BTreeMap::from([((Kind::Tool, "kept".to_owned()), "new")]);
            assert_eq!(list(&shared, &["kept".to_owned()]), kept);
        });
    }

    #[test]
    fn no_tool_has_an_endless_name() {
        assert!(tool(&"x".repeat(256)).is_ok());
        assert!(tool(&"x".repeat(257)).unwrap_err().contains("256"));
    }
}
