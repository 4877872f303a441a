//! What can go wrong with a call, and whether it may have run all the same.
//! Never carries a token, a key or the content of an answer.

use std::sync::Arc;
use std::time::Duration;

use super::credentials::CredentialsError;
use super::task_state::TaskState;
use super::token::TokenFault;
use crate::name::NameError;
use crate::nats::BusError;
use crate::rpc::{ParamsError, ResponseError, RpcError, code};
use crate::wire::{EndpointError, FrameFault, KeyError, Unverifiable};

/// Why a call, a notification or a batch has no result.
///
/// [`ClientError::kind`] is for decisions in code; the text is for people and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The credentials file cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The first connection to the broker failed.
    #[error(transparent)]
    Connect(#[from] BusError),
    /// The request cannot be sent as it is. The program is at fault.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// There is no valid token. Nothing was sent.
    #[error("no access token: {0}")]
    Token(Arc<TokenFault>),
    /// The limit on calls under way was reached until the deadline. Nothing was sent.
    #[error("{limit} calls are under way already: wait for some of them, or raise `ClientBuilder::in_flight`")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// There was no connection to the broker until the deadline. Nothing was sent.
    #[error("not connected to the broker for {} ms{}: nothing was sent, call again once it is back", .waited.as_millis(), because(.cause.as_deref()))]
    Disconnected {
        /// How long this call waited for a connection.
        waited: Duration,
        /// Why the last attempt to connect failed.
        cause: Option<String>,
    },
    /// The message is larger than the broker accepts. Nothing was sent.
    #[error("the message has {size} bytes, the broker takes {limit}: send less, or raise its `max_payload`")]
    TooLarge {
        /// Payload and header together, in bytes.
        size: usize,
        /// The broker's `max_payload` in bytes.
        limit: usize,
    },
    /// The broker does not let this user publish on the subject. If the request was `sent`, the subject is that of its stream's control,
    /// without which the stream cannot go on: the outcome is unknown.
    #[error(
        "the broker forbids this user to publish on `{subject}`{}: ask for that permission, or check agent and service",
        if *.sent { ", which the stream needs to go on, outcome unknown" } else { "" }
    )]
    Forbidden {
        /// The subject.
        subject: String,
        /// Whether the request itself was sent.
        sent: bool,
    },
    /// The broker does not let this user read its own inbox, so no answer could arrive. If the call was `sent`, the outcome is unknown.
    #[error(
        "the broker forbids this user to subscribe to `{subject}`{}: the agent needs `subscribe` on its own inbox",
        if *.sent { ", outcome unknown" } else { "" }
    )]
    InboxForbidden {
        /// The subject.
        subject: String,
        /// Whether the message may have been sent.
        sent: bool,
    },
    /// The broker says that no replica of the service is listening. It does not sign that, so the outcome is unknown.
    #[error(
        "nobody listens on `{subject}`: is the service running, or has it just started (it takes calls some seconds later), \
         and are environment, service and prefix right?"
    )]
    NoResponders {
        /// The subject.
        subject: String,
    },
    /// An unsigned refusal. Anybody could have written it, so the outcome is unknown.
    #[error("refused with the unsigned hint {} ({}), outcome unknown: {}", .hint.code(), .hint.name(), .hint.advice())]
    Hint {
        /// Which one.
        hint: HintKind,
    },
    /// No answer came before the deadline. The outcome is unknown.
    #[error("no answer from `{service}` within {} ms, outcome unknown: allow more time if it is slow", .after.as_millis())]
    Timeout {
        /// The service.
        service: String,
        /// How long the call was given.
        after: Duration,
    },
    /// The connection to the broker was lost while the call waited, and perhaps its answer with it. The outcome is unknown.
    #[error("the connection to the broker was lost during the call, outcome unknown: the answer may be lost")]
    ConnectionLost,
    /// Something came in place of an answer: unsigned, forged, altered, or meant for another call. It was ignored, and
    /// no genuine answer came before the deadline. The outcome is unknown.
    #[error("no answer that can be trusted, outcome unknown ({0}): {why}", why = suspicion(.0))]
    Unverifiable(Unverifiable),
    /// The service signed an answer that JSON-RPC 2.0 does not allow. The service is at fault; it accepted the call, and the outcome is
    /// unknown.
    #[error("the service's answer is not a valid JSON-RPC answer to this call, outcome unknown: {0}")]
    Protocol(ProtocolError),
    /// The service answered with an error.
    #[error("{0}")]
    Remote(RpcError),
    /// The service refused the message as stale, and its clock and this machine's differ by more than can be allowed for, so the next call
    /// will be refused, too. Set the clock that is wrong.
    #[error(
        "this machine's clock is {} s {} the service's, which is more than can be allowed for: set it ({error})",
        .offset_s.unsigned_abs(), if *.offset_s > 0 { "behind" } else { "ahead of" }
    )]
    Clock {
        /// What to add to this machine's clock to get the service's, in seconds. As little as the answer allows: the
        /// longer it was under way, the less it says.
        offset_s: i64,
        /// What the service answered.
        error: RpcError,
    },
    /// The result does not fit the requested type, and the call was executed; or a part of a stream does not fit, and the call goes on
    /// until the stream is dropped.
    #[error("{} is not of type {wanted}: {}", if *.is_part { "a part of the stream" } else { "the result" }, Reason(.cause))]
    Decode {
        /// Whether it is an item or a notification of a stream.
        is_part: bool,
        /// The type.
        wanted: &'static str,
        /// What serde says.
        cause: serde_json::Error,
    },
    /// As many streams were open as a client, or one share of it, may have. Nothing was sent.
    #[error("{limit} streams are open already: drop some of them, or use another client")]
    TooManyStreams {
        /// The limit, or how many streams its share has.
        limit: usize,
    },
    /// A stream of frames broke off: the replica is gone, or frames were lost and did not come again. The outcome is
    /// unknown; the frames up to `last_seq` were genuine.
    #[error(
        "the stream from `{service}` broke off {}, outcome unknown: {why}", after_frame(*.last_seq)
    )]
    StreamLost {
        /// The service.
        service: String,
        /// The number of the last frame that was taken in order; `None` if not even the first one was.
        last_seq: Option<u64>,
        /// How that was noticed.
        why: StreamLoss,
    },
    /// The frames of a stream are signed, but do not form one stream. The service is at fault; the outcome is unknown.
    #[error("the service's frames do not form one stream, outcome unknown: {0}")]
    Frames(FrameFault),
    /// The result is larger than this stream accepts. The call was executed.
    #[error("the result has more than {limit} bytes: raise `max_bytes` of the request, or have the method return less")]
    ResultTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The stream ended with an error that it has already returned.
    #[error("the stream has ended with an error, which it has already returned")]
    Ended,
    /// The call was stopped, see [`RequestBuilder::cancel_on`](super::RequestBuilder::cancel_on), and the service has not said in time what
    /// became of it. If it was `sent`, the outcome is unknown. A call that the service confirms as cancelled is [`ClientError::Remote`].
    #[error("{}", if *.sent {
        "cancelled, outcome unknown: the service was told, and has not confirmed it"
    } else {
        "cancelled before anything was sent"
    })]
    Cancelled {
        /// Whether the message may have been sent.
        sent: bool,
    },
    /// The task has no outcome: see [`TaskStatus::result`](super::TaskStatus::result).
    #[error("{}", match .0 {
        TaskState::Absent => "the service knows no such task of yours",
        TaskState::Working => "the task still runs",
        TaskState::Cancelled => "the task was cancelled",
        TaskState::NotKept => "the task was executed, and its outcome was not kept",
        TaskState::Unknown | TaskState::Completed | TaskState::Failed => "the task had begun, and its outcome is unknown",
    })]
    Task(TaskState),
    /// The request was sent again, see [`RequestBuilder::idempotent`](super::RequestBuilder::idempotent), and the last attempt was not
    /// executed. An earlier one may have been: the outcome is unknown. In a batch that was answered, each call has its own error.
    #[error("sent more than once, outcome unknown: an earlier attempt may have run ({earlier}); the last one: {last}")]
    Repeated {
        /// The outcome of the last attempt that may have run. All calls of a batch have the same.
        earlier: Arc<ClientError>,
        /// The outcome of the last attempt.
        last: Box<ClientError>,
    },
    /// The client was closed. If the message was `sent` before, the outcome is unknown.
    #[error("the client is closed{}", if *.sent { ", outcome unknown" } else { "" })]
    Closed {
        /// Whether the message may have been sent.
        sent: bool,
    },
}

/// How the client noticed that a stream broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamLoss {
    /// No new frame came for 20 s, not even a sign of life.
    Silence,
    /// Frames after the last one are missing, and did not come for 20 s.
    Gap,
    /// The service ended it in the middle of its result.
    Cut,
}

impl std::fmt::Display for StreamLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Silence => "no sign of life for too long",
            Self::Gap => "the frames after it are missing, and did not come again",
            Self::Cut => "the service ended it in the middle of its result",
        })
    }
}

/// The kinds of [`ClientError`], for decisions in code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// See [`ClientError::Credentials`].
    Credentials,
    /// See [`ClientError::Connect`].
    Connect,
    /// See [`ClientError::Invalid`].
    Invalid,
    /// See [`ClientError::Token`].
    Token,
    /// See [`ClientError::Busy`] and [`ClientError::TooManyStreams`].
    Busy,
    /// See [`ClientError::Disconnected`].
    Disconnected,
    /// See [`ClientError::TooLarge`].
    TooLarge,
    /// See [`ClientError::Forbidden`] and [`ClientError::InboxForbidden`].
    Forbidden,
    /// See [`ClientError::NoResponders`].
    NoResponders,
    /// See [`ClientError::Hint`].
    Hint,
    /// See [`ClientError::Timeout`].
    Timeout,
    /// See [`ClientError::ConnectionLost`].
    ConnectionLost,
    /// See [`ClientError::Unverifiable`].
    Unverifiable,
    /// See [`ClientError::Protocol`] and [`ClientError::Frames`].
    Protocol,
    /// See [`ClientError::Remote`].
    Remote,
    /// See [`ClientError::Clock`].
    Clock,
    /// See [`ClientError::Decode`].
    Decode,
    /// See [`ClientError::StreamLost`].
    StreamLost,
    /// See [`ClientError::ResultTooLarge`].
    ResultTooLarge,
    /// See [`ClientError::Task`].
    Task,
    /// See [`ClientError::Ended`].
    Ended,
    /// See [`ClientError::Cancelled`].
    Cancelled,
    /// See [`ClientError::Closed`].
    Closed,
}

impl ErrorKind {
    /// A word for it, for metrics and traces.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Credentials => "credentials",
            Self::Connect => "connect",
            Self::Invalid => "invalid",
            Self::Token => "token",
            Self::Busy => "busy",
            Self::Disconnected => "disconnected",
            Self::TooLarge => "too_large",
            Self::Forbidden => "forbidden",
            Self::NoResponders => "no_responders",
            Self::Hint => "hint",
            Self::Timeout => "timeout",
            Self::ConnectionLost => "connection_lost",
            Self::Unverifiable => "unverifiable",
            Self::Protocol => "protocol",
            Self::Remote => "remote",
            Self::Clock => "clock",
            Self::Decode => "decode",
            Self::StreamLost => "stream_lost",
            Self::ResultTooLarge => "result_too_large",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
            Self::Task => "task",
            Self::Closed => "closed",
        }
    }

    /// All of them, for tables that must not miss one.
    pub const ALL: [Self; 23] = [
        Self::Credentials,
        Self::Connect,
        Self::Invalid,
        Self::Token,
        Self::Busy,
        Self::Disconnected,
        Self::TooLarge,
        Self::Forbidden,
        Self::NoResponders,
        Self::Hint,
        Self::Timeout,
        Self::ConnectionLost,
        Self::Unverifiable,
        Self::Protocol,
        Self::Remote,
        Self::Clock,
        Self::Decode,
        Self::StreamLost,
        Self::ResultTooLarge,
        Self::Task,
        Self::Ended,
        Self::Cancelled,
        Self::Closed,
    ];
}

// Does not compile if a kind is missing above.
const _: () = assert!(ErrorKind::ALL.len() == ErrorKind::Closed as usize + 1, "`Closed` is the last kind");

impl ClientError {
    /// Which kind of error this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Credentials(_) => ErrorKind::Credentials,
            Self::Connect(_) => ErrorKind::Connect,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Token(_) => ErrorKind::Token,
            Self::Busy { .. } | Self::TooManyStreams { .. } => ErrorKind::Busy,
            Self::Disconnected { .. } => ErrorKind::Disconnected,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Forbidden { .. } | Self::InboxForbidden { .. } => ErrorKind::Forbidden,
            Self::NoResponders { .. } => ErrorKind::NoResponders,
            Self::Hint { .. } => ErrorKind::Hint,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::ConnectionLost => ErrorKind::ConnectionLost,
            Self::Unverifiable(_) => ErrorKind::Unverifiable,
            Self::Protocol(_) | Self::Frames(_) => ErrorKind::Protocol,
            Self::Remote(_) => ErrorKind::Remote,
            Self::Clock { .. } => ErrorKind::Clock,
            Self::Decode { .. } => ErrorKind::Decode,
            Self::StreamLost { .. } => ErrorKind::StreamLost,
            Self::ResultTooLarge { .. } => ErrorKind::ResultTooLarge,
            Self::Task(_) => ErrorKind::Task,
            Self::Ended => ErrorKind::Ended,
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            // The last attempt says nothing about the one that may have run.
            Self::Repeated { earlier, .. } => earlier.kind(),
            Self::Closed { .. } => ErrorKind::Closed,
        }
    }

    /// Whether the call may have been executed, or may still be, although this error says nothing about its result.
    ///
    /// If so, repeating it is harmless only if it is idempotent. `false` means that the call certainly was not
    /// executed, or that the service's own answer says what became of it. One exception to "certainly":
    /// [`ClientError::Forbidden`] is matched with calls by subject, so if the broker's permissions are narrowed during
    /// a call, the refusal of a second call ends the first one, too.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::NoResponders { .. }
            | Self::Hint { .. }
            | Self::Timeout { .. }
            | Self::ConnectionLost
            | Self::Unverifiable(_)
            | Self::StreamLost { .. }
            | Self::Frames(_)
            | Self::Ended
            | Self::Repeated { .. } => true,
            Self::Remote(error) | Self::Clock { error, .. } => leaves_open(error),
            Self::Cancelled { sent }
            | Self::Forbidden { sent, .. }
            | Self::InboxForbidden { sent, .. }
            | Self::Closed { sent } => *sent,
            Self::Task(state) => matches!(state, TaskState::Working | TaskState::Cancelled | TaskState::Unknown),
            // A result or a refusal: nobody can tell which.
            Self::Protocol(_) => true,
            // The outcome comes later, or never if the stream is dropped because of this.
            Self::Decode { is_part, .. } => *is_part,
            Self::Credentials(_)
            | Self::Connect(_)
            | Self::Invalid(_)
            | Self::Token(_)
            | Self::Busy { .. }
            | Self::TooManyStreams { .. }
            | Self::ResultTooLarge { .. }
            | Self::Disconnected { .. }
            | Self::TooLarge { .. } => false,
        }
    }

    /// The service's error object, if it answered with one; after several attempts, that of the last.
    #[must_use]
    pub fn remote(&self) -> Option<&RpcError> {
        match self {
            Self::Remote(error) | Self::Clock { error, .. } => Some(error),
            Self::Repeated { earlier, last } => last.remote().or_else(|| earlier.remote()),
            _ => None,
        }
    }
}

/// The kinds of unsigned refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HintKind {
    /// `-32010`.
    Unauthenticated,
    /// `-32014`.
    Overloaded,
    /// `-32015`.
    TooLarge,
}

impl HintKind {
    /// The code that the hint carries.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Unauthenticated => code::UNAUTHENTICATED,
            Self::Overloaded => code::OVERLOADED,
            Self::TooLarge => code::TOO_LARGE,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Overloaded => "overloaded",
            Self::TooLarge => "too large",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Unauthenticated => {
                "check that the service knows this agent's key, the token's issuer, audience and expiry, and this machine's clock"
            }
            Self::Overloaded => "call again later if the call is idempotent",
            Self::TooLarge => "send less: services take 192 KiB unless configured",
        }
    }
}

/// A request that cannot be sent as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The service's or the method's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The parameters.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// The prefixes of the credentials.
    #[error(transparent)]
    Prefix(#[from] EndpointError),
    /// The key of the credentials.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No pinned key, without which no answer to an Ed25519 request can be verified.
    #[error("no key of the service `{service}` is pinned: add it to `service_keys` of the credentials")]
    NoServiceKey {
        /// The service.
        service: String,
    },
    /// A deadline that the protocol cannot express.
    #[error("a deadline of {} ms: 1 to 600000 are possible", .0.as_millis())]
    Deadline(Duration),
    /// A window that the protocol cannot express.
    #[error("a window of {0} frames: 1 to 1024 are possible")]
    Window(u64),
    /// A lease that the protocol cannot express, or that could not be renewed in time.
    #[error("a lease of {} ms: 2000 to 600000 are possible", .0.as_millis())]
    Lease(Duration),
    /// An idempotency key that the protocol does not allow.
    #[error("an idempotency key has 1 to 128 characters of printable ASCII")]
    IdempotencyKey,
    /// A batch without entries, or with more than a service accepts.
    #[error("a batch has 1 to {max} entries, not {0}", max = crate::rpc::MAX_BATCH)]
    BatchSize(usize),
    /// A batch on a method's subject.
    #[error("a method's subject carries single calls only: send the batch without `on_method_subject`")]
    BatchOnMethodSubject,
    /// Attachments on a message whose method could not ask for them while it runs.
    #[error(
        "attachments go with single calls, streams and subscriptions: not with notifications, batches and raw payloads"
    )]
    Attachments,
    /// Waiting for approval with something other than a single call.
    #[error("only single calls wait for approval: not notifications, batches, streams, subscriptions and raw payloads")]
    AwaitApproval,
}

/// What is wrong with a signed answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Not a response object.
    #[error(transparent)]
    Response(#[from] ResponseError),
    /// An array for a single call, or a single result for a batch.
    #[error("a batch is answered by an array and a call by an object")]
    Shape,
    /// An id that was not asked for.
    #[error("it answers an id that was not asked for")]
    UnknownId,
    /// One id twice.
    #[error("it answers one id twice")]
    RepeatedId,
    /// No answer to one of a batch's calls.
    #[error("it leaves a call of the batch unanswered")]
    Missing,
    /// What the service says about its methods is not a catalogue, or exceeds the bounds.
    #[error("what it says about its methods is not a catalogue, or is more than the client accepts")]
    Catalogue,
    /// A call as a task was answered with something else, or what the service says of a task is not well-formed.
    #[error("what it says of a task is not the state of one")]
    Task,
    /// A part of a stream that is not a JSON-RPC message of its kind.
    #[error("a part of the stream is not a valid {0}")]
    Part(&'static str),
}

/// Whether the call may have run although the service signed this error.
pub(super) fn leaves_open(error: &RpcError) -> bool {
    // The application has answered: what became of the call is known, whatever its code.
    let Some(code) = error.profile_code() else { return false };
    match code {
        // SPEC.md §6.4: its nonce is burnt, and it did not run.
        code::QUOTA_EXCEEDED if matches!(says(error, "scope").as_deref(), Some("budget" | "budgets")) => false,
        // These concern one delivery: another copy of the message may have run, or may yet.
        code::STALE | code::REPLAYED | code::QUOTA_EXCEEDED | code::OVERLOADED => true,
        // The method may have been cut off anywhere. The last is signed only for a call under way.
        code::TIMEOUT | code::CANCELLED | code::UNAUTHENTICATED => true,
        // SPEC.md §14.2: without it, the call was denied before it began.
        code::PERMISSION_DENIED => says(error, "outcome").as_deref() == Some("unknown"),
        // These two concern what was sent, or a call that ran.
        code::CONFLICT => !matches!(says(error, "idempotency").as_deref(), Some("other_params" | "not_kept")),
        _ => false,
    }
}

/// A text member of the `data` of a service's error.
fn says(error: &RpcError, member: &str) -> Option<String> {
    let data: serde_json::Value = serde_json::from_str(error.data()?.get()).ok()?;
    Some(data.get(member)?.as_str()?.to_owned())
}

fn suspicion(reason: &Unverifiable) -> &'static str {
    match reason {
        Unverifiable::Key | Unverifiable::Signature => "the service's keys and those of the credentials may differ",
        _ => "somebody else may be writing to this inbox",
    }
}

fn after_frame(seq: Option<u64>) -> String {
    seq.map_or_else(|| "before its first frame".to_owned(), |seq| format!("after frame {seq}"))
}

fn because(cause: Option<&str>) -> String {
    cause.map(|cause| format!(" ({})", crate::name::shown(cause))).unwrap_or_default()
}

/// serde's reason, on one line and capped: it may quote what the service sent.
struct Reason<'a>(&'a serde_json::Error);

impl std::fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.0.to_string();
        text.chars().take(200).flat_map(char::escape_debug).try_for_each(|c| std::fmt::Write::write_char(f, c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC.md §14.
    #[test]
    fn what_an_error_says_of_its_call_decides_whether_it_may_have_run() {
        let remote =
            |code, data: serde_json::Value| ClientError::Remote(RpcError::with_code(code, "m").with_data(&data));
        let conflict = |what: &str| remote(code::CONFLICT, serde_json::json!({ "idempotency": what }));
        let unknown = [
            conflict("running"),
            conflict("unknown"),
            // SPEC.md §6.3: it has begun under its approval.
            remote(code::CONFLICT, serde_json::json!({ "approval": "ann.x", "state": "consumed" })),
            remote(code::CONFLICT, serde_json::json!([])),
            remote(code::PERMISSION_DENIED, serde_json::json!({ "outcome": "unknown" })),
            remote(code::UNAUTHENTICATED, serde_json::Value::Null),
            remote(code::QUOTA_EXCEEDED, serde_json::json!({ "scope": "replica-rate" })),
            ClientError::Protocol(ProtocolError::Part("item")),
            ClientError::Protocol(ProtocolError::Shape),
        ];
        let known = [
            conflict("other_params"),
            conflict("not_kept"),
            remote(code::PERMISSION_DENIED, serde_json::Value::Null),
            remote(code::QUOTA_EXCEEDED, serde_json::json!({ "scope": "budget", "budget": "daily" })),
            remote(code::QUOTA_EXCEEDED, serde_json::json!({ "scope": "budgets" })),
            remote(code::APPROVAL_REQUIRED, serde_json::json!({ "state": "pending" })),
            // A method's own error, which means something else by it.
            remote(7, serde_json::json!({ "outcome": "unknown" })),
        ];
        for (errors, is_unknown) in [(&unknown[..], true), (&known[..], false)] {
            for error in errors {
                assert_eq!(error.is_outcome_unknown(), is_unknown, "{error:?}");
            }
        }
        // An application that uses our numbers has answered.
        for code in -32768..=-32000 {
            let error = RpcError::application(code, "m").with_data(&serde_json::json!({ "outcome": "unknown" }));
            assert!(error.is_application() && error.profile_code().is_none(), "{code}");
            assert!(!ClientError::Remote(error).is_outcome_unknown(), "{code}");
        }
    }
}
