//! Tells how a gateway is doing: its metrics, and what must hold for it to be of use.
//! Counts nothing itself, so that each number has one source.

use std::fmt;
use std::sync::Arc;

use sealwire::internal::client::{measure, write};
use sealwire::internal::registry::{Collector, DescriptorEncoder, Families};
use sealwire::metrics::{Registry, Report, Telemetry};
use sealwire::serve::Condition;

use super::Gateway;

/// Has `telemetry` tell of this gateway from now on.
pub fn show(gateway: &Arc<Gateway>, telemetry: &Telemetry) {
    telemetry.report(&Reported(Arc::clone(gateway)));
    let asked = Arc::clone(gateway);
    telemetry.ready_when(move || asked.conditions());
}

#[derive(Debug, Clone)]
struct Reported(Arc<Gateway>);

impl Report for Reported {
    fn report_to(&self, registry: &mut Registry) {
        self.0.meters.switch_on();
        registry.register_collector(Box::new(self.clone()));
    }
}

impl Collector for Reported {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(gateway) = self;
        let mut all = Families::from(encoder);
        let families = &mut all;
        families.info("sealwire_build", "The version of the gateway", [("version", env!("CARGO_PKG_VERSION"))])?;
        families.exemplars(
            "sealwire_gateway_request_duration_seconds",
            "Time from the head of a request to the head of its response",
            gateway
                .meters
                .read()
                .into_iter()
                .map(|(status, dialect, requests)| ([("dialect", dialect.to_owned()), ("status", status)], requests)),
        )?;
        let is_ready = gateway.conditions().iter().all(|condition: &Condition| condition.unmet.is_none());
        families.gauge(
            "sealwire_ready",
            "Whether all conditions for taking calls are met",
            f64::from(u8::from(is_ready)),
        )?;
        let tries = gateway.refused.tries();
        families.counters(
            "sealwire_reloads",
            "Changed files that were put in force or refused",
            tries.iter().flat_map(|(what, tried)| {
                let what = ("what", *what);
                [([what, ("result", "applied")], tried.applied), ([what, ("result", "refused")], tried.refused)]
            }),
        )?;
        families.gauges(
            "sealwire_reload_refused",
            "Whether the present state of files is refused, and the one before is in force",
            gateway.refused.names().into_iter().map(|what| ([("what", what)], 1.0)),
        )?;
        #[expect(clippy::cast_precision_loss, reason = "a time")]
        let until = gateway.tls.as_ref().map(|tls| ([("of", "listener")], tls.until() as f64));
        families.gauges(
            "sealwire_certificate_not_after_timestamp_seconds",
            "When the first certificate of a chain that is presented to others ends",
            until,
        )?;
        match gateway.bus.connected() {
            // Since it may have been connected just now.
            Some(client) => {
                measure(client);
                write(client, all)
            }
            None => Ok(()),
        }
    }
}
