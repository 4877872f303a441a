//! What all kinds of backend have in common: they take permitted calls and report whether they are available.
//! Never hands a backend a call that the service did not permit.

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sealwire::internal::rpc::{Flaw, MAX_VALUE_DEPTH, Outcome, strict_value};
use sealwire::internal::service::{FairBounds, FairPermit, FairSemaphore, QueueFull};
use sealwire::internal::trace::{self, Kind, Span, Start};
use sealwire::serve::Description;
use sealwire::{Ctx, Router, RpcError, Sink};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::child::brief;
use crate::form;
use crate::tally::Tallied;
use crate::tool::Tool;

/// Takes the calls of its tools.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Makes one call, to its end. Dropping the future gives the call up; the backend is told if possible.
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Box<RawValue>, RpcError>>;

    /// Whether the backend is available. While it is not, every call is refused at once with `-32004`.
    fn health(&self) -> watch::Receiver<Health>;

    /// What callers are told about a tool; `None` while the tool is off.
    fn description(&self, tool: &Tool) -> Option<Arc<Description>> {
        Some(Arc::new(tool.description.as_deref().map(Description::new).unwrap_or_default()))
    }

    /// Says in a span what is asked of the backend for this tool; JSON-RPC, unless it speaks something else.
    fn describe_span(&self, span: &mut Span, tool: &Tool) {
        span.name(&tool.name);
        span.set(trace::RPC_SYSTEM, "jsonrpc");
        span.set(trace::RPC_METHOD, tool.name.as_str());
    }

    /// The word for an error in a span.
    fn error_type(&self, error: &RpcError) -> Cow<'static, str> {
        error.code().to_string().into()
    }

    /// What has become of its processes and answers; zeros if it has none.
    fn tallied(&self) -> Tallied {
        Tallied::default()
    }

    /// Ends the backend and everything that it has started.
    fn stop(&self) -> BoxFuture<'_, ()>;
}

/// A permitted call on its way to a backend.
#[derive(Debug)]
#[non_exhaustive]
pub struct Call {
    /// The caller and its deadline; also takes notifications and questions to the caller.
    pub ctx: Ctx,
    /// Takes parts of the result before it is complete.
    pub sink: Sink<Box<RawValue>>,
    /// The tool that is called.
    pub tool: Arc<Tool>,
    /// A JSON object or array, unchanged; `None` if there are no parameters.
    pub params: Option<Box<RawValue>>,
    /// Its place among the calls of the backend, kept for as long as anything that works on the call holds this.
    pub permit: Arc<FairPermit>,
    /// The backend's deadline for the call.
    pub until: Instant,
    /// The span that the backend continues (W3C), if there is one.
    pub traceparent: Option<String>,
}

/// How many calls a backend gets at a time, and how long each may take, including the wait for its turn.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    /// The backend's name.
    pub(crate) name: Arc<str>,
    /// How it is reached.
    pub(crate) transport: Transport,
    pub(crate) in_flight: usize,
    pub(crate) timeout: Duration,
}

/// How a backend is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Over the standard input and output of a process of ours.
    Pipe,
    /// Over a connection.
    Tcp,
}

/// How long a call that was given up keeps its place, if nothing tells us when the backend stops working on it. Long enough for a backend
/// that does stop: a caller that keeps giving calls up must not have more of them running than its share. No longer, because many servers
/// never say that they have stopped (MCP does not require it), and others need the place.
pub(crate) const GIVEN_UP: Duration = Duration::from_secs(10);

/// The most calls that may wait for their turn ...
const WAITING: usize = 4_096;
/// ... and the most bytes of parameters, including those of running calls; the same bounds as for what waits for the service.
const BYTES: usize = 64 << 20;

/// Whether a backend is available.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// It takes calls.
    Up,
    /// It takes calls, and nothing that was approved of it can be used. The reason is for the log.
    Limited(String),
    /// It takes no calls. The reason is for the log and the operator, never for callers.
    Down(String),
}

impl Health {
    /// Whether it takes calls.
    #[must_use]
    pub fn takes_calls(&self) -> bool {
        !matches!(self, Self::Down(_))
    }
}

/// Adds the tools of a backend to a router, as ordinary methods. Its agents take turns, which are returned.
#[must_use]
pub(crate) fn routed(
    mut router: Router,
    backend: &Arc<dyn Backend>,
    share: Share,
    tools: impl IntoIterator<Item = Tool>,
) -> (Router, Arc<FairSemaphore>) {
    let semaphore = FairSemaphore::new(FairBounds { waiting: WAITING, running: share.in_flight, bytes: BYTES });
    for tool in tools {
        let (tool, backend, semaphore) = (Arc::new(tool), Arc::clone(backend), Arc::clone(&semaphore));
        let (name, declared, by_name) = (tool.method.to_string(), tool.declared.clone(), tool.by_name);
        let share = share.clone();
        let (described, describing) = (Arc::clone(&tool), Arc::clone(&backend));
        router = router.method_with_sink(&name, move |ctx: Ctx, params: Option<Box<RawValue>>, sink| {
            let (tool, backend, semaphore) = (Arc::clone(&tool), Arc::clone(&backend), Arc::clone(&semaphore));
            let share = share.clone();
            async move {
                let down = match &*backend.health().borrow() {
                    Health::Up | Health::Limited(_) => None,
                    Health::Down(reason) => Some(reason.clone()),
                };
                if let Some(reason) = down {
                    return Err(RpcError::dependency(reason));
                }
                let until = Instant::now() + share.timeout;
                let bytes = params.as_ref().map_or(0, |params| params.get().len());
                let permit = tokio::time::timeout_at(until, semaphore.acquire(&ctx.caller().agent, bytes)).await;
                let late = |_| RpcError::dependency(format!("no turn within {} s", share.timeout.as_secs()));
                let full = |full: QueueFull| RpcError::dependency(full).with_data(&json!({ "queue": "full" }));
                let permit = permit.map_err(late)?.map_err(full)?;
                let permit = Arc::new(permit);
                let mut span = begin_span(&ctx, &*backend, &share, &tool);
                let trace = span.trace().unwrap_or_else(|| ctx.trace());
                let traceparent = trace.traceparent();
                let outcome = strict(backend.call(Call { ctx, sink, tool, params, permit, until, traceparent }).await);
                if let Err(error) = &outcome {
                    span.set(trace::RPC_STATUS, error.code().to_string());
                    span.fail(&backend.error_type(error));
                }
                outcome
            }
        });
        router = router.describe_with(&name, move || describing.description(&described));
        router = match declared {
            None => router,
            Some(declared) if by_name => router.named_params(&name, declared),
            Some(declared) => router.params(&name, declared),
        };
    }
    (router, semaphore)
}

/// The span of a call of a backend, if anybody wants one.
fn begin_span(ctx: &Ctx, backend: &dyn Backend, share: &Share, tool: &Tool) -> Span {
    let mut span = Span::begin(&Start::now(Kind::Client, &ctx.trace()));
    if span.is_wanted() {
        backend.describe_span(&mut span, tool);
        span.set(trace::BACKEND, &*share.name);
        let transport = match share.transport {
            Transport::Pipe => "pipe",
            Transport::Tcp => "tcp",
        };
        span.set(trace::NETWORK_TRANSPORT, transport);
    }
    span
}

/// Passes an outcome on if its reader can parse it strictly; otherwise it would cost the other calls of a batch their answers. The cause is
/// shortened for the log, since it may be the backend's own words.
fn strict(outcome: Outcome) -> Outcome {
    let outcome = outcome.map_err(|error| match error.source().map(|cause| brief(&cause.to_string())) {
        Some(cause) => error.caused_by(cause),
        None => error,
    });
    let text = match &outcome {
        Ok(result) => result.get(),
        Err(error) => error.data().map_or("null", RawValue::get),
    };
    match strict_value(text) {
        Ok(_) => outcome,
        Err(flaw) => Err(unreadable(flaw)),
    }
}

/// Whether a name is reserved (JSON-RPC 2.0 §4). Checked for more than method names: anything with such a name is taken for the service's
/// own, and clients answer `rpc.attachment` themselves.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.split(['/', '.']).next() == Some("rpc")
}

/// JSON that a backend has written, parsed strictly.
pub(crate) fn value(text: &str) -> Result<Box<RawValue>, RpcError> {
    strict_value(text).map(ToOwned::to_owned).map_err(unreadable)
}

fn unreadable(flaw: Flaw) -> RpcError {
    let cause = match flaw {
        Flaw::TooDeep => format!("its answer is nested deeper than {MAX_VALUE_DEPTH} levels"),
        flaw => format!("its answer {flaw}"),
    };
    form::unusable(if flaw == Flaw::Syntax { form::NO_JSON } else { form::NOT_STRICT }, cause)
}

/// What a parser says of a text, without the place: nobody else sees the text.
pub(crate) fn without_position(error: &serde_json::Error) -> String {
    let said = error.to_string();
    said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said).to_owned()
}

/// The id of the request that a line seems to answer which is no JSON: one with `NaN`, for example, or the line of a message over several
/// lines that has its id.
pub(crate) fn seems_to_answer(text: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_start_matches('\u{feff}').trim();
    if !(text.starts_with('{') || text.starts_with("\"id\"")) || text.contains("\"method\"") {
        return None;
    }
    text.match_indices("\"id\"").find_map(|(at, key)| {
        let value = text.get(at + key.len()..)?.trim_start().strip_prefix(':')?.trim_start();
        let value = value.strip_prefix('"').unwrap_or(value);
        let digits =
            value.find(|c: char| !c.is_ascii_digit()).map_or(value, |end| value.get(..end).unwrap_or_default());
        let after = value.get(digits.len()..)?.trim_start_matches('"').trim_start();
        if after.is_empty() || after.starts_with([',', '}']) { digits.parse().ok() } else { None }
    })
}

/// The id of the request that a text answers, even if the text is no valid response (it has a duplicate member, for example). Half a
/// response is useless, but whoever waits for it need not wait any longer.
pub(crate) fn answers(text: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Answer {
        id: u64,
        #[serde(default)]
        method: Option<serde::de::IgnoredAny>,
    }
    let answer: Answer = serde_json::from_slice(text).ok()?;
    answer.method.is_none().then_some(answer.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_spoilt_answer_is_found_and_no_other() {
        for (line, id) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"x":NaN}}"#, Some(7)),
            (r#"{"jsonrpc":"2.0","result":{"x":Infinity},"id": "7" }"#, Some(7)),
            ("\u{feff}{\"id\" : 7, 'result': 1}", Some(7)),
            (r#"  "id": 7,"#, Some(7)),
            (r#""id": 7"#, Some(7)),
            (r#"{"id": 7"#, Some(7)),
            (r#"{"id": 7.5, "result": NaN}"#, None),
            (r#"{"id": -7, "result": NaN}"#, None),
            (r#"{"id": null, "result": NaN}"#, None),
            (r#"{"id":7,"method":"x","params":NaN}"#, None),
            (r#"INFO sends {"id":7,"result":1}"#, None),
            (r#""result": {"#, None),
            ("", None),
        ] {
            assert_eq!(seems_to_answer(line.as_bytes()), id, "{line}");
        }
    }

    #[test]
    fn the_log_of_an_outcome_is_short() {
        let long = RpcError::application(7, "\u{1b}[2J".repeat(100_000));
        let error = strict(Err(RpcError::internal(long))).err();
        let cause = error.and_then(|error| error.source().map(ToString::to_string)).unwrap_or_default();
        assert!(cause.starts_with("\\u{1b}[2J") && cause.len() <= 1024, "{}", cause.len());
    }
}
