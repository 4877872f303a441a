//! The connection that agents reach: read eagerly, handed on at once.
//! Never trusts the connection to stay: one malformed message can end it, and then a new one is built.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::connection::State as Connection;
use async_nats::{Client, Event, Message, Subscriber};
use futures_util::StreamExt as _;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::control::{Answers, again};
use super::work::{Intake, Work};
use super::{AGENTS, Fence, ServeError, Shared, State};
use crate::wire::Delivery;

/// The reading task, and the work on what it has read.
#[derive(Debug)]
pub(super) struct Ingress {
    drain: oneshot::Sender<()>,
    reader: JoinHandle<()>,
    work: Work,
}

/// The queue group of every service: ADR-32's default, so that replicas written in another language join it.
const QUEUE_GROUP: &str = "q";
/// The client library's own buffer. We read eagerly, so it fills only if this process gets no time to run.
const CAPACITY: usize = 16_384;
/// How long the broker has to show that a subscription is live.
const LIVE: Duration = Duration::from_secs(5);
/// How often the connection is proved to work.
const BEAT: Duration = Duration::from_secs(2);
/// How long a proof may take. Two take longer than the client library needs to find that the broker is silent.
const PROOF: Duration = Duration::from_secs(3);

impl Ingress {
    pub(super) async fn start(shared: Arc<Shared>, answers: Answers) -> Result<Self, ServeError> {
        let source = Source::open(&shared).await?;
        let (work, intake) = Work::start(Arc::clone(&shared), answers);
        let (drain, draining) = oneshot::channel();
        let reader = Reader { shared, source, intake };
        Ok(Self { drain, reader: tokio::spawn(reader.run(draining)), work })
    }

    /// Takes no new messages, and waits until everything accepted is answered, at most for `limit`.
    pub(super) async fn drain(self, limit: Duration) -> Result<(), ServeError> {
        let Self { drain, mut reader, mut work } = self;
        let deadline = Instant::now() + limit;
        drop(drain);
        let finished = async {
            // The reader takes the intake with it.
            drop((&mut reader).await);
            work.finished().await;
        };
        if tokio::time::timeout_at(deadline, finished).await.is_ok() {
            return Ok(());
        }
        reader.abort();
        match work.give_up() {
            // Only the broker was waited for, which did not say that nothing more is on the way.
            0 => Ok(()),
            unfinished => Err(ServeError::Drain(unfinished)),
        }
    }
}

/// A live subscription.
struct Source {
    client: Client,
    messages: Subscriber,
    /// Messages read from this subscription.
    seen: u64,
    /// How often the client library has connected on its own.
    connects: Arc<AtomicU64>,
    /// As many of them as the subscription has been through.
    settled: u64,
    /// Changes when the connection stopped working although nobody said so.
    dead: watch::Receiver<bool>,
    beat: JoinHandle<()>,
}

impl Source {
    async fn open(shared: &Arc<Shared>) -> Result<Self, ServeError> {
        let connects = Arc::new(AtomicU64::new(0));
        let (counted, counting) = (Arc::downgrade(shared), Arc::clone(&connects));
        let endpoint = shared.service.endpoint();
        let name = format!("{} {}", endpoint.audience(), shared.instance);
        let client = shared
            .bus
            .connect(&name, &shared.inbox(), CAPACITY, move |event| {
                if matches!(event, Event::Connected) {
                    counting.fetch_add(1, Ordering::SeqCst);
                }
                if let Some(shared) = counted.upgrade() {
                    shared.count_event(AGENTS, &event);
                }
            })
            .await?;
        let refused = || ServeError::Subscribe(endpoint.subscription(), shared.inbox());
        let messages = subscribe(&client, shared).await.map_err(|_| refused())?;
        let mut fence = Fence::new(&client, shared, AGENTS).await.ok_or_else(refused)?;
        if !fence.pass(LIVE).await {
            return Err(refused());
        }
        let (died, dead) = watch::channel(false);
        let (watched, beating, restored) = (client.clone(), Arc::clone(&connects), Arc::downgrade(shared));
        let beat = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                let since = beating.load(Ordering::SeqCst);
                if fence.pass(PROOF).await || fence.pass(PROOF).await {
                    // The library's events may be dropped.
                    restored.upgrade().inspect(|shared| shared.restored());
                    continue;
                }
                // The client library is at work on a connection that it knows to be down, or has just replaced it. It
                // also knows brokers that are not configured.
                let known = watched.connection_state() != Connection::Connected;
                if !known && beating.load(Ordering::SeqCst) == since {
                    died.send_replace(true);
                    return;
                }
            }
        });
        let settled = connects.load(Ordering::SeqCst);
        Ok(Self { client, messages, seen: 0, connects, settled, dead, beat })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.beat.abort();
    }
}

async fn subscribe(client: &Client, shared: &Shared) -> Result<Subscriber, async_nats::SubscribeError> {
    client.queue_subscribe(shared.service.endpoint().subscription(), QUEUE_GROUP.to_owned()).await
}

struct Reader {
    shared: Arc<Shared>,
    source: Source,
    intake: Intake,
}

impl Reader {
    async fn run(mut self, mut drain: oneshot::Receiver<()>) {
        let mut tidy = tokio::time::interval(Duration::from_secs(60));
        loop {
            tokio::select! {
                message = self.source.messages.next() => match message {
                    Some(message) => {
                        self.source.seen += 1;
                        self.offer(message);
                        self.settle().await;
                    }
                    None => {
                        if !self.rebuild("its task has ended", &mut drain).await {
                            return;
                        }
                    }
                },
                changed = self.source.dead.changed() => {
                    let why = if changed.is_ok() { "nothing comes back through it" } else { "its watch has ended" };
                    if !self.rebuild(why, &mut drain).await {
                        return;
                    }
                }
                _ = tidy.tick() => self.shared.service.tidy(),
                _ = &mut drain => break,
            }
        }
        self.finish().await;
    }

    fn offer(&self, message: Message) {
        self.intake.offer(Delivery::from(message));
    }

    /// After the client library has reconnected on its own, the broker counts the subscription's messages from zero
    /// again and the library does not: stopping after an exact number would not work. A new subscription starts both
    /// from zero.
    async fn settle(&mut self) {
        let connects = self.source.connects.load(Ordering::SeqCst);
        if connects == self.source.settled {
            return;
        }
        if let Ok(fresh) = subscribe(&self.source.client, &self.shared).await {
            self.source.settled = connects;
            let mut old = std::mem::replace(&mut self.source.messages, fresh);
            self.source.seen = 0;
            if old.drain().await.is_ok() {
                while let Ok(Some(message)) = timeout(Duration::from_secs(1), old.next()).await {
                    self.offer(message);
                }
            }
        }
    }

    /// A new connection and subscription; `false` if the service is to stop meanwhile.
    async fn rebuild(&mut self, why: &str, drain: &mut oneshot::Receiver<()>) -> bool {
        self.shared.health.rebuilt.fetch_add(1, Ordering::Relaxed);
        self.shared.state.send_replace(State::Interrupted(format!("the agents' connection is being rebuilt: {why}")));
        tracing::error!(target: "sealwire::bus", link = "agents", why, "building a new connection");
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            source = again(|| Source::open(&shared)) => {
                self.source = source;
                self.shared.state.send_replace(State::Ready);
                tracing::info!(target: "sealwire::serve", "ready");
                true
            }
            _ = drain => false,
        }
    }

    /// Stops the broker from choosing us, and reads everything that it has chosen us for until then.
    ///
    /// `unsubscribe` and `drain` of the client library forget the subscription before the broker has heard of it, and
    /// lose what is on the way (1 to 3 messages a stop at 30,000/s, our measurement). Asked to stop after an exact
    /// number that is not reached yet, the broker ends the subscription itself and nothing is lost. Under load the
    /// number is reached at once; on a quiet subject it is lowered until a pause shows that nothing is on the way.
    async fn finish(mut self) {
        let started = Instant::now();
        for (more, quiet) in [(256_u64, 250_u64), (8, 250), (1, 500)] {
            if self.source.messages.unsubscribe_after(self.source.seen.saturating_add(more)).await.is_err() {
                return;
            }
            loop {
                match timeout(Duration::from_millis(quiet), self.source.messages.next()).await {
                    Ok(Some(message)) => {
                        self.source.seen += 1;
                        self.offer(message);
                    }
                    // The broker has ended the subscription.
                    Ok(None) => return,
                    Err(_quiet) => break,
                }
                // A trickle that never pauses and never reaches the number.
                if started.elapsed() > Duration::from_secs(5) {
                    break;
                }
            }
        }
        // Nothing has come for half a second.
        if self.source.messages.drain().await.is_ok() {
            while let Ok(Some(message)) = timeout(Duration::from_secs(1), self.source.messages.next()).await {
                self.offer(message);
            }
        }
    }
}
