//! What was found, as families of metrics.
//! Never takes a text as a label that has not been checked, and writes what only services of ours say for proved answers alone.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use sealwire::internal::registry::{Collector, DescriptorEncoder, Families, NO_LABELS, OTHER};
use sealwire::metrics::{Registry, Report};

use super::answer::{Endpoint, SealwireStats};
use super::books::Replica;
use super::reasons::meaning;
use super::survey::{Snapshot, Survey};

impl Report for Survey {
    fn report_to(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Reported(self.clone())));
    }
}

#[derive(Debug)]
struct Reported(Survey);

impl Collector for Reported {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.look();
        let families = &mut Families::from(encoder);
        all(families, &snapshot.replicas)?;
        ours(families, &snapshot.replicas)?;
        survey(families, &snapshot)
    }
}

/// What identifies a replica.
fn labels(replica: &Replica) -> [(&'static str, &str); 4] {
    let key = &replica.key;
    [
        ("environment", &key.environment),
        ("service", &key.service),
        ("id", &key.id),
        ("verified", if key.is_proved() { "true" } else { "false" }),
    ]
}

/// What all micro services count.
fn all(families: &mut Families<'_>, replicas: &[Arc<Replica>]) -> fmt::Result {
    fn of<C>(
        replicas: &[Arc<Replica>],
        count: impl Fn(&Endpoint) -> C,
    ) -> impl Iterator<Item = ([(&'static str, &str); 6], C)> {
        replicas.iter().flat_map(|replica| replica.stats.endpoints.iter().map(move |endpoint| (replica, endpoint))).map(
            move |(replica, endpoint)| {
                let [environment, service, id, verified] = labels(replica);
                let (name, subject) = (("endpoint", endpoint.name.as_str()), ("subject", endpoint.subject.as_str()));
                ([environment, service, id, name, subject, verified], count(endpoint))
            },
        )
    }
    families.counters(
        "nats_micro_requests",
        "Requests that an endpoint of a NATS micro service has taken, as it says",
        of(replicas, |endpoint| endpoint.requests),
    )?;
    families.counters(
        "nats_micro_errors",
        "Requests that ended in an error, as the service says",
        of(replicas, |endpoint| endpoint.errors),
    )?;
    families.counters(
        "nats_micro_processing_seconds",
        "Time that all these requests took together, as the service says",
        of(replicas, |endpoint| seconds(endpoint.processing_ns)),
    )?;
    let info = |replica: &Arc<Replica>| replica.stats.version.clone();
    families.gauges(
        "nats_micro_replica",
        "A replica of a NATS micro service that answers",
        replicas.iter().map(|replica| {
            let [environment, service, id, verified] = labels(replica).map(|(name, text)| (name, text.to_owned()));
            ([environment, service, id, ("version", info(replica)), verified], 1.0)
        }),
    )
}

/// What services of ours say beside that, if their signatures have proved it.
fn ours(families: &mut Families<'_>, replicas: &[Arc<Replica>]) -> fmt::Result {
    fn each(replicas: &[Arc<Replica>]) -> impl Iterator<Item = ([(&'static str, &str); 3], &SealwireStats)> {
        let proved = replicas.iter().filter(|replica| replica.key.is_proved());
        proved.filter_map(|replica| {
            let [environment, service, id, _] = labels(replica);
            Some(([environment, service, id], replica.stats.sealwire.as_ref()?))
        })
    }
    fn with<'l>(
        [environment, service, id]: [(&'static str, &'l str); 3],
        name: &'static str,
        text: &'l str,
    ) -> [(&'static str, &'l str); 4] {
        [environment, service, id, (name, text)]
    }
    let flag = |holds: bool| f64::from(u8::from(holds));
    families.gauges(
        "sealwire_replica_ready",
        "Whether a replica of a Sealwire service takes messages, as it has signed",
        each(replicas).map(|(labels, own)| (labels, flag(own.state == "ready"))),
    )?;
    families.gauges(
        "sealwire_replica_policy",
        "The policy in force in a replica",
        each(replicas).map(|(labels, own)| (with(labels, "revision", &own.policy), 1.0)),
    )?;
    families.gauges(
        "sealwire_replica_guard_up",
        "Whether its replay guard vouches for messages that are issued now",
        each(replicas).map(|(labels, own)| (with(labels, "guard", &own.guard), flag(own.guard_is_ready))),
    )?;
    families.gauges(
        "sealwire_replica_guard_nonces",
        "Nonces that its replay guard holds",
        each(replicas).map(|(labels, own)| (labels, number(own.nonces))),
    )?;
    families.counters(
        "sealwire_replica_refusals",
        "Messages, entries of batches and answers that it refused",
        each(replicas).flat_map(|(labels, own)| {
            reasons(&own.refusals).into_iter().map(move |(reason, count)| (with(labels, "reason", reason), count))
        }),
    )?;
    let proved = replicas.iter().filter(|replica| replica.key.is_proved());
    let denied = proved.flat_map(|replica| {
        let [environment, service, id, _] = labels(replica);
        let methods = replica.stats.endpoints.iter().filter_map(|it| Some((it.method.as_deref()?, it.denied)));
        methods.map(move |(method, denied)| (with([environment, service, id], "method", method), denied))
    });
    families.counters("sealwire_replica_denials", "Calls of a method that its policy denied", denied)?;
    families.gauges(
        "sealwire_replica_reload_refused",
        "Files whose present state it refuses",
        each(replicas)
            .flat_map(|(labels, own)| own.refused_files.iter().map(move |what| (with(labels, "what", what), 1.0))),
    )?;
    families.counters(
        "sealwire_replica_shed",
        "Messages for which its queue had no room",
        each(replicas).map(|(labels, own)| (labels, own.shed)),
    )?;
    families.counters(
        "sealwire_replica_answers_unsent",
        "Answers that it could not publish",
        each(replicas).map(|(labels, own)| (labels, own.unsent)),
    )?;
    families.counters(
        "sealwire_replica_reconnects",
        "Its connections to the broker that were lost and established again",
        each(replicas).map(|(labels, own)| (labels, own.reconnected)),
    )
}

/// Refusals by reason. What is not known here is one reason more: a service's key must not suffice to make up labels.
fn reasons(refusals: &BTreeMap<String, u64>) -> BTreeMap<&str, u64> {
    let mut known: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, count) in refusals {
        let reason = if meaning(reason).is_some() { reason } else { OTHER };
        let sum = known.entry(reason).or_default();
        *sum = sum.saturating_add(*count);
    }
    known
}

/// How the survey itself is doing.
fn survey(families: &mut Families<'_>, snapshot: &Snapshot) -> fmt::Result {
    let proved = snapshot.replicas.iter().filter(|replica| replica.key.is_proved()).count();
    let others = snapshot.replicas.len() - proved;
    families.info(
        "sealwire_exporter_build",
        "The version of the exporter",
        [("version", env!("CARGO_PKG_VERSION"))],
    )?;
    families.gauge(
        "sealwire_exporter_bus_connected",
        "Whether the exporter has a connection to the broker",
        f64::from(u8::from(snapshot.is_connected)),
    )?;
    families.counter("sealwire_exporter_rounds", "Rounds in which the exporter has asked", snapshot.rounds)?;
    let latest = snapshot.latest.and_then(|latest| latest.duration_since(UNIX_EPOCH).ok());
    families.gauges(
        "sealwire_exporter_last_round_timestamp_seconds",
        "When the last round ended: so old are the numbers",
        latest.map(|latest| (NO_LABELS, latest.as_secs_f64())),
    )?;
    families.gauges(
        "sealwire_exporter_replicas",
        "Replicas that have answered in the last rounds",
        [([("verified", "true")], proved), ([("verified", "false")], others)]
            .map(|(labels, count)| (labels, number(count as u64))),
    )?;
    families.counters(
        "sealwire_exporter_answers_refused",
        "Answers that are not shown, by the reason",
        snapshot.faults.iter().map(|(fault, count)| ([("reason", fault.label())], *count)),
    )?;
    families.counter(
        "sealwire_exporter_endpoints_left_out",
        "Endpoints of answers that are left out: too many, named twice, or with names that no endpoint may have",
        snapshot.left_out,
    )
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53")]
fn number(count: u64) -> f64 {
    count as f64
}

fn seconds(ns: u64) -> f64 {
    number(ns) / 1e9
}
