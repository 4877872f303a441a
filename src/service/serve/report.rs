//! Writes how a service stands on its bus, whenever a registry is encoded.
//! Counts nothing itself, so that each number has one source.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Running;
use super::packages::WHAT;
use super::shared::Shared;
use super::state::State;
use crate::files::{Content, read_trusted};
use crate::policy::{PackageStanding, ShadowStanding, Total};
use crate::registry::{Collector, DescriptorEncoder, Families, NO_LABELS, Registry, Report};
use crate::tls::{CertificateValidity, certificates};

impl Report for Running {
    /// How the service stands on its bus. What it does with messages is reported by the service itself.
    fn report_to(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Reported(self.clone())));
    }
}

#[derive(Debug)]
struct Reported(Running);

impl Collector for Reported {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(running) = self;
        let shared = &*running.0;
        let families = &mut Families::from(encoder);
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let is_true = |fact| f64::from(u8::from(fact));
        families.gauge(
            "sealwire_ready",
            "Whether all conditions for taking calls are met",
            is_true(running.conditions().iter().all(|condition| condition.unmet.is_none())),
        )?;
        families.gauge("sealwire_start_time_seconds", "When the service started", at(shared.started_ms()) / 1e3)?;
        let is_connected = !matches!(*shared.state.borrow(), State::Starting(_) | State::Stopped) && !shared.is_lost();
        families.gauge(
            "sealwire_bus_connected",
            "Whether the connection that takes calls is up",
            is_true(is_connected),
        )?;
        families.counter(
            "sealwire_bus_reconnects",
            "Connections to the broker that were lost and established again",
            count(&shared.health.reconnected),
        )?;
        let queued = shared.queue.read();
        families.level("sealwire_queue_messages", "Messages that wait for their turn", queued.waiting)?;
        families.level(
            "sealwire_calls_in_flight",
            "Messages that are being proved or executed, without streams",
            queued.running,
        )?;
        families.counter("sealwire_shed", "Messages for which the queue had no room", count(&shared.health.shed))?;
        families.counter(
            "sealwire_answers_unsent",
            "Answers that could not be published",
            count(&shared.health.unsent),
        )?;
        families.counter(
            "sealwire_questions_unanswered",
            "Questions of other replicas and on $SRV that were not answered",
            count(&shared.health.unasked),
        )?;
        reloads(families, shared)?;
        packages(families, shared)?;
        let until = certificate_until(shared).map(|until| ([("of", "bus")], at(until)));
        families.gauges(
            "sealwire_certificate_not_after_timestamp_seconds",
            "When the first certificate of a chain that is presented to others ends",
            until,
        )?;
        let guard = shared.service.verifier().guard().stats().shared.and_then(|stats| stats.login_until);
        let until = [("bus", shared.bus.login_end().map(|end| end.until)), ("guard", guard)];
        families.gauges(
            "sealwire_login_not_after_timestamp_seconds",
            "When the JWT ends with which a connection logs in to the broker",
            until.into_iter().filter_map(|(of, until)| Some(([("of", of)], at(until?)))),
        )
    }
}

fn reloads(families: &mut Families<'_>, shared: &Shared) -> fmt::Result {
    let tries = shared.health.tries.read();
    let counts = tries.iter().flat_map(|(what, tries)| {
        let what = ("what", *what);
        [([what, ("result", "applied")], tries.applied), ([what, ("result", "refused")], tries.refused)]
    });
    families.counters("sealwire_reloads", "Changed files that were put in force or refused", counts)?;
    let refused = shared.health.refused_reloads();
    let refused: BTreeSet<&str> = refused.iter().map(|refused| refused.what).collect();
    let watched: BTreeSet<&str> = shared.options.watched.iter().map(|watched| watched.name).collect();
    let watched: BTreeSet<&str> = watched.into_iter().chain(shared.options.packages.iter().map(|_| WHAT)).collect();
    families.gauges(
        "sealwire_reload_refused",
        "Whether the present state of files is refused, and the one before is in force",
        watched.into_iter().map(|what| ([("what", what)], f64::from(u8::from(refused.contains(what))))),
    )?;
    let closed = shared.health.refused_reloads().iter().any(|refused| refused.closed);
    families.gauges(
        "sealwire_suspended",
        "Whether everything is refused because what takes rights away could not be read for too long",
        [(NO_LABELS, f64::from(u8::from(closed)))],
    )
}

/// How the policies stand that operators distribute.
fn packages(families: &mut Families<'_>, shared: &Shared) -> fmt::Result {
    let Some(packages) = &shared.options.packages else { return Ok(()) };
    let PackageStanding { active, problem, unkept, shadow, .. } = packages.standing();
    let is_there = |fact: &Option<String>| f64::from(u8::from(fact.is_some()));
    families.gauge(
        "sealwire_policy_package",
        "The number of the package of policies in force; 0 before the first",
        at(active.map_or(0, |active| active.number)),
    )?;
    families.gauge(
        "sealwire_policy_bucket_wrong",
        "Whether the latest policies cannot be had from their bucket, or it holds what operators have not signed or an old package",
        is_there(&problem),
    )?;
    families.gauge(
        "sealwire_policy_package_unkept",
        "Whether the state file of policies could not be written, so that a restart may forget the package in force",
        is_there(&unkept),
    )?;
    families.gauge(
        "sealwire_policy_bucket_age_seconds",
        "Time since the bucket of policies was seen, or since the start if it never was",
        packages.unseen().as_secs_f64(),
    )?;
    shadow_package(families, shadow)
}

/// What a package would decide otherwise that is compared with the one in force.
fn shadow_package(families: &mut Families<'_>, shadow: ShadowStanding) -> fmt::Result {
    let is_wrong = shadow.refused.is_some() || shadow.problem.is_some();
    let compared = shadow.compared.map(|compared| (compared.id.number, compared.comparison(false)));
    let is_ended = compared.as_ref().is_some_and(|(_, comparison)| comparison.ended.is_some());
    families.gauge(
        "sealwire_policy_shadow_package",
        "The number of the shadow package that is compared with the policies in force; 0 if there is none",
        at(compared.as_ref().map_or(0, |(number, _)| *number)),
    )?;
    families.gauge(
        "sealwire_policy_shadow_wrong",
        "Whether the latest shadow package cannot be used, its comparison has ended, or the bucket holds what operators have not signed",
        f64::from(u8::from(is_wrong || is_ended)),
    )?;
    let comparison = compared.map(|(_, comparison)| comparison).unwrap_or_default();
    families.counters(
        "sealwire_policy_shadow_calls",
        "Calls that were compared with the decision of the present shadow package, or skipped for want of time or room",
        [("compared", comparison.compared), ("skipped", comparison.skipped)]
            .map(|(result, count)| ([("result", result)], count)),
    )?;
    families.counters(
        "sealwire_policy_shadow_differences",
        "Calls that would come out otherwise by the present shadow package",
        comparison
            .totals
            .into_iter()
            .map(|Total { now, would, calls }| ([("now", now.as_str()), ("would", would.as_str())], calls)),
    )
}

/// When the certificate ends that the broker is shown, if there is one.
fn certificate_until(shared: &Shared) -> Option<u64> {
    let pem = read_trusted(shared.bus.tls_cert.as_ref()?, Content::Public, &shared.bus.files).ok()?;
    Some(CertificateValidity::of(&certificates(&pem).ok()?).until)
}

#[expect(clippy::cast_precision_loss, reason = "a time")]
fn at(time: u64) -> f64 {
    time as f64
}
