//! What `sealwire authd` tells of itself.

use super::*;
use crate::telemetry::page::check_labels;
use crate::telemetry::stage::Listener;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authd_tells_what_became_of_questions_and_when_it_would_refuse_everybody() {
    let gate = Gate::new();
    let mut server = gate.with_callout().await;
    let at = Listener::free();
    let _authd = gate.authd(&["--listen", &at.0.to_string(), "--host-per-second", "1", "--host-burst", "3"]).await;
    assert_eq!(at.is_ready(200).await.body, "[+]connected ok\n[+]services ok\nok\n");
    assert!(gate.with_token(&gate.token("ann", &[], 600)).await.is_ok());
    assert!(gate.with_token("no token").await.is_err());
    assert!(gate.with_token(&gate.token("bob", &[], 600)).await.is_err());
    let limited = async {
        while !at.samples().await.contains_key(r#"sealwire_authd_questions_total{result="denied",reason="host_rate"}"#)
        {
            let _ = gate.with_token("no token").await;
        }
    };
    within(SOON, limited).await;
    let samples = at.samples().await;
    for (sample, expected) in [
        (r#"sealwire_authd_questions_total{result="admitted",reason=""}"#, 1.0),
        (r#"sealwire_authd_questions_total{result="denied",reason="policy"}"#, 1.0),
        (r#"sealwire_authd_service_open{service="site"}"#, 1.0),
        ("sealwire_authd_bus_connected", 1.0),
        ("sealwire_authd_hosts", 1.0),
        ("sealwire_authd_waiting_questions", 0.0),
    ] {
        assert_eq!(samples.get(sample), Some(&expected), "{sample}: {samples:#?}");
    }
    assert!(samples[r#"sealwire_authd_questions_total{result="denied",reason="parts"}"#] >= 1.0, "{samples:#?}");
    assert!(samples["sealwire_authd_answer_duration_seconds_count"] >= 4.0, "{samples:#?}");
    check_labels(&samples);

    server.kill().await;
    let unready = at.is_ready(503).await;
    assert_eq!(unready.body.lines().next(), Some("[-]connected: the connection to the broker is lost"));
    server.restart().await;
    at.is_ready(200).await;

    // Nothing can be known of what operators revoke.
    let x = gate.shell.run("--json keys new-operator op-1").ok().json()["x"].as_str().unwrap().to_owned();
    let config = std::fs::read_to_string(gate.site.path("sealwire.toml")).unwrap();
    let more = format!(
        "{config}\n[revocation]\noperator = [{{ kid = \"op-1\", x = \"{x}\" }}]\n[revocation.nats]\nurls = [\"nats://127.0.0.1:{}\"]\n",
        free_port()
    );
    sealwire::internal::files::write_secret(&gate.site.path("sealwire.toml"), &more, true).unwrap();
    let closed = Listener::free();
    let _closed = gate.authd(&["--listen", &closed.0.to_string()]).await;
    assert_eq!(
        closed.is_ready(503).await.body,
        "[+]connected ok\n[-]services: site: the bucket of revocations has not been seen yet\nnot ready: services\n"
    );
}

/// Whoever reaches the address learns the names of services.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_machines_reach_the_metrics_of_authd_only_if_that_is_said() {
    let gate = Gate::new();
    let config = gate.config();
    let args =
        ["authd", "--login", "authd.nats.json", "--issuer", "issuer.nk", "--xkey", "authd.xk", "--config", &config];
    let outcome = gate.shell.run_args(&[&args[..], &["--listen", "0.0.0.0:0"]].concat());
    outcome.fails(2, &["other machines reach", "--allow-remote"]);
}
