//! Keeps the guard connected and its knowledge of the stream fresh. Never lets the guard vouch for what it did not see:
//! until a verification has passed, and whenever one fails, every check is refused.
//!
//! A verification asks the stream to store its previous probe again (which it must recognize), stores a new one, reads the
//! stream's state and the broker's clock, and then the other replicas' probes. The probes are also what proves the stream's
//! memory while nobody calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::{GuardIdentity, Outage};
use super::check::Shared;
use super::connect::{ConnectionOptions, ServerRotation, connect};
use super::fit;
use super::link::VerifiedStream;
use super::liveness::{ConnectionEpoch, IdleDetector, PING_EVERY};
use super::probe::Claim;
use super::publish_check::{self, CheckReply};
use super::retention::{ClockOffset, RetentionTracker, StreamSnapshot};
use super::stream::{self, StreamApi, StreamError};
use crate::nats::BusConfig;
use crate::wire::{Endpoint, Nonce};

/// The state of the background task.
pub(super) struct GuardMonitor {
    shared: Arc<Shared>,
    bus: BusConfig,
    /// Which broker is next, for this connection and those after it.
    turn: Arc<ServerRotation>,
    connection: Option<Connection>,
    retention: RetentionTracker,
    /// The stream's name, if known.
    stream: Option<String>,
    probe: Option<Probe>,
    /// The sequence number from which on the other replicas' probes are unread.
    unread: u64,
    highest: Arc<AtomicU64>,
    generation: u64,
    /// Since when verifications have been failing.
    failing_since: Option<Instant>,
    /// When the login is looked at again, and when it may be said again that it is about to end.
    look_at_login: Instant,
    say_login_ends: Instant,
}

struct Connection {
    client: StreamApi,
    jetstream: Context,
    silence: IdleDetector,
}

/// A probe that was stored.
struct Probe {
    id: String,
    stream: String,
    stored: Instant,
}

impl GuardMonitor {
    pub(super) fn new(shared: Arc<Shared>, bus: BusConfig) -> Self {
        // Replicas with the same configuration should not all ask the same broker.
        let random = Nonce::random().to_text().bytes().map(usize::from).sum::<usize>();
        // Otherwise the first one comes after the last.
        let before = if bus.no_randomize { bus.urls.len().saturating_sub(1) } else { random };
        Self {
            shared,
            bus,
            turn: Arc::new(ServerRotation::after(before)),
            connection: None,
            retention: RetentionTracker::default(),
            stream: None,
            probe: None,
            unread: 0,
            highest: Arc::default(),
            generation: 0,
            failing_since: None,
            look_at_login: Instant::now(),
            say_login_ends: Instant::now(),
        }
    }

    /// Once a minute, finds out when the login ends. The broker ends the connection then, and the next one reads the file again.
    async fn look_at_login(&mut self) {
        let now = Instant::now();
        if now < self.look_at_login {
            return;
        }
        self.look_at_login = now + LOOK_AT_LOGIN_EVERY;
        let bus = self.bus.clone();
        let end = tokio::task::spawn_blocking(move || bus.login_end()).await.ok().flatten();
        self.shared.login_until.store(end.as_ref().map_or(0, |end| end.until), Ordering::Relaxed);
        if let Some(reason) = end.and_then(|end| end.soon).filter(|_| now >= self.say_login_ends) {
            self.say_login_ends = now + SAY_LOGIN_ENDS_EVERY;
            tracing::warn!(target: "sealwire::replay", reason, "the broker login of the replay guard ends soon");
        }
    }

    /// Verifies again and again, until `stop` says so or its sender is gone.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let hurry = self.failing_since.is_some() || self.retention.awaits_claim();
            let pause = if hurry { RETRY_AFTER } else { VERIFY_EVERY };
            let next = async {
                // A wake-up means that something looks wrong. It comes no more often than this, whatever the traffic.
                tokio::time::sleep(LEAST_PAUSE).await;
                let _ = tokio::time::timeout(pause - LEAST_PAUSE, self.shared.wake.notified()).await;
            };
            tokio::select! {
                () = next => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            tokio::select! {
                _ = self.step() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// One verification and its consequences.
    pub(super) async fn step(&mut self) -> Result<(), StreamError> {
        self.look_at_login().await;
        let verified = self.verify().await;
        let silent = self.is_silent();
        match verified {
            Ok(()) => {
                self.failing_since = None;
                Ok(())
            }
            Err(error) => {
                self.shared.mark_down(None, error.outage, &error.detail);
                let since = *self.failing_since.get_or_insert_with(Instant::now);
                if error.outage == Outage::ClockDiffers {
                    self.retention.doubt();
                }
                if since.elapsed() > REBUILD_AFTER || silent || self.is_dead().await {
                    // This also drops what is queued in the old client, and what it keeps for unanswered requests.
                    self.connection = None;
                    self.failing_since = Some(Instant::now());
                    tracing::warn!(target: "sealwire::replay", "the replay guard's connection is being rebuilt");
                }
                Err(error)
            }
        }
    }

    async fn verify(&mut self) -> Result<(), StreamError> {
        let entry = self.shared.entries_wanted.load(Ordering::SeqCst);
        if self.shared.doubted.swap(false, Ordering::SeqCst) {
            self.retention.doubt();
        }
        let (client, jetstream) = self.connect().await?;
        let epoch = ConnectionEpoch::new(client.statistics());
        let highest = self.highest.load(Ordering::SeqCst);

        let name = self.locate(&client).await?;
        let (forgot, stored) = self.probe(&jetstream, &name).await?;
        let asked = Instant::now();
        let Some(info) = stream::look(&client, &name).await? else {
            self.stream = None;
            return Err(StreamError::new(Outage::StreamReplaced, format!("stream `{name}` is gone")));
        };
        let ended = Instant::now();
        info.fits(&self.shared.config)?;
        if info.state.last_seq < stored {
            return Err(StreamError::new(
                Outage::Unverified,
                "the broker's account of the guard stream is out of date",
            ));
        }

        let skew_s = self.shared.config.window.skew_s;
        let wall_ms = self.shared.clock.now_ms();
        let clock_offset = ClockOffset::new(asked, ended, wall_ms, info.now_ms()?);
        self.shared.ahead_ms.store(clock_offset.ahead_ms(ended, wall_ms), Ordering::Relaxed);
        clock_offset.check(ended, wall_ms, skew_s * 1000).map_err(|outage| {
            let ahead_ms = clock_offset.ahead_ms(ended, wall_ms);
            StreamError::new(
                outage,
                format!("the broker's clock is {ahead_ms} ms ahead of this machine's: correct both clocks"),
            )
        })?;

        let (created_ms, looked_ms) = (info.created_ms()?, info.now_ms()?);
        let snapshot = StreamSnapshot {
            asked,
            ended,
            stream: name.clone(),
            created_ms,
            first_ms: info.first_ms()?,
            now_ms: looked_ms,
            last_sequence: info.state.last_seq,
            leader: info.leader()?,
            forgot,
        };
        let enters = self.shared.entries_made.load(Ordering::SeqCst) != entry;
        let seen = self.retention.observe(snapshot, highest, skew_s, enters);
        // Losses count at once; what others vouch for counts once it is read.
        self.shared.fence.fetch_max(seen.fence, Ordering::SeqCst);
        let counted = seen.generation;
        if counted != self.generation {
            // Earlier probes were read before, or belong to another memory.
            self.unread = stored + 1;
        }
        self.read_probes(&client, &name, looked_ms).await?;
        let vouched = self.retention.vouched();
        self.shared.fence.store(vouched.fence, Ordering::SeqCst);
        if counted != self.generation || vouched.fence < seen.fence {
            tracing::info!(
                target: "sealwire::replay",
                stream = name,
                fence = vouched.fence,
                "the replay guard has a new fence"
            );
        }
        if counted != self.generation {
            self.generation = counted;
            self.highest = Arc::default();
        }
        let mut identity = GuardIdentity::new(self.shared.identity.load().kind.as_str(), self.shared.config.window);
        (identity.stream, identity.created_ms) = (name.clone(), created_ms);
        self.shared.identity.store(Arc::new(identity));
        self.highest.fetch_max(info.state.last_seq, Ordering::SeqCst);
        let up = VerifiedStream {
            jetstream,
            api: client,
            stream: name.into(),
            generation: self.generation,
            clock_offset,
            looked_ms,
            highest: Arc::clone(&self.highest),
            epoch,
        };
        if !up.is_unbroken() {
            return Err(StreamError::new(Outage::Unverified, "the connection was interrupted"));
        }
        self.shared.mark_up(up);
        self.shared.entries_made.store(entry, Ordering::SeqCst);
        Ok(())
    }

    /// Reads what other replicas have stored since the last time.
    async fn read_probes(&mut self, client: &StreamApi, name: &str, now_ms: u64) -> Result<(), StreamError> {
        for _ in 0..MOST_PROBES {
            let Some(found) = stream::probe_from(client, &self.shared.config, name, self.unread).await? else { break };
            self.unread = found.sequence + 1;
            if found.instance == self.shared.config.instance {
                continue;
            }
            let ago = Duration::from_millis(now_ms.saturating_sub(found.stored_ms));
            let mut peers = self.shared.peers.lock().unwrap_or_else(PoisonError::into_inner);
            peers.saw(&found.instance, Instant::now(), ago);
            drop(peers);
            if let Some(claim) = found.claim {
                self.retention.apply_claim(claim);
            }
        }
        Ok(())
    }

    /// What this replica tells the others about itself. It vouches only while it admits messages itself.
    fn claim(&self) -> Option<Claim> {
        let link = self.shared.link.load();
        let up = link.up().ok()?;
        let fence = self.shared.fence.load(Ordering::SeqCst);
        let vouches = self.shared.serving.load(Ordering::SeqCst) && self.shared.agree(up).is_ok();
        Some(Claim { looked_ms: up.looked_ms, fence: vouches.then_some(fence) })
    }

    /// Whether the broker is gone without the connection having noticed.
    fn is_silent(&mut self) -> bool {
        self.connection.as_mut().is_some_and(|Connection { client, silence, .. }| {
            silence.is_long(client.statistics().in_bytes.load(Ordering::Relaxed), Instant::now())
        })
    }

    /// Whether the client's own task has ended, which the client does not report.
    async fn is_dead(&self) -> bool {
        match &self.connection {
            Some(connection) => {
                matches!(tokio::time::timeout(DEAD_WITHIN, connection.client.flush()).await, Ok(Err(_)))
            }
            None => false,
        }
    }

    async fn connect(&mut self) -> Result<(StreamApi, Context), StreamError> {
        if let Some(connection) = &self.connection {
            return Ok((connection.client.clone(), connection.jetstream.clone()));
        }
        let config = &self.shared.config;
        let name = format!("sealwire-guard {}/{}", config.environment, config.service);
        // Anyone able to publish to this inbox could acknowledge what the stream never stored. The client library's own tokens
        // below it can be predicted from one another, so it begins with one that cannot, new for every connection.
        let secret = Nonce::random().to_text();
        let inbox = format!("{}.{}.guard.{secret}", Endpoint::SERVICE_INBOX_PREFIX, config.service);
        let events = {
            let shared = Arc::clone(&self.shared);
            move |event| shared.on_event(&event)
        };
        let manner = ConnectionOptions { turn: Arc::clone(&self.turn), ping_every: PING_EVERY };
        let client = connect(&self.bus, &name, &inbox, INBOX_CAPACITY, manner, events).await;
        let client = client.map_err(|error| StreamError::new(Outage::Unreachable, error.to_string()))?;
        let jetstream = ContextBuilder::new()
            .timeout(config.answer_within)
            .max_ack_inflight(2 * config.in_flight + 16)
            .backpressure_on_inflight(false)
            .ack_timeout(config.answer_within)
            .build(Client::clone(&client));
        let silence = IdleDetector::new(Instant::now());
        self.connection = Some(Connection { client: client.clone(), jetstream: jetstream.clone(), silence });
        Ok((client, jetstream))
    }

    /// The stream's name; creates the stream if there is none.
    async fn locate(&mut self, client: &StreamApi) -> Result<String, StreamError> {
        if let Some(name) = &self.stream {
            return Ok(name.clone());
        }
        let config = &self.shared.config;
        let mut found = stream::find(client, config).await?;
        if found.is_none() {
            stream::create(client, config, fit::wanted).await?;
            found = stream::find(client, config).await?;
        }
        let name =
            found.ok_or_else(|| StreamError::new(Outage::StreamReplaced, "the guard stream is not there yet"))?;
        // A stream that is not ours is never written to.
        match stream::look(client, &name).await? {
            Some(info) => info.fits(config)?,
            None => return Err(StreamError::new(Outage::StreamReplaced, format!("stream `{name}` is gone"))),
        }
        self.stream = Some(name.clone());
        Ok(name)
    }

    /// Whether the broker says that there is no such stream.
    async fn is_gone(&self, name: &str) -> bool {
        let Some(connection) = &self.connection else { return false };
        let asked = tokio::time::timeout(GONE_WITHIN, stream::look(&connection.client, name));
        matches!(asked.await, Ok(Ok(None)))
    }

    /// Stores a new probe, after asking for the previous one. Returns whether that one was forgotten, and the sequence number
    /// of the new one.
    async fn probe(&mut self, jetstream: &Context, name: &str) -> Result<(bool, u64), StreamError> {
        let config = &self.shared.config;
        let mut forgot = false;
        let remembered_for = config.memory().saturating_sub(PROBE_MARGIN);
        let known = |probe: &&Probe| probe.stream == name && probe.stored.elapsed() < remembered_for;
        if let Some(id) = self.probe.as_ref().filter(known).map(|probe| probe.id.clone()) {
            forgot = self.store(jetstream, name, &id, Vec::new()).await?.is_some();
        }
        let id = format!("$probe.{}", Nonce::random().to_text());
        let stored = Instant::now();
        let claim = self.claim().and_then(|claim| serde_json::to_vec(&claim).ok()).unwrap_or_default();
        let Some(sequence) = self.store(jetstream, name, &id, claim).await? else {
            return Err(StreamError::new(Outage::Unverified, "the guard stream knows an id that was never used"));
        };
        self.probe = Some(Probe { id, stream: name.to_owned(), stored });
        Ok((forgot, sequence))
    }

    /// The sequence number if `id` was new to the stream `name`.
    async fn store(
        &mut self,
        jetstream: &Context,
        name: &str,
        id: &str,
        content: Vec<u8>,
    ) -> Result<Option<u64>, StreamError> {
        let config = &self.shared.config;
        let subject = config.probe_subject(&config.instance);
        let answer = publish_check::publish(jetstream, subject, id, content, config.answer_within).await;
        // A sequence that goes back is judged from the stream's state, along with everything else.
        match answer.heard(name, 0) {
            CheckReply::New { sequence } => Ok(Some(sequence)),
            CheckReply::Known { .. } => Ok(None),
            CheckReply::OwnerFull => Err(StreamError::new(Outage::StreamFull, "the guard stream takes no more probes")),
            CheckReply::SequenceRegressed => {
                Err(StreamError::new(Outage::Unexpected, "an answer without a sequence number"))
            }
            CheckReply::OtherStream { stream } => {
                self.stream = None;
                Err(StreamError::new(Outage::StreamReplaced, format!("stream `{stream}` answers instead of `{name}`")))
            }
            CheckReply::Failed(outage) => {
                // A stream without a leader has no responders either. It keeps its name, by which its next leader is found as
                // soon as there is one; listing names takes the cluster's own leader, which may be missing for longer.
                if outage == Outage::StreamReplaced && self.is_gone(name).await {
                    self.stream = None;
                }
                Err(StreamError::new(outage, outage.to_string()))
            }
        }
    }
}

/// Each verification is four small requests, and one for each other replica. Often enough that one may fail or be slow before
/// what is known is too old (see `shared/retention.rs`).
const VERIFY_EVERY: Duration = Duration::from_millis(750);
const RETRY_AFTER: Duration = LEAST_PAUSE;
/// No more than four probes a second, whatever the traffic and the brokers do: the stream has room for that many.
const LEAST_PAUSE: Duration = Duration::from_millis(250);
/// A client whose task has ended reports it at once.
const DEAD_WITHIN: Duration = Duration::from_millis(50);
/// The others are read the next time.
const MOST_PROBES: usize = 128;

/// A cluster that knows answers within a millisecond; one without a leader does not answer, and is asked again soon.
const GONE_WITHIN: Duration = Duration::from_millis(300);

const LOOK_AT_LOGIN_EVERY: Duration = Duration::from_secs(60);
const SAY_LOGIN_ENDS_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// A client that has not recovered for this long is dropped and replaced.
const REBUILD_AFTER: Duration = Duration::from_secs(5);

/// An id is remembered for a fixed time after it was stored; close to the end of that time, nothing can be concluded.
const PROBE_MARGIN: Duration = Duration::from_secs(10);

/// The guard's connection has no subscription except the client's own for answers.
const INBOX_CAPACITY: usize = 1024;
