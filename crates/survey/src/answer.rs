//! One answer to `$SRV.STATS`, as a replica of any service describes itself.
//! Never takes a name that could not be a label, or a number that Prometheus could not hold.

use std::collections::{BTreeMap, BTreeSet};

use sealwire::internal::wire::Audience;
use sealwire::{MethodName, Name};
use serde::{Deserialize, Deserializer};

use super::fault::Fault;
use super::label;

/// What a replica says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReplicaStats {
    /// The service's name.
    pub service: String,
    /// The replica's id.
    pub id: String,
    /// Empty if it is none.
    pub version: String,
    /// The audience that a service of ours has.
    pub audience: Option<String>,
    /// By name and subject, each once.
    pub endpoints: Vec<Endpoint>,
    /// How many endpoints are left out: too many, twice the same, or with names that no endpoint may have.
    pub left_out: usize,
    /// What services of ours say beside that.
    pub sealwire: Option<SealwireStats>,
}

/// One endpoint of a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name.
    pub name: String,
    /// The subject, with which it is unique.
    pub subject: String,
    /// How many requests came.
    pub requests: u64,
    /// How many of them ended in an error.
    pub errors: u64,
    /// How long all of them took together, in nanoseconds.
    pub processing_ns: u64,
    /// The last error, up to a bound: a text from the wire.
    pub last_error: String,
    /// The method of a service of ours.
    pub method: Option<String>,
    /// How many calls of it the policy denied.
    pub denied: u64,
}

/// What a service of ours says beside what all services say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SealwireStats {
    /// A word, such as `ready`.
    pub state: String,
    /// `local` or `shared`.
    pub guard: String,
    /// Whether the replay guard vouches for messages that are issued now.
    pub guard_is_ready: bool,
    /// The revision of its policy.
    pub policy: String,
    /// How often each refusal occurred, by its label.
    pub refusals: BTreeMap<String, u64>,
    /// Refusals by agent, the most frequent, if the service tells them.
    pub agents: Vec<AgentRefusals>,
    /// The kinds of files whose present state is refused.
    pub refused_files: BTreeSet<String>,
    /// Messages for which its queue had no room.
    pub shed: u64,
    /// Answers that could not be published.
    pub unsent: u64,
    /// Connections that were lost and established again.
    pub reconnected: u64,
    /// Nonces that its guard holds.
    pub nonces: u64,
}

/// Refused messages and denied calls of one agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentRefusals {
    /// The agent.
    pub agent: String,
    /// The refusal's label.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// The largest answer that is read, in bytes: one of 500 methods has about 200 KB.
pub(crate) const MAX_ANSWER: usize = 512 * 1024;
/// The most endpoints of a replica.
const MAX_ENDPOINTS: usize = 512;
/// The most labels of refusals; there are about fifty.
const MAX_REASONS: usize = 64;
/// The most pairs of an agent and a refusal.
const MAX_AGENTS: usize = 64;
/// The most characters of a last error.
const MAX_ERROR: usize = 200;
/// The largest number that a floating-point number holds exactly, and with it the text formats of metrics.
const MAX_COUNT: u64 = (1 << 53) - 1;

const TYPE: &str = "io.nats.micro.v1.stats_response";

/// A number that may be written as 3, 3.0 or 3e0: not every language has integers.
#[derive(Debug, Clone, Copy, Default)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(deserializer)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0 and 2^53")]
        #[expect(clippy::cast_precision_loss, reason = "exact: it is below 2^53")]
        let count = number.as_u64().or_else(|| {
            let float = number.as_f64().filter(|float| (0.0..=MAX_COUNT as f64).contains(float))?;
            Some(float as u64)
        });
        count.map(Self).ok_or_else(|| serde::de::Error::custom("a count that is negative or too large"))
    }
}

/// As on the wire. Go writes null for an empty list.
#[derive(Deserialize)]
struct WireAnswer {
    r#type: String,
    name: String,
    id: String,
    version: Option<String>,
    metadata: Option<BTreeMap<String, String>>,
    endpoints: Option<Vec<WireEndpoint>>,
}

#[derive(Deserialize)]
struct WireEndpoint {
    name: String,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    num_requests: Count,
    #[serde(default)]
    num_errors: Count,
    #[serde(default)]
    processing_time: Count,
    last_error: Option<String>,
    data: Option<serde_json::Value>,
}

/// `data` of the endpoint that stands for all of them, of a service of ours.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireSealwire {
    refusals: BTreeMap<String, Count>,
    agent_refusals: Vec<WireAgent>,
    reloads_refused: Vec<WireReload>,
    shed: Count,
    answers_unsent: Count,
    connections_reconnected: Count,
    guard_live_nonces: Count,
}

#[derive(Deserialize)]
struct WireAgent {
    agent: Name,
    reason: String,
    count: Count,
}

#[derive(Deserialize)]
struct WireReload {
    what: String,
}

/// `data` of a method's endpoint.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireMethod {
    method: Option<MethodName>,
    denied: Count,
}

impl ReplicaStats {
    /// Reads an answer, at most 512 KiB of JSON.
    ///
    /// # Errors
    ///
    /// If it is no answer to that question, or a count in it cannot be true.
    pub fn read(payload: &[u8]) -> Result<Self, Fault> {
        let wire: WireAnswer = serde_json::from_slice(payload).map_err(|_| Fault::Malformed)?;
        let fits = wire.r#type == TYPE && label::is_name(&wire.name, label::MAX_SERVICE) && label::is_id(&wire.id);
        if !fits {
            return Err(Fault::Malformed);
        }
        let metadata = wire.metadata.unwrap_or_default();
        let audience = metadata.get("sealwire.audience").filter(|audience| Audience::parse(audience).is_some());
        // Services of ours have an endpoint that is the sum of all others, and more.
        let sum = audience.and_then(|_| metadata.get("sealwire.subject"));
        let mut stats = Self {
            service: wire.name,
            id: wire.id,
            version: wire.version.filter(|version| label::is_word(version)).unwrap_or_default(),
            audience: audience.cloned(),
            ..Self::default()
        };
        let mut own = None;
        let mut known = BTreeSet::new();
        for endpoint in wire.endpoints.into_iter().flatten() {
            let is_sum = sum.is_some_and(|subject| *subject == endpoint.subject);
            if is_sum && own.is_none() {
                own = Some(SealwireStats::read(&metadata, endpoint.data)?);
                continue;
            }
            let fits = label::is_name(&endpoint.name, label::MAX_ENDPOINT) && label::is_subject(&endpoint.subject);
            let is_new = fits && known.insert((endpoint.name.clone(), endpoint.subject.clone()));
            if is_sum || !is_new || stats.endpoints.len() >= MAX_ENDPOINTS {
                stats.left_out += 1;
                continue;
            }
            stats.endpoints.push(Endpoint::read(endpoint, audience.is_some())?);
        }
        stats.sealwire = own;
        Ok(stats)
    }
}

impl ReplicaStats {
    /// What becomes labels of series, beside the name and the id: whatever is new among it makes series.
    pub(crate) fn marks(&self) -> BTreeSet<Mark<'_>> {
        let endpoints = self.endpoints.iter().map(|it| Mark::Endpoint(&it.name, &it.subject, it.method.as_deref()));
        let own = self.sealwire.iter().flat_map(|own| {
            let files = own.refused_files.iter().map(|what| Mark::RefusedFile(what));
            files.chain([Mark::Policy(&own.policy), Mark::Guard(&own.guard)])
        });
        endpoints.chain(own).chain([Mark::Version(&self.version)]).collect()
    }
}

/// A text that becomes a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark<'a> {
    Endpoint(&'a str, &'a str, Option<&'a str>),
    Version(&'a str),
    Policy(&'a str),
    Guard(&'a str),
    RefusedFile(&'a str),
}

impl Endpoint {
    fn read(wire: WireEndpoint, is_own: bool) -> Result<Self, Fault> {
        let data = wire.data.filter(|_| is_own).map(serde_json::from_value::<WireMethod>);
        let WireMethod { method, denied } = data.transpose().map_err(|_| Fault::Malformed)?.unwrap_or_default();
        Ok(Self {
            name: wire.name,
            subject: wire.subject,
            requests: bounded(wire.num_requests)?,
            errors: bounded(wire.num_errors)?,
            processing_ns: bounded(wire.processing_time)?,
            last_error: wire.last_error.unwrap_or_default().chars().take(MAX_ERROR).collect(),
            method: method.map(|method| method.to_string()),
            denied: bounded(denied)?,
        })
    }

    /// What makes it unique among those of a replica.
    pub(crate) fn key(&self) -> (&str, &str) {
        (&self.name, &self.subject)
    }
}

impl SealwireStats {
    fn read(metadata: &BTreeMap<String, String>, data: Option<serde_json::Value>) -> Result<Self, Fault> {
        let data = data.map(serde_json::from_value::<WireSealwire>).transpose();
        let data = data.map_err(|_| Fault::Malformed)?.unwrap_or_default();
        let word = |key: &str| metadata.get(key).filter(|word| label::is_word(word)).cloned().unwrap_or_default();
        let refusals = data.refusals.into_iter().filter(|(reason, _)| label::is_word(reason)).take(MAX_REASONS);
        let refusals = refusals.map(|(reason, count)| Ok((reason, bounded(count)?))).collect::<Result<_, Fault>>()?;
        let mut known = BTreeSet::new();
        let agents = data
            .agent_refusals
            .into_iter()
            .filter(|one| label::is_word(&one.reason) && known.insert((one.agent.clone(), one.reason.clone())));
        let agents = agents.take(MAX_AGENTS).map(|one| {
            Ok(AgentRefusals { agent: one.agent.to_string(), reason: one.reason, count: bounded(one.count)? })
        });
        let files = data.reloads_refused.into_iter().map(|reload| reload.what.replace(' ', "_"));
        Ok(Self {
            state: word("sealwire.state"),
            guard: word("sealwire.guard"),
            guard_is_ready: word("sealwire.guard.ready") == "true",
            policy: word("sealwire.policy"),
            refusals,
            agents: agents.collect::<Result<_, Fault>>()?,
            refused_files: files.filter(|what| label::is_word(what)).take(MAX_FILES).collect(),
            shed: bounded(data.shed)?,
            unsent: bounded(data.answers_unsent)?,
            reconnected: bounded(data.connections_reconnected)?,
            nonces: bounded(data.guard_live_nonces)?,
        })
    }
}

/// The most kinds of files.
const MAX_FILES: usize = 16;

fn bounded(Count(count): Count) -> Result<u64, Fault> {
    if count <= MAX_COUNT { Ok(count) } else { Err(Fault::Implausible) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::{Value, json};

    use super::*;

    fn read(answer: &Value) -> Result<ReplicaStats, Fault> {
        ReplicaStats::read(answer.to_string().as_bytes())
    }

    fn answer(changed: &Value) -> Value {
        let mut answer = json!({ "type": TYPE, "name": "orders", "id": "A1", "version": "1.0.0", "metadata": null,
            "started": "2026-11-26T00:00:00Z", "endpoints": null });
        answer.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        answer
    }

    #[test]
    fn an_answer_of_any_micro_service_is_read() {
        let endpoint = json!({ "name": "place", "subject": "orders.place", "queue_group": "q", "num_requests": 3,
            "num_errors": 1.0, "last_error": "400: no", "processing_time": 1.5e3, "average_processing_time": 500,
            "data": ["anything"] });
        let stats = read(&answer(&json!({ "endpoints": [endpoint.clone(), endpoint] }))).unwrap();
        let expected = Endpoint {
            name: "place".into(),
            subject: "orders.place".into(),
            requests: 3,
            errors: 1,
            processing_ns: 1_500,
            last_error: "400: no".into(),
            ..Endpoint::default()
        };
        assert_eq!((&stats.endpoints[..], stats.left_out, &stats.sealwire), (&[expected][..], 1, &None));
        assert_eq!(read(&answer(&json!({}))).unwrap().endpoints, []);
    }

    #[test]
    fn what_is_no_answer_or_cannot_be_counted_is_refused() {
        let of = |endpoint: Value| answer(&json!({ "endpoints": [endpoint] }));
        for (wrong, fault) in [
            (json!([]), Fault::Malformed),
            (answer(&json!({ "type": "io.nats.micro.v1.ping_response" })), Fault::Malformed),
            (answer(&json!({ "name": "a\"} 1\nx{y=\"" })), Fault::Malformed),
            (answer(&json!({ "name": "a.b" })), Fault::Malformed),
            (answer(&json!({ "name": "x".repeat(65) })), Fault::Malformed),
            (answer(&json!({ "id": "a\u{1b}[2J" })), Fault::Malformed),
            (answer(&json!({ "id": 5 })), Fault::Malformed),
            (of(json!({ "name": "e", "subject": "s", "num_requests": -1 })), Fault::Malformed),
            (of(json!({ "name": "e", "subject": "s", "num_requests": "1" })), Fault::Malformed),
            (of(json!({ "name": "e", "subject": "s", "num_errors": 1e300 })), Fault::Malformed),
            (of(json!({ "name": "e", "subject": "s", "processing_time": u64::MAX })), Fault::Implausible),
            (of(json!({ "name": "e", "subject": "s", "num_requests": MAX_COUNT + 1 })), Fault::Implausible),
        ] {
            assert_eq!(read(&wrong), Err(fault), "{wrong}");
        }
        for text in ["", "NaN", "{", "{\"num_requests\":1e999}", &"[".repeat(200_000)] {
            assert_eq!(ReplicaStats::read(text.as_bytes()), Err(Fault::Malformed));
        }
        let count = json!({ "name": "e", "subject": "s", "num_requests": MAX_COUNT });
        assert_eq!(read(&of(count)).unwrap().endpoints[0].requests, MAX_COUNT);
    }

    #[test]
    fn endpoints_beyond_the_bound_or_with_other_names_are_left_out() {
        let endpoints: Vec<Value> =
            (0..5_000).map(|at| json!({ "name": format!("e{at}"), "subject": format!("s.{at}") })).collect();
        let stats = read(&answer(&json!({ "endpoints": endpoints }))).unwrap();
        assert_eq!((stats.endpoints.len(), stats.left_out), (MAX_ENDPOINTS, 5_000 - MAX_ENDPOINTS));
        for wrong in [json!({ "name": "a b", "subject": "s" }), json!({ "name": "a", "subject": "s\"" })] {
            assert_eq!(read(&answer(&json!({ "endpoints": [wrong] }))).unwrap().left_out, 1);
        }
    }

    #[test]
    fn what_a_service_of_ours_says_has_bounds() {
        let many: BTreeMap<String, u64> = (0..1_000).map(|at| (format!("reason_{at:04}"), at)).collect();
        let agents: Vec<Value> =
            (0..1_000).map(|at| json!({ "agent": format!("a{at}"), "reason": "stale", "count": at })).collect();
        let data = json!({ "refusals": many, "agent_refusals": agents, "shed": 7, "guard_live_nonces": 9,
            "reloads_refused": [{ "what": "key ring", "since": "", "closed": false }] });
        let endpoints = json!([
            { "name": "rpc", "subject": "rpc.v1.math.>", "num_requests": 10, "data": data },
            { "name": "math_add", "subject": "rpc.v1.math.*.math.add", "num_requests": 4,
              "data": { "method": "math/add", "denied": 2 } },
        ]);
        let metadata = json!({ "sealwire.audience": "dev/math", "sealwire.subject": "rpc.v1.math.>",
            "sealwire.state": "ready", "sealwire.guard": "local", "sealwire.guard.ready": "true", "sealwire.policy": "x\ny" });
        let stats = read(&answer(&json!({ "name": "math", "metadata": metadata, "endpoints": endpoints }))).unwrap();
        let own = stats.sealwire.unwrap();
        assert_eq!((own.refusals.len(), own.agents.len(), own.shed, own.nonces), (MAX_REASONS, MAX_AGENTS, 7, 9));
        assert_eq!((own.state.as_str(), own.policy.as_str(), own.guard_is_ready), ("ready", "", true));
        assert_eq!(own.refused_files, BTreeSet::from(["key_ring".to_owned()]));
        // The endpoint that is the sum of the others is not counted a second time.
        let [endpoint] = &stats.endpoints[..] else { panic!("{:?}", stats.endpoints) };
        assert_eq!((endpoint.method.as_deref(), endpoint.denied, endpoint.requests), (Some("math/add"), 2, 4));
    }

    #[test]
    fn a_last_error_is_cut() {
        let error = "é".repeat(10_000);
        let endpoint = json!({ "name": "e", "subject": "s", "last_error": error });
        let stats = read(&answer(&json!({ "endpoints": [endpoint] }))).unwrap();
        assert_eq!(stats.endpoints[0].last_error.chars().count(), MAX_ERROR);
    }
}
