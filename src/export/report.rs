//! Writes what became of spans, whenever a registry is encoded.
//! Counts nothing itself, so that each number has one source.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::exporter::Traces;
use crate::registry::{Collector, DescriptorEncoder, Families, Registry, Report};
use crate::trace::{Counts, Queue};

impl Report for Traces {
    fn report_to(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Reported(Arc::clone(self.queue()))));
    }
}

#[derive(Debug)]
struct Reported(Arc<Queue>);

impl Collector for Reported {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::from(encoder);
        let Counts { exported, dropped, failed, refused, flags } = self.0.counts();
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        families.counters(
            "sealwire_trace_spans",
            "Spans by what became of them: taken by the collector, dropped for want of room, not sent, or refused by the collector",
            [("exported", exported), ("dropped", dropped), ("failed", failed), ("refused", refused)]
                .map(|(result, spans)| ([("result", result)], count(spans))),
        )?;
        families.level("sealwire_trace_queue_spans", "Spans that wait to be sent", self.0.len())?;
        families.counter(
            "sealwire_trace_flags_ignored",
            "Sampled flags of callers that came faster than they count",
            count(flags),
        )
    }
}
