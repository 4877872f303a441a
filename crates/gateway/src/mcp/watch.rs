//! Resources that a client watches at the MCP servers behind the bus.
//! Never tells a client of a resource that it does not watch or may not, and never holds more for it than which of them have changed.

mod subscriptions;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

pub(super) use self::subscriptions::SUBSCRIBE;
use self::subscriptions::{PATIENCE, SubscriptionItem, Subscriptions};
use super::message::Fault;
use super::offers::Source;
use crate::caller::Caller;

/// The most resources that one client watches, and the most bytes of one URI and of all of them.
pub(crate) const RESOURCES: usize = 64;
const URI: usize = 2_048;
const URIS: usize = 32 << 10;
/// The pause before a subscription that has ended is made again: the first, doubled each time, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What a client wants to watch.
#[derive(Debug, Clone)]
pub(crate) struct WatchRequest {
    pub(crate) uris: BTreeSet<String>,
    /// Those that it was granted before: what cannot be watched of these for a while is asked for again.
    pub(crate) known: BTreeSet<String>,
    /// With whose rights.
    pub(crate) caller: Arc<dyn Caller>,
    /// A new audience is told nothing before its rights are known.
    audience: u64,
    /// Greater than before whenever any of this has changed.
    revision: u64,
}

/// What has become of that.
#[derive(Debug, Clone, Default)]
pub(crate) struct WatchState {
    pub(crate) revision: u64,
    pub(crate) granted: BTreeSet<String>,
    pub(crate) refused: BTreeMap<String, Fault>,
}

/// A client that watches resources, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    wanted: watch::Sender<WatchRequest>,
    inbox: Arc<Inbox>,
    outcome: watch::Receiver<WatchState>,
    _task: JoinSet<()>,
}

/// What a client is told of.
#[derive(Debug)]
pub(crate) struct Updates {
    inbox: Arc<Inbox>,
    wanted: watch::Receiver<WatchRequest>,
    more: watch::Receiver<()>,
}

/// Why a client is told of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    /// It has changed, or may have.
    Change,
    /// It was told before, and may not have heard it.
    Repetition,
}

/// What was not told yet. Bounded by the number of resources.
#[derive(Debug)]
struct Inbox {
    waiting: Mutex<Waiting>,
    more: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    updated: BTreeMap<String, Occasion>,
    /// Those that this audience may know of at the moment.
    granted: BTreeSet<String>,
    audience: u64,
}

/// Whether a client may watch so many resources with such URIs.
///
/// # Errors
/// It may not.
pub(crate) fn within_bounds(uris: &BTreeSet<String>) -> Result<(), Fault> {
    let bytes: usize = uris.iter().map(String::len).sum();
    match uris.len() > RESOURCES || bytes > URIS || uris.iter().any(|uri| uri.len() > URI) {
        true => Err(Fault::params(format!(
            "at most {RESOURCES} resources can be watched, with URIs of {URI} bytes each and {URIS} together"
        ))),
        false => Ok(()),
    }
}

impl WatchRequest {
    /// For a client that has watched nothing before.
    pub(crate) fn new(uris: BTreeSet<String>, caller: Arc<dyn Caller>) -> Self {
        Self { uris, known: BTreeSet::new(), caller, audience: 0, revision: 1 }
    }
}

impl Watch {
    /// Begins to watch what is `wanted`, and follows its changes. What was `missed` may have changed while nobody was watching.
    pub(super) fn begin(source: Source, wanted: WatchRequest, missed: BTreeSet<String>) -> Self {
        let inbox = Arc::new(Inbox { waiting: Mutex::default(), more: watch::Sender::new(()) });
        let (told, outcome) = watch::channel(WatchState::default());
        let (wanted, asked) = watch::channel(wanted);
        let follower = Follower {
            source,
            inbox: Arc::clone(&inbox),
            held: Subscriptions::default(),
            known: BTreeSet::new(),
            missed,
            since: Instant::now(),
            pause: AGAIN.0,
            again: None,
        };
        let mut task = JoinSet::new();
        task.spawn(follower.run(asked, told));
        Self { wanted, inbox, outcome, _task: task }
    }

    /// Changes what is wanted. Its owner makes one change at a time.
    pub(super) fn change(&self, change: impl FnOnce(&mut WatchRequest)) {
        let before = self.wanted.borrow().clone();
        let mut wanted = before.clone();
        change(&mut wanted);
        wanted.revision += 1;
        if wanted.caller.name() != before.caller.name() {
            wanted.audience += 1;
        }
        self.inbox.hand_over(wanted.audience);
        self.wanted.send_replace(wanted);
    }

    /// This caller is told from now on. If there is anything that was not told yet, its rights may have changed since.
    pub(super) fn hand_over(&self, caller: &Arc<dyn Caller>) {
        let is_same = self.wanted.borrow().caller.name() == caller.name();
        if !is_same || !self.inbox.waiting().updated.is_empty() {
            self.change(|wanted| {
                wanted.caller = Arc::clone(caller);
                wanted.audience += 1;
            });
        }
    }

    /// The revision of what is wanted.
    pub(super) fn revision(&self) -> u64 {
        self.wanted.borrow().revision
    }

    /// With whose rights it watches.
    pub(super) fn caller(&self) -> Arc<dyn Caller> {
        Arc::clone(&self.wanted.borrow().caller)
    }

    /// Has the client told once more of a resource.
    pub(super) fn repeat(&self, uri: String) {
        self.inbox.add([(uri, Occasion::Repetition)]);
    }

    /// What it is told of from now on.
    pub(crate) fn updates(&self) -> Updates {
        let (wanted, more) = (self.wanted.subscribe(), self.inbox.more.subscribe());
        Updates { inbox: Arc::clone(&self.inbox), wanted, more }
    }

    /// What has become of a revision of what was wanted; whatever is known if that takes too long.
    pub(crate) async fn settled(&self, revision: u64) -> WatchState {
        settled(self.outcome(), revision).await
    }

    /// For others who wait for the same.
    pub(super) fn outcome(&self) -> watch::Receiver<WatchState> {
        self.outcome.clone()
    }
}

impl Updates {
    /// The resources that have changed: none that is not wanted any more, though its subscription may still be ending.
    pub(super) fn take(&self) -> BTreeMap<String, Occasion> {
        let wanted = self.wanted.borrow().uris.clone();
        let mut waiting = self.inbox.waiting();
        let mut updated = std::mem::take(&mut waiting.updated);
        updated.retain(|uri, _| wanted.contains(uri));
        let (told, rest) = updated.into_iter().partition(|(uri, _)| waiting.granted.contains(uri));
        waiting.updated = rest;
        told
    }

    /// Completes when there may be more.
    ///
    /// Cancel safe.
    pub(super) async fn more(&mut self) {
        if self.more.changed().await.is_err() {
            // Nobody watches any more.
            std::future::pending().await
        }
    }

    /// The resources that have changed, once there are any.
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> BTreeSet<String> {
        loop {
            let updated = self.take();
            if !updated.is_empty() {
                return updated.into_keys().collect();
            }
            self.more().await;
        }
    }
}

impl Inbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, uris: impl IntoIterator<Item = (String, Occasion)>) {
        let mut waiting = self.waiting();
        for (uri, occasion) in uris {
            match occasion {
                Occasion::Change => drop(waiting.updated.insert(uri, occasion)),
                Occasion::Repetition => drop(waiting.updated.entry(uri).or_insert(occasion)),
            }
        }
        drop(waiting);
        self.more.send_replace(());
    }

    /// Only this audience is told from now on.
    fn hand_over(&self, audience: u64) {
        let mut waiting = self.waiting();
        if waiting.audience != audience {
            waiting.audience = audience;
            waiting.granted.clear();
        }
    }

    /// This audience may know of these resources.
    fn allow(&self, audience: u64, granted: &BTreeSet<String>) {
        let mut waiting = self.waiting();
        if waiting.audience == audience {
            waiting.granted.clone_from(granted);
            drop(waiting);
            self.more.send_replace(());
        }
    }

    /// Nobody may know of these resources at the moment.
    fn withdraw(&self, lost: &BTreeSet<String>) {
        self.waiting().granted.retain(|uri| !lost.contains(uri));
    }

    /// Nobody wants to know of any others.
    fn forget_others(&self, wanted: &BTreeSet<String>) {
        self.waiting().updated.retain(|uri, _| wanted.contains(uri));
    }
}

/// What a watch is at the moment.
struct Follower {
    source: Source,
    inbox: Arc<Inbox>,
    held: Subscriptions,
    /// Those that were granted, now or before.
    known: BTreeSet<String>,
    /// Those of which changes may have been missed: they are told once they are watched again.
    missed: BTreeSet<String>,
    /// Since when the subscriptions are open.
    since: Instant,
    pause: Duration,
    /// When to ask again.
    again: Option<Instant>,
}

impl Follower {
    /// Watches what is wanted, until nobody wants anything any more.
    async fn run(mut self, mut asked: watch::Receiver<WatchRequest>, told: watch::Sender<WatchState>) {
        loop {
            let wanted = asked.borrow_and_update().clone();
            self.known.extend(wanted.known.iter().cloned());
            self.known.retain(|uri| wanted.uris.contains(uri));
            self.missed.retain(|uri| wanted.uris.contains(uri));
            self.inbox.forget_others(&wanted.uris);
            let found = self.open(&wanted).await;
            self.again = None;
            let (granted, refused) = match found {
                Ok(found) => self.replace(found, &wanted),
                Err(fault) => {
                    self.ask_again();
                    let refused = wanted.uris.difference(&self.known).map(|uri| (uri.clone(), fault.clone())).collect();
                    (self.known.clone(), refused)
                }
            };
            told.send_replace(WatchState { revision: wanted.revision, granted, refused });
            loop {
                tokio::select! {
                    changed = asked.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    said = self.held.next() => self.hear(said, &wanted),
                    () = sleep_until(self.again.unwrap_or_else(Instant::now)), if self.again.is_some() => break,
                }
            }
        }
    }

    /// Subscribes to what is wanted. Those before go on meanwhile.
    async fn open(&mut self, wanted: &WatchRequest) -> Result<Subscriptions, Fault> {
        if wanted.uris.is_empty() {
            return Ok(Subscriptions::default());
        }
        let source = self.source.clone();
        let mut opening = pin!(Subscriptions::open(&source, &*wanted.caller, &wanted.uris).boxed());
        loop {
            tokio::select! {
                found = &mut opening => return found,
                said = self.held.next() => self.hear(said, wanted),
            }
        }
    }

    /// Goes on with other subscriptions. Returns what is granted, and what is refused.
    fn replace(&mut self, found: Subscriptions, wanted: &WatchRequest) -> (BTreeSet<String>, BTreeMap<String, Fault>) {
        // What is on its way on those before has left the services before they began the new ones.
        for said in self.held.arrived() {
            self.hear(said, wanted);
        }
        let (granted, refused) = (found.granted(), found.refused.clone());
        let missed = self.missed.intersection(&granted).cloned();
        let told: BTreeSet<String> = missed.chain(found.changed_since(&self.held)).collect();
        self.missed.retain(|uri| !granted.contains(uri));
        self.missed.extend(self.known.difference(&granted).cloned());
        self.known.extend(granted.iter().cloned());
        (self.held, self.since, self.again) = (found, Instant::now(), None);
        if !self.missed.is_empty() {
            self.ask_again();
        }
        self.inbox.add(told.into_iter().map(|uri| (uri, Occasion::Change)));
        self.inbox.allow(wanted.audience, &granted);
        (granted, refused)
    }

    fn hear(&mut self, (method, said): SubscriptionItem, wanted: &WatchRequest) {
        let lost = match said {
            Some(Ok(news)) => {
                self.held.remember(&method, news.versions, &wanted.uris);
                let updated = news.updated.into_iter().filter(|uri| wanted.uris.contains(uri));
                self.inbox.add(updated.map(|uri| (uri, Occasion::Change)));
                let refused = news.refused.into_iter().map(|resource| resource.uri).collect();
                self.held.withdraw(&method, Some(&refused))
            }
            // The subscription is over: of one that has granted nothing, nothing is lost.
            Some(Err(_)) | None => self.held.withdraw(&method, None),
        };
        if !lost.is_empty() {
            self.inbox.withdraw(&lost);
            self.missed.extend(lost);
            if self.since.elapsed() >= AGAIN.1 {
                self.pause = AGAIN.0;
            }
            self.ask_again();
        }
    }

    fn ask_again(&mut self) {
        self.again = self.again.or(Some(Instant::now() + self.pause));
        self.pause = (self.pause * 2).min(AGAIN.1);
    }
}

/// What has become of a revision.
pub(super) async fn settled(mut outcome: watch::Receiver<WatchState>, revision: u64) -> WatchState {
    drop(
        timeout(PATIENCE + Duration::from_secs(5), outcome.wait_for(|settled| settled.revision >= revision))
            .boxed()
            .await,
    );
    outcome.borrow().clone()
}
