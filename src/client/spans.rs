//! The spans of a message: one for a call or a notification, one around those of a batch.
//! Never says anything of parameters or results.

use super::answer::Answer;
use super::error::ClientError;
use crate::rpc::{Body, Id, Limits, Response, Responses, RpcError, one_line};
use crate::trace::{self, Kind, Span, Start, Trace, Tracing};

/// The spans of a message that is under way. What ends without an outcome was given up.
#[derive(Debug)]
pub(super) struct MessageSpans {
    /// That of a batch.
    around: Option<Span>,
    calls: Vec<CallSpan>,
    is_over: bool,
}

/// The span of a call or a notification.
#[derive(Debug)]
struct CallSpan {
    span: Span,
    id: Option<Id>,
    /// What it is called once the service has shown that it knows it: somebody else may have made it up.
    method: Option<String>,
}

/// What is called, and by whom.
pub(super) struct Called<'a> {
    /// `<environment>/<service>`.
    pub(super) audience: &'a str,
    pub(super) agent: &'a str,
    pub(super) payload: &'a [u8],
    /// Whether somebody else has chosen the method.
    pub(super) is_relayed: bool,
}

impl MessageSpans {
    /// Begins the spans, if anybody wants them. Also returns the `traceparent` to send, if there is one.
    pub(super) fn begin(tracing: &Tracing, around: Trace, called: &Called<'_>) -> (Option<Box<Self>>, Option<String>) {
        let parent = tracing.begin(around);
        let is_batch = called.payload.trim_ascii_start().first() == Some(&b'[');
        let mut span = Span::begin(&Start::now(if is_batch { Kind::Internal } else { Kind::Client }, &parent));
        let Some(trace) = span.trace() else { return (None, parent.traceparent()) };
        let parent = trace.traceparent();
        let spans = match Body::parse(called.payload, &Limits::default()) {
            Ok(Body::Batch(entries)) => {
                span.name("batch");
                span.set(trace::SERVER_ADDRESS, called.audience);
                span.set(trace::BATCH, i64::try_from(entries.len()).unwrap_or(i64::MAX));
                let begin = |request: crate::rpc::Request| {
                    let span = Span::begin(&Start::now(Kind::Client, &trace));
                    CallSpan::new(span, called, Some(request.method), request.id)
                };
                Self { around: Some(span), calls: entries.into_iter().flatten().map(begin).collect(), is_over: false }
            }
            Ok(Body::Single(Ok(request))) => {
                let call = CallSpan::new(span, called, Some(request.method), request.id);
                Self { around: None, calls: vec![call], is_over: false }
            }
            _ => Self { around: None, calls: vec![CallSpan::new(span, called, None, None)], is_over: false },
        };
        (Some(Box::new(spans)), parent)
    }

    /// An answer in one message, or none.
    pub(super) fn answered(mut self, outcome: &Result<Answer, ClientError>) {
        self.is_over = true;
        match outcome {
            Ok(Answer { responses: Ok(Responses::Batch(responses)), .. }) => {
                for call in &mut self.calls {
                    let answer = responses.iter().find(|response| call.id.as_ref() == Some(&response.id));
                    answer.inspect(|Response { outcome, .. }| call.ended(outcome.as_ref().map(drop)));
                }
            }
            // Of a batch, it refuses the whole.
            Ok(Answer { responses: Ok(Responses::Single(response)), .. }) => {
                self.calls.iter_mut().for_each(|call| call.ended(response.outcome.as_ref().map(drop)));
            }
            Ok(Answer { responses: Err(_), .. }) => self.fail("protocol"),
            Err(error) => self.failed(error),
        }
    }

    /// A stream has ended.
    pub(super) fn streamed<T>(mut self, outcome: &Result<T, ClientError>) {
        self.is_over = true;
        match outcome {
            Ok(_) => self.calls.iter_mut().for_each(|call| call.ended(Ok(()))),
            Err(error) => self.failed(error),
        }
    }

    /// A message was sent that expects no answer: nobody says whether its methods exist.
    pub(super) fn sent(mut self, outcome: &Result<(), ClientError>) {
        self.is_over = true;
        if let Err(error) = outcome {
            self.failed(error);
        }
    }

    fn failed(&mut self, error: &ClientError) {
        match error {
            ClientError::Remote(error) => self.calls.iter_mut().for_each(|call| call.ended(Err(error))),
            error => self.fail(error.kind().label()),
        }
    }

    fn fail(&mut self, by: &str) {
        let calls = self.calls.iter_mut().map(|call| &mut call.span);
        self.around.iter_mut().chain(calls).for_each(|span| span.fail(by));
    }
}

impl Drop for MessageSpans {
    fn drop(&mut self) {
        if !self.is_over {
            self.fail("given_up");
        }
    }
}

impl CallSpan {
    fn new(mut span: Span, called: &Called<'_>, method: Option<String>, id: Option<Id>) -> Self {
        span.set(trace::RPC_SYSTEM, "jsonrpc");
        span.set(trace::SERVER_ADDRESS, called.audience);
        span.set(trace::AGENT, called.agent);
        if let Some(id) = &id {
            span.set(trace::JSONRPC_ID, one_line(id.as_json(), trace::MAX_ID));
        }
        let mut call = Self { span, id, method };
        match called.is_relayed {
            true => call.span.name(trace::OTHER_METHOD),
            false => call.name(),
        }
        call
    }

    /// Names the method, once.
    fn name(&mut self) {
        if let Some(method) = self.method.take() {
            self.span.name(&method);
            self.span.set(trace::RPC_METHOD, method);
        }
    }

    fn ended(&mut self, outcome: Result<(), &RpcError>) {
        // Refusals of the service may be those of a name that it does not know.
        if outcome.err().is_none_or(RpcError::is_application) {
            self.name();
        }
        if let Err(error) = outcome {
            let code = error.code().to_string();
            self.span.set(trace::RPC_STATUS, code.as_str());
            self.span.fail(&code);
        }
    }
}
