//! The spans of what a gateway does: one for each request over HTTP, and one for each message of MCP, of a socket or of a pipe.
//! Never takes a name from a request, and never says who the caller is.

use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::Method;
use sealwire::internal::client::TraceContext;
use sealwire::internal::trace::{self, Kind, Span, Start, Trace, Tracing};

/// A span of the gateway. What ends without an outcome was given up.
#[derive(Debug, Default)]
pub(crate) struct RequestSpan {
    span: Span,
    /// What is done for the request continues this.
    around: Trace,
    is_over: bool,
}

impl RequestSpan {
    /// Begins the span of a message that `around` has led to, or whose sender, the caller, names its own span by `context`.
    pub(crate) fn begin(
        tracing: &Tracing,
        around: &Trace,
        context: &TraceContext,
        caller: &str,
        ago: Duration,
    ) -> Self {
        let parent = match around.is_empty() {
            true => tracing.receive(context.parent(), caller),
            false => around.clone(),
        };
        Self::of(&Start { kind: Kind::Server, parent: &parent, link: None, ago })
    }

    /// The same for a message that names the span that it continues, whatever has led to it.
    pub(crate) fn begin_linked(tracing: &Tracing, around: &Trace, context: &TraceContext, caller: &str) -> Self {
        let parent = tracing.receive(context.parent(), caller);
        let link = (!around.is_empty()).then_some(around);
        Self::of(&Start { kind: Kind::Server, parent: &parent, link, ago: Duration::ZERO })
    }

    fn of(start: &Start<'_>) -> Self {
        let span = Span::begin(start);
        let around = span.trace().unwrap_or_else(|| start.parent.clone());
        Self { span, around, is_over: false }
    }

    /// What is done for the request continues it.
    pub(crate) fn around<'f, T: 'f>(&self, work: BoxFuture<'f, T>) -> BoxFuture<'f, T> {
        self.around.clone().around(work)
    }

    /// What is done for the request continues this; empty if nothing does.
    pub(crate) fn trace(&self) -> &Trace {
        &self.around
    }

    pub(crate) fn span(&mut self) -> &mut Span {
        &mut self.span
    }

    /// It has ended, by this word if it has failed.
    pub(crate) fn ended(mut self, failed: Option<&str>) {
        self.is_over = true;
        if let Some(by) = failed {
            self.span.fail(by);
        }
    }

    /// A request over HTTP has its response.
    pub(crate) fn responded(mut self, status: u16) {
        self.span.set(trace::HTTP_STATUS, i64::from(status));
        // Conventions for HTTP: on a server, only its own errors are failures.
        let status = status.to_string();
        self.ended((status.starts_with('5')).then_some(status.as_str()));
    }

    /// Says which request over HTTP it is.
    pub(crate) fn describe_http(&mut self, method: &Method, route: Option<&'static str>) {
        if !self.span.is_wanted() {
            return;
        }
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            Method::OPTIONS => "OPTIONS",
            Method::HEAD => "HEAD",
            _ => trace::OTHER_METHOD,
        };
        self.span.name(format!("{method} {}", route.unwrap_or_default()).trim_end());
        self.span.set(trace::HTTP_METHOD, method);
        if let Some(route) = route {
            self.span.set(trace::HTTP_ROUTE, route);
        }
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if !self.is_over {
            self.span.fail("given_up");
        }
    }
}
