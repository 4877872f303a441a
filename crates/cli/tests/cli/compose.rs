//! docker-compose.yml unchanged: brought up, watched, brokers and replicas killed, restarted, scaled, a key rotated, taken down.
//!
//! The images of others are stand-ins made of this machine's packages, see the file `stand-ins`; the project's own is made by
//! `deploy/image/build`. Where there is no Docker engine, one line says so; with CI=true that
//! is a failure. Progress and figures are written past the test harness, so that they show in the log of a run that passes.

mod enrol;
mod gateway;
mod load;
mod pages;
mod stack;

use std::collections::BTreeSet;
use std::time::Duration;

use load::{Kind, Load};
use pages::Pages;
use serde_json::Value;
use stack::Stack;
pub(crate) use stack::say;

const ALL_BROKERS: [&str; 3] = ["nats-1", "nats-2", "nats-3"];

/// How long a call waits for its answer while something is killed that may take the answer along.
const BRIEF: Duration = Duration::from_secs(3);
/// The same while no answer may be lost. On a machine that stalls, an answer may take seconds without being lost; one that has
/// not come after this long will not come.
const PATIENT: Duration = Duration::from_secs(20);
/// How often to retry something that a stalling machine hides.
const TRIES: usize = 3;

/// `cargo test -- --skip takes_minutes` leaves it out.
mod takes_minutes {
    use super::*;

    /// One test, since starting everything is what takes time.
    #[test]
    fn compose_set_up_holds_through_kills_restarts_and_scaling() {
        let Some(stack) = Stack::up() else { return };
        started_in_order(&stack);
        hardened(&stack);
        encrypted_and_replicated(&stack);
        let mut pages = Pages::read();
        agent_is_answered(&stack, &mut pages);
        enrol::agent_enrols_by_its_public_key(&stack, &pages);
        gateway::callers_come_in_with_tokens(&stack, &mut pages);
        let mut load = rolling_restart_loses_nothing(&stack, &mut pages);
        load.add(&killed_replica_costs_what_it_had_in_flight(&stack, &mut pages));
        load.add(&restarted_brokers_cost_no_call_its_answer(&stack, &mut pages));
        load.add(&killed_broker_is_missed_by_nobody(&stack, &mut pages));
        load.add(&killed_leader_is_replaced(&stack));
        load.add(&scaled_up_without_a_pause(&stack, &mut pages));
        key_is_rotated(&stack, &mut pages);
        executed_once(&stack, &load);
        every_replica_is_scraped(&stack, &mut pages);
        pages.run(&stack, "docker compose down --volumes");
        agents_come_in_by_their_tokens(&stack, &mut pages);
        pages.finish();
        stack.down();
    }
}

/// Secrets, then brokers, then the service, then the agent: each once the one before it is ready.
fn started_in_order(stack: &Stack) {
    let state = |service: &str, replica, pointer: &str| {
        let state = stack.inspect(service, replica);
        state.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{service}: {pointer}")).to_owned()
    };
    let init = state("init", 1, "/State/FinishedAt");
    assert_eq!(stack.inspect("init", 1)["State"]["ExitCode"], 0);
    let replicas: Vec<String> = (1..=2).map(|replica| state("demo", replica, "/State/StartedAt")).collect();
    for broker in ALL_BROKERS {
        let started = state(broker, 1, "/State/StartedAt");
        assert!(init < started, "{broker} started at {started}, the secrets were there at {init}");
        assert_eq!(state(broker, 1, "/State/Health/Status"), "healthy");
        assert!(replicas.iter().all(|replica| started < *replica));
    }
    let agent = state("planner", 1, "/State/StartedAt");
    for (replica, started) in (1..).zip(&replicas) {
        assert_eq!(state("demo", replica, "/State/Health/Status"), "healthy");
        assert!(*started < agent);
    }
}

/// No container runs as root, can write anything but its volumes, or publishes a port.
fn hardened(stack: &Stack) {
    let containers = [("init", 1), ("nats-1", 1), ("nats-2", 1), ("nats-3", 1), ("demo", 1), ("demo", 2), ("bank", 1)];
    let others = [("glossary", 1), ("glossary-mcp", 1), ("gateway", 1), ("issuer", 1), ("planner", 1)];
    for (service, replica) in containers.into_iter().chain(others) {
        is_hardened(stack, service, replica);
    }
    let network: Value = serde_json::from_str(&stack.docker(&["network", "inspect", &stack.name("bus")])).unwrap();
    assert_eq!(network[0]["Internal"], true);
    let network: Value = serde_json::from_str(&stack.docker(&["network", "inspect", &stack.name("callers")])).unwrap();
    assert_eq!(network[0]["Options"]["com.docker.network.bridge.enable_ip_masquerade"], "false");
    // No shell and no package manager: the command itself is all there is to run.
    assert!(!stack.try_docker(&["exec", &stack.container("demo", 1), "sh", "-c", "true"]).0);
}

fn is_hardened(stack: &Stack, service: &str, replica: u32) {
    let found = stack.inspect(service, replica);
    let host = &found["HostConfig"];
    assert_eq!(found["Config"]["User"], "65532:65532", "{service}");
    assert_eq!(host["ReadonlyRootfs"], true, "{service}");
    assert_eq!(host["Privileged"], false, "{service}");
    assert_eq!(host["CapDrop"], serde_json::json!(["ALL"]), "{service}");
    assert_eq!(host["SecurityOpt"], serde_json::json!(["no-new-privileges:true"]), "{service}");
    let published = host["PortBindings"].as_object().cloned().unwrap_or_default();
    let published = serde_json::Value::from(published);
    let here = |port: &str| serde_json::json!([{ "HostIp": "127.0.0.1", "HostPort": port }]);
    let expected = match service {
        "gateway" => serde_json::json!({ "8443/tcp": here(&stack.gateway_port) }),
        "prometheus" => serde_json::json!({ "9090/tcp": here(&stack.prometheus_port) }),
        _ => serde_json::json!({}),
    };
    assert_eq!(published, expected, "{service}");
    assert!(host["Memory"].as_u64().unwrap() > 0 && host["PidsLimit"].as_u64().unwrap() > 0, "{service}");
}

fn encrypted_and_replicated(stack: &Stack) {
    for broker in ALL_BROKERS {
        let figures = stack.monitor(broker, "varz");
        assert_eq!((&figures["tls_required"], &figures["cluster"]["tls_required"]), (&true.into(), &true.into()));
        assert_eq!(figures["cluster"]["tls_verify"], true);
        assert_eq!(figures["max_payload"], 262_144);
    }
    // The brokers are asked one after the other, so a guard that moves meanwhile may be seen at two.
    // Three for each replica (agents, answers, guard), the agent's and the gateway's.
    let connections = stack.wait_for("all connections, one of each replica's guard", || {
        let of = |broker| stack.monitor(broker, "connz?auth=true")["connections"].as_array().unwrap().clone();
        let all: Vec<Value> = ALL_BROKERS.into_iter().flat_map(of).collect();
        let guards = all.iter().filter(|connection| connection["account"] != "SEALWIRE").count();
        (guards == 4 && all.len() >= 14).then_some(all)
    });
    for connection in &connections {
        assert_eq!(connection["tls_version"], "1.3", "{connection}");
        assert!(connection["authorized_user"].as_str().unwrap().starts_with('U'), "{connection}");
        let account = connection["account"].as_str().unwrap();
        assert!(["SEALWIRE", "GUARD_demo", "GUARD_bank", "GUARD_glossary"].contains(&account), "{connection}");
    }
    let users: BTreeSet<&str> =
        connections.iter().map(|connection| connection["authorized_user"].as_str().unwrap()).collect();
    assert_eq!(users.len(), 8, "three services, their guards, the agent and the gateway each have their own");
    for account in ["GUARD_demo", "GUARD_bank", "GUARD_glossary"] {
        let stream = guard_stream(stack, account);
        assert_eq!(
            (&stream["config"]["num_replicas"], &stream["config"]["storage"]),
            (&3.into(), &"memory".into()),
            "{account}"
        );
    }
    say(&format!(
        "three brokers, {} connections, all with TLS 1.3 and an own user; guard stream with 3 copies",
        connections.len()
    ));
}

/// The one stream of a guard's account, as a broker describes it.
fn guard_stream(stack: &Stack, account: &str) -> Value {
    let figures = stack.monitor("nats-1", "jsz?accounts=true&streams=true&config=true");
    let accounts = figures["account_details"].as_array().unwrap();
    let found =
        accounts.iter().find(|found| found["name"] == account).unwrap_or_else(|| panic!("{account}: {figures}"));
    let streams = found["stream_detail"].as_array().unwrap();
    assert_eq!(streams.len(), 1, "{streams:?}");
    streams[0].clone()
}

fn agent_is_answered(stack: &Stack, pages: &mut Pages) {
    stack.wait_for("the agent's calls", || {
        (stack.log("planner").lines().filter(|line| line.contains("  5  ")).count() >= 3).then_some(())
    });
    assert!(pages.run(stack, "docker compose ps").contains("healthy"));
    for logs in ["logs --tail", "logs --follow"] {
        // A command that never ends is watched for some seconds, in which a stalling machine may show nothing.
        stack.wait_for("the agent's calls, by compose", || {
            let shown = pages.run(stack, logs);
            (shown.contains("  5  ") && shown.contains("message_id=")).then_some(())
        });
    }
    say(&format!("the agent's log: {}", stack.log("planner").lines().last().unwrap_or_default().trim()));
    let ping = pages.run(stack, "operator ping");
    assert!(ping.contains("2 of 2 take messages"), "{ping}");
    let called = pages.run(stack, "operator/teller.creds.json");
    assert!(called.contains(r#""amount":500"#), "{called}");
    for denied in ["operator/auditor.creds.json", "policy explain"] {
        let (code, said) = pages.try_run(stack, denied);
        assert_eq!(code, Some(10), "{said}");
    }
}

fn rolling_restart_loses_nothing(stack: &Stack, pages: &mut Pages) -> Load {
    let mut tried = 0;
    loop {
        tried += 1;
        let load = stack.load(PATIENT);
        std::thread::sleep(Duration::from_secs(1));
        pages.run(stack, "deploy/rolling-restart");
        std::thread::sleep(Duration::from_secs(1));
        let load = load.finish();
        say(&format!("rolling restart under load: {load}"));
        stack.none_lost(&load);
        // If the machine stalls for seconds, no broker answers the guard, which refuses: that says nothing about restarts.
        if is_hardly_refused(&load) && load.results() > 500 {
            return load;
        }
        assert!(tried < TRIES, "{load}; the last refusal: {:?}", load.failures().last());
    }
}

/// On a machine that stalls, the guard may refuse a few calls.
fn is_hardly_refused(load: &Load) -> bool {
    load.failures().count() <= load.results() / 100
}

fn killed_replica_costs_what_it_had_in_flight(stack: &Stack, pages: &mut Pages) -> Load {
    let load = stack.load(BRIEF);
    std::thread::sleep(Duration::from_secs(1));
    let killed = load.now();
    pages.run(stack, "docker kill");
    std::thread::sleep(Duration::from_secs(3));
    let load = load.finish();
    say(&format!("replica killed under load: {load}"));
    // Each worker has one call in flight; the next goes to the other replica. Calls that the guard refuses on a stalling machine were not
    // executed, and say nothing about the kill: see `is_hardly_refused`.
    let stalled = |text: &str| text.contains("\"code\":-32014");
    let costs: Vec<_> = load.failures().filter(|(_, text)| !stalled(text)).collect();
    assert!(costs.len() <= 2 * load.workers, "{costs:?}");
    assert!(load.results_after(killed + Duration::from_secs(2)) > 50, "{load}");
    pages.run(stack, "docker compose up --detach");
    stack.wait_healthy("demo", 1);
    stack.wait_healthy("demo", 2);
    load
}

/// A broker that is told to stop hands over the streams that it leads. Its clients find another broker.
fn restarted_brokers_cost_no_call_its_answer(stack: &Stack, pages: &mut Pages) -> Load {
    let load = stack.load(BRIEF);
    pages.run(stack, "for broker in");
    let load = load.finish();
    say(&format!("rolling restart of the brokers under load: {load}"));
    // Calls are refused while clients look for another broker, and the guard for its stream. Hardly any are lost.
    let lost = load.failures().filter(|(kind, _)| *kind != Kind::Refused).count();
    assert!(lost <= 2 * load.workers, "{:?}", load.failures().collect::<Vec<_>>());
    assert!(load.results() > 500, "{load}");
    load
}

/// Calls are refused until the clients have found another broker and, if this one led it, the guard's stream has a new leader.
fn killed_broker_is_missed_by_nobody(stack: &Stack, pages: &mut Pages) -> Load {
    let load = stack.load(BRIEF);
    std::thread::sleep(Duration::from_secs(1));
    let killed = load.now();
    pages.run(stack, "docker compose kill nats-1");
    load.wait_for_results_since(killed + Duration::from_secs(1), 100, Duration::from_secs(40));
    pages.run(stack, "docker compose start nats-1");
    stack.wait_healthy("nats-1", 1);
    let load = load.finish();
    say(&format!("nats-1 killed and started again under load: {load}"));
    only_refused_or_unknown(&load);
    load
}

/// The outcome is a refusal before anything ran, or unknown; never a wrong answer.
fn only_refused_or_unknown(load: &Load) {
    for (kind, text) in load.failures() {
        assert!(matches!(kind, Kind::Refused | Kind::Unknown), "{kind:?} {text}");
    }
}

/// The worst node to lose: the one that leads the guard's stream. Until another one does, nobody can say what was seen
/// before, so everything is refused. The agent keeps its connection or finds another broker.
fn killed_leader_is_replaced(stack: &Stack) -> Load {
    let stream = guard_stream(stack, "GUARD_demo");
    let leader = stream.pointer("/cluster/leader").unwrap().as_str().unwrap().to_owned();
    let load = stack.load(BRIEF);
    std::thread::sleep(Duration::from_secs(1));
    let killed = load.now();
    stack.docker(&["kill", &stack.container(&leader, 1)]);
    load.wait_for_results_since(killed + Duration::from_secs(1), 100, Duration::from_secs(40));
    let load = load.finish();
    let recovered = load.last_failure().map_or(Duration::ZERO, |last| last.saturating_sub(killed));
    say(&format!(
        "{leader}, the guard's leader, killed under load: {load}; last failure {:.1} s after",
        recovered.as_secs_f64()
    ));
    only_refused_or_unknown(&load);
    stack.docker(&["start", &stack.container(&leader, 1)]);
    stack.wait_healthy(&leader, 1);
    // Its return may move the stream once more, which must not disturb the next measurement.
    let after = stack.load(BRIEF);
    std::thread::sleep(Duration::from_secs(4));
    after.wait_for_results_since(after.now(), 100, Duration::from_secs(40));
    only_refused_or_unknown(&after.finish());
    load
}

fn scaled_up_without_a_pause(stack: &Stack, pages: &mut Pages) -> Load {
    let mut tried = 0;
    loop {
        tried += 1;
        let load = stack.load(PATIENT);
        pages.run(stack, "--scale demo=3");
        stack.wait_healthy("demo", 3);
        assert!(stack.log("init").contains("the setup in /sealwire stays"), "secrets are made at the first start only");
        let ping = stack.ping(3);
        let load = load.finish();
        say(&format!("scaled to 3 under load: {load}"));
        assert!(ping.contains("3 of 3 take messages"), "{ping}");
        stack.none_lost(&load);
        // As above: a stall of seconds, or of the broker that leads the guard's stream, says nothing about a new replica.
        if is_hardly_refused(&load) {
            return load;
        }
        assert!(tried < TRIES, "{load}; the last refusal: {:?}", load.failures().last());
        stack.compose(&["up", "--detach", "--no-recreate", "--scale", "demo=2"]);
    }
}

fn key_is_rotated(stack: &Stack, pages: &mut Pages) {
    let rotated = pages.run(stack, "keys rotate");
    assert!(rotated.contains("planner signs with planner.k2 from now on"), "{rotated}");
    stack.wait_for("the replicas to read the new ring", || {
        (stack.log("demo").matches("key ring").count() >= 3).then_some(())
    });
    pages.run(stack, "docker compose restart issuer planner");
    pages.run(stack, "keys retire");
    let listed = pages.run(stack, "keys list");
    let old = listed.lines().find(|line| line.contains("planner.k1")).expect("listed");
    assert!(old.contains("retired"), "{listed}");
    let before = stack.log("planner").lines().count();
    stack.wait_for("answers under the new key", || {
        (stack.log("planner").lines().skip(before).filter(|line| line.contains("  5  ")).count() >= 3).then_some(())
    });
    say("key rotated: the agent is answered under planner.k2");
}

/// Each replica logs each message that it executed.
fn executed_once(stack: &Stack, load: &Load) {
    let log = stack.log("demo");
    let ids: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("agent=planner") && line.contains("method=math/add") && line.contains("allowed"))
        .filter_map(|line| line.split("message_id=").nth(1)?.split_whitespace().next())
        .collect();
    let distinct: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len(), "executed twice");
    assert!(ids.len() >= load.results(), "{} executions for {} answers", ids.len(), load.results());
    say(&format!("{} executions, none twice, for {} answered calls of the load", ids.len(), load.results()));
}

/// The profile `observability`: until now, nobody told how it is doing.
fn every_replica_is_scraped(stack: &Stack, pages: &mut Pages) {
    assert!(!stack.log("demo").contains("metrics and health are served"));
    pages.run(stack, "METRICS=on docker compose");
    pages.run(stack, "docker compose restart demo bank glossary gateway");
    stack.wait_healthy("prometheus", 1);
    is_hardened(stack, "prometheus", 1);
    let folder = tempfile::tempdir().unwrap();
    let targets = stack.wait_for("every replica to be scraped", || {
        let said: Value = serde_json::from_str(&pages.run_in(stack, folder.path(), "/api/v1/targets")).unwrap();
        let active = said["data"]["activeTargets"].as_array().unwrap();
        let up = |job: &str| active.iter().filter(|it| it["labels"]["job"] == job && it["health"] == "up").count();
        let all = ["demo", "bank", "glossary", "gateway"].map(up);
        (all == [2, 1, 1, 1]).then_some(all)
    });
    say(&format!("Prometheus scrapes {} targets", targets.iter().sum::<usize>()));
    pages.run(stack, "rm --stop --force prometheus");
}

/// A new setup, in which brokers know no agents.
fn agents_come_in_by_their_tokens(stack: &Stack, pages: &mut Pages) {
    pages.run(stack, "AUTHD=on docker compose");
    let answered = || stack.log("planner").lines().filter(|line| line.contains("  5  ")).count();
    stack.wait_for("the agent's calls", || (answered() >= 3).then_some(()));
    assert_eq!(stack.log("authd").matches("authd answers brokers").count(), 2);
    (1..=2).for_each(|replica| is_hardened(stack, "authd", replica));
    let is_in = || {
        let of = |broker| stack.monitor(broker, "connz?auth=true")["connections"].as_array().unwrap().clone();
        let mut all = ALL_BROKERS.into_iter().flat_map(of);
        all.any(|one| one["authorized_user"].as_str().is_some_and(|user| user.starts_with("planner#")))
    };
    stack.wait_for("the agent under the name that authd gives it", || is_in().then_some(()));
    // Brokers ask the other one.
    stack.docker(&["kill", &stack.container("authd", 1)]);
    let before = answered();
    stack.docker(&["restart", "--time", "5", &stack.container("planner", 1)]);
    stack.wait_for("the agent's calls with one authd", || (answered() >= before + 3).then_some(()));
    say("agents come in by their tokens, also when one of two authd is killed");
}
