//! Writes families of samples, in whatever format the registry is encoded.
//! Never takes a name or a help text from outside.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeLabelSet, EncodeMetric as _, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

use super::durations::Durations;
use super::outcomes::Exemplars;

/// Writes one family after the other.
#[derive(Debug)]
pub struct Families<'a>(DescriptorEncoder<'a>);

/// The labels of a family that has none.
pub const NO_LABELS: [(&str, &str); 0] = [];

impl<'a> From<DescriptorEncoder<'a>> for Families<'a> {
    fn from(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }
}

impl Families<'_> {
    /// A family of counters. `_total` is added to the name.
    ///
    /// # Errors
    /// The writer's.
    pub fn counters<L: EncodeLabelSet, C: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, C)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in samples {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, C, f64>(&count, None)?;
        }
        Ok(())
    }

    /// One counter without labels.
    ///
    /// # Errors
    /// The writer's.
    pub fn counter(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        self.counters(name, help, [(NO_LABELS, count)])
    }

    /// A family of gauges.
    ///
    /// # Errors
    /// The writer's.
    pub fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// One gauge without labels.
    ///
    /// # Errors
    /// The writer's.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.gauges(name, help, [(NO_LABELS, value)])
    }

    /// One gauge without labels: a number of things.
    ///
    /// # Errors
    /// The writer's.
    #[expect(clippy::cast_precision_loss, reason = "a number of things in memory")]
    pub fn level(&mut self, name: &str, help: &str, level: usize) -> fmt::Result {
        self.gauge(name, help, level as f64)
    }

    /// A fact that is told by labels.
    ///
    /// # Errors
    /// The writer's.
    pub fn info<L: EncodeLabelSet>(&mut self, name: &str, help: &str, labels: L) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }

    /// A family of histograms.
    ///
    /// # Errors
    /// The writer's.
    pub fn durations<'d, L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, &'d Durations)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, durations) in samples {
            let (sum, buckets) = durations.read();
            // Read once: a count that was read later would contradict the buckets.
            let count = buckets.iter().map(|(_, count)| count).sum();
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    /// A family of histograms from buckets that were counted elsewhere, as [`Durations`] are: sum, count, and the count of each bucket by
    /// its upper bound.
    ///
    /// # Errors
    /// The writer's.
    pub fn histogram(&mut self, name: &str, help: &str, sum: f64, count: u64, buckets: &[(f64, u64)]) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
    }

    /// A family of histograms with exemplars.
    ///
    /// # Errors
    /// The writer's.
    pub fn exemplars<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, Exemplars)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, Exemplars(histogram)) in samples {
            histogram.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
