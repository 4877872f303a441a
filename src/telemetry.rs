//! Serves metrics and health over HTTP, as `[telemetry] listen` says.
//! Never lets one who asks slowly, or much, hold up anybody else.

mod accept;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use self::accept::prefers_openmetrics;
use crate::config::TelemetryConfig;
use crate::loopback;
use crate::registry::{Collector, DescriptorEncoder, Families, Registry, Report};
use crate::service::{Condition, Running, Service};

/// The most connections at a time. Each further one ends the oldest.
const MAX_CONNECTIONS: usize = 32;
/// The most bytes of a request's head.
const MAX_HEAD: usize = 8 * 1024;
/// How long a connection may take for its one request, until the last byte of the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted, because there are too many open files, for example.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A listener for metrics and health. It ends when this is dropped.
#[derive(Debug)]
pub struct Telemetry {
    source: Arc<Source>,
    at: SocketAddr,
    task: JoinHandle<()>,
}

/// The address of `[telemetry]` cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("`listen` in `[telemetry]` is {at}: {error}")]
pub struct TelemetryError {
    at: SocketAddr,
    error: std::io::Error,
}

/// What is asked for.
struct Source {
    registry: Mutex<Registry>,
    conditions: Mutex<Conditions>,
    /// Only one registry text is made at a time.
    turn: Semaphore,
    /// Connections that were ended for newer ones.
    cut: AtomicU64,
    is_local: bool,
}

/// `None` until somebody says what has to hold.
type Conditions = Option<Arc<dyn Fn() -> Vec<Condition> + Send + Sync>>;

impl Telemetry {
    /// Listens as configured; `None` if there is nothing to listen on. `/readyz` says 503 until [`Telemetry::ready_when`].
    ///
    /// # Errors
    /// [`TelemetryError`].
    ///
    /// Cancel safe.
    pub async fn start(config: &TelemetryConfig) -> Result<Option<Self>, TelemetryError> {
        let Some(at) = config.listen else { return Ok(None) };
        let failed = |error| TelemetryError { at, error };
        let listener = TcpListener::bind(at).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let source = Arc::new(Source {
            registry: Mutex::default(),
            conditions: Mutex::new(None),
            turn: Semaphore::new(1),
            cut: AtomicU64::default(),
            is_local: bound.ip().to_canonical().is_loopback(),
        });
        source.registry().register_collector(Box::new(Cut(Arc::clone(&source))));
        tracing::info!(target: "sealwire::telemetry", listen = %bound, "metrics and health are served");
        let task = tokio::spawn(serve(listener, Arc::clone(&source)));
        Ok(Some(Self { source, at: bound, task }))
    }

    /// Where it listens.
    #[must_use]
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// Has `what` report from now on.
    pub fn report(&self, what: &impl Report) {
        what.report_to(&mut self.source.registry());
    }

    /// What has to hold for `/readyz` to say 200. It is asked for each request, and must not block.
    pub fn ready_when(&self, conditions: impl Fn() -> Vec<Condition> + Send + Sync + 'static) {
        *self.source.conditions.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(conditions));
    }

    /// Tells of a service on its bus.
    pub fn show(&self, service: &Service, running: Running) {
        self.report(service);
        self.report(&running);
        self.ready_when(move || running.conditions());
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("cut", &self.cut).finish_non_exhaustive()
    }
}

/// Counts connections that were ended for newer ones.
#[derive(Debug)]
struct Cut(Arc<Source>);

impl Collector for Cut {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        Families::from(encoder).counter(
            "sealwire_telemetry_connections_cut",
            "Connections for metrics and health that were ended for newer ones",
            self.0.cut.load(Ordering::Relaxed),
        )
    }
}

async fn serve(listener: TcpListener, source: Arc<Source>) {
    let mut connections = JoinSet::new();
    let mut oldest = VecDeque::<AbortHandle>::new();
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        oldest.retain(|connection| !connection.is_finished());
        let Ok((stream, _)) = accepted else {
            sleep(ACCEPT_AGAIN).await;
            continue;
        };
        // A probe must get through while scrapers hang, so the newest has precedence.
        while oldest.len() >= MAX_CONNECTIONS
            && let Some(connection) = oldest.pop_front()
        {
            connection.abort();
            source.cut.fetch_add(1, Ordering::Relaxed);
        }
        let connection = converse(stream, Arc::clone(&source));
        oldest.push_back(connections.spawn(async move { drop(timeout(ANSWER_WITHIN, connection).await) }));
    }
}

/// One request and its answer.
fn converse(stream: TcpStream, source: Arc<Source>) -> impl Future<Output = ()> + Send {
    let answer = service_fn(move |request: Request<Incoming>| {
        let source = Arc::clone(&source);
        async move { Ok::<_, Infallible>(source.answer(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ANSWER_WITHIN)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer);
    // Whoever asks sees for himself what went wrong.
    async move { drop(connection.await) }
}

/// The media types of the two formats of metrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

impl Source {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self: Arc<Self>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        // A page in a browser on this machine reaches a loopback address under a name of its own.
        if self.is_local && !is_local(request.headers()) {
            return response(StatusCode::FORBIDDEN, PLAIN, "use a loopback address, or localhost\n".to_owned());
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET\n".to_owned());
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/metrics" => self.metrics(prefers_openmetrics(request.headers())).await,
            "/livez" => response(StatusCode::OK, PLAIN, "ok\n".to_owned()),
            "/readyz" => {
                let query = request.uri().query().unwrap_or_default();
                self.readiness(query.split('&').any(|word| matches!(word, "verbose" | "verbose=")))
            }
            _ => response(StatusCode::NOT_FOUND, PLAIN, "/metrics, /livez, /readyz?verbose\n".to_owned()),
        }
    }

    async fn metrics(self: Arc<Self>, openmetrics: bool) -> Response<Full<Bytes>> {
        use prometheus_client::encoding::{prometheus_text, text};

        let failed =
            || response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "the metrics cannot be written\n".to_owned());
        let Ok(_turn) = self.turn.acquire().await else { return failed() };
        let source = Arc::clone(&self);
        // A few milliseconds for thousands of series, in which this thread would do nothing else.
        let written = tokio::task::spawn_blocking(move || {
            let mut written = String::new();
            let registry = source.registry();
            let done = match openmetrics {
                true => text::encode(&mut written, &registry),
                false => prometheus_text::encode(&mut written, &registry),
            };
            done.map(|()| written)
        });
        match written.await {
            Ok(Ok(written)) => response(StatusCode::OK, if openmetrics { OPENMETRICS } else { PROMETHEUS }, written),
            _ => failed(),
        }
    }

    fn readiness(&self, verbose: bool) -> Response<Full<Bytes>> {
        let ask = self.conditions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let starting = || vec![Condition { name: "started", unmet: Some("starting".to_owned()) }];
        let conditions = ask.map_or_else(starting, |ask| ask());
        let unmet: Vec<&str> = conditions.iter().filter(|it| it.unmet.is_some()).map(|it| it.name).collect();
        let status = if unmet.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut text = String::new();
        for Condition { name, unmet } in conditions.iter().filter(|_| verbose) {
            text += &match unmet {
                None => format!("[+]{name} ok\n"),
                Some(reason) => format!("[-]{name}: {}\n", reason.escape_debug()),
            };
        }
        text += &if unmet.is_empty() { "ok\n".to_owned() } else { format!("not ready: {}\n", unmet.join(", ")) };
        response(status, PLAIN, text)
    }
}

/// Whether a request names this machine.
fn is_local(head: &HeaderMap) -> bool {
    let host = head.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    };
    loopback::is_address(name) || loopback::is_name(name)
}

fn response(status: StatusCode, media_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
