//! The other replicas of a gateway: forwards a message about a running call, as it came, to the replica that runs the call.
//! Never contacts an address that is not in the configuration, forwards a forwarded message, or sends anything twice.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use sealwire::internal::address::{Address, Plaintext};
use sealwire::internal::files::read_public;
use sealwire_http::{Connection, Reply};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::rustls::ClientConfig;

use super::config::{Expose, GatewayConfig};
use super::connections::Body;
use super::fields::single;
use super::identity::Principal;
use super::refusal::Refusal;
use crate::seal::{Kind, Seal};

/// The header that shows that a replica with the same key forwarded the message.
const HANDED: HeaderName = HeaderName::from_static("sealwire-handed");
/// How long that header is valid.
const HANDED_FOR: Duration = Duration::from_secs(30);
/// The headers that are forwarded: who the caller is, and how to read and answer the message.
const ONWARD: [HeaderName; 10] = [
    HOST,
    ORIGIN,
    AUTHORIZATION,
    HeaderName::from_static("dpop"),
    ACCEPT,
    CONTENT_TYPE,
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
];
/// The headers of the answer that are returned.
const BACK: [HeaderName; 5] = [
    CONTENT_TYPE,
    RETRY_AFTER,
    WWW_AUTHENTICATE,
    HeaderName::from_static("dpop-nonce"),
    HeaderName::from_static("x-accel-buffering"),
];
/// How long a connection may take to open, ...
const CONNECT: Duration = Duration::from_secs(3);
/// ... how long a message may take to be acknowledged, ...
const TAKEN: Duration = Duration::from_secs(5);
/// ... and how long an answer that has begun may be silent: a stream has a comment every 15 s.
const SILENT: Duration = Duration::from_secs(60);
/// How many messages may be on their way to each other replica, ...
const TELLING: usize = 64;
/// ... and how long a message may wait for its turn, so that a replica that hangs holds up only a few.
const PLACE: Duration = Duration::from_secs(1);
/// How long a replica that could not be reached is left out.
const LEFT_OUT: Duration = Duration::from_secs(5);

/// The other replicas.
pub(super) struct Replicas {
    seal: Arc<Seal>,
    others: BTreeMap<String, PeerReplica>,
    tls: Option<Arc<ClientConfig>>,
    /// How long the head of an answer may take.
    patience: Duration,
    /// The replicas that could not be reached, and when.
    away: Mutex<BTreeMap<String, Instant>>,
}

struct PeerReplica {
    address: Address,
    /// Limits the messages on their way to it.
    telling: Arc<Semaphore>,
}

/// A message that may have to be forwarded, with its caller.
pub(super) struct ForwardedRequest {
    caller: String,
    target: String,
    headers: HeaderMap,
    text: String,
}

impl ForwardedRequest {
    pub(super) fn new(principal: &Principal, head: &Parts, text: &str) -> Self {
        let headers = select(&head.headers, &ONWARD);
        let (caller, target) = (principal.as_str().to_owned(), head.uri.path().to_owned());
        Self { caller, target, headers, text: text.to_owned() }
    }

    /// The same, with another text: one message of a batch.
    pub(super) fn with_text(&self, text: &str) -> Self {
        let (caller, target) = (self.caller.clone(), self.target.clone());
        Self { caller, target, headers: self.headers.clone(), text: text.to_owned() }
    }
}

impl PeerReplica {
    fn new(address: Address) -> Self {
        Self { address, telling: Arc::new(Semaphore::new(TELLING)) }
    }
}

impl Replicas {
    /// `None` if the gateway has no other replicas.
    ///
    /// # Errors
    /// An address is not valid, or the CA certificates cannot be read; why.
    pub(super) fn new(config: &GatewayConfig, seal: &Arc<Seal>) -> Result<Option<Self>, String> {
        let Some(replicas) = &config.replicas else { return Ok(None) };
        let mut others = BTreeMap::new();
        for one in replicas.all.iter().filter(|one| **one != replicas.url) {
            let address =
                Address::parse(one, Plaintext::Loopback).map_err(|fault| format!("`{one}` {}", fault.why()))?;
            others.insert(one.clone(), PeerReplica::new(address));
        }
        let tls = match config.tls_cert {
            Some(_) => {
                let pem = replicas.tls_ca.as_ref().map(|path| read_public(path)).transpose();
                let pem = pem.map_err(|error| format!("`tls_ca` of `replicas`: {error}"))?;
                let tls = sealwire::internal::tls::trusting(pem.as_deref());
                Some(Arc::new(tls.map_err(|fault| format!("`tls_ca` of `replicas`: {fault}"))?.with_no_client_auth()))
            }
            None => None,
        };
        let longest = config.expose.iter().map(Expose::timeout).max().unwrap_or_default();
        let seal = Arc::clone(seal);
        Ok(Some(Self { seal, others, tls, patience: longest + SILENT, away: Mutex::default() }))
    }

    /// Whether a replica has forwarded exactly this message from this caller.
    pub(super) fn have_handed(&self, principal: &Principal, head: &Parts, text: &[u8]) -> bool {
        let handed = single(&head.headers, &HANDED).ok().flatten();
        let opened = handed
            .and_then(|handed| self.seal.open::<String>(Kind::Handed, principal.as_str(), handed, SystemTime::now()));
        opened.is_some_and(|opened| opened == digest(head.uri.path(), text))
    }

    fn handed(&self, onward: &ForwardedRequest) -> Result<HeaderValue, String> {
        let digest = digest(&onward.target, onward.text.as_bytes());
        let handed = self.seal.seal(Kind::Handed, &onward.caller, HANDED_FOR, digest, SystemTime::now());
        HeaderValue::from_str(&handed.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
    }

    /// Forwards the message to the replica at this address, and returns its answer. `end` is the last event of a stream that breaks off.
    pub(super) async fn ask(
        &self,
        at: &str,
        onward: &ForwardedRequest,
        end: Vec<u8>,
    ) -> Result<Response<Body>, Refusal> {
        let Some(PeerReplica { address, .. }) = self.others.get(at) else {
            tracing::warn!(target: "sealwire::gateway", at, "not one of the configured replicas");
            return Err(Refusal::unknown("the replica that runs this call is not known here"));
        };
        let gone = |error: String| {
            tracing::warn!(target: "sealwire::gateway", at, error, "a replica cannot be reached");
            Refusal::unknown("the replica that runs this call cannot be reached")
        };
        let (status, headers, body) = self.send(address, onward, self.patience).await.map_err(gone)?.into_parts();
        let is_stream = headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        let end = is_stream.then(|| [b"\n\n".as_slice(), &super::events::data(&end)].concat().into());
        let silence = Box::pin(sleep(SILENT));
        let mut answer = Response::new(RelayedBody { body, end, silence }.boxed_unsync());
        *answer.status_mut() = status;
        *answer.headers_mut() = select(&headers, &BACK);
        Ok(answer)
    }

    /// Forwards the message to all other replicas. Runs in tasks of its own, so it is done even if the client has gone.
    pub(super) async fn tell(self: &Arc<Self>, tasks: impl Fn(Delivery), onward: ForwardedRequest) {
        let (onward, tasks) = (Arc::new(onward), &tasks);
        let telling = self.others.iter().map(|(at, other)| {
            let onward = Arc::clone(&onward);
            async move {
                if self.is_away(at) {
                    return;
                }
                let place = timeout(PLACE, Arc::clone(&other.telling).acquire_owned()).await;
                let Ok(Ok(place)) = place else {
                    tracing::info!(target: "sealwire::gateway", at, "a replica was not told: too many messages wait for it");
                    return;
                };
                let (this, at) = (Arc::clone(self), at.clone());
                let (done, told) = tokio::sync::oneshot::channel::<()>();
                tasks(Box::pin(async move {
                    let _held = (place, done);
                    this.tell_one(&at, &onward).await;
                }));
                // Completes when the task has dropped the sender.
                drop(told.await);
            }
        });
        join_all(telling).await;
    }

    fn is_away(&self, at: &str) -> bool {
        self.away().get(at).is_some_and(|since| since.elapsed() < LEFT_OUT)
    }

    async fn tell_one(&self, at: &str, onward: &ForwardedRequest) {
        let Some(PeerReplica { address, .. }) = self.others.get(at).filter(|_| !self.is_away(at)) else { return };
        let refused = match self.send(address, onward, TAKEN).await {
            Ok(answer) if answer.status().is_success() => return,
            Ok(answer) => answer.status().to_string(),
            Err(error) => {
                self.away().insert(at.to_owned(), Instant::now());
                error
            }
        };
        // Harmless if the replica is down: then it runs nothing.
        tracing::info!(target: "sealwire::gateway", at, refused, "a replica was not told");
    }

    fn away(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, address: &Address, onward: &ForwardedRequest, patience: Duration) -> Result<Reply, String> {
        let mut request = Request::new(Bytes::copy_from_slice(onward.text.as_bytes()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = onward.target.parse().map_err(|_| "no path".to_owned())?;
        *request.headers_mut() = onward.headers.clone();
        request.headers_mut().insert(HANDED, self.handed(onward)?);
        let late = |_| "it took too long".to_owned();
        let endpoint = address.endpoint(self.tls.as_ref());
        let connected = timeout(CONNECT, Connection::open(&endpoint)).await.map_err(late)?;
        let connection = connected.map_err(|error| error.to_string())?;
        // Dropping the answer closes the connection, which tells the other replica that its caller has gone.
        let answer = timeout(patience, connection.send(request)).await.map_err(late)?;
        answer.map_err(|error| error.to_string())
    }
}

/// A task that sends a message to another replica.
pub(super) type Delivery = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The headers with these names, each with all its values.
fn select(head: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let all = names.iter().flat_map(|name| head.get_all(name).iter().map(move |value| (name, value)));
    let mut kept = HeaderMap::new();
    for (name, value) in all {
        kept.append(name, value.clone());
    }
    kept
}

fn digest(target: &str, text: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update((target.len() as u64).to_be_bytes());
    digest.update(target);
    digest.update(text);
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The body of another replica's answer.
struct RelayedBody {
    body: sealwire_http::Body,
    /// The last event, sent if the body breaks off.
    end: Option<Bytes>,
    silence: Pin<Box<Sleep>>,
}

impl hyper::body::Body for RelayedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let is_silent = self.silence.as_mut().poll(context).is_ready();
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending if is_silent => None,
            frame => Some(ready!(frame)),
        };
        match frame {
            Some(Some(Ok(frame))) => {
                self.silence.as_mut().reset(Instant::now() + SILENT);
                Poll::Ready(Some(Ok(frame)))
            }
            Some(None) => Poll::Ready(None),
            // The body has no length, so without this the client could not tell that something is missing.
            Some(Some(Err(_))) | None => Poll::Ready(self.end.take().map(|end| Ok(Frame::data(end)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl std::fmt::Debug for Replicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replicas").field("others", &self.others.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn replica(key: u8) -> Replicas {
        let seal = Arc::new(Seal::new(&[key; 32]).unwrap());
        Replicas { seal, others: BTreeMap::new(), tls: None, patience: SILENT, away: Mutex::default() }
    }

    #[test]
    fn an_answer_comes_back_with_all_its_challenges_and_its_nonce() {
        let mut head = HeaderMap::new();
        for (name, value) in
            [("www-authenticate", "Bearer"), ("www-authenticate", "DPoP"), ("dpop-nonce", "n"), ("date", "x")]
        {
            head.append(name, HeaderValue::from_static(value));
        }
        let kept = select(&head, &BACK);
        assert_eq!(kept.get_all(WWW_AUTHENTICATE).iter().collect::<Vec<_>>(), ["Bearer", "DPoP"]);
        assert!(kept.len() == 3 && kept.get("dpop-nonce").unwrap() == "n");
    }

    #[tokio::test]
    async fn one_that_hangs_is_waited_for_by_whoever_tells_it_and_by_nobody_else() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listen = async || tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (hangs, well) = (listen().await, listen().await);
        let mut one = replica(1);
        for listener in [&hangs, &well] {
            let url = format!("http://{}", listener.local_addr().unwrap());
            one.others.insert(url.clone(), PeerReplica::new(Address::parse(&url, Plaintext::Loopback).unwrap()));
        }
        let hung = format!("http://{}", hangs.local_addr().unwrap());
        let one = Arc::new(one);
        let (heard, mut told) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = well.accept().await {
                let heard = heard.clone();
                tokio::spawn(async move {
                    let _ = socket.read(&mut [0; 4_096]).await;
                    let _ = socket.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").await;
                    let _ = heard.send(());
                });
            }
        });
        let head = Request::post("/mcp/demo").body(()).unwrap().into_parts().0;
        let tell = || {
            let (one, onward) = (Arc::clone(&one), ForwardedRequest::new(&Principal::agent("ann"), &head, "{}"));
            tokio::spawn(async move { one.tell(|telling| drop(tokio::spawn(telling)), onward).await })
        };
        let full: Vec<_> = (0..TELLING).map(|_| tell()).collect();
        for _ in 0..TELLING {
            told.recv().await.unwrap();
        }
        assert_eq!(one.others[&hung].telling.available_permits(), 0, "all of them wait for it");
        let began = Instant::now();
        drop(tell());
        told.recv().await.unwrap();
        assert!(one.others[&hung].telling.available_permits() == 0, "after {:?}", began.elapsed());
        drop((full, hangs));
    }

    #[test]
    fn what_is_handed_on_is_of_this_caller_and_this_message() {
        let (ann, bob) = (Principal::agent("ann"), Principal::agent("bob"));
        let head = |path: &str| Request::post(path).header(AUTHORIZATION, "Bearer x").body(()).unwrap().into_parts().0;
        let onward = ForwardedRequest::new(&ann, &head("/mcp/demo"), "{}");
        assert_eq!(onward.headers.get(AUTHORIZATION).unwrap(), "Bearer x", "its caller is judged again");
        let (one, two, stranger) = (replica(1), replica(1), replica(2));
        let mut handed = head("/mcp/demo");
        handed.headers.insert(HANDED, one.handed(&onward).unwrap());
        assert!(two.have_handed(&ann, &handed, b"{}"));
        assert!(!two.have_handed(&bob, &handed, b"{}"));
        assert!(!two.have_handed(&ann, &handed, b"[]"));
        assert!(!stranger.have_handed(&ann, &handed, b"{}"));
        assert!(!two.have_handed(&ann, &head("/mcp/demo"), b"{}"));
        let mut elsewhere = head("/mcp");
        elsewhere.headers.insert(HANDED, one.handed(&onward).unwrap());
        assert!(!two.have_handed(&ann, &elsewhere, b"{}"));
        // Two such headers count as none.
        handed.headers.append(HANDED, one.handed(&onward).unwrap());
        assert!(!two.have_handed(&ann, &handed, b"{}"));
    }
}
