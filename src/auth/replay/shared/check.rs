//! One check from question to belief, and the state that it reads. Never admits on a link that is not up, or that was not
//! the same before and after the question.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_nats::Event;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::super::counters::Counters;
use super::super::{GuardIdentity, LocalGuard, Nonce, Outage, Refused, Window};
use super::SharedConfig;
use super::ask::{self, Heard};
use super::flight::Flight;
use super::keeper::Up;
use super::latency::Recorder;
use super::probe::Peers;
use super::stream;
use crate::clock::Clock;
use crate::name::Name;

/// What the guard and its task have in common.
pub(super) struct Shared {
    pub(super) config: SharedConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) local: LocalGuard,
    pub(super) link: ArcSwap<Link>,
    /// Set before the link is up for the first time.
    pub(super) fence: AtomicU64,
    /// Whether messages are taken. Only who serves can vouch for others.
    pub(super) serving: AtomicBool,
    /// How often this replica was to enter anew, and how often it has: see [`super::vouch`].
    pub(super) entries_wanted: AtomicU64,
    pub(super) entries_made: AtomicU64,
    /// Nobody can vouch for what was issued before the next look.
    pub(super) doubted: AtomicBool,
    pub(super) identity: ArcSwap<GuardIdentity>,
    pub(super) peers: Mutex<Peers>,
    pub(super) ahead_ms: AtomicI64,
    /// Asks the task to verify now.
    pub(super) nudge: Notify,
    pub(super) flight: Flight,
    /// The broker's latest complaint, such as a missing permission, which otherwise looks like silence.
    pub(super) broker_says: Mutex<Option<String>>,
    pub(super) counters: Counters,
    pub(super) latency: Recorder,
    pub(super) unanswered: AtomicU64,
    pub(super) interruptions: AtomicU64,
}

/// What the stream is asked for one message.
struct Question {
    subject: String,
    id: String,
    /// Stored with the id: a number that nobody but this check knows, so that the check knows its own.
    content: String,
}

/// Whether the stream can be asked.
#[derive(Debug)]
pub(super) enum Link {
    Up(Box<Up>),
    Down {
        outage: Outage,
        /// For people.
        detail: String,
    },
}

impl Link {
    pub(super) fn down(outage: Outage, detail: &str) -> Self {
        Self::Down { outage, detail: detail.to_owned() }
    }

    pub(super) fn up(&self) -> Result<&Up, Outage> {
        match self {
            Self::Up(up) => Ok(up),
            Self::Down { outage, .. } => Err(*outage),
        }
    }
}

impl Shared {
    pub(super) async fn admit(
        &self,
        owner: &Name,
        nonce: Nonce,
        iat: u64,
        exp: u64,
        received: Instant,
    ) -> Result<(), Refused> {
        let link = self.link.load_full();
        let up = link.up().map_err(Refused::Unavailable)?;
        // Before anything reads the wall clock for a decision: a wrong one must not become the floor.
        self.agree(up)?;
        self.serving.store(true, Ordering::SeqCst);
        let fence = self.fence.load(Ordering::SeqCst);
        if self.clock.now_s() <= fence {
            return Err(Refused::Unavailable(Outage::Fenced));
        }
        if iat <= fence {
            return Err(Refused::Stale);
        }
        let retry_after_ms = u64::try_from(self.config.answer_within.as_millis()).unwrap_or(u64::MAX);
        let _ticket = self.flight.enter(owner, retry_after_ms)?;
        // The local guard goes first, so that a flood of copies costs no shared work.
        self.local.admit_now(owner, nonce, iat, exp)?;

        let link = self.ask(link, owner, nonce).await?;
        let up = link.up().map_err(Refused::Unavailable)?;
        // The memory that answered must be the one that is vouched for now, over the same connection.
        let link_now = self.link.load_full();
        let up_now = link_now.up().map_err(Refused::Unavailable)?;
        if !up.continues(up_now) || !up.is_unbroken() {
            self.nudge.notify_one();
            return Err(Refused::Unavailable(Outage::Unverified));
        }
        self.agree(up_now)?;
        // Time has passed. A process that was paused may come back after the stream has forgotten the id.
        let Window { window_s, skew_s } = self.config.window;
        let overdue = received.elapsed() > Duration::from_secs(window_s + 2 * skew_s);
        let fence = self.fence.load(Ordering::SeqCst);
        if overdue || !self.config.window.holds(iat, exp, self.local.now_s(), fence) {
            return Err(Refused::Stale);
        }
        Ok(())
    }

    /// Asks the stream, and again while it gives no answer. Returns the link by which it said that this check stored the id.
    async fn ask(&self, mut link: Arc<Link>, owner: &Name, nonce: Nonce) -> Result<Arc<Link>, Refused> {
        let id = format!("{owner}.{}", nonce.to_text());
        let question = Question { subject: self.config.subject(owner), id, content: Nonce::random().to_text() };
        let up = link.up().map_err(Refused::Unavailable)?;
        let (generation, seen) = (up.generation, up.highest.load(Ordering::SeqCst));
        let (began, mut pause, mut repeated) = (Instant::now(), FIRST_PAUSE, None);
        loop {
            let refused = match self.ask_once(&link, &question, repeated).await {
                Ok(()) => return Ok(link),
                Err(refused) => refused,
            };
            loop {
                let silence =
                    [Outage::Unanswered, Outage::Unreachable, Outage::StreamReplaced].map(Refused::Unavailable);
                if !silence.contains(&refused) || began.elapsed() + pause > ASK_FOR {
                    return Err(refused);
                }
                sleep(pause).await;
                pause *= 2;
                link = self.link.load_full();
                match link.up() {
                    // Its memory counts from now: the message is behind the fence.
                    Ok(up) if up.generation != generation => return Err(refused),
                    Ok(up) if self.agree(up).is_ok() => break,
                    _ => {}
                }
            }
            repeated = Some(seen);
        }
    }

    /// `repeated`, if this check has asked before: the highest number that was seen before that.
    ///
    /// A question that was not answered in time may have been stored all the same, and then the next one is told that the id is
    /// known. It is this check's own if what is stored with it says so: nobody else was or will be told that it is new.
    async fn ask_once(&self, link: &Link, question: &Question, repeated: Option<u64>) -> Result<(), Refused> {
        let up = link.up().map_err(Refused::Unavailable)?;
        let Question { subject, id, content } = question;
        let highest = up.highest.load(Ordering::SeqCst);
        let asked = Instant::now();
        let own = content.clone().into_bytes();
        let answer = ask::ask(&up.jetstream, subject.clone(), id, own, self.config.answer_within).await;
        self.latency.record(asked.elapsed());
        match (answer.heard(&up.stream, highest), repeated) {
            // On its way to the copies: perhaps for this check.
            (Heard::Known { sequence: None }, Some(_)) => Err(Refused::Unavailable(Outage::Unanswered)),
            // Under a number that was given before this check began, it is of another memory.
            (Heard::Known { sequence: Some(sequence) }, Some(seen)) if sequence > seen => {
                match stream::content(&up.jetstream.client(), &up.stream, sequence).await {
                    Some(stored) if stored == content.as_bytes() => Ok(()),
                    Some(_) => Err(Refused::Replayed),
                    None => Err(Refused::Unavailable(Outage::Unanswered)),
                }
            }
            (heard, _) => self.believe(up, heard),
        }
    }

    /// Whether what was verified still holds: the clocks agree, nothing can have changed unseen, and this replica has entered.
    pub(super) fn agree(&self, up: &Up) -> Result<(), Refused> {
        let skew_ms = self.config.window.skew_s * 1000;
        let agreed = up.agreement.check(Instant::now(), self.clock.now_ms(), skew_ms);
        agreed.and_then(|()| if self.has_entered() { Ok(()) } else { Err(Outage::Unverified) }).map_err(|outage| {
            self.nudge.notify_one();
            Refused::Unavailable(outage)
        })
    }

    pub(super) fn has_entered(&self) -> bool {
        self.entries_made.load(Ordering::SeqCst) == self.entries_wanted.load(Ordering::SeqCst)
    }

    /// Nothing is admitted until the next look at the stream, and what was issued before is stale unless it is vouched for.
    pub(super) fn enter(&self) {
        self.entries_wanted.fetch_add(1, Ordering::SeqCst);
        self.nudge.notify_one();
    }

    pub(super) fn peers(&self) -> BTreeMap<String, Duration> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).seen(Instant::now())
    }

    /// Whether the stream's answer says that the id was new.
    fn believe(&self, up: &Up, heard: Heard) -> Result<(), Refused> {
        match heard {
            Heard::New { sequence } => {
                up.highest.fetch_max(sequence, Ordering::SeqCst);
                Ok(())
            }
            Heard::Known { .. } => Err(Refused::Replayed),
            // Its oldest ids leave the stream one by one.
            Heard::OwnerFull => Err(Refused::OwnerFull { retry_after_ms: OWNER_FULL_MS }),
            Heard::Foreign { stream } => {
                self.fall(Some(up), Outage::StreamReplaced, &format!("stream `{stream}` answers instead"));
                Err(Refused::Unavailable(Outage::StreamReplaced))
            }
            Heard::WentBack => {
                self.fall(Some(up), Outage::Unverified, "the guard stream's sequence went back");
                Err(Refused::Unavailable(Outage::Unverified))
            }
            Heard::Failed(outage) => {
                match outage {
                    Outage::StreamReplaced | Outage::Unreachable => self.fall(Some(up), outage, ""),
                    Outage::Unanswered => {
                        self.unanswered.fetch_add(1, Ordering::Relaxed);
                        self.nudge.notify_one();
                    }
                    _ => self.nudge.notify_one(),
                }
                Err(Refused::Unavailable(outage))
            }
        }
    }

    /// The stream is verified.
    pub(super) fn rise(&self, up: Up) {
        let stream = Arc::clone(&up.stream);
        *self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let before = self.link.swap(Arc::new(Link::Up(Box::new(up))));
        if before.up().is_err() {
            tracing::info!(%stream, "the shared replay guard is up");
        }
    }

    /// The stream cannot be relied on. With `seen`, only if the link is still of that generation.
    pub(super) fn fall(&self, seen: Option<&Up>, outage: Outage, detail: &str) {
        let down = Arc::new(Link::down(outage, detail));
        let before = self.link.rcu(|link| match (&**link, seen) {
            (Link::Up(up), Some(seen)) if !up.continues(seen) => Arc::clone(link),
            (Link::Down { .. }, Some(_)) => Arc::clone(link),
            _ => Arc::clone(&down),
        });
        if seen.is_some() {
            self.nudge.notify_one();
        }
        if matches!(&*before, Link::Up(up) if seen.is_none_or(|seen| up.continues(seen))) {
            self.interruptions.fetch_add(1, Ordering::Relaxed);
            if outage != Outage::Closed {
                let detail = self.explained(detail);
                tracing::error!(%outage, detail, "the shared replay guard is down: every message is refused");
            }
        }
    }

    /// An event of the guard's connection.
    pub(super) fn hear(&self, event: &Event) {
        if let Event::ServerError(error) = event {
            *self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
        self.nudge.notify_one();
    }

    /// The detail with the broker's latest complaint, which may be its cause.
    pub(super) fn explained(&self, detail: &str) -> String {
        match &*self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(complaint) => format!("{detail} (the broker says: {})", crate::name::shown(complaint)),
            None => detail.to_owned(),
        }
    }
}

/// For how long a question that is not answered is repeated, and the first pause between two: longer than a broker takes that
/// hands the stream over, or that a connection needs to be made anew and verified; shorter than an election, after which the
/// message would be stale anyway. The pauses are doubled, so that a slow broker is asked three times at most.
const ASK_FOR: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// When an owner whose share of the stream is used up may try again.
const OWNER_FULL_MS: u64 = 1000;
