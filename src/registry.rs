//! What a program reports to a Prometheus registry: measured durations, counts by label, and how families are written.
//! Never grows with what callers send: every set of labels has a bound.

mod durations;
mod families;
mod labelled;
mod outcomes;

pub use durations::Durations;
pub use families::{Families, NO_LABELS};
pub use labelled::{Labelled, OTHER};
pub use outcomes::{Exemplars, error_type};
pub use prometheus_client::collector::Collector;
pub use prometheus_client::encoding::DescriptorEncoder;
pub use prometheus_client::registry::Registry;

/// What can report to a registry.
pub trait Report {
    /// Reports to `registry` from now on, whenever that is encoded. Things of one kind write the same families, so a registry takes one of
    /// each kind.
    fn report_to(&self, registry: &mut Registry);
}
