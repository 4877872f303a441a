//! The spans of what a service does: one for each entry of a message, and one around those of a batch.
//! Never says anything of parameters or results, and never takes a name from the wire.

use std::sync::OnceLock;

use tokio::time::Instant;

use super::calls::Message;
use crate::policy::{Decision, Revision};
use crate::rpc::{Id, Outcome, RpcError, one_line};
use crate::trace::{self, Kind, Span, Start, Trace, Tracing};

/// Begins spans, once they are wanted.
#[derive(Debug, Default)]
pub(super) struct Spans {
    pub(super) tracing: Tracing,
    replica: OnceLock<Box<str>>,
}

/// The span of an entry. What ends without an outcome was given up.
#[derive(Debug)]
pub(super) struct EntrySpan {
    span: Span,
    is_over: bool,
}

impl Spans {
    /// The name of this replica.
    pub(super) fn name(&self, replica: &str) {
        self.replica.get_or_init(|| replica.into());
    }

    /// Begins the span of an entry, if anybody wants one. `named`: its method, only if it is registered, and its id.
    pub(super) fn begin<'m>(
        &self,
        message: &Message,
        around: &Trace,
        named: impl FnOnce() -> (Option<&'m str>, Option<&'m Id>),
        started: Instant,
    ) -> Option<EntrySpan> {
        if !Span::is_wanted_in(around) {
            return None;
        }
        let mut span = Span::begin(&Start { kind: Kind::Server, parent: around, link: None, ago: started.elapsed() });
        let (method, id) = named();
        let method = method.unwrap_or(trace::OTHER_METHOD);
        span.name(method);
        span.set(trace::RPC_SYSTEM, "jsonrpc");
        span.set(trace::RPC_METHOD, method);
        if let Some(id) = id {
            span.set(trace::JSONRPC_ID, one_line(id.as_json(), trace::MAX_ID));
        }
        self.describe(&mut span, message);
        Some(EntrySpan { span, is_over: false })
    }

    /// Begins the span of a batch.
    pub(super) fn begin_batch(&self, message: &Message, entries: usize, started: Instant) -> Span {
        if !Span::is_wanted_in(&message.trace) {
            return Span::NONE;
        }
        let (parent, ago) = (&message.trace, started.elapsed());
        let mut span = Span::begin(&Start { kind: Kind::Internal, parent, link: None, ago });
        span.name("batch");
        span.set(trace::BATCH, i64::try_from(entries).unwrap_or(i64::MAX));
        self.describe(&mut span, message);
        span
    }

    fn describe(&self, span: &mut Span, message: &Message) {
        span.set(trace::AGENT, message.caller.agent.as_str());
        span.set(trace::MESSAGE_ID, &*message.id);
        if let Some(replica) = self.replica.get() {
            span.set(trace::REPLICA, &**replica);
        }
    }
}

impl EntrySpan {
    /// What nested calls continue.
    pub(super) fn trace(&self) -> Trace {
        self.span.trace().unwrap_or_default()
    }

    /// The entry has its outcome.
    pub(super) fn ended(mut self, decision: &Decision, revision: &Revision, outcome: &Outcome) {
        self.is_over = true;
        self.span.set(trace::DECISION, decision.reason.label());
        if let Some(rule) = &decision.rule {
            self.span.set(trace::RULE, rule.to_string());
        }
        self.span.set(trace::REVISION, revision.to_string());
        if let Some(code) = outcome.as_ref().err().map(RpcError::code) {
            self.span.set(trace::RPC_STATUS, code.to_string());
            self.span.fail(&code.to_string());
        }
    }
}

impl Drop for EntrySpan {
    fn drop(&mut self) {
        if !self.is_over {
            self.span.fail("given_up");
        }
    }
}
