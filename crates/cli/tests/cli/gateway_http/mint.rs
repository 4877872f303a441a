//! Callers with tokens of their own, on whose behalf the gateway's agent acts.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_util::StreamExt as _;
use sealwire::internal::auth::{Confirmation, Denylist, IssueRequest, TokenIssuer};
use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::{NatsServer, settle, within};
use serde_json::{Value, json};
use tokio::process::Command;

use super::wire::{Answer, call, post};
use super::{FAST, Gateway, begun, configure_identity, ended, says};
use crate::backends::stage::{LONG, Stage, prepared};

pub(super) const POLICY: &str = "[role.user]\nallow = [\"audit/read\"]\n\
    [rule.others]\nroles = [\"user\"]\nallow = [\"math/add\", \"job/run\"]\ndelegated = \"only\"\n\
    [rule.not_zoe]\nsubjects = [\"zoe\"]\ndeny = [\"math/add\"]\ndelegated = \"also\"\n";

pub(super) const URL: &str = "https://gateway.example";

/// Claims of a valid token of `subject` for the gateway.
pub(super) fn request(subject: &str) -> IssueRequest {
    let mut request = IssueRequest::new(subject, URL, SystemClock.now_s());
    request.roles = ["user".to_owned()].into();
    request.claims = json!({ "scope": "openid tools" }).as_object().unwrap().clone();
    request
}

/// Which tokens a service accepts from the gateway's issuer.
const GATEWAYS: &str = "[[tokens.issuer]]\nissuer = \"https://gateway.example\"\njwks = \"gateway-jwks.json\"\n\
    require = { \"act.sub\" = \"planner\" }\nmay = { agents = [\"planner\"], roles = [\"user\"], subjects = [\"*\"] }\n";

/// A service that also accepts tokens of the gateway's issuer in which the gateway's agent acts for somebody.
pub(super) async fn stage(issuer: &TokenIssuer) -> Stage {
    stage_taking(issuer, GATEWAYS).await
}

/// A service that also accepts the tokens described by this table.
pub(super) async fn stage_taking(issuer: &TokenIssuer, table: &str) -> Stage {
    stage_with(issuer, table, POLICY, "", &["serve", "demo"]).await
}

/// The first, with its own policy and backends.
pub(super) async fn stage_of(issuer: &TokenIssuer, policy: &str, backends: &str, args: &[&str]) -> Stage {
    stage_with(issuer, GATEWAYS, policy, backends, args).await
}

async fn stage_with(issuer: &TokenIssuer, table: &str, policy: &str, backends: &str, args: &[&str]) -> Stage {
    let server = NatsServer::start().await;
    let shell = prepared(&server.url(), policy, backends);
    shell.run("keys new-token-key https://gateway.example --out gateway-key.json --jwks gateway-jwks.json").ok();
    let config = shell.read("sealwire.toml").replace(
        "jwks = \"jwks.json\"\n",
        &format!("jwks = \"jwks.json\"\nmay = {{ agents = [\"*\"], roles = [\"*\"] }}\n{table}"),
    );
    shell.write("sealwire.toml", &config);
    shell.write("idp-jwks.json", &issuer.public_jwks());
    shell.write("denylist.json", &Denylist::default().to_json());
    let path = std::env::var("PATH").unwrap();
    Stage::begin(server, shell, args, &path).await.ready().await
}

pub(super) fn configure(stage: &Stage, gateway: &str) {
    configure_dpop(stage, gateway, "off");
}

/// The same, with key proofs.
pub(super) fn configure_dpop(stage: &Stage, gateway: &str, dpop: &str) {
    let identity = format!(
        "public_url = \"https://gateway.example\"\ndenylist = \"denylist.json\"\n\
         identity = {{ mode = \"mint\", key = \"gateway-key.json\", dpop = \"{dpop}\" }}\n"
    );
    let issuer = "[[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n";
    configure_identity(&stage.shell, &format!("{identity}{gateway}"), issuer, "timeout_s = 300");
}

pub(super) async fn ask(gateway: &Gateway, token: &str, body: &str) -> Answer {
    let lines = format!("Authorization: Bearer {token}\r\n");
    gateway.wire().await.ask(post("/rpc/tools", &lines, body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_is_who_its_token_says_and_the_agent_acts_for_it() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    configure(&stage, "per_second = 1\nburst = 5\n");
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;

    let add = call(1, "math/add", "[1,2]");
    let refused = gateway.wire().await.ask(post("/rpc/tools", "", &add)).await;
    refused.is(401, -32010);
    let metadata = "resource_metadata=\"https://gateway.example/.well-known/oauth-protected-resource\"";
    assert_eq!(refused.header("www-authenticate"), Some(format!("Bearer {metadata}").as_str()));
    let about = gateway
        .wire()
        .await
        .ask("GET /.well-known/oauth-protected-resource HTTP/1.1\r\nHost: gateway.example\r\n\r\n")
        .await;
    assert_eq!(about.status, 200);
    let about = about.json();
    assert_eq!(
        (&about["resource"], &about["authorization_servers"], &about["scopes_supported"]),
        (&json!(URL), &json!(["https://idp.example"]), &json!(["tools"]))
    );

    // Tokens from others, for others, of another kind, or expired.
    let made = |change: &dyn Fn(&mut IssueRequest)| {
        let mut request = request("ann");
        change(&mut request);
        issuer.issue(&request).unwrap()
    };
    let stranger = TokenIssuer::generate("https://idp.example").unwrap();
    let wrong = [
        ("another issuer's", stranger.issue(&request("ann")).unwrap()),
        ("for another", made(&|request| request.audiences = vec!["https://other.example".to_owned()])),
        ("for the service itself", made(&|request| request.audiences = vec!["dev/tools".to_owned()])),
        ("expired", made(&|request| request.now_s -= 1_000)),
        ("bound to a key", made(&|request| request.cnf = Some(Confirmation { kid: Some("k".to_owned()), jkt: None }))),
        ("of an actor", made(&|request| request.actor = Some("app".to_owned()))),
        ("of the gateway", made(&|request| request.subject = "planner".to_owned())),
        ("of the bus", stage.shell.read("planner.jwt").trim().to_owned()),
        ("none", "x".repeat(5_000)),
    ];
    for (what, token) in &wrong {
        let refused = ask(&gateway, token, &add).await;
        assert_eq!((refused.status, refused.json()["error"]["code"].as_i64()), (401, Some(-32010)), "{what}");
        assert!(refused.header("www-authenticate").unwrap().contains("invalid_token"), "{what}");
    }
    let basic = gateway.wire().await.ask(post("/rpc/tools", "Authorization: Basic YTpi\r\n", &add)).await;
    basic.is(401, -32010);
    let narrow =
        ask(&gateway, &made(&|request| drop(request.claims.insert("scope".to_owned(), "toolsmith".into()))), &add)
            .await;
    narrow.is(403, -32010);
    assert!(narrow.header("www-authenticate").unwrap().contains("error=\"insufficient_scope\", scope=\"tools\""));
    settle(&listener).await;
    assert!(futures_util::FutureExt::now_or_never(heard.next()).is_none(), "nothing was sent until here");

    // The token sent to the bus is another one.
    let token = issuer.issue(&request("ann")).unwrap();
    assert_eq!(ask(&gateway, &token, &add).await.json()["result"], 3);
    let sent = within(LONG, heard.next()).await.unwrap();
    let authorization = sent.headers.unwrap().get("Authorization").unwrap().to_string();
    assert!(!authorization.contains(&token));
    let claims = authorization.split(['.', ' ']).nth(2).unwrap();
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    assert_eq!(
        (&claims["iss"], &claims["sub"], &claims["act"], &claims["aud"], &claims["roles"], &claims["cnf"]),
        (
            &json!(URL),
            &json!("ann"),
            &json!({ "sub": "planner" }),
            &json!("dev/tools"),
            &json!(["user"]),
            &json!({ "kid": "planner.k1" })
        )
    );
    assert!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap() <= 300, "{claims}");

    // The policy also decides on the subject that the agent acts for; the agent's own rights go to nobody.
    let zoe = issuer.issue(&request("zoe")).unwrap();
    ask(&gateway, &zoe, &add).await.is(200, -32002);
    ask(&gateway, &zoe, &call(1, "audit/read", "{}")).await.is(200, -32002);
    let lines = format!("Host: localhost\r\nAuthorization: Bearer {zoe}\r\n");
    let document =
        gateway.wire().await.ask(format!("GET /rpc/tools/openrpc.json HTTP/1.1\r\n{lines}\r\n")).await.json();
    let names: Vec<_> = document["methods"].as_array().unwrap().iter().map(|method| &method["name"]).collect();
    assert_eq!(names, ["job/run"]);

    // Each caller has its own rate, whatever token it presents.
    let flood = async {
        loop {
            let other = issuer.issue(&request("ann")).unwrap();
            if ask(&gateway, &other, &add).await.status == 429 {
                break;
            }
        }
    };
    within(LONG, flood).await;
    assert_eq!(ask(&gateway, &issuer.issue(&request("max")).unwrap(), &add).await.status, 200);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// docs/bounds.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_arrives_slowly_costs_its_own_caller() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    configure(&stage, &format!("{FAST}in_flight = 1\n"));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let [ann, max] = ["ann", "max"].map(|subject| issuer.issue(&request(subject)).unwrap());
    let add = call(1, "math/add", "[1,2]");
    for path in ["/rpc/tools", "/rpc/tools/stream", "/mcp/tools"] {
        let lines = format!("Accept: application/json, text/event-stream\r\nAuthorization: Bearer {ann}\r\n");
        let whole = post(path, &lines, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        let same = || async { gateway.wire().await.ask(post(path, &lines, &add)).await.status };
        // The gateway waits ten seconds for a body: on a busy machine it may have given up before the other one came.
        let full = async {
            loop {
                let mut slow = gateway.wire().await;
                slow.write(&whole[..whole.len() - 10]).await;
                for _ in 0..40 {
                    if same().await == 429 {
                        return slow;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        let slow = within(LONG, full).await;
        assert_eq!(ask(&gateway, &max, &add).await.json()["result"], 3, "{path}");
        drop(slow);
        let freed = async {
            while same().await == 429 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(LONG, freed).await;
    }
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expires_or_is_revoked_in_the_middle_ends_what_it_began() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    configure(&stage, FAST);
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let mut short = request("ann");
    short.ttl_s = 5;
    let long = issuer.issue(&request("zoe")).unwrap();
    let job = call(7, "job/run", r#"{"steps":5999}"#);
    for (count, token) in [(1, issuer.issue(&short).unwrap()), (2, long.clone())] {
        let mut wire = gateway.wire().await;
        wire.write(post("/rpc/tools/stream", &format!("Authorization: Bearer {token}\r\n"), &job)).await;
        assert_eq!(wire.head().await.status, 200);
        begun(&mut heard, 1).await;
        wire.event().await.unwrap();
        if count == 2 {
            let revoked = Denylist::default().with_subject("zoe", SystemClock.now_s() + 60);
            stage.shell.write("denylist.json", &revoked.to_json());
        }
        let mut last = Value::Null;
        while let Some(event) = within(LONG, wire.event()).await {
            assert_ne!(event, "[DONE]");
            last = serde_json::from_str(&event).unwrap();
        }
        assert_eq!((&last["error"]["data"], &last["id"]), (&json!({ "outcome": "unknown" }), &json!(7)), "{last}");
        assert_eq!(last["error"]["message"], "the caller's token has expired or was revoked");
        ended(&stage, count).await;
        ask(&gateway, &token, &call(1, "math/add", "[1,2]")).await.is(401, -32010);
    }
    let other = issuer.issue(&request("max")).unwrap();
    assert_eq!(ask(&gateway, &other, &call(1, "math/add", "[1,2]")).await.status, 200);
    // Keys that the issuer has withdrawn.
    let next = TokenIssuer::generate("https://idp.example").unwrap();
    stage.shell.write("idp-jwks.json", &next.public_jwks());
    let gone = async {
        while ask(&gateway, &other, &call(1, "math/add", "[1,2]")).await.status != 401 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(LONG, gone).await;
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// docs/gateway/README.md, `tls_cert`: no client accepts a certificate outside its dates, so the gateway warns its operator first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_outside_their_dates_are_refused_and_those_that_end_soon_told_of() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    let now = std::time::SystemTime::now();
    let day = |days: u32| days * Duration::from_secs(86_400);
    let dated = |from: std::time::SystemTime, until: std::time::SystemTime| {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (from.into(), until.into());
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = pem("CERTIFICATE", params.self_signed(&key).unwrap().der());
        (certificate, pem("PRIVATE KEY", key.serialized_der()))
    };
    let put = |own: &(String, String), above: &str| {
        stage.shell.write("cert.pem", &format!("{}{above}", own.0));
        stage.shell.write("key.pem", &own.1);
        stage.shell.set_mode("key.pem", 0o600);
    };
    configure(&stage, &format!("{FAST}tls_cert = \"cert.pem\"\ntls_key = \"key.pem\"\n"));
    let (good, over) = (dated(now - day(1), now + day(30)), dated(now - day(30), now - day(1)));
    let early = dated(now + day(1), now + day(30));
    for (own, expected) in [(&over, "certificate expired"), (&early, "certificate not valid yet")] {
        put(own, "");
        for command in ["gateway --check", "gateway"] {
            stage.shell.run(command).fails(30, &["`tls_cert`", "cert.pem", expected]);
        }
    }
    put(&good, "");
    stage.shell.run("gateway --check").ok();
    // Clients may know another chain than one through an expired certificate.
    for (own, above, told) in [
        (&dated(now - day(30), now + day(13)), "", "a certificate in `tls_cert` expires within 14 days"),
        (&good, over.0.as_str(), "a certificate in `tls_cert` has expired"),
        (&good, early.0.as_str(), "a certificate in `tls_cert` is not valid yet"),
    ] {
        put(own, above);
        let mut gateway = Gateway::spawn(&stage.shell).await;
        says(&mut gateway.stderr, told).await;
        assert_eq!(gateway.stop().await.0, Some(0));
    }
    // A certificate that expires while its gateway runs: a health check reports it.
    let brief = dated(now - day(30), std::time::SystemTime::now() + Duration::from_secs(8));
    put(&brief, "");
    let gateway = Gateway::spawn(&stage.shell).await;
    let here = stage.shell.read("gateway.toml").replace(":0\"", &format!(":{}\"", gateway.at.port()));
    stage.shell.write("here.toml", &here);
    let expired = async {
        while !stage.shell.run("gateway --config here.toml --ready").stderr.contains("certificate expired") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(2 * LONG, expired).await;
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_certificate_it_listens_to_other_machines_and_speaks_tls_alone() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let mut stage = stage(&issuer).await;
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    stage.shell.write("cert.pem", &pem("CERTIFICATE", cert.der()));
    stage.shell.write("key.pem", &pem("PRIVATE KEY", signing_key.serialized_der()));
    configure(&stage, &format!("{FAST}tls_cert = \"cert.pem\"\ntls_key = \"key.pem\"\n"));
    stage.shell.write("gateway.toml", &stage.shell.read("gateway.toml").replace("127.0.0.1:0", "0.0.0.0:0"));
    stage.shell.run("gateway").fails(30, &["`tls_key`", "key.pem"]);
    stage.shell.set_mode("key.pem", 0o600);
    let gateway = Gateway::spawn(&stage.shell).await;
    let token = issuer.issue(&request("ann")).unwrap();
    let mut clear = gateway.wire().await;
    clear.write(post("/rpc/tools", "", "{}")).await;
    assert!(clear.ends().await, "no answer but an alert of TLS");
    // A request from its own machine, like a health check's, which trusts exactly its certificate.
    let shell = &stage.shell;
    shell.run("gateway --ready").fails(30, &["`listen` has port 0"]);
    let here = shell.read("gateway.toml").replace("0.0.0.0:0", &format!("0.0.0.0:{}", gateway.at.port()));
    shell.write("here.toml", &here);
    let ready = async {
        while shell.run("gateway --config here.toml --ready").code != 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(2 * LONG, ready).await;
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert;
    shell.write("other.pem", &pem("CERTIFICATE", other.der()));
    shell.write("other.toml", &here.replace("\"cert.pem\"", "\"other.pem\""));
    shell
        .run("gateway --config other.toml --ready")
        .fails(20, &["no gateway of this configuration answers", "certificate"]);
    shell.write(
        "clear.toml",
        &here.replace("tls_cert", "# tls_cert").replace("tls_key", "# tls_key").replace("0.0.0.0", "127.0.0.1"),
    );
    shell.run("gateway --config clear.toml --ready").fails(20, &["no gateway of this configuration answers"]);
    let Some(python) = sealwire_testkit::python::python() else { return };
    let script = "import requests, sys\n\
        address, ca, token = sys.argv[1:]\n\
        call = {'jsonrpc': '2.0', 'id': 1, 'method': 'math/add', 'params': [1, 2]}\n\
        for _ in range(300):\n    \
            answer = requests.post(address, json=call, verify=ca, headers={'Authorization': 'Bearer ' + token}, timeout=60)\n    \
            if answer.status_code != 503: break\n\
        print(answer.text)";
    let mut command = Command::new(python);
    command.args(["-c", script, &format!("https://localhost:{}/rpc/tools", gateway.at.port())]);
    command.arg(stage.shell.path("cert.pem")).arg(token);
    let output = within(3 * LONG, command.kill_on_drop(true).output()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("\"result\":3"), "{said} {}", String::from_utf8_lossy(&output.stderr));
    stage.server.pause().await;
    let unready = async {
        while !shell.run("gateway --config here.toml --ready").stderr.contains("is not ready") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(2 * LONG, unready).await;
    stage.server.resume().await;
    assert_eq!(gateway.stop().await.0, Some(0));
    shell.run("gateway --config here.toml --ready").fails(20, &["no gateway of this configuration answers", "refused"]);
    stage.end().await;
}
