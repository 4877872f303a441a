//! One session: what its client watches, and what it is told of that and of lists.
//! Never stops watching between two streams without remembering that it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::event::{Heard, Subject};
use super::parking::{Parking, Place};
use crate::caller::{Caller, until_lost};
use crate::mcp::message::Fault;
use crate::mcp::news::{Digests, Lists};
use crate::mcp::offers::Source;
use crate::mcp::watch::{Occasion, Updates, Watch, WatchRequest, WatchState, settled, within_bounds};

/// How long a session goes on watching without a stream, and how long it remembers what it has told a client that may not have heard it.
const AWAY_FOR: Duration = Duration::from_secs(30);

/// One session.
#[derive(Debug)]
pub(super) struct Session {
    caller: Arc<str>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The resources that its client has subscribed to, and those that it is asking for, with the number of requests.
    granted: BTreeSet<String>,
    asking: BTreeMap<String, usize>,
    running: Option<RunningWatch>,
    /// For a while, nobody was watching what was granted.
    has_gap: bool,
    /// Streams and requests that need the watch.
    holders: usize,
    /// The number of the newest stream, and whether it is open. A message goes on one stream only.
    stream: u64,
    is_open: bool,
    /// The lists as the client knows them, and those that it is to be told of.
    known: Option<Digests>,
    lists: BTreeMap<&'static str, Occasion>,
    /// What it was told, and may not have heard: the number of the event, and when.
    told: BTreeMap<Subject, (u64, Instant)>,
}

/// A watch. While nothing needs it, it has a place, and a task that ends it.
#[derive(Debug)]
struct RunningWatch {
    watch: Watch,
    place: Option<Place>,
    ending: JoinSet<()>,
}

/// Keeps the watch of a session running.
#[derive(Debug)]
pub(super) struct Hold {
    session: Arc<Session>,
    parking: Parking,
}

/// A resource that is being subscribed to.
#[derive(Debug)]
pub(super) struct Asking {
    uri: String,
    revision: u64,
    outcome: watch::Receiver<WatchState>,
    hold: Hold,
}

/// A stream on which its client hears.
#[derive(Debug)]
pub(super) struct Listener {
    updates: Updates,
    number: u64,
    hold: Hold,
}

impl Session {
    pub(super) fn new(caller: Arc<str>) -> Self {
        Self { caller, state: Mutex::default() }
    }

    /// Its caller, whatever token that presents.
    pub(super) fn caller(&self) -> &Arc<str> {
        &self.caller
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Roughly: a URI is granted, wanted, waiting to be told, and told.
    pub(super) fn bytes(&self) -> u64 {
        self.state().granted.iter().map(|uri| 4 * (uri.len() as u64 + 64)).sum()
    }

    /// Begins to subscribe to a resource, with the rights of the caller that has its stream; without a stream, of this one.
    ///
    /// # Errors
    /// It would watch too many.
    pub(super) fn ask(
        self: &Arc<Self>,
        parking: &Parking,
        source: Source,
        caller: &Arc<dyn Caller>,
        uri: String,
    ) -> Result<Asking, Fault> {
        let mut state = self.state();
        let mut all = state.wanted();
        all.insert(uri.clone());
        within_bounds(&all)?;
        *state.asking.entry(uri.clone()).or_default() += 1;
        let rights = (!state.is_open).then_some(caller);
        let running = match state.running.take() {
            Some(running) => running.changed(&state, rights).kept(),
            None => state.begin(source, caller),
        };
        let (revision, outcome) = (running.watch.revision(), running.watch.outcome());
        state.running = Some(running);
        Ok(Asking { uri, revision, outcome, hold: self.hold(state, parking) })
    }

    /// A resource was subscribed to at another replica. `None` if nothing is watched here now.
    pub(super) fn remember(self: &Arc<Self>, parking: &Parking, uri: String) -> Option<Asking> {
        let mut state = self.state();
        let mut all = state.wanted();
        all.insert(uri.clone());
        // This replica may know of more than the other.
        within_bounds(&all).ok()?;
        state.granted.insert(uri.clone());
        let Some(running) = state.running.take() else {
            state.has_gap = true;
            return None;
        };
        *state.asking.entry(uri.clone()).or_default() += 1;
        let running = running.changed(&state, None).kept();
        let (revision, outcome) = (running.watch.revision(), running.watch.outcome());
        state.running = Some(running);
        Some(Asking { uri, revision, outcome, hold: self.hold(state, parking) })
    }

    /// Its client watches this resource no more.
    pub(super) fn forget(&self, uri: &str) {
        let mut state = self.state();
        if state.granted.remove(uri) {
            state.told.remove(&Subject::Resource(uri.to_owned()));
            state.running = state.running.take().map(|running| running.changed(&state, None));
        }
    }

    /// Its client has asked for a list.
    pub(super) fn learn(&self, request: &str, now: &Digests) {
        self.state().known.get_or_insert_with(|| now.clone()).learn(request, now);
    }

    /// Its client hears on a new stream, and no more on those before. `knew`: the lists as they were at the beginning of the session.
    pub(super) fn listen(
        self: &Arc<Self>,
        parking: &Parking,
        source: Source,
        caller: &Arc<dyn Caller>,
        heard: Heard<u64>,
        knew: Option<Digests>,
    ) -> Listener {
        let mut state = self.state();
        (state.stream, state.is_open) = (state.stream + 1, true);
        state.known = state.known.take().or(knew);
        let running = match state.running.take() {
            Some(running) => running.kept(),
            None => state.begin(source, caller),
        };
        state.told.retain(|_, (event, at)| match heard {
            Heard::All => false,
            Heard::UpTo(last) => *event > last,
            Heard::Unknown => at.elapsed() < AWAY_FOR,
        });
        for subject in state.told.keys().cloned().collect::<Vec<_>>() {
            match subject {
                Subject::Resource(uri) => running.watch.repeat(uri),
                Subject::List(method) => drop(state.lists.entry(method).or_insert(Occasion::Repetition)),
            }
        }
        running.watch.hand_over(caller);
        let (updates, number) = (running.watch.updates(), state.stream);
        state.running = Some(running);
        Listener { updates, number, hold: self.hold(state, parking) }
    }

    fn hold(self: &Arc<Self>, mut state: MutexGuard<'_, State>, parking: &Parking) -> Hold {
        state.holders += 1;
        Hold { session: Arc::clone(self), parking: parking.clone() }
    }

    /// Nothing needs its watch any more: it goes on for a while, if there is a place for it.
    fn release(self: &Arc<Self>, parking: &Parking) {
        let mut state = self.state();
        state.holders -= 1;
        if state.holders > 0 {
            return;
        }
        let place =
            Some(state.granted.len()).filter(|count| *count > 0).and_then(|count| parking.take(&self.caller, count));
        match (&mut state.running, place, Handle::try_current()) {
            (Some(running), Some(place), Ok(runtime)) => {
                let (session, caller) = (Arc::downgrade(self), running.watch.caller());
                running.place = Some(place);
                let ending = async move {
                    drop(timeout(AWAY_FOR, until_lost(&*caller)).await);
                    if let Some(session) = session.upgrade() {
                        session.end();
                    }
                };
                running.ending.spawn_on(ending, &runtime);
            }
            _ => state.end(),
        }
    }

    /// Ends its watch, unless something needs it.
    pub(super) fn end(&self) {
        let mut state = self.state();
        if state.holders == 0 {
            state.end();
        }
    }
}

impl State {
    fn wanted(&self) -> BTreeSet<String> {
        self.granted.iter().chain(self.asking.keys()).cloned().collect()
    }

    fn begin(&mut self, source: Source, caller: &Arc<dyn Caller>) -> RunningWatch {
        let missed = if std::mem::take(&mut self.has_gap) { self.granted.clone() } else { BTreeSet::new() };
        let mut wanted = WatchRequest::new(self.wanted(), Arc::clone(caller));
        wanted.known.clone_from(&self.granted);
        RunningWatch { watch: Watch::begin(source, wanted, missed), place: None, ending: JoinSet::new() }
    }

    fn end(&mut self) {
        self.has_gap |= self.running.take().is_some() && !self.granted.is_empty();
    }
}

impl RunningWatch {
    /// Watches what is wanted now, with the rights of another caller if there is one.
    fn changed(self, state: &State, caller: Option<&Arc<dyn Caller>>) -> Self {
        self.watch.change(|request| {
            request.uris = state.wanted();
            request.known.clone_from(&state.granted);
            if let Some(caller) = caller {
                request.caller = Arc::clone(caller);
            }
        });
        self
    }

    /// Does not end by itself any more.
    fn kept(self) -> Self {
        Self { place: None, ending: JoinSet::new(), ..self }
    }
}

impl Asking {
    /// What has become of it; whatever is known if that takes too long.
    pub(super) async fn outcome(&self) -> Result<(), Fault> {
        let WatchState { granted, mut refused, .. } = settled(self.outcome.clone(), self.revision).await;
        if granted.contains(&self.uri) {
            return Ok(());
        }
        let late = || Fault::internal("the service does not say whether that can be watched");
        Err(refused.remove(&self.uri).unwrap_or_else(late))
    }

    /// The client watches it from now on.
    pub(super) fn grant(self) {
        self.hold.session.state().granted.insert(self.uri.clone());
    }

    /// The client may have missed a change of it.
    pub(super) fn repeat(&self) {
        if let Some(running) = &self.hold.session.state().running {
            running.watch.repeat(self.uri.clone());
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut state = self.hold.session.state();
        let Some(count) = state.asking.get_mut(&self.uri) else { return };
        *count -= 1;
        if *count == 0 {
            state.asking.remove(&self.uri);
            if !state.granted.contains(&self.uri) {
                state.running = state.running.take().map(|running| running.changed(&state, None));
            }
        }
    }
}

impl Listener {
    /// What its client is to be told now, with the numbers of the events; nothing once there is a newer stream.
    pub(super) fn take(&self, mut number: impl FnMut() -> u64) -> Vec<(u64, Subject)> {
        let mut state = self.hold.session.state();
        if state.stream != self.number {
            return Vec::new();
        }
        let lists = std::mem::take(&mut state.lists).into_iter().map(|(method, why)| (Subject::List(method), why));
        let resources = self.updates.take().into_iter().map(|(uri, why)| (Subject::Resource(uri), why));
        let all: Vec<_> = lists.chain(resources).map(|(subject, why)| (number(), subject, why)).collect();
        let now = Instant::now();
        for (event, subject, why) in &all {
            let before = state.told.get(subject).filter(|_| *why == Occasion::Repetition);
            let at = before.map_or(now, |(_, at)| *at);
            state.told.insert(subject.clone(), (*event, at));
        }
        all.into_iter().map(|(event, subject, _)| (event, subject)).collect()
    }

    /// Completes when there may be more.
    ///
    /// Cancel safe.
    pub(super) async fn more(&mut self) {
        self.updates.more().await;
    }

    /// The lists are now these.
    pub(super) fn look(&self, now: Digests) {
        let mut state = self.hold.session.state();
        if state.stream != self.number {
            return;
        }
        let before = state.known.replace(now.clone());
        let changed = now.changed(before.as_ref(), Lists::ALL).notifications();
        state.lists.extend(changed.map(|method| (method, Occasion::Change)));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.hold.session.state();
        if state.stream == self.number {
            state.is_open = false;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.session.release(&self.parking);
    }
}
