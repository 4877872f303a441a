//! One check, from question to verdict, and the state that it reads. Never admits on a link that is not up, or that was not the
//! same before and after the question.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_nats::Event;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::super::counters::Counters;
use super::super::latency::Recorder;
use super::super::{AdmitError, GuardIdentity, LocalGuard, Outage, ReplayGuard as _, Window};
use super::SharedConfig;
use super::in_flight::InFlightLimiter;
use super::link::{Link, VerifiedStream};
use super::probe::Peers;
use super::publish_check::{self, CheckReply};
use super::stream;
use crate::clock::Clock;
use crate::name::Name;
use crate::wire::Nonce;

/// What the guard and its tasks share.
pub(super) struct Shared {
    pub(super) config: SharedConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) local: LocalGuard,
    pub(super) link: ArcSwap<Link>,
    /// Set before the link is up for the first time.
    pub(super) fence: AtomicU64,
    /// Whether messages are accepted. Only a replica that serves can vouch for others.
    pub(super) serving: AtomicBool,
    /// How often this replica was asked to enter anew, and how often it has: see [`super::retention`].
    pub(super) entries_wanted: AtomicU64,
    pub(super) entries_made: AtomicU64,
    /// Whether nobody can vouch for what was issued before the next look.
    pub(super) doubted: AtomicBool,
    pub(super) identity: ArcSwap<GuardIdentity>,
    pub(super) peers: Mutex<Peers>,
    pub(super) ahead_ms: AtomicI64,
    /// When the login of our connection ends, in seconds since the Unix epoch; 0 for never.
    pub(super) login_until: AtomicU64,
    /// Makes the monitor verify now.
    pub(super) wake: Notify,
    pub(super) flight: InFlightLimiter,
    /// The broker's latest complaint, such as a missing permission, which otherwise looks like silence.
    pub(super) broker_says: Mutex<Option<String>>,
    pub(super) counters: Counters,
    pub(super) latency: Recorder,
    pub(super) unanswered: AtomicU64,
    pub(super) interruptions: AtomicU64,
}

/// What the stream is asked about one message.
struct Question {
    subject: String,
    id: String,
    /// Stored with the id: a number that only this check knows, so that it recognizes its own entry.
    content: String,
}

impl Shared {
    pub(super) async fn admit(
        &self,
        owner: &Name,
        nonce: Nonce,
        iat: u64,
        exp: u64,
        received: Instant,
    ) -> Result<(), AdmitError> {
        let link = self.link.load_full();
        let up = link.up().map_err(AdmitError::Unavailable)?;
        // Before anything reads the wall clock for a decision: a wrong clock must not become the floor.
        self.agree(up)?;
        self.serving.store(true, Ordering::SeqCst);
        self.pass_fence(owner, &nonce, iat)?;
        let retry_after_ms = u64::try_from(self.config.answer_within.as_millis()).unwrap_or(u64::MAX);
        let _permit = self.flight.enter(owner, retry_after_ms)?;
        // The local guard goes first, so that a flood of copies costs no shared work.
        self.local.admit_now(owner, nonce, iat, exp)?;

        let link = self.ask(link, owner, nonce).await?;
        let up = link.up().map_err(AdmitError::Unavailable)?;
        // The memory that answered must be the one that is vouched for now, over the same connection.
        let link_now = self.link.load_full();
        let up_now = link_now.up().map_err(AdmitError::Unavailable)?;
        if !up.continues(up_now) || !up.is_unbroken() {
            self.wake.notify_one();
            return Err(AdmitError::Unavailable(Outage::Unverified));
        }
        self.agree(up_now)?;
        // Time has passed. A process that was paused may carry on after the stream has forgotten the id.
        let Window { window_s, skew_s } = self.config.window;
        let overdue = received.elapsed() > Duration::from_secs(window_s + 2 * skew_s);
        let (now, fence) = (self.local.now_s(), self.fence.load(Ordering::SeqCst));
        if overdue || !self.config.window.holds(iat, exp, now, 0) {
            return Err(AdmitError::Stale);
        }
        self.behind(iat, now, fence)
    }

    /// Before the message is stored anywhere.
    fn pass_fence(&self, owner: &Name, nonce: &Nonce, iat: u64) -> Result<(), AdmitError> {
        let passed = self.behind(iat, self.clock.now_s(), self.fence.load(Ordering::SeqCst));
        // What is known to have been admitted is a copy, whatever the fence says.
        if passed.is_err() && self.local.has_seen(owner, nonce) { Err(AdmitError::Replayed) } else { passed }
    }

    fn behind(&self, iat: u64, now: u64, fence: u64) -> Result<(), AdmitError> {
        match self.config.window.fenced_s(iat, now, fence) {
            Some(wait_s) => Err(AdmitError::Fenced { retry_after_ms: wait_s.saturating_mul(1000) }),
            None if iat <= fence => Err(AdmitError::Stale),
            None => Ok(()),
        }
    }

    /// Asks the stream, and asks again while it gives no answer. Returns the link over which it said that this check stored the
    /// id.
    async fn ask(&self, mut link: Arc<Link>, owner: &Name, nonce: Nonce) -> Result<Arc<Link>, AdmitError> {
        let id = format!("{owner}.{}", nonce.to_text());
        let question = Question { subject: self.config.subject(owner), id, content: Nonce::random().to_text() };
        let up = link.up().map_err(AdmitError::Unavailable)?;
        let (generation, seen) = (up.generation, up.highest.load(Ordering::SeqCst));
        let (began, mut pause, mut repeated) = (Instant::now(), FIRST_PAUSE, None);
        loop {
            let refused = match self.ask_once(&link, &question, repeated).await {
                Ok(()) => return Ok(link),
                Err(refused) => refused,
            };
            loop {
                let silence =
                    [Outage::Unanswered, Outage::Unreachable, Outage::StreamReplaced].map(AdmitError::Unavailable);
                if !silence.contains(&refused) || began.elapsed() + pause > ASK_FOR {
                    return Err(refused);
                }
                sleep(pause).await;
                pause *= 2;
                link = self.link.load_full();
                match link.up() {
                    // The memory of another generation counts from now: the message is behind its fence.
                    Ok(up) if up.generation != generation => return Err(refused),
                    Ok(up) if self.agree(up).is_ok() => break,
                    _ => {}
                }
            }
            repeated = Some(seen);
        }
    }

    /// `repeated`, if this check has asked before: the highest number that was seen before its first question.
    ///
    /// A question that was not answered in time may have been stored all the same; the next one is then told that the id is
    /// known. The entry is this check's own if its content says so: nobody else was or will be told that the id is new.
    async fn ask_once(&self, link: &Link, question: &Question, repeated: Option<u64>) -> Result<(), AdmitError> {
        let up = link.up().map_err(AdmitError::Unavailable)?;
        let Question { subject, id, content } = question;
        let highest = up.highest.load(Ordering::SeqCst);
        let asked = Instant::now();
        let own = content.clone().into_bytes();
        let answer = publish_check::publish(&up.jetstream, subject.clone(), id, own, self.config.answer_within).await;
        self.latency.record(asked.elapsed());
        match (answer.heard(&up.stream, highest), repeated) {
            // On its way to the copies: perhaps this check's own.
            (CheckReply::Known { sequence: None }, Some(_)) => Err(AdmitError::Unavailable(Outage::Unanswered)),
            // Under a number assigned before this check began, the entry is another's, or in another memory.
            (CheckReply::Known { sequence: Some(sequence) }, Some(seen)) if sequence > seen => {
                match stream::content(&up.api, &up.stream, sequence).await {
                    Some(stored) if stored == content.as_bytes() => Ok(()),
                    Some(_) => Err(AdmitError::Replayed),
                    None => Err(AdmitError::Unavailable(Outage::Unanswered)),
                }
            }
            (heard, _) => self.apply_reply(up, heard),
        }
    }

    /// Whether what was verified still holds: the clocks agree, nothing can have changed unseen, and this replica has entered.
    pub(super) fn agree(&self, up: &VerifiedStream) -> Result<(), AdmitError> {
        let skew_ms = self.config.window.skew_s * 1000;
        let agreed = up.clock_offset.check(Instant::now(), self.clock.now_ms(), skew_ms);
        agreed.and_then(|()| if self.has_entered() { Ok(()) } else { Err(Outage::Unverified) }).map_err(|outage| {
            self.wake.notify_one();
            AdmitError::Unavailable(outage)
        })
    }

    pub(super) fn has_entered(&self) -> bool {
        self.entries_made.load(Ordering::SeqCst) == self.entries_wanted.load(Ordering::SeqCst)
    }

    /// Admits nothing until the next look at the stream; what was issued before it is then stale unless it is vouched for.
    pub(super) fn enter(&self) {
        self.entries_wanted.fetch_add(1, Ordering::SeqCst);
        self.wake.notify_one();
    }

    pub(super) fn peers(&self) -> BTreeMap<String, Duration> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).seen(Instant::now())
    }

    /// Whether the stream's answer says that the id was new.
    fn apply_reply(&self, up: &VerifiedStream, heard: CheckReply) -> Result<(), AdmitError> {
        match heard {
            CheckReply::New { sequence } => {
                up.highest.fetch_max(sequence, Ordering::SeqCst);
                Ok(())
            }
            CheckReply::Known { .. } => Err(AdmitError::Replayed),
            // The owner's oldest ids leave the stream one by one.
            CheckReply::OwnerFull => Err(AdmitError::OwnerFull { retry_after_ms: OWNER_FULL_MS }),
            CheckReply::OtherStream { stream } => {
                self.mark_down(Some(up), Outage::StreamReplaced, &format!("stream `{stream}` answers instead"));
                Err(AdmitError::Unavailable(Outage::StreamReplaced))
            }
            CheckReply::SequenceRegressed => {
                self.mark_down(Some(up), Outage::Unverified, "the guard stream's sequence went back");
                Err(AdmitError::Unavailable(Outage::Unverified))
            }
            CheckReply::Failed(outage) => {
                match outage {
                    Outage::StreamReplaced | Outage::Unreachable => self.mark_down(Some(up), outage, ""),
                    Outage::Unanswered => {
                        self.unanswered.fetch_add(1, Ordering::Relaxed);
                        self.wake.notify_one();
                    }
                    _ => self.wake.notify_one(),
                }
                Err(AdmitError::Unavailable(outage))
            }
        }
    }

    /// Records that the stream is verified.
    pub(super) fn mark_up(&self, up: VerifiedStream) {
        let stream = Arc::clone(&up.stream);
        *self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let before = self.link.swap(Arc::new(Link::Up(Box::new(up))));
        if before.up().is_err() {
            tracing::info!(target: "sealwire::replay", %stream, "the shared replay guard is up");
        }
    }

    /// Records that the stream cannot be relied on. With `seen`, only if the link is still of that generation.
    pub(super) fn mark_down(&self, seen: Option<&VerifiedStream>, outage: Outage, detail: &str) {
        let down = Arc::new(Link::down(outage, detail));
        let before = self.link.rcu(|link| match (&**link, seen) {
            (Link::Up(up), Some(seen)) if !up.continues(seen) => Arc::clone(link),
            (Link::Down { .. }, Some(_)) => Arc::clone(link),
            _ => Arc::clone(&down),
        });
        if seen.is_some() {
            self.wake.notify_one();
        }
        if matches!(&*before, Link::Up(up) if seen.is_none_or(|seen| up.continues(seen))) {
            self.interruptions.fetch_add(1, Ordering::Relaxed);
            if outage != Outage::Closed {
                let reason = self.explained(detail);
                tracing::error!(
                    target: "sealwire::replay",
                    %outage,
                    reason,
                    "the shared replay guard is down: every message is refused"
                );
            }
        }
    }

    /// Handles an event of the guard's connection.
    pub(super) fn on_event(&self, event: &Event) {
        if let Event::ServerError(error) = event {
            *self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
        self.wake.notify_one();
    }

    /// Waits until the broker has forbidden something.
    ///
    /// Cancel safe.
    pub(super) async fn forbidden(&self) {
        let is_forbidden = || {
            let complaint = self.broker_says.lock().unwrap_or_else(PoisonError::into_inner);
            complaint.as_deref().is_some_and(|text| text.to_ascii_lowercase().contains("permissions violation"))
        };
        while !is_forbidden() {
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The detail, with the broker's latest complaint, which may be its cause.
    pub(super) fn explained(&self, detail: &str) -> String {
        match &*self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(complaint) => format!("{detail} (the broker says: {})", crate::name::shown(complaint)),
            None => detail.to_owned(),
        }
    }
}

/// How long an unanswered question is repeated, and the first pause between two. Longer than a broker takes to hand the stream
/// over, or than a connection takes to be rebuilt and verified; shorter than an election, after which the message would be
/// stale anyway. The pauses double, so that a slow broker is asked three times at most.
const ASK_FOR: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// When an owner that has used up its share of the stream may try again.
const OWNER_FULL_MS: u64 = 1000;
