//! A server at an address: each message is an HTTP request of its own, and what comes back for it is about nothing else.
//! Never takes what came for one request for the answer to another, and never waits for an answer that nobody wants.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hyper::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use sealwire::Caller;
use sealwire::errors::code;
use sealwire::internal::rpc::{Limits, Responses};
use sealwire_http::{HttpError, Reply};
use sealwire_mcp::headers;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;

use super::config::Address;
use super::types::{Correlation, Inbox, Refusal, UnaskedStream};
use crate::pace::Pace;
use crate::talk::MessageKind;
use crate::web::{Request, Web, WebError};

/// Carries messages to one server, in one session of the earlier revisions if the server keeps sessions.
#[derive(Debug)]
pub(super) struct Http {
    web: Arc<Web>,
    /// Whether callers have credentials of their own.
    of_callers: bool,
    /// The session id that came with the answer to `initialize`.
    given: Mutex<Option<HeaderValue>>,
    agreed: OnceLock<Handshake>,
    /// Notified when something has gone wrong, and it is doubtful whether the server is available.
    pub(super) doubt: Notify,
    /// Whether the server has ended the session.
    lost: watch::Sender<bool>,
    /// Whether it has a stream for what it says unasked.
    pub(super) stream: watch::Sender<UnaskedStream>,
    /// Permits for messages that nobody waits for.
    told: Arc<Semaphore>,
    /// Permits for connections of messages that have no answer.
    aside: Arc<Semaphore>,
}

/// What the handshake of the earlier revisions has settled.
#[derive(Debug)]
struct Handshake {
    version: HeaderValue,
    session: Option<HeaderValue>,
}

const SESSION: HeaderName = HeaderName::from_static(headers::SESSION_ID);
pub(super) const VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
/// The longest session id, in bytes.
const SESSION_BYTES: usize = 1024;
/// How long a message that has no answer may take, or a `ping` about the session.
const TELL: Duration = Duration::from_secs(10);
/// How long ending the session may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// How many messages that nobody waits for may be on their way; further ones are dropped.
const TOLD: usize = 32;
/// Connections for messages that have no answer, besides those of calls: a server that leaves them waiting holds up no call.
const ASIDE: usize = 8;
/// How long a stream may take to end after its answer, so that its connection can be reused.
const REST: Duration = Duration::from_millis(100);
/// How many useless events in a row a stream may have.
const USELESS: u32 = 1000;

impl Http {
    pub(super) fn new(address: &Address) -> Self {
        let (web, of_callers) = (Arc::clone(&address.web), address.of_callers);
        let (given, agreed, doubt) = (Mutex::default(), OnceLock::new(), Notify::new());
        let (lost, told) = (watch::Sender::new(false), Arc::new(Semaphore::new(TOLD)));
        let (aside, stream) = (Arc::new(Semaphore::new(ASIDE)), watch::Sender::new(UnaskedStream::Unknown));
        Self { web, of_callers, given, agreed, doubt, lost, stream, told, aside }
    }

    /// Records what the handshake has settled.
    ///
    /// # Errors
    /// The server keeps sessions, which callers with credentials of their own cannot share.
    pub(super) fn agree(&self, version: &'static str) -> Result<(), String> {
        let session = self.given.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if session.is_some() && self.of_callers {
            return Err(
                "it keeps a session, which callers with credentials of their own cannot share: let it run without \
                        sessions, or give it credentials of the service"
                    .to_owned(),
            );
        }
        // Once per conversation.
        drop(self.agreed.set(Handshake { version: HeaderValue::from_static(version), session }));
        Ok(())
    }

    /// Whether there was a handshake, which 2026-07-28 does not have.
    pub(super) fn has_handshake(&self) -> bool {
        self.agreed.get().is_some()
    }

    pub(super) fn has_session(&self) -> bool {
        self.agreed.get().is_some_and(|agreed| agreed.session.is_some())
    }

    pub(super) fn was_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Completes when the server has ended the session.
    pub(super) async fn is_lost(&self) {
        drop(self.lost.subscribe().wait_for(|lost| *lost).await);
    }

    fn post(&self, body: Vec<u8>, headers: HeaderMap) -> Request {
        let mut request = Request::post(body);
        request.headers.extend(headers);
        request.headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        self.of_session(request)
    }

    fn of_session(&self, mut request: Request) -> Request {
        if let Some(Handshake { version, session }) = self.agreed.get() {
            request.headers.insert(VERSION, version.clone());
            if let Some(session) = session {
                request.headers.insert(SESSION, session.clone());
            }
        }
        request
    }

    /// Sends a message that has no answer.
    ///
    /// # Errors
    /// The server has not taken it; why.
    pub(super) async fn tell(&self, body: Vec<u8>, caller: Option<&Caller>) -> Result<(), String> {
        let request = self.post(body, HeaderMap::new());
        let sent = tokio::time::timeout(TELL, self.web.send_over(&self.aside, &request, caller)).await;
        let reply = sent.map_err(|_| format!("not taken within {} s", TELL.as_secs()))?;
        let reply = reply.map_err(|error| error.to_string())?;
        let status = reply.status();
        // Read to its end, so that the connection can be reused.
        drop(tokio::time::timeout(REST, reply.text()).await);
        if status.is_success() { Ok(()) } else { Err(Refusal::Status(status.as_u16()).to_string()) }
    }

    /// The same, without waiting. The message is dropped if too many are on their way.
    pub(super) fn offer(self: &Arc<Self>, body: Vec<u8>, caller: Option<Caller>) {
        if let Ok(place) = Arc::clone(&self.told).try_acquire_owned() {
            let http = Arc::clone(self);
            tokio::spawn(async move {
                // Nobody waits.
                drop(http.tell(body, caller.as_ref()).await);
                drop(place);
            });
        }
    }

    /// Ends the session.
    pub(super) async fn farewell(&self) {
        if self.has_session() && !self.was_lost() {
            let request = self.of_session(Request::bare(Method::DELETE));
            drop(tokio::time::timeout(FAREWELL, self.web.send(&request, None)).await);
        }
    }

    /// Sends a request, and hands what comes for it to the inbox. Aborting the task closes the connection. `is_sent` becomes true
    /// when the server may have received some of it.
    pub(super) fn ask(
        self: &Arc<Self>,
        inbox: &Arc<impl Inbox>,
        id: u64,
        (body, headers): (Vec<u8>, HeaderMap),
        caller: Option<Caller>,
        is_sent: Arc<AtomicBool>,
    ) -> JoinHandle<()> {
        let (http, inbox) = (Arc::clone(self), Arc::clone(inbox));
        tokio::spawn(async move {
            let request = Request { is_sent, ..http.post(body, headers) };
            let (refusal, has_ended) = match http.web.send(&request, caller.as_ref()).await {
                Ok(reply) if reply.status() == StatusCode::NOT_FOUND && http.has_session() => {
                    let (refusal, has_ended) = http.not_found(&*inbox, id, reply).await;
                    (Some(refusal), has_ended)
                }
                Ok(reply) => (http.answer(&*inbox, id, reply).await.err(), false),
                Err(error) => (Some(of_web(error)), false),
            };
            http.refused(&*inbox, id, refusal);
            if has_ended {
                http.lost.send_replace(true);
            }
        })
    }

    /// Opens a stream for what the server says unasked, if it has one.
    pub(super) fn listen(self: &Arc<Self>, inbox: &Arc<impl Inbox>, id: u64) -> JoinHandle<()> {
        let (http, inbox) = (Arc::clone(self), Arc::clone(inbox));
        tokio::spawn(async move {
            let mut request = http.of_session(Request::bare(Method::GET));
            request.headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
            let refusal = match http.web.send(&request, None).await {
                Ok(reply) if reply.status() == StatusCode::OK && reply.is_events() => {
                    http.stream.send_replace(UnaskedStream::Open);
                    stream(&*inbox, Correlation::Nobody, id, reply).await.err()
                }
                Ok(reply) => {
                    let is_missing = reply.status() == StatusCode::NOT_FOUND;
                    let refusal = http.status(&*inbox, reply).await;
                    if is_missing {
                        // There is no such stream, or the session is gone.
                        http.doubt.notify_one();
                    }
                    if refusal.is_final() && !(is_missing && http.has_ended(&*inbox).await) {
                        http.stream.send_replace(UnaskedStream::Refused);
                    }
                    Some(refusal)
                }
                Err(error) => Some(of_web(error)),
            };
            http.refused(&*inbox, id, refusal);
        })
    }

    fn refused(&self, inbox: &impl Inbox, id: u64, refusal: Option<Refusal>) {
        if let Some(refusal) = refusal {
            let is_doubtful = refusal.is_doubtful();
            inbox.refuse(id, refusal);
            if is_doubtful {
                self.doubt.notify_one();
            }
        }
    }

    /// What a 404 in a session means, and whether the session has ended: many servers use 404 for other things, too.
    async fn not_found(&self, inbox: &impl Inbox, id: u64, reply: Reply) -> (Refusal, bool) {
        let text = reply.text().await.unwrap_or_default();
        let has_ended = self.was_lost() || self.has_ended(inbox).await;
        match error_of(&text) {
            // An error with the request's id is the answer to it.
            Some((error, of)) if of == Some(id) => (Refusal::Server(error), has_ended),
            _ if has_ended => (Refusal::Lost, true),
            Some((error, _)) => (Refusal::Server(error), false),
            None => (Refusal::Status(404), false),
        }
    }

    /// Whether a `ping` gets a 404 as well, and not because the server does not know `ping`.
    async fn has_ended(&self, inbox: &impl Inbox) -> bool {
        let ping = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"ping"}}"#, inbox.id());
        let request = self.post(ping.into_bytes(), HeaderMap::new());
        let asked = async {
            let reply = self.web.send(&request, None).await.ok()?;
            if reply.status() != StatusCode::NOT_FOUND {
                return Some(false);
            }
            let error = error_of(&reply.text().await.unwrap_or_default());
            Some(error.is_none_or(|(error, _)| error.code() != code::METHOD_NOT_FOUND))
        };
        tokio::time::timeout(TELL, asked).await.ok().flatten().unwrap_or(false)
    }

    async fn answer(&self, inbox: &impl Inbox, id: u64, reply: Reply) -> Result<(), Refusal> {
        if !reply.status().is_success() {
            return Err(self.status(inbox, reply).await);
        }
        if let Some(session) = reply.headers().get(SESSION).filter(|_| self.agreed.get().is_none()) {
            if session.len() > SESSION_BYTES {
                return Err(Refusal::Failed("the name of its session is too long".to_owned()));
            }
            *self.given.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        }
        if reply.is_events() {
            return stream(inbox, Correlation::Request(id), id, reply).await;
        }
        let kind = reply.media_type();
        if kind != "application/json" {
            let kind: String = kind.chars().take(80).flat_map(char::escape_debug).collect();
            return Err(Refusal::Failed(format!("its answer is `{kind}`, and neither JSON nor a stream of events")));
        }
        let text = reply.text().await.map_err(|error| of_web(error.into()))?;
        match inbox.take(text.as_bytes(), Correlation::Request(id)) {
            Ok(_) if inbox.is_open(id) => Err(Refusal::Failed("its answer is no response".to_owned())),
            Ok(_) => Ok(()),
            Err(why) => Err(Refusal::Failed(format!("its answer is {why}"))),
        }
    }

    /// What a status means, with the protocol error that may come with it.
    async fn status(&self, inbox: &impl Inbox, reply: Reply) -> Refusal {
        let status = reply.status();
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            && status.is_client_error()
            && let Ok(text) = reply.text().await
            && let Some((error, _)) = error_of(&text)
        {
            if error.code() == sealwire_mcp::code::HEADER_MISMATCH {
                // MCP 2026-07-28, Streamable HTTP: the tools may now require other fields in the head.
                inbox.list_again();
            }
            return Refusal::Server(error);
        }
        Refusal::Status(status.as_u16())
    }
}

/// Hands the messages of a stream to the inbox, until the answer has come.
async fn stream(inbox: &impl Inbox, of: Correlation, id: u64, reply: Reply) -> Result<(), Refusal> {
    let (mut events, mut useless, mut pace) = (reply.events(), 0, Pace::new());
    while let Some(event) = events.next().await.map_err(|error| of_web(error.into()))? {
        // Some servers begin with an event that has only an id.
        let is_message = matches!(event.kind.as_str(), "" | "message") && !event.data.is_empty();
        match is_message.then(|| inbox.take(event.data.as_bytes(), of)) {
            Some(Ok(said)) => {
                useless = 0;
                if said == MessageKind::Unasked {
                    pace.step(inbox.name()).await;
                }
            }
            Some(Err(_)) | None => useless += 1,
        }
        if useless > USELESS {
            return Err(Refusal::Failed(format!("it has sent {USELESS} useless events")));
        }
        if !inbox.is_open(id) {
            drop(tokio::time::timeout(REST, events.next()).await);
            return Ok(());
        }
    }
    Err(Refusal::Broken("the stream has ended before its answer".to_owned()))
}

fn of_web(error: WebError) -> Refusal {
    match error {
        WebError::Unreached { .. } | WebError::Credentials(_) => Refusal::Unreached(error.to_string()),
        WebError::Http(HttpError::Broken(_)) => Refusal::Broken(error.to_string()),
        error => Refusal::Failed(error.to_string()),
    }
}

/// The error in the body of a refusal, whatever its id: it can only be about what was asked.
fn error_of(text: &str) -> Option<(sealwire::RpcError, Option<u64>)> {
    #[derive(Deserialize)]
    struct ErrorBody<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        error: &'a RawValue,
    }
    let refused: ErrorBody<'_> = serde_json::from_str(text).ok()?;
    let response = format!(r#"{{"jsonrpc":"2.0","id":null,"error":{}}}"#, refused.error);
    match Responses::parse(response.as_bytes(), &Limits::default()) {
        Ok(Responses::Single(response)) => {
            Some((response.outcome.err()?, refused.id.and_then(|id| id.get().parse().ok())))
        }
        _ => None,
    }
}
