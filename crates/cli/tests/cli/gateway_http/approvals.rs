//! Calls that people approve from a browser: what the gateway passes on of what they sign, and what it does not. docs/gateway/approvals.md.

mod page;

use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::configure::{AgentKey, ServicePublicKey};
use sealwire::internal::auth::{Confirmation, Denylist, IssueRequest, TokenIssuer};
use sealwire::internal::wire::{Audience, KeyRequest, ProofClaims, RequestSigner, Signed};
use sealwire::{Clock as _, Name, SystemClock};
use sealwire_lab::permissions::Permissions;
use sealwire_testkit::nats_server::ServerOptions;
use sealwire_testkit::{NatsServer, settle, within};
use serde_json::{Value, json};

use super::wire::{Answer, post};
use super::{FAST, Gateway};
use crate::backends::stage::{LONG, Stage, code, prepared};

const POLICY: &str = r#"
[method."log/append"]
params = [{ name = "msg", type = "string" }]
[role.user]
allow = ["log/append", "math/add"]
[role.treasurer]
from = "files"
allow = ["rpc.*", "math/add"]
[agent.tina]
roles = ["treasurer"]
[approval.treasurer]
from = ["treasurer"]
[rule.logs]
everyone = true
deny = ["log/append"]
unless_approved = "treasurer"
"#;

/// Which tokens the service accepts, besides those of `planner`.
const ISSUERS: &str = "[[tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n\
    may = { agents = [\"tina\", \"hugo\"], roles = [\"*\"] }\n";

/// A service whose calls wait for `tina`, and a gateway's configuration. The broker lets the relay do nothing else.
struct Desk {
    stage: Stage,
    issuer: TokenIssuer,
    url: String,
}

impl Desk {
    async fn new(url: &str) -> Self {
        let issuer = TokenIssuer::generate("https://idp.example").unwrap();
        let users = format!(
            "authorization {{ users: [{{ user: all, password: all }}, {{ user: relay, password: relay-secret, permissions: {} }}] }}\n\
             no_auth_user: all\n",
            Permissions::relay()
        );
        let server =
            NatsServer::start_with_options(ServerOptions { config: Some(users), ..ServerOptions::default() }).await;
        let shell = prepared(&server.url(), POLICY, "");
        shell.run("keys new-token-key https://gateway.example --out gateway-key.json --jwks gateway-jwks.json").ok();
        let config = shell.read("sealwire.toml").replace(
            "jwks = \"jwks.json\"\n",
            &format!("jwks = \"jwks.json\"\nmay = {{ agents = [\"planner\"], roles = [\"*\"] }}\n{ISSUERS}"),
        );
        shell.write("sealwire.toml", &config);
        shell.write("idp-jwks.json", &issuer.public_jwks());
        shell.write("denylist.json", &Denylist::default().to_json());
        sealwire::internal::files::write_secret(&shell.path("relay.password"), "relay-secret", false).unwrap();
        let path = std::env::var("PATH").unwrap();
        let stage = Stage::begin(server, shell, &["serve", "demo"], &path).await.ready().await;
        Self { stage, issuer, url: url.to_owned() }
    }

    /// Starts the gateway, with more in its table.
    async fn gateway(&self, listen: &str, more: &str) -> Gateway {
        let nats = self.stage.server.url();
        let config = format!(
            "[gateway]\nlisten = \"{listen}\"\ncredentials = \"planner.creds.json\"\npublic_url = \"{}\"\n\
             denylist = \"denylist.json\"\nidentity = {{ mode = \"mint\", key = \"gateway-key.json\", dpop = \"accept\" }}\n{more}\n\
             [gateway.approvals]\nnats = {{ urls = [\"{nats}\"], user = \"relay\", password_file = \"relay.password\" }}\n\
             [[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n\
             [[gateway.expose]]\nservice = \"tools\"\nmethods = []\napprovals = true\n\
             [[gateway.expose]]\nservice = \"other\"\n",
            self.url
        );
        self.stage.shell.write("gateway.toml", &config);
        let gateway = Gateway::spawn(&self.stage.shell).await;
        gateway.is_ready(200).await;
        gateway
    }

    /// A token for the gateway and the service.
    fn token(&self, subject: &str, change: impl FnOnce(&mut IssueRequest)) -> String {
        let mut request = IssueRequest::new(subject, &self.url, SystemClock.now_s());
        request.audiences.push("dev/tools".to_owned());
        request.claims = json!({ "scope": "tools other" }).as_object().unwrap().clone();
        change(&mut request);
        self.issuer.issue(&request).unwrap()
    }

    /// Enrols a key by its request, as an operator does, and gives back the enrolment.
    fn enrol(&self, agent: &str, request: &str) -> String {
        let shell = &self.stage.shell;
        shell.write(&format!("{agent}.request"), request);
        let thumbprint = KeyRequest::verify(request).unwrap().thumbprint();
        shell
            .run(&format!(
                "keys enrol {agent} {agent}.request --thumbprint={thumbprint} --service dev/tools=ring.json \
                 --pin-from tools.service-key.json --out {agent}.enrolment.json"
            ))
            .ok();
        shell.read(&format!("{agent}.enrolment.json"))
    }

    /// Calls a method that waits; returns the request's id.
    async fn waits(&self, msg: &str) -> String {
        let error = self.stage.call("log/append", json!({ "msg": msg })).await.unwrap_err();
        assert_eq!(code(&error), Some(-32018), "{error}");
        let data: Value = serde_json::from_str(error.remote().unwrap().data().unwrap().get()).unwrap();
        data["approval"].as_str().unwrap().to_owned()
    }

    /// How a call that was decided ends.
    async fn ends(&self, msg: &str) -> Result<Value, Option<i32>> {
        self.stage.call("log/append", json!({ "msg": msg })).await.map_err(|error| code(&error))
    }
}

/// An approver who signs without a browser.
struct Approver {
    signer: RequestSigner,
    token: String,
}

/// A message that an approver has signed.
struct Sent {
    proof: String,
    payload: String,
}

impl Approver {
    fn new(desk: &Desk, key: &AgentKey, token: String) -> Self {
        let service = desk.stage.shell.read_json("tools.service-key.json");
        let text = |member: &str| service[member].as_str().unwrap();
        let pinned = ServicePublicKey::new(text("kid"), text("x")).unwrap();
        let audience = Audience::parse("dev/tools").unwrap();
        Self { signer: RequestSigner::new(key, audience, vec![pinned]).unwrap(), token }
    }

    fn sign(&self, method: &str, params: &Value) -> Sent {
        self.sign_on(&format!("rpc.v1.tools.tina.{method}"), method, params)
    }

    /// On another subject, such as another agent's, with that agent's inbox.
    fn sign_on(&self, subject: &str, method: &str, params: &Value) -> Sent {
        let payload = match params {
            Value::Null => json!({ "jsonrpc": "2.0", "method": method, "id": "1" }),
            params => json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": "1" }),
        };
        self.sign_payload(subject, &payload.to_string())
    }

    fn sign_payload(&self, subject: &str, payload: &str) -> Sent {
        let agent = subject.split('.').nth(3).filter(|agent| Name::new(agent).is_ok()).unwrap_or("tina");
        let reply = format!("_INBOX.{agent}.relay.{}", sealwire::internal::wire::Nonce::random().to_text());
        let now_ms = SystemClock.now_ms();
        let signed = Signed {
            subject,
            reply: &reply,
            payload: payload.as_bytes(),
            token: &self.token,
            now_ms,
            valid_s: 30,
            timeout_ms: Some(8_000),
            ..Signed::default()
        };
        Sent::of(&self.signer.sign(&signed).authorization, payload)
    }
}

impl Sent {
    fn of(authorization: &str, payload: &str) -> Self {
        let (_, proof) = authorization.rsplit_once('~').unwrap();
        Self { proof: proof.to_owned(), payload: payload.to_owned() }
    }

    fn body(&self) -> String {
        json!({ "proof": self.proof, "payload": self.payload }).to_string()
    }
}

async fn relay(gateway: &Gateway, token: &str, body: &str) -> Answer {
    relay_to(gateway, "/approvals/tools", &format!("Authorization: Bearer {token}\r\n"), body).await
}

async fn relay_to(gateway: &Gateway, path: &str, lines: &str, body: &str) -> Answer {
    gateway.wire().await.ask(post(path, lines, body)).await
}

/// The response of the service in what came back.
fn response(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert!(answer["headers"].as_str().unwrap().starts_with("NATS/1.0\r\nAuthentication-Info: NatsRpc "), "{answer}");
    serde_json::from_str(answer["payload"].as_str().unwrap()).unwrap()
}

fn key(seed: u8) -> AgentKey {
    AgentKey::ed25519("tina.k1", [seed; 32]).unwrap()
}

fn request_of(key: &AgentKey) -> String {
    let name = |text| Name::new(text).unwrap();
    KeyRequest::sign(&name("dev"), &name("tina"), key, None, SystemClock.now_s()).unwrap()
}

/// The approver whose key the service knows by now.
async fn tina(desk: &Desk, gateway: &Gateway) -> Approver {
    desk.enrol("tina", &request_of(&key(7)));
    let tina = Approver::new(desk, &key(7), desk.token("tina", |_| {}));
    let known = async {
        loop {
            let listed = relay(gateway, &tina.token, &tina.sign("rpc.approvals", &Value::Null).body()).await;
            if listed.json()["headers"] != "" {
                break response(&listed);
            }
            // A hint: the service reads its ring again within a second.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    assert_eq!(within(LONG, known).await["result"]["approvals"], json!([]));
    tina
}

const URL: &str = "https://gateway.example";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_approver_has_signed_is_passed_on_as_it_is_and_the_call_runs_once() {
    let desk = Desk::new(URL).await;
    let gateway = desk.gateway("127.0.0.1:0", FAST).await;
    let tina = tina(&desk, &gateway).await;
    let ask = async |method: &str, params: Value| {
        response(&relay(&gateway, &tina.token, &tina.sign(method, &params).body()).await)
    };

    let id = desk.waits("one").await;
    let listed = ask("rpc.approvals", Value::Null).await;
    assert_eq!(listed["result"]["approvals"][0]["id"], json!(id), "{listed}");
    let shown = ask("rpc.approval", json!({ "id": id })).await["result"].clone();
    let digest = |text: &str| {
        use base64::Engine as _;
        use sha2::Digest as _;
        let bytes = sha2::Sha256::digest([b"sealwire-approval-v1\0", text.as_bytes()].concat());
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
    };
    let text = shown["text"].as_str().unwrap();
    let decide = |digest: &str| json!({ "id": id, "digest": digest, "decision": "approve", "approval": "treasurer" });

    // Somebody who was shown other parameters has signed another digest.
    let other = ask("rpc.approve", decide(&digest(&text.replace("\"one\"", "\"1\"")))).await;
    assert_eq!(other["error"]["code"], -32602, "{other}");
    assert_eq!(desk.waits("one").await, id, "still the same request");

    // A gateway that changes what was signed, and publishes it itself.
    let sent = tina.sign("rpc.approve", &decide(&digest(text)));
    let broker = desk.stage.server.client().await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Authorization", format!("NatsRpc {}~{}", tina.token, sent.proof));
    for changed in
        [sent.payload.replace("\"decision\":\"approve\"", "\"decision\":\"deny\""), sent.payload.replace('"', " \"")]
    {
        assert_ne!(changed, sent.payload);
        let claims: Value = {
            use base64::Engine as _;
            let claims = sent.proof.split('.').nth(1).unwrap();
            serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
        };
        let reply = claims["rto"].as_str().unwrap().to_owned();
        let mut answers = within(LONG, broker.subscribe(reply.clone())).await.unwrap();
        settle(&broker).await;
        broker
            .publish_with_reply_and_headers("rpc.v1.tools.tina.rpc.approve", reply, headers.clone(), changed.into())
            .await
            .unwrap();
        let answer = within(LONG, answers.next()).await.unwrap();
        assert!(answer.headers.is_none(), "nothing is signed for it");
        assert!(answer.payload.starts_with(br#"{"jsonrpc":"2.0","error":{"code":-32010"#), "{:?}", answer.payload);
    }
    assert_eq!(desk.waits("one").await, id);

    let approved = response(&relay(&gateway, &tina.token, &sent.body()).await);
    assert_eq!(approved["result"]["state"], "approved", "{approved}");
    // The same message once more changes nothing.
    let again = response(&relay(&gateway, &tina.token, &sent.body()).await);
    assert_eq!(again["error"]["code"], -32012, "{again}");
    assert_eq!(desk.ends("one").await, Ok(json!({ "lines": 1 })));
    assert_eq!(desk.ends("one").await, Err(Some(-32017)));

    let id = desk.waits("two").await;
    let shown = ask("rpc.approval", json!({ "id": id })).await["result"].clone();
    let deny =
        json!({ "id": id, "digest": digest(shown["text"].as_str().unwrap()), "decision": "deny", "reason": "no" });
    assert_eq!(ask("rpc.approve", deny).await["result"]["state"], "denied");
    assert_eq!(desk.ends("two").await, Err(Some(-32002)));

    // A message without a good signature goes nowhere, and its answer is the service's unsigned hint.
    let stranger = Approver::new(&desk, &key(8), tina.token.clone());
    let hint = relay(&gateway, &tina.token, &stranger.sign("rpc.approvals", &Value::Null).body()).await.json();
    assert_eq!((&hint["headers"], hint["payload"].as_str().unwrap().contains("-32010")), (&json!(""), true), "{hint}");

    let (code, said) = gateway.stop().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("an approver's message") && !said.contains(&tina.token), "{said}");
    desk.stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_passed_on_but_what_the_caller_has_signed_to_look_at_requests_and_decide_them() {
    let desk = Desk::new(URL).await;
    let gateway = desk.gateway("127.0.0.1:0", FAST).await;
    let tina = tina(&desk, &gateway).await;
    let broker = desk.stage.server.client().await;
    let mut heard = within(LONG, broker.subscribe("rpc.v1.>")).await.unwrap();
    settle(&broker).await;

    let list = tina.sign("rpc.approvals", &Value::Null);
    let hmac = Approver::new(&desk, &AgentKey::hmac("tina.k2", &[1; 32]).unwrap(), tina.token.clone());
    let other_token = Approver::new(&desk, &key(7), desk.token("hugo", |_| {}));
    let claims = |change: &dyn Fn(&mut Value)| {
        use base64::Engine as _;
        let claims = list.proof.split('.').nth(1).unwrap();
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap();
        let mut claims: Value = serde_json::from_slice(&claims).unwrap();
        change(&mut claims);
        let claims: ProofClaims = serde_json::from_value(claims).unwrap();
        Sent::of(&tina.signer.sign_claims(&claims, &tina.token).authorization, &list.payload)
    };
    let with = |name: &str, value: &str| claims(&|claims| claims[name] = value.into());
    let on = |subject: &str, method: &str| tina.sign_on(subject, method, &Value::Null);
    let payload = |payload: &str| tina.sign_payload("rpc.v1.tools.tina.rpc.approvals", payload);
    for (what, sent) in [
        ("HMAC", hmac.sign("rpc.approvals", &Value::Null)),
        ("another agent's subject", on("rpc.v1.tools.hugo.rpc.approvals", "rpc.approvals")),
        ("a message with another's token", other_token.sign("rpc.approvals", &Value::Null)),
        ("another method", on("rpc.v1.tools.tina.math.add", "math/add")),
        ("a method beside these", on("rpc.v1.tools.tina.rpc.can", "rpc.can")),
        ("the plain subject", on("rpc.v1.tools.tina", "rpc.approvals")),
        ("control", on("rpc.v1-ctl.tools.tina.x", "rpc.approvals")),
        ("the broker's own subjects", on("$SYS.REQ.SERVER.PING", "rpc.approvals")),
        ("a pattern", on("rpc.v1.tools.*.rpc.approvals", "rpc.approvals")),
        ("another service's subject", on("rpc.v1.other.tina.rpc.approvals", "rpc.approvals")),
        ("another method than the subject's", on("rpc.v1.tools.tina.rpc.approvals", "rpc.approve")),
        ("another service", with("aud", "dev/other")),
        ("another environment", with("aud", "prod/tools")),
        ("an inbox that others hear", with("rto", "_INBOX.tina.x")),
        ("another agent's inbox", with("rto", "_INBOX.planner.relay.x")),
        ("a request subject as inbox", with("rto", "rpc.v1.tools.planner")),
        ("another payload", with("dig", "rz8p-ybFquIkvlMk_H_E2jifrT_Krt26VGQFWWukPH4")),
        ("a stream", claims(&|claims| claims["win"] = 8.into())),
        ("a notification", payload(r#"{"jsonrpc":"2.0","method":"rpc.approvals"}"#)),
        ("another text of the same call", Sent { payload: format!("{} ", list.payload), proof: list.proof.clone() }),
    ] {
        let refused = relay(&gateway, &tina.token, &sent.body()).await;
        assert_eq!(
            (refused.status, refused.json()["error"]["data"]["outcome"].as_str()),
            (403, Some("not_sent")),
            "{what}: {refused:?}"
        );
    }
    for (what, body) in [
        ("a batch", payload(&format!("[{}]", list.payload)).body()),
        ("no JSON-RPC", payload("{}").body()),
        ("no JSON", payload("{").body()),
        ("no object", "[]".to_owned()),
        ("a token of its own", json!({ "proof": list.proof, "payload": list.payload, "token": "x" }).to_string()),
        ("a member twice", list.body().replacen('{', r#"{"proof":"x","#, 1)),
        ("no proof", json!({ "payload": list.payload }).to_string()),
    ] {
        assert_eq!(relay(&gateway, &tina.token, &body).await.status, 400, "{what}");
    }
    let large = payload(&format!("{}{}", list.payload, " ".repeat(4_096)));
    relay(&gateway, &tina.token, &large.body()).await.is(413, -32015);
    relay(&gateway, &tina.token, &" ".repeat(200 << 10)).await.is(413, -32015);

    // Callers, addresses, and pages of other origins.
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let mine = bearer(&tina.token);
    let now_s = SystemClock.now_s();
    for (what, token) in [
        ("none", String::new()),
        ("for the service alone", desk.token("tina", |request| drop(request.audiences.remove(0)))),
        ("that has ended", desk.token("tina", |request| request.now_s = now_s - 1_000)),
        (
            "bound to a key",
            desk.token("tina", |request| request.cnf = Some(Confirmation { kid: None, jkt: Some("k".repeat(43)) })),
        ),
    ] {
        let refused = relay_to(&gateway, "/approvals/tools", &bearer(&token), &list.body()).await;
        assert_eq!(refused.status, 401, "{what}");
    }
    relay_to(&gateway, "/approvals/tools", "", &list.body()).await.is(401, -32010);
    let narrow =
        desk.token("tina", |request| request.claims = json!({ "scope": "other" }).as_object().unwrap().clone());
    relay_to(&gateway, "/approvals/tools", &bearer(&narrow), &list.body()).await.is(403, -32010);
    relay_to(&gateway, "/approvals/other", &mine, &list.body()).await.is(404, -32600);
    relay_to(&gateway, "/approvals/none", &mine, &list.body()).await.is(404, -32600);
    relay_to(&gateway, "/approvals/tools/more", &mine, &list.body()).await.is(404, -32600);
    relay_to(&gateway, "/approvals/tools", &format!("{mine}Origin: https://evil.example\r\n"), &list.body())
        .await
        .is(403, -32600);
    let form = post("/approvals/tools", &mine, &list.body()).replace("application/json", "text/plain");
    assert_eq!(gateway.wire().await.ask(form).await.status, 415);
    let get = format!("GET /approvals/tools HTTP/1.1\r\nHost: localhost\r\n{mine}\r\n");
    gateway.wire().await.ask(get).await.is(405, -32600);
    let preflight = "OPTIONS /approvals/tools HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\
                     Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n";
    gateway.wire().await.ask(preflight).await.is(403, -32600);
    // A method that is allowed to nobody over the other dialects stays so.
    let called = relay_to(&gateway, "/rpc/tools", &mine, &super::call(1, "rpc.approve", "{}")).await;
    called.is(200, -32601);

    // Nothing of all this has reached the bus; what is good does.
    let good = response(&relay(&gateway, &tina.token, &list.body()).await);
    assert_eq!(good["result"]["approvals"], json!([]));
    let first = within(LONG, heard.next()).await.unwrap();
    assert_eq!((first.subject.as_str(), &*first.payload), ("rpc.v1.tools.tina.rpc.approvals", list.payload.as_bytes()));
    assert_eq!(
        first.headers.unwrap().get("Authorization").unwrap().as_str(),
        format!("NatsRpc {}~{}", tina.token, list.proof)
    );
    assert_eq!(gateway.stop().await.0, Some(0));
    desk.stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_relay_is_off_unless_it_is_configured_and_bounded_as_other_calls_are() {
    let desk = Desk::new(URL).await;
    let gateway = desk.gateway("127.0.0.1:0", "per_second = 1\nburst = 5\n").await;
    let token = desk.token("tina", |_| {});
    let tina = Approver::new(&desk, &key(7), token.clone());
    let other = desk.token("hugo", |_| {});
    let list = || tina.sign("rpc.approvals", &Value::Null).body();
    let mut refused = 0;
    for _ in 0..20 {
        let answer = relay(&gateway, &token, &list()).await;
        refused += usize::from(answer.status == 429);
        assert!(answer.status == 200 || answer.status == 429, "{answer:?}");
    }
    assert!(refused > 5, "{refused}");
    // Others have rates of their own.
    let hugo = Approver::new(&desk, &key(7), other.clone());
    assert_eq!(
        relay(&gateway, &other, &hugo.sign_on("rpc.v1.tools.hugo.rpc.approvals", "rpc.approvals", &Value::Null).body())
            .await
            .status,
        200
    );

    // The files of the page are the same for everybody, and nobody can frame them.
    for (path, kind) in [
        ("/approvals", "text/html; charset=utf-8"),
        ("/approvals.css", "text/css; charset=utf-8"),
        ("/approvals.js", "text/javascript; charset=utf-8"),
    ] {
        let file = gateway.wire().await.ask(format!("GET {path} HTTP/1.1\r\nHost: gateway.example\r\n\r\n")).await;
        assert_eq!((file.status, file.header("content-type")), (200, Some(kind)));
        let policy = file.header("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self';",
            "connect-src 'self';",
            "frame-ancestors 'none'",
            "require-trusted-types-for",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        for (name, value) in [
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
            ("cross-origin-opener-policy", "same-origin"),
            ("referrer-policy", "no-referrer"),
        ] {
            assert_eq!(file.header(name), Some(value));
        }
        let text = String::from_utf8(file.body).unwrap();
        for foreign in ["innerHTML", "insertAdjacentHTML", "eval(", " style=", " onclick=", "<script>", "https://"] {
            assert!(!text.contains(foreign), "{path}: {foreign}");
        }
        gateway.wire().await.ask(post(path, "", "{}")).await.is(405, -32600);
    }
    assert_eq!(gateway.stop().await.0, Some(0));

    let config = desk.stage.shell.read("gateway.toml");
    let without = config.replace("methods = []\napprovals = true\n", "");
    let (from, to) = (without.find("[gateway.approvals]").unwrap(), without.find("[[gateway.tokens").unwrap());
    desk.stage.shell.write("gateway.toml", &format!("{}{}", &without[..from], &without[to..]));
    let off = Gateway::spawn(&desk.stage.shell).await;
    off.is_ready(200).await;
    for path in ["/approvals", "/approvals.js", "/approvals.css"] {
        let lines = format!("Authorization: Bearer {token}\r\n");
        off.wire().await.ask(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).await.is(404, -32600);
    }
    relay(&off, &token, &list()).await.is(404, -32600);
    assert_eq!(off.stop().await.0, Some(0));
    desk.stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_the_broker_forbids_or_whose_service_is_away_says_so_in_time() {
    let desk = Desk::new(URL).await;
    let gateway = desk.gateway("127.0.0.1:0", FAST).await;
    let tina = tina(&desk, &gateway).await;
    let Desk { stage, .. } = desk;
    let (server, shell) = stage.stopped().await;
    // Nobody answers: the broker says so, and nobody has signed it.
    let none = relay(&gateway, &tina.token, &tina.sign("rpc.approvals", &Value::Null).body()).await;
    assert_eq!(none.status, 200);
    assert!(none.json()["headers"].as_str().unwrap().starts_with("NATS/1.0 503"), "{none:?}");

    // Somebody listens and says nothing.
    let broker = server.client().await;
    let silent = within(LONG, broker.subscribe("rpc.v1.tools.>")).await.unwrap();
    settle(&broker).await;
    relay(&gateway, &tina.token, &tina.sign("rpc.approvals", &Value::Null).body()).await.is(504, -32003);
    drop(silent);
    assert_eq!(gateway.stop().await.0, Some(0));

    // A login that may not publish there.
    let config = shell.read("gateway.toml");
    let prefix = shell.read("planner.creds.json").replacen('{', "{\n  \"prefix\": \"rpc.v2\",", 1);
    sealwire::internal::files::write_secret(&shell.path("other.creds.json"), &prefix, false).unwrap();
    shell.write("gateway.toml", &config.replace("planner.creds.json", "other.creds.json"));
    let gateway = Gateway::spawn(&shell).await;
    gateway.is_ready(200).await;
    let sent = tina.sign_on("rpc.v2.tools.tina.rpc.approvals", "rpc.approvals", &Value::Null);
    relay(&gateway, &tina.token, &sent.body()).await.is(502, -32603);
    let (code, said) = gateway.stop().await;
    assert_eq!(code, Some(0));
    assert!(said.contains("may not publish"), "{said}");
}
