//! What `sealwire authd` tells of itself, and whether it could let anybody in.
//! Never takes a label from a token, a host or a broker.

use std::fmt;
use std::sync::Arc;

use sealwire::internal::nats::Connection;
use sealwire::internal::registry::{Collector, DescriptorEncoder, Families, Registry, Report};
use sealwire::serve::Condition;

use super::backlog::Backlog;
use super::counts::Counts;
use super::judge::Judge;

/// Everything that is told.
#[derive(Clone)]
pub(super) struct State {
    pub(super) counts: Arc<Counts>,
    pub(super) judge: Arc<Judge>,
    pub(super) connection: Arc<Connection>,
    pub(super) backlog: Arc<Backlog>,
}

impl State {
    /// What has to hold, or everybody would be refused.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let lost = self.connection.session().is_none().then(|| "the connection to the broker is lost".to_owned());
        let standings = self.judge.standings();
        let closed: Vec<String> =
            standings.iter().filter_map(|it| Some(format!("{}: {}", it.service, it.closed.as_deref()?))).collect();
        // One service that lets agents in is worth being asked.
        let unmet = (closed.len() == standings.len()).then(|| closed.join("; "));
        vec![Condition { name: "connected", unmet: lost }, Condition { name: "services", unmet }]
    }
}

impl Report for State {
    fn report_to(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(Reported(self.clone())));
    }
}

struct Reported(State);

impl fmt::Debug for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reported").field("counts", &self.0.counts).finish_non_exhaustive()
    }
}

impl Collector for Reported {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let State { counts, judge, connection, backlog } = &self.0;
        let families = &mut Families::from(encoder);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        families.info("sealwire_authd_build", "The version of the program", version)?;
        let is_up = connection.session().is_some();
        families.gauge(
            "sealwire_authd_bus_connected",
            "Whether there is a connection to the broker",
            f64::from(u8::from(is_up)),
        )?;
        let questions = counts.questions.read(|count| *count);
        families.counters(
            "sealwire_authd_questions",
            "Questions of brokers about a connection, by what became of them and why",
            questions.iter().map(|(result, reason, count)| ([("result", result.as_str()), ("reason", reason)], *count)),
        )?;
        families.durations(
            "sealwire_authd_answer_duration_seconds",
            "Time from the receipt of a question to its answer",
            [(sealwire::internal::registry::NO_LABELS, &counts.took)],
        )?;
        families.level("sealwire_authd_waiting_questions", "Questions that wait to be answered", backlog.len())?;
        families.level("sealwire_authd_hosts", "Hosts that have a rate of their own", judge.hosts())?;
        let standings = judge.standings();
        let labels = |service| [("service", service)];
        families.gauges(
            "sealwire_authd_service_open",
            "Whether anybody could be let in for a service",
            standings.iter().map(|it| (labels(it.service.as_str()), f64::from(u8::from(it.closed.is_none())))),
        )?;
        families.gauges(
            "sealwire_authd_files_age_seconds",
            "Time since the token keys and the denylist in files were last known to be those in force",
            standings.iter().map(|it| (labels(it.service.as_str()), it.files_age_s)),
        )?;
        families.gauges(
            "sealwire_authd_revocations_age_seconds",
            "Time since the bucket of revocations was seen",
            standings.iter().filter_map(|it| Some((labels(it.service.as_str()), it.revocations_age_s?))),
        )?;
        let sources = standings.iter().flat_map(|it| it.token_keys.iter().map(move |source| (&it.service, source)));
        #[expect(clippy::cast_precision_loss, reason = "seconds of an age")]
        families.gauges(
            "sealwire_authd_token_keys_age_seconds",
            "Time since the issuer has confirmed the keys by which its tokens are judged",
            sources.filter_map(|(service, source)| {
                Some(([("service", service.as_str()), ("issuer", source.issuer.as_str())], source.age_s? as f64))
            }),
        )
    }
}
