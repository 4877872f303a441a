//! The JSON-RPC messages of a socket: tells those for the service, answers to its questions, and the gateway's own methods apart.
//! Never forwards a message that it could not answer under one of the client's ids.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use sealwire::internal::rpc;
use sealwire::internal::rpc::{Id, Limits, Params, Request, Responses};
use sealwire::internal::trace::Trace;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::calls::{Call, Open};
use super::frames::{Ending, Outbox};
use super::handshake::Dialect;
use super::messages::{array, say};
use crate::http::parts::StreamKind;
use crate::http::pipeline::admission::{Admitted, AdmittedSocket};
use crate::http::refusal::Refusal;
use crate::http::rpc::{ExpectedAnswer, Requests, classify};
use crate::revocation::Loss;
use crate::spans::RequestSpan;

/// How long before the cut-off the client is sent a close frame.
const LAST: Duration = Duration::from_millis(500);

/// The caller at the other end of a socket.
pub(super) struct Session {
    socket: Arc<AdmittedSocket>,
    dialect: Dialect,
    /// How long calls have to end once the gateway stops.
    drain: Duration,
    open: Arc<Open>,
}

/// The calls that an answer is for.
enum AnswerIds {
    /// None: nobody waits for an answer.
    Nobody,
    One(Id),
    Many(Vec<Id>),
}

/// Why a message was not sent.
enum SendError {
    Refused(Refusal),
    /// One of its ids is in use.
    InUse,
}

impl From<Refusal> for SendError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// `rpc.cancel`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    id: Box<RawValue>,
}

/// `rpc.listen`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listen {
    method: String,
    #[serde(default)]
    params: Option<Box<RawValue>>,
}

impl Session {
    pub(super) fn new(socket: Arc<AdmittedSocket>, dialect: Dialect, drain: Duration) -> Self {
        Self { socket, dialect, drain, open: Arc::default() }
    }

    /// Handles messages until the socket has to be closed. Dropping the future cancels the calls in progress.
    pub(super) async fn run(
        self,
        incoming: mpsc::Receiver<Utf8Bytes>,
        out: Outbox,
        stopping: watch::Receiver<bool>,
    ) -> Ending {
        let ending = tokio::select! {
            ending = self.holds() => ending,
            ending = self.cut_off(stopping.clone()) => ending,
            ending = self.take_all(incoming, &out, stopping) => ending,
        };
        tracing::info!(
            target: "sealwire::gateway",
            caller = self.socket.principal().as_str(),
            peer = self.socket.principal().arrival.peer(),
            service = %self.socket.expose().service,
            ?ending,
            "socket"
        );
        ending
    }

    /// Completes when the caller may no longer use the socket.
    async fn holds(&self) -> Ending {
        match self.socket.hold().lost().await {
            Loss::Unverifiable => Ending::Closed(1013, "the gateway cannot tell what is revoked"),
            Loss::Ended => Ending::Closed(4401, "the token has expired or was revoked"),
            Loss::Revoked => Ending::Closed(4403, Loss::Revoked.reason()),
        }
    }

    /// Completes when calls have had their time to end.
    async fn cut_off(&self, mut stopping: watch::Receiver<bool>) -> Ending {
        // Fails only when the sender is gone, because everything has ended.
        drop(stopping.wait_for(|stopping| *stopping).await);
        sleep(self.drain.saturating_sub(LAST)).await;
        Ending::CutOff
    }

    async fn take_all(
        &self,
        mut incoming: mpsc::Receiver<Utf8Bytes>,
        out: &Outbox,
        mut stopping: watch::Receiver<bool>,
    ) -> Ending {
        let mut calls = JoinSet::new();
        loop {
            let is_stopping = *stopping.borrow();
            if is_stopping && calls.is_empty() {
                return Ending::Closed(1001, "the gateway is stopping");
            }
            tokio::select! {
                _ = stopping.changed(), if !is_stopping => {}
                Some(_) = calls.join_next() => {}
                text = incoming.recv() => match text {
                    Some(text) => self.take(text.into(), out, &stopping, &mut calls).await,
                    None => return Ending::Gone,
                },
            }
        }
    }

    async fn take(&self, text: Bytes, out: &Outbox, stopping: &watch::Receiver<bool>, calls: &mut JoinSet<()>) {
        let message = match rpc::Body::parse(&text, &Limits::default()) {
            Ok(message) => message,
            Err(error) => {
                // Charged, since it is as much work as a refused call.
                let refusal = self.socket.admit().err().unwrap_or_else(|| Refusal::of_text(&error));
                return refuse(out, &AnswerIds::One(Id::null()), refusal).await;
            }
        };
        if self.answers(&message, &text) {
            return;
        }
        let (whom, is_stopping) = (AnswerIds::of(&message), *stopping.borrow());
        let begun = match &message {
            // Checked first, since any other error would be reported under the id of another call.
            _ if self.open.has_one_of(whom.ids()) => {
                // Charged, since it is as much work as a refused call.
                drop(self.socket.admit());
                Err(SendError::InUse)
            }
            rpc::Body::Single(Ok(request)) if request.method == "rpc.cancel" => {
                let is_known = cancelled(request).map(|id| self.open.cancel(&id));
                return answer(out, &whom, is_known).await;
            }
            _ if is_stopping => Err(Refusal::stopping().into()),
            rpc::Body::Single(Ok(request)) if request.method == "rpc.listen" => match self.dialect {
                Dialect::Parts => self.listen(request, out, stopping, calls),
                Dialect::Calls => Err(self.without_parts().into()),
            },
            _ => self.begin(message, text, out, stopping, calls),
        };
        match begun {
            Ok(()) => {}
            Err(SendError::Refused(refusal)) => refuse(out, &whom, refusal).await,
            // Under its own id, the error would be taken for the answer to the other call.
            Err(SendError::InUse) => {
                let refusal =
                    Refusal::bad(StatusCode::BAD_REQUEST, "an id of this message is in use: nothing was sent");
                refuse(out, &AnswerIds::One(Id::null()), refusal).await;
            }
        }
    }

    /// Passes on answers to questions. Returns whether the message consists of answers, which are never answered themselves.
    fn answers(&self, message: &rpc::Body, text: &[u8]) -> bool {
        let is_request = match message {
            rpc::Body::Single(entry) => entry.is_ok(),
            rpc::Body::Batch(entries) => entries.iter().any(Result::is_ok),
        };
        if is_request {
            return false;
        }
        let answers = match Responses::parse(text, &Limits::default()) {
            Ok(Responses::Single(answer)) => vec![answer],
            Ok(Responses::Batch(answers)) => answers,
            Err(_) => return false,
        };
        for answer in answers {
            self.open.answered(answer);
        }
        true
    }

    /// Sends a message to the service.
    fn begin(
        &self,
        message: rpc::Body,
        text: Bytes,
        out: &Outbox,
        stopping: &watch::Receiver<bool>,
        calls: &mut JoinSet<()>,
    ) -> Result<(), SendError> {
        let admitted = self.socket.admit()?;
        let requests = Requests::of(&message);
        match classify(&admitted, message, &text)? {
            ExpectedAnswer::Call(id, request) if self.dialect == Dialect::Parts => {
                let streaming = admitted.admit_stream()?;
                let call = self.call(&[id], out)?;
                let span = self.span(&admitted);
                let parts = call.parts(request, StreamKind::Call, admitted, streaming, stopping.clone());
                calls.spawn(within(span, parts));
            }
            expected => {
                let call = self.call(expected.ids(), out)?;
                let span = self.span(&admitted);
                calls.spawn(within(span, call.plain(expected, requests, text, admitted)));
            }
        }
        Ok(())
    }

    /// `rpc.listen`: a call that lasts until it is cancelled, without `timeout_s`.
    fn listen(
        &self,
        request: &Request,
        out: &Outbox,
        stopping: &watch::Receiver<bool>,
        calls: &mut JoinSet<()>,
    ) -> Result<(), SendError> {
        let admitted = self.socket.admit()?;
        let Some(id) = request.id.clone() else { return Ok(()) };
        let listen: Listen = Params::decode(request.params.as_ref()).map_err(|error| Refusal::of_text(&error))?;
        let wrong = |_| Refusal::of_text(&rpc::RpcError::invalid_params("`params` must be an object or an array"));
        let inner = Request::new(listen.method, &listen.params, Some(id.clone())).map_err(wrong)?;
        if !admitted.expose().allows(&inner.method) {
            return Err(Refusal::no_method().into());
        }
        admitted.check(&inner.method)?;
        let streaming = admitted.admit_stream()?;
        let call = self.call(&[id], out)?;
        let span = self.span(&admitted);
        let parts = call.parts(inner, StreamKind::Listening, admitted, streaming, stopping.clone());
        calls.spawn(within(span, parts));
        Ok(())
    }

    /// The span of a message, if anybody wants one.
    fn span(&self, admitted: &Admitted) -> RequestSpan {
        let principal = admitted.principal();
        let (context, caller) = (principal.arrival.trace(), principal.as_str());
        let mut span = RequestSpan::begin(admitted.tracing(), &Trace::default(), context, caller, Duration::ZERO);
        span.span().name("message");
        span
    }

    /// The refusal of what needs another subprotocol. Charged, since it is as much work as a refused call.
    fn without_parts(&self) -> Refusal {
        drop(self.socket.admit());
        let message = "`rpc.listen` needs a socket that was opened with the subprotocol `parts.sealwire.dev`";
        Refusal::bad(StatusCode::BAD_REQUEST, message).not_sent()
    }

    /// Claims the ids of a message.
    fn call(&self, ids: &[Id], out: &Outbox) -> Result<Call, SendError> {
        let claim = self.open.claim(ids).ok_or(SendError::InUse)?;
        Ok(Call { out: out.clone(), claim })
    }
}

impl AnswerIds {
    fn ids(&self) -> &[Id] {
        match self {
            Self::Nobody => &[],
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        }
    }

    fn of(message: &rpc::Body) -> Self {
        let id = |entry: &rpc::Entry| match entry {
            Ok(request) => request.id.clone(),
            Err(invalid) => Some(invalid.id.clone()),
        };
        match message {
            rpc::Body::Single(entry) => id(entry).map_or(Self::Nobody, Self::One),
            rpc::Body::Batch(entries) => {
                let ids: Vec<_> = entries.iter().filter_map(id).collect();
                if ids.is_empty() { Self::Nobody } else { Self::Many(ids) }
            }
        }
    }
}

/// Does this work within a span.
async fn within(span: RequestSpan, work: impl Future<Output = ()> + Send) {
    match span.trace().is_empty() {
        true => work.await,
        false => span.around(Box::pin(work)).await,
    }
    span.ended(None);
}

/// The call that `rpc.cancel` names.
fn cancelled(request: &Request) -> Result<Id, Refusal> {
    let cancel: Cancel = Params::decode(request.params.as_ref()).map_err(|error| Refusal::of_text(&error))?;
    // Parsed as part of a message, so that it is read in the same way as a call's id.
    let text = format!(r#"{{"jsonrpc":"2.0","method":"rpc.cancel","id":{}}}"#, cancel.id.get());
    match rpc::Body::parse(text.as_bytes(), &Limits::default()) {
        Ok(rpc::Body::Single(Ok(Request { id: Some(id), .. }))) => Ok(id),
        _ => Err(Refusal::of_text(&rpc::RpcError::invalid_params("`id` must be that of a call"))),
    }
}

/// Answers one of the gateway's own methods, if it was a call.
async fn answer(out: &Outbox, whom: &AnswerIds, outcome: Result<bool, Refusal>) {
    match (outcome, whom) {
        (Ok(result), AnswerIds::One(id)) => {
            let result = RawValue::from_string(result.to_string()).unwrap_or_else(|_| RawValue::NULL.to_owned());
            say(out, rpc::Response::new(id.clone(), Ok(result)).to_bytes()).await;
        }
        (Ok(_), _) => {}
        (Err(refusal), whom) => refuse(out, whom, refusal).await,
    }
}

/// Answers each waiting call with the reason why nothing was sent.
async fn refuse(out: &Outbox, whom: &AnswerIds, mut refusal: Refusal) {
    tracing::debug!(target: "sealwire::gateway", code = refusal.code, "a message was refused");
    match whom {
        // JSON-RPC 2.0 §4.1: "The Server MUST NOT reply to a Notification".
        AnswerIds::Nobody => {}
        AnswerIds::One(id) => say(out, refusal.of(Some(id)).text()).await,
        AnswerIds::Many(ids) => {
            let mut all = Vec::with_capacity(ids.len());
            for id in ids {
                refusal = refusal.of(Some(id));
                all.push(refusal.text());
            }
            say(out, array(&all)).await;
        }
    }
}
