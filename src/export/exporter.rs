//! Sends spans to a collector: OTLP over HTTP, in one task.
//! Never makes a call wait, never sends elsewhere than configured, and never takes longer to end than two seconds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use sealwire_http::{Pool, Reply};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::options::TraceOptions;
use crate::address::Address;
use crate::name::shown;
use crate::trace::{Queue, Sampler, Tracer, refused_spans, request};

/// Sends what is recorded of traces to a collector. Nothing is recorded any more once it is closed or dropped.
pub struct Traces {
    tracer: Tracer,
    queue: Arc<Queue>,
    closing: watch::Sender<Option<Instant>>,
    task: Option<JoinHandle<()>>,
}

/// How long sending what is left may take at the end.
const FLUSH: Duration = Duration::from_secs(2);
/// Of that, what the task has for its own end.
const LAST_WORD: Duration = Duration::from_millis(100);
/// How long sending one request is tried again.
const GIVE_UP: Duration = Duration::from_secs(60);
/// The pause before a request is sent again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest such pause.
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// How long a collector can keep everything back with `Retry-After`.
const LONGEST_REST: Duration = Duration::from_secs(600);
/// The most that is read of an answer, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// The log tells of an outage once in this time.
const TELL_AGAIN: Duration = Duration::from_secs(60);

impl Traces {
    /// How long [`Traces::close`] takes at most.
    pub const CLOSING: Duration = FLUSH;

    /// Sends from now on, on the runtime that this is called on.
    #[must_use]
    pub fn start(options: TraceOptions) -> Self {
        let TraceOptions { address, tls, headers, timeout, sampler, flags_per_second, queue, batch, delay, resource } =
            options;
        let Sampler { ratio, .. } = sampler;
        tracing::info!(target: "sealwire::traces", collector = %address, sample = ratio, "traces are sent");
        let queue = Arc::new(Queue::new(queue, batch));
        let tracer = Tracer::new(sampler, flags_per_second, Arc::clone(&queue));
        let (closing, closes) = watch::channel(None);
        let exporter = Exporter {
            pool: Pool::new(address.endpoint(tls.as_ref())),
            one: Arc::new(Semaphore::new(1)),
            fields: fields(&address, headers),
            resource: crate::trace::resource(&resource),
            address,
            timeout,
            delay,
            queue: Arc::clone(&queue),
            closes,
            rests: None,
            outage: Outage::default(),
        };
        Self { tracer, queue, closing, task: Some(tokio::spawn(exporter.run())) }
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Records what is given to it.
    #[must_use]
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Sends what is left, and ends: within two seconds, whatever the collector does.
    ///
    /// Cancel safety: a dropped future ends it at once.
    pub async fn close(mut self) {
        let (until, queue) = (Instant::now() + FLUSH, Arc::clone(&self.queue));
        let failed = || queue.counts().failed.load(Ordering::Relaxed);
        let before = failed();
        self.closing.send_replace(Some(until - LAST_WORD));
        let Some(task) = &mut self.task else { return };
        let ended = timeout_at(until, &mut *task).await;
        task.abort();
        let left = queue.len() as u64 + (failed() - before);
        if left > 0 || ended.is_err() {
            tracing::warn!(target: "sealwire::traces", lost = left, "the collector did not take the last spans in time");
        }
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// The one task.
struct Exporter {
    address: Address,
    pool: Pool,
    /// One request at a time.
    one: Arc<Semaphore>,
    fields: HeaderMap,
    resource: Vec<u8>,
    timeout: Duration,
    delay: Duration,
    queue: Arc<Queue>,
    /// When everything has to be over, once it ends.
    closes: watch::Receiver<Option<Instant>>,
    /// Until when the collector wants nothing.
    rests: Option<Instant>,
    outage: Outage,
}

/// What the log has been told of a collector that takes nothing.
#[derive(Debug, Default)]
struct Outage {
    told: Option<Instant>,
    is_on: bool,
    /// Spans lost since then.
    lost: u64,
}

/// Why a request was not taken.
struct NotTaken {
    why: String,
    /// Whether it is worth sending again, and after which pause at the least.
    again: Option<Duration>,
}

impl Exporter {
    async fn run(mut self) {
        loop {
            let (is_last, is_due) = tokio::select! {
                biased;
                _ = self.closes.wait_for(Option::is_some) => (true, true),
                () = self.queue.has_enough() => (false, false),
                () = sleep(self.delay) => (false, true),
            };
            while is_due || self.queue.is_enough() {
                let spans = self.queue.take();
                if spans.is_empty() {
                    break;
                }
                let is_ending = self.closes.borrow().is_some();
                if let Some(until) = self.rests.take().filter(|_| !is_ending) {
                    self.wait(until).await;
                }
                self.send(&spans).await;
            }
            if is_last {
                return;
            }
        }
    }

    /// Sends these spans, and again where that is worth it.
    async fn send(&mut self, spans: &[Vec<u8>]) {
        let count = spans.len() as u64;
        let body = Bytes::from(request(&self.resource, spans));
        let (give_up, mut pause) = (Instant::now() + GIVE_UP, FIRST_PAUSE);
        loop {
            let NotTaken { why, again } = match self.post(body.clone()).await {
                Ok(refused) => {
                    let (counts, refused) = (self.queue.counts(), refused.min(count));
                    counts.exported.fetch_add(count - refused, Ordering::Relaxed);
                    counts.refused.fetch_add(refused, Ordering::Relaxed);
                    return self.outage.over(&self.address);
                }
                Err(not_taken) => not_taken,
            };
            let closes = *self.closes.borrow();
            let next = again.map(|least| Instant::now() + least.max(pause));
            let Some(next) = next.filter(|next| *next < closes.unwrap_or(give_up)) else {
                self.rests = next.map(|next| next.min(Instant::now() + LONGEST_REST));
                self.queue.counts().failed.fetch_add(count, Ordering::Relaxed);
                return self.outage.tell(&self.address, &why, count);
            };
            self.outage.tell(&self.address, &why, 0);
            self.wait(next).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Waits until then, or until it is time to end: what is left is better spent on one more attempt.
    async fn wait(&self, until: Instant) {
        let (mut ending, is_ending) = (self.closes.clone(), self.closes.borrow().is_some());
        tokio::select! {
            () = sleep_until(until) => {}
            _ = ending.wait_for(Option::is_some), if !is_ending => {}
        }
    }

    /// Sends a request once. Returns how many of its spans the collector refuses.
    async fn post(&self, body: Bytes) -> Result<u64, NotTaken> {
        let again = |why: String| NotTaken { why, again: Some(Duration::ZERO) };
        let mut request = Request::post(&self.address.target)
            .body(body)
            .map_err(|error| NotTaken { why: error.to_string(), again: None })?;
        request.headers_mut().extend(self.fields.clone());
        let Ok(permit) = Arc::clone(&self.one).acquire_owned().await else { return Err(again(String::new())) };
        let is_sent = AtomicBool::new(false);
        let sent = async {
            let reply = self.pool.send(request, permit, &is_sent).await.map_err(|error| again(error.to_string()))?;
            judge(reply).await
        };
        let mut closes = self.closes.clone();
        let ends = async {
            let closes = closes.wait_for(Option::is_some).await.ok().and_then(|closes| *closes);
            match closes {
                Some(closes) => sleep_until(closes).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            sent = timeout(self.timeout, sent) => {
                sent.unwrap_or_else(|_| Err(again(format!("no answer within {} ms", self.timeout.as_millis()))))
            }
            () = ends => Err(NotTaken { why: "no answer before the end".to_owned(), again: None }),
        }
    }
}

/// What the collector says: how many spans it refuses, or why it takes none.
async fn judge(reply: Reply) -> Result<u64, NotTaken> {
    let (status, retry_after) = (reply.status(), retry_after(reply.headers()));
    if status.is_success() {
        // The status says that it has them, whatever comes then.
        return Ok(reply.bytes(MAX_ANSWER).await.map_or(0, |answer| refused_spans(&answer)));
    }
    let is_temporary = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    // Its text is not read: it may be long, and say anything. Redirects are not followed: the headers would go along.
    Err(NotTaken {
        why: format!("status {}", status.as_u16()),
        again: is_temporary.then(|| retry_after.unwrap_or_default()),
    })
}

/// How long the collector wants nothing; a date is taken for nothing said.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

fn fields(address: &Address, headers: Vec<(hyper::header::HeaderName, HeaderValue)>) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(USER_AGENT, HeaderValue::from_static(concat!("sealwire/", env!("CARGO_PKG_VERSION"))));
    fields.extend(headers);
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    if let Ok(host) = HeaderValue::from_str(&address.authority) {
        fields.insert(HOST, host);
    }
    fields
}

impl Outage {
    /// The collector has taken something.
    fn over(&mut self, address: &Address) {
        if std::mem::take(&mut self.is_on) {
            let lost = std::mem::take(&mut self.lost);
            tracing::info!(target: "sealwire::traces", collector = %address, lost, "the collector takes spans again");
        }
    }

    fn tell(&mut self, address: &Address, why: &str, lost: u64) {
        self.is_on = true;
        self.lost = self.lost.saturating_add(lost);
        if self.told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
            self.told = Some(Instant::now());
            let (why, lost) = (shown(why), std::mem::take(&mut self.lost));
            tracing::warn!(target: "sealwire::traces", collector = %address, why, lost, "the collector does not take spans");
        }
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("waiting", &self.queue.len()).finish_non_exhaustive()
    }
}
