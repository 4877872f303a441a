//! The door over HTTP: one listener, with all protocols behind the same checks: limits, `Host` and `Origin`, caller, quota.
//! Never makes a decision that belongs to a service, and never forwards what it has read differently than the service will.

mod a2a;
mod body;
mod callers;
mod config;
mod connections;
mod dpop;
mod events;
mod gate;
mod mcp;
mod page;
mod parts;
mod principal;
mod probe;
mod refusal;
mod replicas;
mod rpc;
mod tls;
mod ws;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Frame;
use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use sealwire::client::Credentials;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout_at};

use self::a2a::A2a;
pub use self::callers::CallersError;
use self::callers::{Callers, METADATA};
pub use self::config::{A2aAgent, DoorConfig, DoorConfigError, Dpop, Expose, Identity, Replicas};
use self::connections::{Anonymous, Body, Held, Leaving, Received};
use self::mcp::Mcp;
use self::page::Page;
use self::principal::{Admission, Principal};
pub use self::probe::{NotReady, ready};
use self::refusal::Refusal;
use self::replicas::FromReplica;
use self::tls::Tls;
use crate::bus::Bus;
use crate::once::Once;
pub use crate::seal::{SealError, Unsealed, new_seal_key};

/// A door over HTTP.
pub struct Door {
    config: DoorConfig,
    bus: Arc<Bus>,
    mcp: Mcp,
    a2a: A2a,
    /// Ends the streams of clients that only listen.
    stopping: watch::Sender<bool>,
    callers: Arc<Callers>,
    admission: Arc<Admission>,
    page: Option<Arc<Page>>,
    once: Arc<Once>,
    tls: Option<Tls>,
}

/// A door that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Callers could not be authenticated.
    #[error(transparent)]
    Callers(#[from] CallersError),
    /// The key that seals values for callers.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The memory of used proofs and tickets.
    #[error(transparent)]
    Once(#[from] sealwire::auth::OpenError),
    /// The listener's certificate or key, or the CA of the other replicas; with the reason.
    #[error("{0}")]
    Tls(String),
}

/// Requests in progress did not end in time: how many connections were cut off.
#[derive(Debug, thiserror::Error)]
#[error("requests did not end in time and are cancelled; connections cut off: {0}")]
pub struct CutOff(pub usize);

/// How often to forget the rates of idle callers, and to try an unreachable broker.
const TIDY: Duration = Duration::from_secs(5);
/// How often the log warns about a certificate.
const DAILY: Duration = Duration::from_secs(86_400);

impl Door {
    /// The door of this configuration, with this agent. It connects to nothing yet except issuers whose keys it fetches.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// Cancel safe.
    pub async fn open(config: DoorConfig, credentials: Credentials) -> Result<Self, OpenError> {
        let tls = tls::listening(&config).map_err(OpenError::Tls)?;
        let once = Once::local(config.proofs())?;
        let once = match config.replay.clone() {
            Some(memory) => once.shared(memory, config.quota()),
            None => once,
        };
        let once = Arc::new(once);
        let (callers, credentials) = Callers::new(&config, credentials, &once).await?;
        let admission = Arc::new(Admission::new(&config));
        let bus = Arc::new(Bus::new(credentials));
        let page = Page::of(&config, &bus, &admission);
        let mcp = Mcp::new(&config, &bus)?;
        let a2a = A2a::new(&config, &callers)?;
        let (callers, stopping) = (Arc::new(callers), watch::Sender::new(false));
        Ok(Self { config, bus, mcp, a2a, stopping, callers, admission, page, once, tls })
    }

    /// Serves callers on `listener`, and other replicas on `others`, until `stop`. Requests in progress then have [`DoorConfig::drain`]
    /// to end; whatever is left is cancelled at the services.
    ///
    /// # Errors
    /// [`CutOff`].
    ///
    /// Cancel safety: dropping the future cuts off all connections.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        others: Option<TcpListener>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), CutOff> {
        let answer = |is_replica: bool| {
            let door = Arc::clone(&self);
            move |mut request: Request<Received>| {
                if is_replica {
                    request.extensions_mut().insert(FromReplica);
                }
                Arc::clone(&door).answer(request)
            }
        };
        if let Ok(at) = listener.local_addr() {
            self.a2a.listens(at.port());
        }
        let acceptor = || self.tls.as_ref().map(|tls| tls.acceptor.clone());
        let (leave, left) = oneshot::channel();
        let most = self.config.connections;
        let serving = async {
            let ends = OnceLock::new();
            let stop = async {
                stop.await;
                self.stopping.send_replace(true);
                sleep(self.config.leave()).await;
                *ends.get_or_init(|| Instant::now() + self.config.drain())
            };
            let cut_off = connections::serve(listener, acceptor(), most, stop, answer(false)).await;
            let until = ends.get().copied().unwrap_or_else(Instant::now);
            // People's answers now arrive through the other replicas.
            if self.config.replicas.is_some() {
                drop(timeout_at(until, self.mcp.waited()).await);
            }
            // Fails if there are no other replicas.
            let _ = leave.send(until);
            cut_off
        };
        let for_others = async {
            let left = async { left.await.unwrap_or_else(|_| Instant::now()) };
            match others {
                Some(others) => connections::serve(others, acceptor(), most, left, answer(true)).await,
                None => 0,
            }
        };
        let cut_off = tokio::select! {
            (callers, others) = async { tokio::join!(serving, for_others) } => callers + others,
            () = self.tidy() => 0,
            () = self.keep_page() => 0,
            () = self.keep_memory() => 0,
        };
        self.mcp.close().await;
        self.a2a.close().await;
        self.once.close().await;
        self.bus.close().await;
        if cut_off == 0 { Ok(()) } else { Err(CutOff(cut_off)) }
    }

    /// Keeps the broker connected even before the first call, and forgets what is no longer needed.
    async fn tidy(&self) {
        let mut was_away = false;
        let mut told: Option<Instant> = None;
        loop {
            if told.is_none_or(|told| told.elapsed() >= DAILY)
                && let Some(ending) = self.tls.as_ref().and_then(Tls::ending)
            {
                told = Some(Instant::now());
                tracing::warn!(target: "sealwire::door", "{ending}: replace it, and restart the door");
            }
            let away = self.bus.client().await.err();
            if let Some(away) = away.as_ref().filter(|_| !was_away) {
                tracing::warn!(target: "sealwire::door", %away, "not ready");
            }
            was_away = away.is_some();
            sleep(TIDY).await;
            self.admission.tidy();
            self.once.tidy();
            self.mcp.tidy();
            self.a2a.tidy();
            self.callers.refresh().await;
        }
    }

    /// Opens the memory that the replicas share, if they have one.
    async fn keep_memory(&self) {
        self.once.open().await;
        std::future::pending().await
    }

    async fn keep_page(&self) {
        match &self.page {
            Some(page) => page.keep().await,
            None => std::future::pending().await,
        }
    }

    fn answer(self: Arc<Self>, request: Request<Received>) -> impl Future<Output = Response<Body>> + Send {
        let (mut head, body) = request.into_parts();
        gate::in_one_form(&mut head);
        let at_once = self.at_once(&head);
        async move {
            let answer = match at_once {
                Ok(answer) => anonymous(answer),
                Err(origin) => {
                    let mut answer = match self.for_everybody(&head) {
                        Some(answer) => anonymous(answer),
                        None => self.route(&head, body).await.unwrap_or_else(|refusal| refused(&head, refusal)),
                    };
                    gate::shared_with(&mut answer, origin);
                    answer
                }
            };
            self.completed(answer)
        }
    }

    /// Adds the headers that every answer has.
    fn completed(&self, mut answer: Response<Body>) -> Response<Body> {
        let (is_stopping, is_socket) = (*self.stopping.borrow(), answer.status() == StatusCode::SWITCHING_PROTOCOLS);
        // A WebSocket is closed by its own session.
        if is_stopping && !is_socket {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            answer.extensions_mut().insert(Leaving);
        }
        let headers = answer.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        answer
    }

    /// The answer to a request that may not pass, or needs nothing but its head. For any other request: the origin of the page that
    /// may read the answer. Quick, since an HTTP/2 connection does nothing else meanwhile.
    fn at_once(&self, head: &Parts) -> Result<Response<Body>, Option<HeaderValue>> {
        match head.uri.path() {
            "/livez" => return Ok(health(head, true)),
            // A balancer that asks this sends callers elsewhere.
            "/readyz" => {
                let is_ready = !*self.stopping.borrow() && self.bus.is_up() && self.once.is_ready();
                return Ok(health(head, is_ready));
            }
            _ => {}
        }
        let origin = match gate::pass(&self.config, head) {
            Ok(origin) => origin,
            Err(refusal) => return Ok(refused(head, refusal)),
        };
        let Some(mut answer) = gate::preflight(head, origin.as_ref()) else { return Err(origin) };
        gate::shared_with(&mut answer, origin);
        Ok(answer)
    }

    /// The answer to a request that needs no caller.
    fn for_everybody(&self, head: &Parts) -> Option<Response<Body>> {
        if head.uri.path().starts_with(METADATA) {
            return Some(self.metadata(head).unwrap_or_else(|refusal| refused(head, refusal)));
        }
        if let Some(answer) = self.a2a_public(head) {
            return Some(answer.unwrap_or_else(Refusal::answer));
        }
        self.page.as_ref().filter(|_| page::is_at(head)).map(|page| self.page(page, head))
    }

    async fn route(self: &Arc<Self>, head: &Parts, body: Received) -> Result<Response<Body>, Refusal> {
        let known = self.callers.know(head).await.map_err(Refusal::anonymous);
        let Some(page) = &self.page else { return self.routed(known?, head, body).await };
        let seen = page.seen(known.as_ref().ok(), head);
        let answer = match known {
            Ok(principal) => self.routed(principal.seen_by(&seen), head, body).await,
            Err(refusal) => Err(refusal),
        };
        answer.inspect_err(|refusal| {
            let service = head.uri.path().split('/').nth(2).unwrap_or_default();
            seen.refused(refusal, service);
        })
    }

    async fn routed(
        self: &Arc<Self>,
        principal: Principal,
        head: &Parts,
        body: Received,
    ) -> Result<Response<Body>, Refusal> {
        gate::may_get(&self.config, head)?;
        let mut steps = head.uri.path().split('/').skip(1);
        let is_replica = head.extensions.get::<FromReplica>().is_some();
        let path = (steps.next(), steps.next(), steps.next(), steps.next());
        let is_last = steps.next().is_none();
        // Each is boxed: otherwise, what a connection keeps and moves for every request would be as large as the largest of them.
        match path {
            (Some("mcp"), service, None, _) => Box::pin(self.mcp(principal, service, head, body)).await,
            // Replicas forward nothing else.
            _ if is_replica => Err(Refusal::not_found("not found on the listener for replicas")),
            (Some("rpc"), Some(service), None, _) => {
                let expose = self.exposed(service, &principal)?;
                only(&head.method, Method::POST)?;
                Box::pin(self.call(principal, expose, head, body)).await
            }
            (Some("rpc"), Some(service), Some("stream"), None) => {
                let expose = self.exposed(service, &principal)?;
                Box::pin(self.stream(principal, expose, head, body)).await
            }
            (Some("rpc"), Some(service), Some("ws"), None) => {
                let expose = self.exposed(service, &principal)?;
                self.socket(principal, expose, head)
            }
            (Some("rpc"), Some(service), Some("ws"), Some("ticket")) if is_last => {
                let expose = self.exposed(service, &principal)?;
                self.ticket(&principal, expose, head)
            }
            (Some("rpc"), Some(service), Some("openrpc.json"), None) => {
                let expose = self.exposed(service, &principal)?;
                only(&head.method, Method::GET)?;
                Box::pin(self.openrpc(principal, expose)).await
            }
            (Some("a2a"), Some(service), None, _) => Box::pin(self.a2a(principal, service, head, body)).await,
            (Some("a2a" | ".well-known"), ..) => Box::pin(self.a2a_card(&principal, head)).await,
            _ => Err(Refusal::not_found("not found")),
        }
    }

    fn exposed(&self, service: &str, principal: &Principal) -> Result<&Expose, Refusal> {
        let found = self.config.expose.iter().find(|expose| expose.service.as_str() == service);
        let expose = found.ok_or_else(|| Refusal::not_found("no such service is exposed here"))?;
        self.callers.admits(principal, expose)?;
        Ok(expose)
    }

    fn metadata(&self, head: &Parts) -> Result<Response<Body>, Refusal> {
        let about = head.uri.path().strip_prefix(METADATA).and_then(|about| self.callers.metadata(about));
        let metadata = about.ok_or_else(|| Refusal::not_found("not found"))?;
        only(&head.method, Method::GET)?;
        Ok(answered(StatusCode::OK, "application/json", metadata))
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("config", &self.config).finish_non_exhaustive()
    }
}

/// An answer whose caller is not known.
fn anonymous(mut answer: Response<Body>) -> Response<Body> {
    answer.extensions_mut().insert(Anonymous);
    answer
}

/// A refusal as an answer, in the form of the protocol at its path.
fn refused(head: &Parts, refusal: Refusal) -> Response<Body> {
    match head.uri.path().split('/').nth(1) {
        Some("mcp") => refusal.of_mcp().answer(),
        _ if a2a::is_for(head) => refusal.of_a2a().answer(),
        _ => refusal.answer(),
    }
}

fn only(method: &Method, wanted: Method) -> Result<(), Refusal> {
    if *method == wanted { Ok(()) } else { Err(Refusal::method(&[wanted])) }
}

/// The answer, which keeps its place until its client has room for the last piece.
fn holding(answer: Response<Body>, place: impl Send + Unpin + 'static) -> Response<Body> {
    use http_body_util::BodyExt as _;
    answer.map(|body| Held::new(body, place).boxed_unsync())
}

/// The answer to a health check.
fn health(head: &Parts, is_well: bool) -> Response<Body> {
    let (status, text) = match (&head.method, is_well) {
        (&(Method::GET | Method::HEAD), true) => (StatusCode::OK, "ok\n"),
        (&(Method::GET | Method::HEAD), false) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the broker cannot be reached, the shared memory of replicas is not available yet, or the door is stopping\n",
        ),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "GET\n"),
    };
    let mut answer = answered(status, "text/plain; charset=utf-8", text);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}

/// An answer with this text.
fn answered(status: StatusCode, kind: &'static str, text: impl Into<bytes::Bytes>) -> Response<Body> {
    use http_body_util::BodyExt as _;
    let mut answer = Response::new(Sliced(text.into()).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// A text handed over in slices, so that most of an answer that its client does not read stays visible as waiting.
struct Sliced(bytes::Bytes);

impl Sliced {
    const SLICE: usize = 16 << 10;
}

impl hyper::body::Body for Sliced {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let size = self.0.len().min(Self::SLICE);
        let slice = self.0.split_to(size);
        Poll::Ready((size > 0).then_some(Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use http_body_util::BodyExt as _;
    use hyper::body::Body as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_handed_over_in_slices_and_holds_its_place_to_the_last() {
        let text: Vec<u8> = (0..40_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let held = Arc::new(());
        let mut body = Held::new(answered(StatusCode::OK, "text/plain", text.clone()).into_body(), Arc::clone(&held));
        assert_eq!(body.size_hint().exact(), Some(40_000), "its length is said");
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let slice = frame.unwrap().into_data().unwrap();
            assert!(slice.len() <= Sliced::SLICE && Arc::strong_count(&held) == 2);
            read.extend_from_slice(&slice);
        }
        assert!(read == text && body.is_end_stream());
        assert!(answered(StatusCode::OK, "text/plain", "").into_body().is_end_stream());
    }
}
