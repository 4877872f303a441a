//! What nested work continues: the trace of a call that is being served, handed on with the future that serves it.
//! Never reaches another task by itself.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tracing::Instrument as _;

use super::context::{Ids, SpanContext};
#[cfg(feature = "otel")]
use super::tracer::Tracer;

/// The trace of a call: what the calls made for it continue. Clones share it. Empty where nothing is traced.
///
/// Within a method's own future, calls of a [`Client`](crate::Client) find it by themselves. A task that the method spawns takes it from
/// `Ctx::trace`, and gives it to `RequestBuilder::in_trace`.
#[derive(Clone, Default)]
pub struct Trace(pub(super) Option<Arc<Traced>>);

pub(super) struct Traced {
    /// `None` if nobody has named the trace.
    pub(super) ids: Option<Ids>,
    /// Who records what continues it, if it is recorded.
    #[cfg(feature = "otel")]
    pub(super) tracer: Option<Tracer>,
    /// The span of the application's subscriber.
    pub(super) tracing: tracing::Span,
}

tokio::task_local! {
    /// What the future that is being polled serves.
    static CURRENT: Trace;
}

impl Trace {
    /// That of the future that is being polled.
    #[must_use]
    pub fn current() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// Whether what continues it is recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        #[cfg(feature = "otel")]
        return self.0.as_deref().is_some_and(|traced| traced.tracer.is_some());
        #[cfg(not(feature = "otel"))]
        false
    }

    /// Whether there is nothing to continue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The span to continue, as a W3C `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        let traced = self.0.as_deref()?;
        match traced.ids {
            Some(ids) => Some(ids.context()?.to_text()),
            #[cfg(feature = "otel")]
            None => super::otel::context(&traced.tracing).map(SpanContext::to_text),
            #[cfg(not(feature = "otel"))]
            None => None,
        }
    }

    /// The id of the trace, 32 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> Option<String> {
        let ids = self.ids()?;
        let mut text = String::with_capacity(32);
        super::context::hex(&ids.trace, &mut text);
        Some(text)
    }

    /// Has calls that `work` begins continue this trace.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.is_empty() {
            true => work(),
            false => CURRENT.sync_scope(self.clone(), work),
        }
    }

    /// Has calls that `work` makes continue this trace.
    #[must_use]
    pub fn around<'f, T: 'f>(self, work: BoxFuture<'f, T>) -> BoxFuture<'f, T> {
        let Some(traced) = &self.0 else { return work };
        let span = traced.tracing.clone();
        let work = CURRENT.scope(self, work);
        match span.is_disabled() {
            true => Box::pin(work),
            false => Box::pin(work.instrument(span)),
        }
    }

    pub(super) fn new(ids: Ids) -> Self {
        Self(Some(Arc::new(Traced {
            ids: Some(ids),
            #[cfg(feature = "otel")]
            tracer: None,
            tracing: tracing::Span::none(),
        })))
    }

    #[cfg(feature = "otel")]
    pub(super) fn recorded(ids: Ids, tracer: &Tracer) -> Self {
        let tracing = tracing::Span::none();
        Self(Some(Arc::new(Traced { ids: Some(ids), tracer: Some(tracer.clone()), tracing })))
    }

    pub(super) fn ids(&self) -> Option<Ids> {
        self.0.as_deref()?.ids
    }

    /// The same, recorded by `tracer` if it is recorded and has no tracer yet.
    #[cfg(feature = "otel")]
    pub(super) fn with_tracer(self, tracer: &Tracer, ids: Ids) -> Self {
        match self.0.as_deref() {
            Some(Traced { tracer: None, tracing, .. }) if ids.is_sampled => {
                let tracing = tracing.clone();
                Self(Some(Arc::new(Traced { ids: Some(ids), tracer: Some(tracer.clone()), tracing })))
            }
            _ => self,
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trace").field(&self.traceparent()).finish()
    }
}
