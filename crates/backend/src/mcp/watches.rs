//! Which resources callers watch, and what each of them is to be told.
//! Never tells a caller of a resource that it does not watch, and never holds more for one than which of its resources have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sealwire::RpcError;
use sealwire::internal::rpc::strict_value;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::Notify;

/// What is watched at one server.
#[derive(Debug)]
pub(super) struct Watches {
    all: Mutex<All>,
    /// Unlike that of any other process.
    whose: u64,
    /// Notified when the server has to be subscribed to more or less than before.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct All {
    resources: BTreeMap<Arc<str>, Watched>,
    /// The bytes of their URIs.
    bytes: usize,
    /// How many resources each caller watches.
    callers: BTreeMap<String, usize>,
    /// The last number that a resource was given.
    last: u64,
}

/// One resource that is watched.
#[derive(Debug, Default)]
struct Watched {
    inboxes: Vec<Arc<Inbox>>,
    upstream: Upstream,
    /// Another number whenever it has changed, or may have.
    version: u64,
}

/// What the server knows of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Upstream {
    #[default]
    Nothing,
    /// It is being asked.
    Asked,
    /// It tells of changes.
    Subscribed,
}

/// What the server has to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Subscribe,
    Unsubscribe,
}

/// Why a resource cannot be watched.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Denial {
    code: i32,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    /// Whether it is the server's word, whatever its code.
    application_error: bool,
}

/// A resource with the reason why it cannot be watched.
#[derive(Debug, Serialize)]
pub(super) struct Denied {
    uri: Arc<str>,
    #[serde(flatten)]
    why: Denial,
}

/// What a watcher is told at a time.
#[derive(Debug, Default, Serialize)]
pub(super) struct News {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) subscribed: BTreeSet<Arc<str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) refused: Vec<Denied>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) updated: BTreeSet<Arc<str>>,
    /// The versions of both: whoever replaces a subscription by another compares them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) versions: BTreeMap<Arc<str>, String>,
}

/// What waits for one watcher. Bounded by the number of its resources.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Of which it is not known yet whether they can be watched.
    open: BTreeSet<Arc<str>>,
    news: News,
}

/// A caller that watches some resources, until this is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    watches: Arc<Watches>,
    caller: String,
    uris: BTreeSet<Arc<str>>,
    inbox: Arc<Inbox>,
}

/// The most resources watched at a server, by all callers and by one, and the most bytes of their URIs.
const IN_ALL: usize = 1_024;
const OF_CALLER: usize = 256;
const BYTES: usize = 64 << 10;
/// The most bytes of what a server adds to its refusal; longer data are left out.
const DATA: usize = 4 << 10;
/// The most characters of its message.
const MESSAGE: usize = 1_000;

impl Denial {
    pub(super) fn new(error: &RpcError) -> Self {
        let data = error.data().filter(|data| data.get().len() <= DATA && strict_value(data.get()).is_ok());
        Self {
            code: error.code(),
            message: error.message().chars().take(MESSAGE).collect(),
            data: data.map(ToOwned::to_owned),
            application_error: error.is_application(),
        }
    }

    /// The service's own word.
    pub(super) fn ours(code: i32, message: &str) -> Self {
        Self { code, message: message.to_owned(), data: None, application_error: false }
    }

    pub(super) fn of(self, uri: Arc<str>) -> Denied {
        Denied { uri, why: self }
    }
}

impl Default for Watches {
    fn default() -> Self {
        let whose = RandomState::new().hash_one("versions");
        Self { all: Mutex::default(), whose, changed: Notify::new() }
    }
}

impl News {
    fn is_empty(&self) -> bool {
        self.subscribed.is_empty() && self.refused.is_empty() && self.updated.is_empty()
    }
}

impl Watches {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher of these resources.
    ///
    /// # Errors
    /// It, or all watchers together, would watch too many.
    pub(super) fn watch(self: &Arc<Self>, caller: String, uris: BTreeSet<Arc<str>>) -> Result<Watcher, RpcError> {
        let inbox = Arc::new(Inbox::default());
        {
            let mut all = self.all();
            let new = || uris.iter().filter(|uri| !all.resources.contains_key(*uri));
            let (count, bytes) = (new().count(), new().map(|uri| uri.len()).sum::<usize>());
            let own = all.callers.get(&caller).copied().unwrap_or_default() + uris.len();
            if own > OF_CALLER || all.resources.len() + count > IN_ALL || all.bytes + bytes > BYTES {
                return Err(
                    RpcError::dependency("too many resources are watched").with_data(&json!({ "watched": "full" }))
                );
            }
            all.bytes += bytes;
            if !uris.is_empty() {
                all.callers.insert(caller.clone(), own);
            }
            let All { resources, last, .. } = &mut *all;
            for uri in &uris {
                let watched = resources.entry(Arc::clone(uri)).or_default();
                if watched.version == 0 {
                    watched.renew(last);
                }
                watched.inboxes.push(Arc::clone(&inbox));
                inbox.waiting().open.insert(Arc::clone(uri));
                if watched.upstream == Upstream::Subscribed {
                    inbox.grant(uri, self.version(watched));
                }
            }
        }
        self.changed.notify_one();
        Ok(Watcher { watches: Arc::clone(self), caller, uris, inbox })
    }

    /// A resource has changed, or one below a resource that is watched, of which its watchers are told then: a caller may not be allowed to
    /// know what is below.
    pub(super) fn updated(&self, uri: &str) {
        let mut all = self.all();
        let All { resources, last, .. } = &mut *all;
        let names: Vec<&str> = match resources.contains_key(uri) {
            true => vec![uri],
            false => {
                let ends = uri.match_indices(['/', '?', '#']).flat_map(|(at, _)| [at, at + 1]);
                ends.filter_map(|end| uri.get(..end)).collect()
            }
        };
        for name in names {
            let Some((uri, mut watched)) = resources.remove_entry(name) else { continue };
            watched.renew(last);
            watched.inboxes.iter().for_each(|inbox| inbox.update(&uri, self.version(&watched)));
            resources.insert(uri, watched);
        }
    }

    fn version(&self, watched: &Watched) -> String {
        format!("{:x}-{}", self.whose, watched.version)
    }

    /// What is watched and not subscribed to; for servers that take a whole set at a time.
    pub(super) fn wanted(&self) -> BTreeSet<Arc<str>> {
        let all = self.all();
        all.resources.iter().filter(|(_, one)| !one.inboxes.is_empty()).map(|(uri, _)| Arc::clone(uri)).collect()
    }

    /// What to ask the server for next, one resource at a time.
    pub(super) fn step(&self) -> Option<(Arc<str>, Step)> {
        let mut all = self.all();
        all.resources.iter_mut().find_map(|(uri, watched)| {
            let step = match (watched.upstream, watched.inboxes.is_empty()) {
                (Upstream::Nothing, false) => Step::Subscribe,
                (Upstream::Subscribed, true) => Step::Unsubscribe,
                _ => return None,
            };
            watched.upstream = Upstream::Asked;
            Some((Arc::clone(uri), step))
        })
    }

    /// The server tells of changes of this resource from now on. Whoever has watched it before may have missed one.
    pub(super) fn subscribed(&self, uri: &str) {
        let mut all = self.all();
        let All { resources, last, .. } = &mut *all;
        let Some((uri, mut watched)) = resources.remove_entry(uri) else { return };
        watched.upstream = Upstream::Subscribed;
        watched.renew(last);
        watched.inboxes.iter().for_each(|inbox| inbox.grant(&uri, self.version(&watched)));
        resources.insert(uri, watched);
    }

    /// The server tells of no changes of this resource any more.
    pub(super) fn unsubscribed(&self, uri: &str) {
        let mut all = self.all();
        if let Some(watched) = all.resources.get_mut(uri) {
            watched.upstream = Upstream::Nothing;
        }
        all.forget_unwatched();
    }

    /// This resource cannot be watched.
    pub(super) fn refuse(&self, uri: &str, why: &Denial) {
        let mut all = self.all();
        if let Some((uri, watched)) = all.resources.remove_entry(uri) {
            all.bytes -= uri.len();
            watched.inboxes.iter().for_each(|inbox| inbox.refuse(&uri, why));
        }
    }

    /// The session with the server has ended: it knows nothing of all this.
    pub(super) fn lost(&self) {
        let mut all = self.all();
        all.resources.values_mut().for_each(|watched| watched.upstream = Upstream::Nothing);
        all.forget_unwatched();
    }
}

impl All {
    /// Forgets what nobody watches and the server knows nothing of.
    fn forget_unwatched(&mut self) {
        let bytes = &mut self.bytes;
        self.resources.retain(|uri, watched| {
            let stays = !watched.inboxes.is_empty() || watched.upstream != Upstream::Nothing;
            if !stays {
                *bytes -= uri.len();
            }
            stays
        });
    }
}

impl Watched {
    fn renew(&mut self, last: &mut u64) {
        *last += 1;
        self.version = *last;
    }
}

impl Inbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, uri: &Arc<str>, version: String) {
        let mut waiting = self.waiting();
        // Nobody was told yet that it is watched.
        if !waiting.open.contains(uri) {
            waiting.news.updated.insert(Arc::clone(uri));
            waiting.news.versions.insert(Arc::clone(uri), version);
            self.more.notify_one();
        }
    }

    fn grant(&self, uri: &Arc<str>, version: String) {
        let mut waiting = self.waiting();
        let is_new = waiting.open.remove(uri);
        let told = if is_new { &mut waiting.news.subscribed } else { &mut waiting.news.updated };
        told.insert(Arc::clone(uri));
        waiting.news.versions.insert(Arc::clone(uri), version);
        self.more.notify_one();
    }

    fn refuse(&self, uri: &Arc<str>, why: &Denial) {
        let mut waiting = self.waiting();
        waiting.open.remove(uri);
        waiting.news.refused.push(why.clone().of(Arc::clone(uri)));
        self.more.notify_one();
    }
}

impl Watcher {
    /// Completes when it is known of each resource whether it can be watched.
    ///
    /// Cancel safe.
    pub(super) async fn settled(&self) {
        while !self.inbox.waiting().open.is_empty() {
            self.inbox.more.notified().await;
        }
    }

    /// What there is to tell now. What is not settled counts as refused, for this reason.
    pub(super) fn first(&self, late: &Denial) -> News {
        let mut waiting = self.inbox.waiting();
        let open = std::mem::take(&mut waiting.open);
        let mut news = std::mem::take(&mut waiting.news);
        news.refused.extend(open.into_iter().map(|uri| late.clone().of(uri)));
        news
    }

    /// What there is to tell next.
    ///
    /// Cancel safe.
    pub(super) async fn next(&self) -> News {
        loop {
            let news = std::mem::take(&mut self.inbox.waiting().news);
            if !news.is_empty() {
                return news;
            }
            self.inbox.more.notified().await;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        {
            let mut all = self.watches.all();
            for uri in &self.uris {
                if let Some(watched) = all.resources.get_mut(uri) {
                    watched.inboxes.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
                }
            }
            all.forget_unwatched();
            if let Some(own) = all.callers.get_mut(&self.caller) {
                *own -= self.uris.len().min(*own);
                if *own == 0 {
                    all.callers.remove(&self.caller);
                }
            }
        }
        self.watches.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use futures_util::FutureExt as _;

    use super::*;

    fn uris(all: &[&str]) -> BTreeSet<Arc<str>> {
        all.iter().map(|uri| Arc::from(*uri)).collect()
    }

    fn denial() -> Denial {
        Denial::new(&RpcError::invalid_params("none"))
    }

    fn steps(watches: &Watches) -> Vec<(String, Step)> {
        std::iter::from_fn(|| watches.step()).map(|(uri, step)| (uri.to_string(), step)).collect()
    }

    #[test]
    fn a_resource_is_subscribed_to_once_for_all_its_watchers_and_until_the_last_has_gone() {
        let watches = Arc::new(Watches::default());
        let one = watches.watch("a".to_owned(), uris(&["x", "y"])).unwrap();
        let two = watches.watch("b".to_owned(), uris(&["x"])).unwrap();
        let both = [("x".to_owned(), Step::Subscribe), ("y".to_owned(), Step::Subscribe)];
        assert_eq!(steps(&watches), both);
        assert!(one.settled().now_or_never().is_none());
        watches.subscribed("x");
        watches.refuse("y", &denial());
        assert!(one.settled().now_or_never().is_some());
        let news = one.first(&denial());
        assert_eq!((news.subscribed, news.refused.len()), (uris(&["x"]), 1));
        assert_eq!(two.next().now_or_never().unwrap().subscribed, uris(&["x"]));
        drop(one);
        assert_eq!(steps(&watches), []);
        drop(two);
        assert_eq!(steps(&watches), [("x".to_owned(), Step::Unsubscribe)]);
        // Somebody comes back before the server has answered.
        let three = watches.watch("c".to_owned(), uris(&["x"])).unwrap();
        watches.unsubscribed("x");
        assert_eq!(steps(&watches), [("x".to_owned(), Step::Subscribe)]);
        drop(three);
        watches.subscribed("x");
        assert_eq!(steps(&watches), [("x".to_owned(), Step::Unsubscribe)]);
        watches.unsubscribed("x");
        let all = watches.all();
        assert!(all.resources.is_empty() && all.bytes == 0 && all.callers.is_empty());
    }

    #[test]
    fn whoever_watches_hears_of_each_change_once_and_of_nothing_else() {
        let watches = Arc::new(Watches::default());
        let one = watches.watch("a".to_owned(), uris(&["file:///d", "file:///e/"])).unwrap();
        let other = watches.watch("a".to_owned(), uris(&["file:///other"])).unwrap();
        steps(&watches);
        for uri in ["file:///d", "file:///e/", "file:///other"] {
            watches.subscribed(uri);
        }
        drop((one.first(&denial()), other.first(&denial())));
        for uri in ["file:///d", "file:///d", "file:///d/below", "file:///e/below?x=1", "file:///dd", "file:///", ""] {
            watches.updated(uri);
        }
        assert_eq!(one.next().now_or_never().unwrap().updated, uris(&["file:///d", "file:///e/"]));
        assert!(one.next().now_or_never().is_none() && other.next().now_or_never().is_none());
        // After the next session began, a change may have been missed.
        watches.lost();
        assert_eq!(steps(&watches).len(), 3);
        watches.subscribed("file:///other");
        assert_eq!(other.next().now_or_never().unwrap().updated, uris(&["file:///other"]));
    }

    #[test]
    fn whoever_replaces_a_watcher_by_another_sees_by_its_versions_whether_it_has_missed_a_change() {
        let watches = Arc::new(Watches::default());
        let old = watches.watch("a".to_owned(), uris(&["x"])).unwrap();
        steps(&watches);
        watches.subscribed("x");
        let now = || watches.watch("a".to_owned(), uris(&["x"])).unwrap().first(&denial()).versions;
        let known = old.first(&denial()).versions;
        assert!(known.len() == 1 && now() == known);
        // A change that the other may not have told yet.
        watches.updated("x/below");
        let newer = now();
        assert!(newer.len() == 1 && newer != known);
        assert_eq!((old.next().now_or_never().unwrap().versions, now()), (newer.clone(), newer.clone()));
        // While the server was away, a change may have been missed.
        watches.lost();
        steps(&watches);
        watches.subscribed("x");
        assert_ne!(now(), newer);
        // Nor does another process, or another time, give the same.
        let versions = |watches: &Arc<Watches>| {
            let watcher = watches.watch("a".to_owned(), uris(&["x"])).unwrap();
            steps(watches);
            watches.subscribed("x");
            watcher.first(&denial()).versions
        };
        assert_ne!(versions(&Arc::default()), versions(&Arc::default()));
    }

    #[test]
    fn callers_watch_within_bounds() {
        let watches = Arc::new(Watches::default());
        let some = |from: usize, count: usize| {
            (from..from + count).map(|n| Arc::from(format!("u{n}"))).collect::<BTreeSet<Arc<str>>>()
        };
        let full = |caller: &str, all: BTreeSet<Arc<str>>| watches.watch(caller.to_owned(), all).is_err();
        let mut held = vec![watches.watch("a".to_owned(), some(0, OF_CALLER)).unwrap()];
        assert!(full("a", some(0, 1)), "though others watch it already");
        for caller in 1..IN_ALL / OF_CALLER {
            held.push(watches.watch(caller.to_string(), some(caller * OF_CALLER, OF_CALLER)).unwrap());
        }
        assert!(full("b", some(IN_ALL, 1)) && !full("b", some(0, 1)));
        held.clear();
        assert!(full("b", uris(&["x".repeat(BYTES + 1).as_str()])));
        assert_eq!(watches.all().bytes, 0);
    }
}
