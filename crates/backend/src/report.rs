//! Writes how backends are doing, whenever a registry is encoded.
//! Never takes a label from a program: backends have their names from the configuration.

use std::fmt;
use std::sync::Arc;

use sealwire::internal::registry::{Collector, DescriptorEncoder, Families};
use sealwire::internal::service::FairSemaphore;

use crate::backend::{Backend, Health};
use crate::tally::Tallied;

/// A backend, and its queue.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) turns: Arc<FairSemaphore>,
}

/// The backends of a service.
#[derive(Debug)]
pub(crate) struct Reported(pub(crate) Vec<Served>);

impl Collector for Reported {
    #[expect(clippy::cast_precision_loss, reason = "numbers of things in memory")]
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let families = &mut Families::from(encoder);
        let tallied: Vec<(&str, Tallied)> = self.0.iter().map(|it| (it.name.as_str(), it.backend.tallied())).collect();
        let gauge = |of: fn(&Served) -> f64| self.0.iter().map(move |it| ([("backend", it.name.as_str())], of(it)));
        families.gauges(
            "sealwire_backend_up",
            "Whether a backend takes calls, and something of it can be used",
            gauge(|it| f64::from(u8::from(*it.backend.health().borrow() == Health::Up))),
        )?;
        families.gauges(
            "sealwire_backend_waiting",
            "Calls that wait for their turn at a backend",
            gauge(|it| it.turns.levels().0 as f64),
        )?;
        families.gauges(
            "sealwire_backend_calls_in_flight",
            "Calls that a backend works on, or that it was told to give up a moment ago",
            gauge(|it| it.turns.levels().1 as f64),
        )?;
        families.gauges(
            "sealwire_backend_processes",
            "Processes that run",
            tallied.iter().map(|(name, tallied)| ([("backend", *name)], tallied.running as f64)),
        )?;
        families.counters(
            "sealwire_backend_starts",
            "Processes that were started, or whose start was tried",
            tallied.iter().map(|(name, tallied)| ([("backend", *name)], tallied.starts)),
        )?;
        families.counters(
            "sealwire_backend_restarts",
            "Processes that were started in place of one that had ended",
            tallied.iter().map(|(name, tallied)| ([("backend", *name)], tallied.restarts)),
        )?;
        families.counters(
            "sealwire_backend_schema_refusals",
            "Arguments and results of MCP tools that did not fit the tool's schema",
            tallied.iter().flat_map(|(name, tallied)| {
                let name = ("backend", *name);
                [([name, ("what", "arguments")], tallied.arguments), ([name, ("what", "result")], tallied.results)]
            }),
        )
    }
}
