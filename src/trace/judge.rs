//! Whether a call is traced, for a service, a client or a gateway: nothing until a tracer is given.
//! Never lets a caller decide how much is recorded.

#[cfg(feature = "otel")]
use std::sync::OnceLock;

use super::context::{Ids, SpanContext};
#[cfg(feature = "otel")]
use super::context::{new_span, new_trace};
#[cfg(feature = "otel")]
use super::flags::Flags;
#[cfg(feature = "otel")]
use super::sampler::FLAGS_PER_SECOND;
#[cfg(feature = "otel")]
use super::span::Span;
use super::traced::Trace;
use super::tracer::Tracer;

/// Traces the calls of a service, a client or a gateway, once it has a tracer.
#[derive(Debug, Default)]
pub struct Tracing {
    #[cfg(feature = "otel")]
    tracer: OnceLock<Tracer>,
    #[cfg(feature = "otel")]
    flags: Flags,
}

impl Tracing {
    /// Records spans with this tracer from now on. Only the first one counts.
    pub fn switch_on(&self, tracer: &Tracer) {
        #[cfg(feature = "otel")]
        self.tracer.get_or_init(|| tracer.clone());
        #[cfg(not(feature = "otel"))]
        let _ = tracer;
    }

    /// The trace of a message that this caller has sent, which names its span by `traceparent` if it has one.
    #[must_use]
    pub fn receive(&self, traceparent: Option<&str>, caller: &str) -> Trace {
        #[cfg(feature = "otel")]
        if self.tracer.get().is_some() || (traceparent.is_some() && Span::is_wanted_in(&Trace::default())) {
            return self.judge(traceparent.and_then(SpanContext::parse), caller);
        }
        let _ = caller;
        // Nothing is recorded here, so what the caller says is for those behind us.
        traceparent.and_then(SpanContext::parse).map_or_else(Trace::default, |parent| Trace::new(Ids::of(parent)))
    }

    /// The trace of a call that is about to be made: the one around it, or one of its own.
    #[must_use]
    pub fn begin(&self, around: Trace) -> Trace {
        #[cfg(feature = "otel")]
        if let Some(tracer) = self.tracer.get() {
            return match around.ids() {
                Some(ids) => around.with_tracer(tracer, ids),
                None => root(tracer),
            };
        }
        around
    }

    /// Whether a caller's trace is recorded is decided here, and only here: its sampled flag counts within a rate, beyond which the caller
    /// has said nothing.
    #[cfg(feature = "otel")]
    fn judge(&self, parent: Option<SpanContext>, caller: &str) -> Trace {
        let tracer = self.tracer.get();
        let per_second = tracer.map_or(FLAGS_PER_SECOND, |tracer| tracer.0.flags_per_second);
        let honoured = tracer.is_none_or(|tracer| tracer.0.sampler.honours_callers);
        let Some(mut parent) = parent else {
            return tracer.map_or_else(Trace::default, root);
        };
        parent.is_sampled = match (honoured, parent.is_sampled) {
            (true, false) => false,
            (true, true) if self.flags.allow(caller, per_second) => true,
            (flag_is_over, _) => tracer.is_some_and(|tracer| {
                if flag_is_over {
                    tracer.0.queue.counts().flag_ignored();
                }
                // Not by the caller's id, which it could choose so that it is always taken.
                tracer.0.sampler.takes(&new_trace())
            }),
        };
        let ids = Ids::of(parent);
        match tracer.filter(|_| parent.is_sampled) {
            Some(tracer) => Trace::recorded(ids, tracer),
            None => Trace::new(ids),
        }
    }
}

/// A new trace. If it is not recorded, it has a name all the same, by which everybody behind us knows that.
#[cfg(feature = "otel")]
fn root(tracer: &Tracer) -> Trace {
    let trace = new_trace();
    match tracer.0.sampler.takes(&trace) {
        true => Trace::recorded(Ids { trace, parent: None, is_sampled: true, is_remote: false }, tracer),
        false => Trace::new(Ids { trace, parent: Some(new_span()), is_sampled: false, is_remote: false }),
    }
}
