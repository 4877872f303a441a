//! The same for scripts: one object for each round.
//! Never rounds a count.

use serde_json::{Value, json};

use super::sheet::name;
use super::tally::{Flow, Growing, Pair, Tally};

/// What is known, as one object.
pub(super) fn object(tally: &Tally) -> Value {
    let mut services: Vec<(bool, String, Vec<Value>)> = Vec::new();
    for pair in tally.pairs() {
        let (is_proved, name) = (pair.now.key.is_proved(), name(pair));
        match services.last_mut().filter(|last| (last.0, last.1.as_str()) == (is_proved, name.as_str())) {
            Some((.., replicas)) => replicas.push(replica(pair)),
            None => services.push((is_proved, name, vec![replica(pair)])),
        }
    }
    let services: Vec<Value> = services
        .into_iter()
        .map(|(verified, name, replicas)| json!({ "name": name, "verified": verified, "replicas": replicas }))
        .collect();
    let latest = tally.latest();
    let refused = latest.iter().flat_map(|latest| &latest.faults);
    let refused: serde_json::Map<_, _> =
        refused.map(|(fault, count)| (fault.label().to_owned(), json!(count))).collect();
    json!({ "services": services, "answers_refused": refused, "connected": latest.is_some_and(|it| it.is_connected) })
}

fn replica(pair: &Pair) -> Value {
    let stats = &pair.now.stats;
    let endpoints: Vec<Value> = stats
        .endpoints
        .iter()
        .map(|it| {
            let mut endpoint = counts(&pair.flow(it));
            let more =
                json!({ "name": it.name, "subject": it.subject, "method": it.method, "last_error": it.last_error });
            endpoint
                .as_object_mut()
                .into_iter()
                .for_each(|endpoint| endpoint.extend(more.as_object().cloned().unwrap_or_default()));
            endpoint
        })
        .collect();
    let own = stats.sealwire.as_ref().map(|own| {
        let agents: Vec<Value> =
            own.agents.iter().map(|it| json!({ "agent": it.agent, "reason": it.reason, "count": it.count })).collect();
        json!({ "state": own.state, "guard": own.guard, "guard_ready": own.guard_is_ready, "policy": own.policy,
                "nonces": own.nonces, "shed": own.shed, "answers_unsent": own.unsent, "reconnects": own.reconnected,
                "refused_files": own.refused_files, "refusals": own.refusals, "agent_refusals": agents })
    });
    json!({ "id": pair.now.key.id, "version": stats.version, "endpoints": endpoints, "sealwire": own })
}

fn counts(flow: &Flow) -> Value {
    let Flow { calls, errors, processing_ns, denied } = flow;
    let rate = |growing: &Growing| growing.a_second;
    json!({ "requests": calls.count, "requests_per_second": rate(calls), "errors": errors.count,
            "errors_per_second": rate(errors), "processing_ns": processing_ns.count, "denied": denied.count })
}
