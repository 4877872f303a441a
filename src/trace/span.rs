//! A span: for the exporter if its trace is recorded, and for the application's subscriber of `tracing` if that wants it.
//! Never exists if nobody wants it, and never keeps more than a few hundred bytes of any text.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "otel")]
use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[cfg(feature = "otel")]
use super::context::{Ids, new_span, new_trace};
use super::data::{Kind, Value};
use super::key::{self, tracing_span};
#[cfg(feature = "otel")]
use super::otlp;
use super::traced::{Trace, Traced};
#[cfg(feature = "otel")]
use super::tracer::Tracer;

/// A span that has begun. It ends when it is dropped.
#[derive(Default)]
pub struct Span(Option<Box<Open>>);

/// How a span begins.
#[derive(Debug)]
pub struct Start<'a> {
    /// What it is about.
    pub kind: Kind,
    /// What it continues.
    pub parent: &'a Trace,
    /// A span that led to it, without being its parent.
    pub link: Option<&'a Trace>,
    /// How long ago it began.
    pub ago: Duration,
}

/// Those who want to know.
struct Open {
    /// `None` if no trace of ours is recorded.
    #[cfg(feature = "otel")]
    recorded: Option<Recorded>,
    /// What continues a trace that is not recorded.
    parent: Trace,
    tracing: tracing::Span,
    has_failed: bool,
}

/// A span as the exporter gets it.
#[cfg(feature = "otel")]
struct Recorded {
    tracer: Tracer,
    ids: Ids,
    id: [u8; 8],
    link: Option<Ids>,
    kind: Kind,
    name: String,
    began_ns: u64,
    began: Instant,
    attributes: Vec<(&'static str, Value<'static>)>,
}

/// The most bytes of a name or of an attribute.
const MAX_TEXT: usize = 256;

impl<'a> Start<'a> {
    /// Now, with no link.
    #[must_use]
    pub fn now(kind: Kind, parent: &'a Trace) -> Self {
        Self { kind, parent, link: None, ago: Duration::ZERO }
    }
}

impl Span {
    /// No span.
    pub const NONE: Self = Self(None);

    /// Begins a span, if anybody wants one.
    #[must_use]
    pub fn begin(start: &Start<'_>) -> Self {
        if !Self::is_wanted_in(start.parent) {
            return Self::NONE;
        }
        let around = start.parent.0.as_deref().map(|traced| &traced.tracing).filter(|span| !span.is_disabled());
        let tracing =
            tracing_span!(around.map_or_else(|| tracing::Span::current().id(), tracing::Span::id), start.kind.as_str());
        #[cfg(feature = "otel")]
        let recorded = Recorded::begin(start);
        #[cfg(feature = "otel")]
        let is_wanted = recorded.is_some() || !tracing.is_disabled();
        #[cfg(not(feature = "otel"))]
        let is_wanted = !tracing.is_disabled();
        if !is_wanted {
            return Self::NONE;
        }
        #[cfg(feature = "otel")]
        super::otel::set_parent(&tracing, start.parent.ids(), start.link.and_then(Trace::ids));
        Self(Some(Box::new(Open {
            #[cfg(feature = "otel")]
            recorded,
            parent: start.parent.clone(),
            tracing,
            has_failed: false,
        })))
    }

    /// Whether anybody wants a span that continues this.
    #[must_use]
    pub fn is_wanted_in(parent: &Trace) -> bool {
        parent.is_recorded() || tracing::span_enabled!(target: "sealwire::trace", tracing::Level::INFO)
    }

    /// Whether anybody wants to know what happens.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Names it.
    pub fn name(&mut self, name: &str) {
        let Some(open) = &mut self.0 else { return };
        let name = cut(name);
        open.tracing.record("otel.name", name);
        #[cfg(feature = "otel")]
        if let Some(recorded) = &mut open.recorded {
            recorded.name = name.to_owned();
        }
    }

    /// Says something about it; each key once.
    pub fn set<'v>(&mut self, key: &'static str, value: impl Into<Value<'v>>) {
        let Some(open) = &mut self.0 else { return };
        let value = value.into();
        match &value {
            Value::Text(text) => open.tracing.record(key, cut(text)),
            Value::Number(number) => open.tracing.record(key, *number),
        };
        #[cfg(feature = "otel")]
        if let Some(recorded) = &mut open.recorded {
            recorded.attributes.push((
                key,
                match value {
                    Value::Text(text) => Value::Text(Cow::Owned(cut(&text).to_owned())),
                    Value::Number(number) => Value::Number(number),
                },
            ));
        }
    }

    /// It has failed, by this code or word. Only the first failure counts.
    pub fn fail(&mut self, by: &str) {
        match &mut self.0 {
            Some(open) if !open.has_failed => {
                open.has_failed = true;
                open.tracing.record("otel.status_code", "ERROR");
            }
            _ => return,
        }
        self.set(key::ERROR_TYPE, by);
    }

    /// What nested work continues: this span, or what it would have continued.
    #[must_use]
    pub fn trace(&self) -> Option<Trace> {
        let open = self.0.as_deref()?;
        #[cfg(feature = "otel")]
        let (ids, tracer) = match &open.recorded {
            Some(Recorded { ids, id, tracer, .. }) => {
                (Some(Ids { parent: Some(*id), is_remote: false, ..*ids }), Some(tracer.clone()))
            }
            None => (open.parent.ids(), None),
        };
        #[cfg(feature = "otel")]
        // The subscriber's span has an id of its own there, by which others know it.
        let ids = ids.filter(|_| tracer.is_some() || super::otel::context(&open.tracing).is_none());
        #[cfg(not(feature = "otel"))]
        let ids = open.parent.ids();
        Some(Trace(Some(Arc::new(Traced {
            ids,
            #[cfg(feature = "otel")]
            tracer,
            tracing: open.tracing.clone(),
        }))))
    }
}

#[cfg(feature = "otel")]
impl Recorded {
    fn begin(start: &Start<'_>) -> Option<Self> {
        let traced = start.parent.0.as_deref()?;
        let tracer = traced.tracer.clone()?;
        let ids =
            traced.ids.unwrap_or_else(|| Ids { trace: new_trace(), parent: None, is_sampled: true, is_remote: false });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(Self {
            tracer,
            ids,
            id: new_span(),
            link: start.link.and_then(Trace::ids),
            kind: start.kind,
            name: String::new(),
            began_ns: nanoseconds(now.saturating_sub(start.ago)),
            began: Instant::now().checked_sub(start.ago).unwrap_or_else(Instant::now),
            attributes: Vec::with_capacity(12),
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        #[cfg(feature = "otel")]
        if let Some(recorded) = self.recorded.take() {
            let Recorded { tracer, ids, id, link, kind, name, began_ns, began, attributes } = recorded;
            // By the clock that is never set back.
            let ended_ns = began_ns.saturating_add(nanoseconds(began.elapsed()));
            let span = otlp::Span {
                ids,
                id,
                link,
                kind,
                name: &name,
                began_ns,
                ended_ns,
                attributes: &attributes,
                has_failed: self.has_failed,
            };
            tracer.0.queue.put(span.encode());
        }
    }
}

/// As many whole characters as there may be.
fn cut(text: &str) -> &str {
    match text.len() <= MAX_TEXT {
        true => text,
        false => text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default(),
    }
}

#[cfg(feature = "otel")]
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.is_wanted()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_who_does_not_listen_is_told_anything() {
        let mut span = Span::begin(&Start::now(Kind::Server, &Trace::default()));
        span.name("x");
        span.fail("y");
        assert!(!span.is_wanted() && span.trace().is_none());
    }

    #[test]
    fn every_attribute_has_its_place_in_a_span_of_the_application() {
        struct All;
        impl tracing::Subscriber for All {
            fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
                true
            }
            fn new_span(&self, attributes: &tracing::span::Attributes<'_>) -> tracing::span::Id {
                let fields = attributes.metadata().fields();
                for key in key::ALL.iter().chain(&["otel.name", "otel.kind", "otel.status_code"]) {
                    assert!(fields.field(key).is_some(), "{key}");
                }
                assert!(fields.len() <= 32, "more than `tracing` allows");
                tracing::span::Id::from_u64(1)
            }
            fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
            fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
            fn event(&self, _: &tracing::Event<'_>) {}
            fn enter(&self, _: &tracing::span::Id) {}
            fn exit(&self, _: &tracing::span::Id) {}
        }
        tracing::subscriber::with_default(All, || {
            assert!(Span::begin(&Start::now(Kind::Client, &Trace::default())).is_wanted());
        });
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut(&"\u{e4}".repeat(200)).len(), MAX_TEXT);
        assert_eq!(cut(&format!("x{}", "\u{e4}".repeat(200))).len(), MAX_TEXT - 1);
        assert_eq!(cut("short"), "short");
    }
}
