//! What operators revoke, at a gateway: refused before the bus, and ended, whatever the services do. docs/revocation.md.

use sealwire::internal::auth::{IssueRequest, TokenIssuer};
use sealwire_testkit::{NatsServer, settle, within};
use serde_json::{Value, json};

use super::mint::{self, request};
use super::wire::{Wire, call, post};
use super::ws::{Socket, open};
use super::{FAST, Gateway, begun, configure_identity, ended, mcp};
use crate::backends::stage::{LONG, Stage};
use crate::shell::Ran;

const READY: &str = "GET /readyz HTTP/1.1\r\nHost: any\r\n\r\n";

/// A gateway that follows a bucket at a broker of its own. The service behind it follows none.
struct Followed {
    stage: Stage,
    issuer: TokenIssuer,
    vault: NatsServer,
    gateway: Gateway,
}

impl Followed {
    async fn new(refuse_after_s: u32) -> Self {
        let issuer = TokenIssuer::generate("https://idp.example").unwrap();
        let (stage, vault) = (mint::stage(&issuer).await, NatsServer::start().await);
        let run = |line: &str| tokio::task::block_in_place(|| stage.shell.run(line));
        let x = run("--json keys new-operator op-1").ok().json()["x"].as_str().unwrap().to_owned();
        let (operator, url) = (format!("operator = [{{ kid = \"op-1\", x = \"{x}\" }}]"), vault.url());
        stage.shell.write(
            "revocation.toml",
            &format!("environment = \"dev\"\n{operator}\ncopy = \"dev.copy\"\n[nats]\nurls = [\"{url}\"]\n"),
        );
        run("revocations init --key op-1.json --wait 1s").ok();
        let identity =
            "public_url = \"https://gateway.example\"\nidentity = { mode = \"mint\", key = \"gateway-key.json\" }\n";
        let tables = format!(
            "[[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n\
             [gateway.revocation]\n{operator}\nrefuse_after_s = {refuse_after_s}\n[gateway.revocation.nats]\nurls = [\"{url}\"]\n"
        );
        let expose = "timeout_s = 300\na2a = { text_method = \"text/echo\" }";
        configure_identity(&stage.shell, &format!("{FAST}{identity}"), &tables, expose);
        let gateway = Gateway::spawn(&stage.shell).await;
        gateway.is_ready(200).await;
        Self { stage, issuer, vault, gateway }
    }

    fn token(&self, subject: &str) -> String {
        let mut request: IssueRequest = request(subject);
        request.ttl_s = 3_000;
        format!("Authorization: Bearer {}\r\n", self.issuer.issue(&request).unwrap())
    }

    /// Signs a list, which is in force at the gateway when this returns.
    fn sign(&self, act: &str) -> Value {
        let line = format!("--json {act} --key op-1.json --expect gateway:planner=1 --wait 60s");
        let ran: Ran = tokio::task::block_in_place(|| self.stage.shell.run(&line));
        ran.ok().json()
    }

    /// Waits until a call has this status: on a machine that stands still, the bucket is out of sight for a while.
    async fn reaches(&self, token: &str, status: u16) {
        let reached = async {
            while self.status(token, "math/add").await != status {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        };
        within(LONG, reached).await;
    }

    async fn status(&self, token: &str, method: &str) -> u16 {
        let params = if method == "math/add" { "[1,2]" } else { "{\"text\":\"a\"}" };
        self.gateway.wire().await.ask(post("/rpc/tools", token, &call(1, method, params))).await.status
    }
}

/// A job of this caller in each dialect.
struct Jobs {
    plain: Wire,
    events: Wire,
    socket: Socket,
    mcp: Wire,
    a2a: Wire,
}

impl Jobs {
    async fn begin(followed: &Followed, token: &str, heard: &mut async_nats::Subscriber) -> Self {
        let (gateway, params) = (&followed.gateway, json!({ "steps": 5999 }));
        let job = call(7, "job/run", &params.to_string());
        let [mut plain, mut events, mut mcp, mut a2a] =
            [gateway.wire().await, gateway.wire().await, gateway.wire().await, gateway.wire().await];
        plain.write(post("/rpc/tools", token, &job)).await;
        events.write(post("/rpc/tools/stream", token, &job)).await;
        let named = mcp::call(7, "job_run", &params).replacen("\r\n", &format!("\r\n{token}"), 1);
        mcp.write(named).await;
        let message = json!({ "messageId": "m", "role": "ROLE_USER", "parts": [{ "data": { "method": "job/run", "params": params } }] });
        let sent =
            json!({ "jsonrpc": "2.0", "id": 7, "method": "SendStreamingMessage", "params": { "message": message } });
        a2a.write(post("/a2a/tools", &format!("A2A-Version: 1.0\r\n{token}"), &sent.to_string())).await;
        let mut socket = Socket::open(gateway.wire().await, "tools", token).await;
        socket.say(&job).await;
        begun(heard, 5).await;
        Self { plain, events, socket, mcp, a2a }
    }

    /// Waits until each has been ended by the gateway.
    async fn end(mut self) {
        let answer = within(LONG, self.plain.answer()).await.unwrap();
        answer.is(403, -32002);
        assert_eq!(answer.json()["error"]["data"], json!({ "outcome": "unknown" }));
        for mut wire in [self.events, self.a2a] {
            let mut last = Value::Null;
            wire.head().await;
            while let Some(event) = within(LONG, wire.event()).await {
                last = serde_json::from_str(&event).unwrap();
            }
            assert!(last.to_string().contains("revoked by an operator"), "{last}");
        }
        assert!(within(LONG, self.mcp.answer()).await.is_some(), "an answer of MCP that is an error");
        let (rest, _) = within(LONG, self.socket.rest()).await;
        assert!(!rest.iter().any(|message| message.get("result").is_some()), "{rest:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_ends_what_operators_revoke_and_refuses_it_before_the_bus() {
    let followed = Followed::new(60).await;
    let (ann, bob) = (followed.token("ann"), followed.token("bob"));
    let listener = followed.stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let jobs = Jobs::begin(&followed, &ann, &mut heard).await;
    let mut kept = followed.gateway.wire().await;
    kept.write(post("/rpc/tools/stream", &bob, &call(7, "job/run", r#"{"steps":5999}"#))).await;
    begun(&mut heard, 1).await;

    let told = followed.sign("revoke subject ann");
    let report = &told["replicas"][0];
    assert_eq!([&report["role"], &report["name"]], [&json!("gateway"), &json!("planner")], "{told}");
    println!("in force at the gateway after {} ms, {} calls cut off", report["after_ms"], report["cut_off"]);
    jobs.end().await;
    ended(&followed.stage, 5).await;
    settle(&listener).await;
    while futures_util::FutureExt::now_or_never(futures_util::StreamExt::next(&mut heard)).is_some() {}
    assert_eq!(followed.status(&ann, "math/add").await, 401);
    followed.gateway.wire().await.ask(open("/rpc/tools/ws", &ann)).await.is(401, -32010);
    settle(&listener).await;
    assert!(
        futures_util::FutureExt::now_or_never(futures_util::StreamExt::next(&mut heard)).is_none(),
        "nothing of it has reached the bus"
    );
    assert_eq!(followed.status(&bob, "math/add").await, 200);
    kept.head().await;
    assert!(within(LONG, kept.event()).await.is_some(), "another caller's stream goes on");
    let cut_off = tokio::task::block_in_place(|| followed.stage.shell.run("--json revocations")).ok().json();
    assert_eq!(cut_off["replicas"][0]["cut_off"], 5, "{cut_off}");
    followed.sign("restore subject ann");
    assert_eq!(followed.status(&ann, "math/add").await, 200);

    // A method ends its streams, and nothing else.
    followed.sign("revoke method job/*");
    let mut last = String::new();
    while let Some(event) = within(LONG, kept.event()).await {
        last = event;
    }
    assert!(last.contains("revoked by an operator") && last.contains("-32002"), "{last}");
    let job = post("/rpc/tools/stream", &bob, &call(7, "job/run", r#"{"steps":1}"#));
    let refused = followed.gateway.wire().await.ask(job).await;
    refused.is(403, -32002);
    assert_eq!(refused.json()["error"]["data"], json!({ "outcome": "not_sent" }));
    let batch = format!("[{},{}]", call(1, "math/add", "[1,2]"), call(2, "job/run", r#"{"steps":1}"#));
    followed.gateway.wire().await.ask(post("/rpc/tools", &bob, &batch)).await.is(403, -32002);
    assert_eq!(followed.status(&bob, "math/add").await, 200);
    followed.sign("restore method job/*");

    for (what, status) in [("service tools", 403), ("agent planner", 403), ("everything", 403), ("service other", 200)]
    {
        followed.sign(&format!("revoke {what}"));
        assert_eq!(followed.status(&bob, "math/add").await, status, "{what}");
        let mcp = mcp::call(7, "math_add", &json!({ "a": 1, "b": 2 })).replacen("\r\n", &format!("\r\n{bob}"), 1);
        assert_eq!(followed.gateway.wire().await.ask(mcp).await.status, status, "{what}");
        followed.sign(&format!("restore {what}"));
    }
    assert_eq!(followed.gateway.stop().await.0, Some(0));
    followed.stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_cannot_see_the_bucket_refuses_everything_and_recovers() {
    let mut followed = Followed::new(5).await;
    let (ann, bob) = (followed.token("ann"), followed.token("bob"));
    let mut socket = Socket::open(followed.gateway.wire().await, "tools", &bob).await;
    followed.vault.kill().await;
    followed.gateway.is_ready(503).await;
    let refused = followed.gateway.wire().await.ask(post("/rpc/tools", &bob, &call(1, "math/add", "[1,2]"))).await;
    refused.is(503, -32014);
    assert_eq!(within(LONG, socket.rest()).await.1, 1013);
    followed.vault.restart().await;
    followed.reaches(&bob, 200).await;
    // A gateway that starts knows the last list, and waits for the bucket.
    followed.sign("revoke subject bob");
    followed.vault.kill().await;
    assert_eq!(followed.gateway.stop().await.0, Some(0));
    followed.gateway = Gateway::spawn(&followed.stage.shell).await;
    assert_eq!(followed.gateway.wire().await.ask(READY).await.status, 503);
    assert_eq!([followed.status(&ann, "math/add").await, followed.status(&bob, "math/add").await], [503, 401]);
    followed.vault.restart().await;
    followed.reaches(&ann, 200).await;
    assert_eq!(followed.status(&bob, "math/add").await, 401);
    assert_eq!(followed.gateway.stop().await.0, Some(0));
    followed.stage.end().await;
}
