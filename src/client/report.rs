//! Writes what a client has counted and measured, whenever a registry is encoded.
//! Counts nothing itself, so that each number has one source.

use std::fmt;
use std::sync::{Arc, Weak};

use super::{Client, ClientStats, Inner};
use crate::registry::{Collector, DescriptorEncoder, Families, NO_LABELS, Registry, Report};

/// Measures durations from now on; until then, nothing is spent on that.
pub fn measure(client: &Client) {
    client.0.meters.switch_on();
}

impl Report for Client {
    /// Also measures durations from now on. The registry does not keep the client alive.
    fn report_to(&self, registry: &mut Registry) {
        measure(self);
        registry.register_collector(Box::new(Reported(Arc::downgrade(&self.0))));
    }
}

struct Reported(Weak<Inner>);

impl fmt::Debug for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reported(Client)")
    }
}

impl Collector for Reported {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(inner) = self.0.upgrade() else { return Ok(()) };
        write(&Client(inner), Families::from(encoder))
    }
}

/// Writes the families of a client.
///
/// # Errors
/// The writer's.
pub fn write(client: &Client, mut families: Families<'_>) -> fmt::Result {
    let families = &mut families;
    families.exemplars(
        "rpc_client_call_duration_seconds",
        "Time from the start of a call to its outcome, repetitions included; streams are left out",
        client
            .0
            .meters
            .read()
            .into_iter()
            .map(|(service, error, calls)| ([("service", service), ("error_type", error.to_owned())], calls)),
    )?;
    let ClientStats { connected, pending, streams, frames_taken, frames_refused, unverifiable, late, disconnects } =
        client.stats();
    families.gauge(
        "sealwire_client_connected",
        "Whether the connection to the broker is up",
        f64::from(u8::from(connected)),
    )?;
    families.level("sealwire_client_pending", "Calls that wait for an answer", pending)?;
    families.level("sealwire_client_streams", "Streams that are open", streams)?;
    families.counter("sealwire_client_disconnects", "Connections to the broker that were lost", disconnects)?;
    families.counters(
        "sealwire_client_frames",
        "Frames of streams, and messages in their place that were refused",
        [([("result", "taken")], frames_taken), ([("result", "refused")], frames_refused)],
    )?;
    families.counter(
        "sealwire_client_unverifiable",
        "Messages in place of an answer that were refused: unsigned, forged, altered or misdirected",
        unverifiable,
    )?;
    families.counter("sealwire_client_late", "Messages for which nobody waited", late)?;
    #[expect(clippy::cast_precision_loss, reason = "a time")]
    let until = client.0.credentials.bus().login_end().map(|end| (NO_LABELS, end.until as f64));
    families.gauges(
        "sealwire_client_login_not_after_timestamp_seconds",
        "When the JWT ends with which the client logs in to the broker",
        until,
    )
}
