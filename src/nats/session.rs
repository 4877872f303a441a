//! One connection to one broker, from the first `PING` to its end.
//! Never waits for the handler of its messages, and never comes back once it has ended.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::creds::Life;
use super::dial::{Dialed, Stream};
use super::event::Event;
use super::outbound::{Outbound, PublishError};
use super::protocol::{Info, Message, Op, Parser};

/// Receives what a connection reports. Both methods are called on the connection's task: they must not wait.
pub trait Handler: Send + Sync + 'static {
    /// A message on one of the subscriptions, in the broker's order, and the session that it arrived by.
    fn message(&self, message: Message, session: &Arc<Session>);

    /// Something happened to the connection.
    fn event(&self, event: Event);
}

/// What to subscribe to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The subject, wildcards allowed.
    pub subject: String,
    /// The queue group, if the messages are shared with others.
    pub queue: Option<String>,
    /// About how many messages a second are accepted, at least 2. The broker does not send more: the rest costs this
    /// connection nothing, and is lost.
    pub max_per_second: Option<u64>,
}

/// A connection that is up, or has been.
#[derive(Debug)]
pub struct Session {
    outbound: Outbound,
    subscriptions: Vec<Subscribed>,
    /// Whether the connection is useless without its subscriptions.
    required: bool,
    /// When the broker will end the connection, if our login says so.
    pub(super) life: Option<Life>,
    server_id: String,
    max_payload: AtomicUsize,
    /// Whether something was read since the last check.
    heard: AtomicBool,
    arrived: Notify,
    /// Whether it is ending its subscriptions.
    leaving: AtomicBool,
    refused: Mutex<Option<String>>,
    /// The latest `INFO` from the broker. Anything it said before TLS is not included.
    info: watch::Sender<Info>,
    /// The reason, once the connection has ended.
    ended: watch::Sender<Option<String>>,
}

#[derive(Debug)]
struct Subscribed {
    subject: Subject,
    /// Messages read since the last time it was subscribed.
    seen: AtomicU64,
    /// The broker was asked to stop after this many messages.
    limit: AtomicU64,
}

impl Session {
    pub(super) fn new(subjects: &[Subject], required: bool, dialed: &Dialed) -> Self {
        let info = &dialed.info;
        let subscribed = |subject: &Subject| Subscribed {
            subject: subject.clone(),
            seen: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
        };
        Self {
            outbound: Outbound::default(),
            subscriptions: subjects.iter().map(subscribed).collect(),
            required,
            life: dialed.life,
            server_id: info.server_id.clone(),
            max_payload: AtomicUsize::new(info.max_payload),
            heard: AtomicBool::new(false),
            arrived: Notify::new(),
            leaving: AtomicBool::new(false),
            refused: Mutex::default(),
            info: watch::Sender::new(if dialed.greeted_plainly { Info::default() } else { info.clone() }),
            ended: watch::Sender::new(None),
        }
    }

    /// Publishes a message. `headers` is a whole header block, or empty; an empty `reply` means none.
    ///
    /// # Errors
    /// [`PublishError`]; nothing is sent in that case.
    ///
    /// Cancel safety: a dropped future may or may not have queued the message; never part of it.
    pub async fn publish(
        &self,
        subject: &str,
        reply: &str,
        headers: &[u8],
        payload: &[u8],
    ) -> Result<(), PublishError> {
        let line = self.line(subject, reply, headers, payload)?;
        self.outbound.publish(&[line.as_bytes(), headers, payload, b"\r\n"]).await
    }

    /// Publishes as [`Session::publish`] does if there is room for the message; returns `false` if not.
    pub(crate) fn publish_now(
        &self,
        subject: &str,
        reply: &str,
        headers: &[u8],
        payload: &[u8],
    ) -> Result<bool, PublishError> {
        let line = self.line(subject, reply, headers, payload)?;
        self.outbound.publish_now(&[line.as_bytes(), headers, payload, b"\r\n"])
    }

    /// Makes the control line of a message.
    fn line(&self, subject: &str, reply: &str, headers: &[u8], payload: &[u8]) -> Result<String, PublishError> {
        if !is_subject(subject) || !(reply.is_empty() || is_subject(reply)) {
            return Err(PublishError::Subject);
        }
        let (total, limit) = (headers.len() + payload.len(), self.max_payload());
        if total > limit {
            return Err(PublishError::TooLarge { limit });
        }
        let space = if reply.is_empty() { "" } else { " " };
        // Includes two numbers of at most twenty digits.
        let mut line = String::with_capacity(subject.len() + reply.len() + 56);
        // Writing to a string cannot fail.
        let _ = match headers.len() {
            0 => write!(line, "PUB {subject} {reply}{space}{total}\r\n"),
            head => write!(line, "HPUB {subject} {reply}{space}{head} {total}\r\n"),
        };
        Ok(line)
    }

    /// Waits until the broker has handled everything that was sent before; `false` if the connection ends instead.
    ///
    /// Cancel safety: nothing is lost.
    pub async fn flush(&self) -> bool {
        let (sender, answered) = oneshot::channel();
        self.outbound.ping(Some(sender));
        answered.await.is_ok()
    }

    /// The largest message that the broker accepts, in bytes, headers included.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.max_payload.load(Ordering::Relaxed)
    }

    /// Whether the connection is up, as far as is known.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// The broker's id, new after each of its starts.
    pub(crate) fn server_id(&self) -> &str {
        &self.server_id
    }

    /// Subscribes, and waits until that is in force. Returns the broker's error if it refused a subject, or fails with
    /// the reason if the connection ends.
    pub(super) async fn subscribe(&self) -> Result<Option<String>, String> {
        for (sid, subscribed) in (1_u64..).zip(&self.subscriptions) {
            self.outbound.control(&subscribed.lines(sid));
        }
        let up = self.flush().await;
        // The broker reports the error before it answers the ping.
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if up || refused.is_some() { Ok(refused) } else { Err(self.ended().await) }
    }

    /// Waits until the connection ends, and returns the reason.
    pub(super) async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        let why = ended.wait_for(Option::is_some).await.map(|why| why.clone().unwrap_or_default());
        why.unwrap_or_default()
    }

    /// Waits until the broker enters lame duck mode.
    pub(super) async fn lame(&self) {
        // We own the sender, so this cannot fail.
        drop(self.info.subscribe().wait_for(|info| info.ldm).await);
    }

    /// The latest `INFO` from the broker.
    pub(super) fn info(&self) -> Info {
        self.info.borrow().clone()
    }

    /// Makes the broker stop routing messages to us, and reads everything that it has routed until then.
    ///
    /// If the broker is asked to stop after an exact number of messages that is not reached yet, it ends the
    /// subscription itself, so nothing is in transit when it has ended. Under load the number is reached at once; on a
    /// quiet subject it is lowered until a pause shows that nothing is coming.
    pub(super) async fn drain(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.end(|_| true).await;
        // Nothing arrived for half a second, or everything has ended: anything still in transit arrives before the answer.
        drop(timeout(LAST_ANSWER, self.unsubscribe()).await);
    }

    /// The same for subscriptions in a queue group. The other subscriptions stay.
    pub(super) async fn end_queues(&self) {
        self.end(|subject| subject.queue.is_some()).await;
        for (sid, subscribed) in (1_u64..).zip(&self.subscriptions) {
            if subscribed.subject.queue.is_some() {
                self.outbound.control(&format!("UNSUB {sid}\r\n"));
            }
        }
        drop(timeout(LAST_ANSWER, self.flush()).await);
    }

    async fn end(&self, which: impl Fn(&Subject) -> bool) {
        let ending = || (1_u64..).zip(&self.subscriptions).filter(|(_, subscribed)| which(&subscribed.subject));
        let started = Instant::now();
        for (more, quiet) in [(256_u64, 250_u64), (8, 250), (1, 500)] {
            for (sid, subscribed) in ending() {
                if !subscribed.is_over() {
                    let limit = subscribed.seen.load(Ordering::Relaxed).saturating_add(more);
                    subscribed.limit.store(limit, Ordering::Relaxed);
                    self.outbound.control(&format!("UNSUB {sid} {limit}\r\n"));
                }
            }
            // The time limit is for a trickle that never pauses and never reaches the number.
            while self.is_up()
                && !ending().all(|(_, subscribed)| subscribed.is_over())
                && started.elapsed() < LONGEST_DRAIN
            {
                if timeout(Duration::from_millis(quiet), self.arrived.notified()).await.is_err() {
                    break;
                }
            }
        }
    }

    /// Waits until the broker has handled everything sent before, and then ended all subscriptions; `false` if the
    /// connection ends instead. Messages in transit have been handed over by then.
    ///
    /// Cancel safety: a dropped future may or may not have ended the subscriptions.
    pub async fn unsubscribe(&self) -> bool {
        self.leaving.store(true, Ordering::SeqCst);
        for (sid, _) in (1_u64..).zip(&self.subscriptions) {
            self.outbound.control(&format!("UNSUB {sid}\r\n"));
        }
        self.flush().await
    }

    /// Writes what is queued, and ends.
    pub(super) fn finish(&self) {
        self.outbound.finish();
    }

    /// Reads and writes until the connection ends.
    pub(super) async fn run(self: Arc<Self>, dialed: Dialed, handler: Arc<dyn Handler>, ping_every: Duration) {
        let Dialed { stream, buffer, parser, .. } = dialed;
        let (read, write) = tokio::io::split(stream);
        // Also set on abort: nobody must wait for a connection that no task keeps up.
        let mut end = End { session: &self, why: "closed".to_owned() };
        end.why = tokio::select! {
            why = self.read(read, buffer, parser, &*handler) => why,
            why = self.write(write) => why,
            why = self.ping(ping_every) => why,
            why = self.renew(&*handler) => why,
        };
    }

    async fn read(
        self: &Arc<Self>,
        mut read: ReadHalf<Box<dyn Stream>>,
        mut buffer: BytesMut,
        mut parser: Parser,
        handler: &dyn Handler,
    ) -> String {
        let mut said = None;
        // How many messages were read since other tasks had their turn, and how little must be left in the buffer for their next.
        let (mut taken, mut half) = (0, None);
        loop {
            loop {
                match parser.next(&mut buffer) {
                    Ok(Some(op)) => {
                        if let Err(why) = self.take(op, handler, &mut said) {
                            return why;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return error.to_string(),
                }
                // Under a flood the socket is never empty, but other tasks must run as well.
                taken += 1;
                if taken >= FAIR_SHARE || taken >= WORTH_A_TURN && half.is_some_and(|half| buffer.len() <= half) {
                    (taken, half) = (0, None);
                    tokio::task::yield_now().await;
                }
            }
            if buffer.is_empty() && buffer.capacity() > KEPT {
                buffer = BytesMut::new();
            }
            if buffer.capacity() - buffer.len() < CHUNK / 4 {
                buffer.reserve(CHUNK);
            }
            match read.read_buf(&mut buffer).await {
                Ok(0) => return said.unwrap_or_else(|| "the broker closed the connection".to_owned()),
                Ok(_) => {
                    self.heard.store(true, Ordering::Relaxed);
                    // Everything that had arrived. If all of it were handed over at once, it would be processed and
                    // answered at once, and the other end would be idle until then.
                    half = (buffer.len() < buffer.capacity()).then_some(buffer.len() / 2);
                }
                Err(error) => return said.unwrap_or_else(|| error.to_string()),
            }
        }
    }

    /// Executes an operation; an error ends the connection.
    fn take(self: &Arc<Self>, op: Op, handler: &dyn Handler, said: &mut Option<String>) -> Result<(), String> {
        match op {
            Op::Message(message) => self.arrived(message, handler),
            Op::Ping => {
                if !self.outbound.control("PONG\r\n") {
                    return Err("the broker does not read what we send".to_owned());
                }
            }
            Op::Pong => self.outbound.pong(),
            Op::Ok => {}
            Op::Info(info) => {
                if info.max_payload > 0 {
                    self.max_payload.store(info.max_payload, Ordering::Relaxed);
                }
                self.info.send_replace(*info);
            }
            Op::Error(text) => {
                let event = Event::from_error(&text);
                let ours = match &event {
                    Event::SubscribeForbidden(subject) => {
                        self.subscriptions.iter().any(|subscribed| subscribed.subject.subject == *subject)
                    }
                    // Kept as the reason if the connection ends: the broker closes it after a fatal error.
                    Event::Error(text) => {
                        *said = Some(text.clone());
                        false
                    }
                    _ => false,
                };
                if ours {
                    // Long enough for the subject, which is ours.
                    let said = text.chars().take(FORBIDDEN).flat_map(char::escape_default).collect();
                    *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
                }
                handler.event(event);
                if ours && self.required {
                    return Err(crate::name::shown(&text));
                }
            }
        }
        Ok(())
    }

    fn arrived(self: &Arc<Self>, message: Message, handler: &dyn Handler) {
        let number = usize::try_from(message.sid).ok().and_then(|sid| sid.checked_sub(1));
        // If we have no such subscription, the broker is wrong, which is no reason to lose the others.
        let Some(subscribed) = number.and_then(|number| self.subscriptions.get(number)) else { return };
        subscribed.seen.fetch_add(1, Ordering::Relaxed);
        handler.message(message, self);
        self.arrived.notify_one();
    }

    async fn write(&self, mut write: WriteHalf<Box<dyn Stream>>) -> String {
        let mut bytes = Vec::new();
        while self.outbound.next(&mut bytes).await.is_some() {
            let written = async {
                write.write_all(&bytes).await?;
                write.flush().await
            };
            if let Err(error) = written.await {
                return error.to_string();
            }
            if bytes.capacity() > KEPT {
                bytes = Vec::new();
            }
        }
        // Gives the broker an orderly end; nothing is lost if it does not wait for it.
        drop(timeout(LAST_WRITE, write.shutdown()).await);
        "closed".to_owned()
    }

    /// Pings a quiet broker: a machine that lost power or network does not close its connections.
    async fn ping(&self, every: Duration) -> String {
        let mut unanswered = 0;
        let mut ticks = tokio::time::interval(every);
        // After a pause of this process, the broker still gets its full time.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.heard.swap(false, Ordering::Relaxed) {
                unanswered = 0;
            }
            if unanswered == UNANSWERED {
                return format!("the broker says nothing: {UNANSWERED} pings without an answer");
            }
            unanswered += 1;
            self.outbound.ping(None);
        }
    }

    /// Renews, once a second, the subscriptions for which the broker sends only a limited number of messages. Below
    /// half of that number nothing is done: messages between the end of a subscription and the next are lost.
    async fn renew(&self, handler: &dyn Handler) -> String {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for (sid, subscribed) in (1_u64..).zip(&self.subscriptions) {
                let Some(most) = subscribed.subject.max_per_second else { continue };
                let seen = subscribed.seen.load(Ordering::Relaxed);
                if seen < most / 2 || self.leaving.load(Ordering::SeqCst) {
                    continue;
                }
                subscribed.seen.store(0, Ordering::Relaxed);
                self.outbound.control(&format!("UNSUB {sid}\r\n{}", subscribed.lines(sid)));
                if seen >= most {
                    handler.event(Event::Flooded(subscribed.subject.subject.clone()));
                }
            }
        }
    }
}

struct End<'s> {
    session: &'s Session,
    why: String,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.session.outbound.close();
        self.session.ended.send_replace(Some(std::mem::take(&mut self.why)));
        self.session.arrived.notify_one();
    }
}

impl Subscribed {
    /// The control lines that subscribe.
    fn lines(&self, sid: u64) -> String {
        let Subject { subject, queue, max_per_second } = &self.subject;
        let queue = queue.as_ref().map(|queue| format!("{queue} ")).unwrap_or_default();
        let most = max_per_second.map(|most| format!("UNSUB {sid} {most}\r\n")).unwrap_or_default();
        format!("SUB {subject} {queue}{sid}\r\n{most}")
    }

    fn is_over(&self) -> bool {
        self.seen.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }
}

/// Whether `subject` fits a control line. The broker checks wildcards.
fn is_subject(subject: &str) -> bool {
    (1..=2_000).contains(&subject.len()) && subject.bytes().all(|byte| (0x21..=0x7e).contains(&byte))
}

/// How many characters of the broker's error are kept when it forbids a subscription.
const FORBIDDEN: usize = 512;
/// How much is read at a time.
const CHUNK: usize = 64 << 10;
/// The largest buffer that is kept when empty.
const KEPT: usize = 4 * CHUNK;
/// After this many messages, other tasks get their turn.
const FAIR_SHARE: u32 = 256;
/// Fewer messages are not worth a turn in the middle of what was read. With such a turn, 64 calls in flight through a
/// gateway over HTTP/2 become a tenth more per second (`sealwire-compare --in-flight 64`).
const WORTH_A_TURN: u32 = 16;
/// After this many unanswered pings, the broker is given up.
const UNANSWERED: u32 = 3;
/// How long ending subscriptions that never fall quiet may take.
const LONGEST_DRAIN: Duration = Duration::from_secs(5);
/// How long the broker may take to confirm that nothing more is in transit. A broker that says nothing at all is given
/// up before that, by its pings. A slow one still delivers what it has routed to us, and the senders wait for answers.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// How long an orderly end of the connection may take.
const LAST_WRITE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use tokio::io::duplex;
    use tokio::sync::Notify;

    use super::*;

    /// Counts messages, and wakes the task that waits for the first.
    #[derive(Default)]
    struct Counting {
        seen: AtomicU64,
        first: Notify,
    }

    impl Handler for Counting {
        fn message(&self, _: Message, _: &Arc<Session>) {
            if self.seen.fetch_add(1, Ordering::Relaxed) == 0 {
                self.first.notify_one();
            }
        }

        fn event(&self, _: Event) {}
    }

    /// Of `messages` that arrive at once, how many were handed over by the time that the waiter for the first one runs.
    async fn seen_at_first(messages: usize, payload: usize) -> usize {
        let (here, mut broker) = duplex(1 << 20);
        let parser = Parser::new(1 << 20);
        let (buffer, info) = (BytesMut::new(), Info::default());
        let dialed = Dialed { stream: Box::new(here), buffer, parser, greeted_plainly: false, info, life: None };
        let subject = Subject { subject: "inbox.*".to_owned(), queue: None, max_per_second: None };
        let session = Arc::new(Session::new(&[subject], false, &dialed));
        let handler = Arc::new(Counting::default());
        let frame = format!("MSG inbox.a 1 {payload}\r\n{}\r\n", "x".repeat(payload));
        broker.write_all(frame.repeat(messages).as_bytes()).await.unwrap();
        let running = tokio::spawn(Arc::clone(&session).run(dialed, handler.clone(), Duration::from_secs(2)));
        handler.first.notified().await;
        let seen = handler.seen.load(Ordering::Relaxed);
        while handler.seen.load(Ordering::Relaxed) < messages as u64 {
            tokio::task::yield_now().await;
        }
        running.abort();
        usize::try_from(seen).unwrap()
    }

    #[tokio::test]
    async fn half_of_what_has_come_is_handed_over_before_others_have_their_turn() {
        assert!((30..=33).contains(&seen_at_first(64, 400).await));
        // Too few to split.
        assert_eq!(seen_at_first(12, 400).await, 12);
        // More than one read returns, so they arrive in parts anyway.
        let large = seen_at_first(500, 400).await;
        assert!((64..=FAIR_SHARE as usize).contains(&large), "{large}");
    }
}
