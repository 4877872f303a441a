//! Calls that become tasks of MCP, at replicas that do not know each other. docs/gateway/mcp.md, "Tasks".

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sealwire::configure::AgentKey;
use sealwire::internal::auth::{KeyEntry, KeyRingFile, TokenIssuer, read_service_key};
use sealwire::internal::files::write_secret;
use sealwire::{BusConfig, Client, Credentials, Ctx, Idempotent, Name, Router, RpcError};
use sealwire_testkit::python::python;
use sealwire_testkit::site::{Served, Site, agent_key};
use sealwire_testkit::{NatsServer, desk, root, within};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::balancer::Balancer;
use super::mcp::{legacy, message, modern};
use super::mint;
use super::wire::Answer;
use super::{FAST, Gateway, before_site};
use crate::backends::stage::LONG;
use crate::gateway::raw::Raw;
use crate::shell::Shell;

pub(super) const POLICY: &str = r#"
[method."site/pay"]
params = [{ name = "amount", type = "integer" }, { name = "note", type = "string", optional = true }]
[method."site/brief"]
params = [{ name = "amount", type = "integer" }]
[role.worker]
allow = ["site/*"]
[role.treasurer]
allow = ["rpc.*"]
[approval.treasurer]
from = ["treasurer"]
[rule.pay]
everyone = true
deny = ["site/brief", "site/pay"]
unless_approved = "treasurer"
"#;

/// What the methods have done, and what they wait for.
#[derive(Default)]
pub(super) struct Done {
    pub(super) counted: AtomicUsize,
    pub(super) paid: AtomicUsize,
    pub(super) may_end: Option<Semaphore>,
}

#[derive(serde::Deserialize)]
struct Pay {
    amount: i64,
}

fn router(done: &Arc<Done>) -> Router<Arc<Done>> {
    let day = Idempotent::keep(Duration::from_secs(24 * 3_600));
    let minute = Duration::from_secs(60);
    let count = |ctx: Ctx<Arc<Done>>, p: Value| async move {
        ctx.state().counted.fetch_add(1, Ordering::SeqCst);
        ctx.progress(1.0, Some(2.0), Some("half"));
        if let Some(may_end) = &ctx.state().may_end {
            may_end.acquire().await.map_err(RpcError::internal)?.forget();
        }
        if p["fails"] == true {
            Err(RpcError::application(7, "cannot count"))
        } else {
            Ok(json!({ "counted": p["to"] }))
        }
    };
    let pay = |ctx: Ctx<Arc<Done>>, Pay { amount }: Pay| async move {
        ctx.state().paid.fetch_add(1, Ordering::SeqCst);
        Ok::<_, RpcError>(json!({ "paid": amount }))
    };
    let only = |_: Ctx<Arc<Done>>, p: Value| async move { Ok::<_, RpcError>(p) };
    Router::new(Arc::clone(done))
        .method("site/count", count)
        .idempotent("site/count", day.as_task(minute))
        .method("site/pay", pay)
        .idempotent("site/pay", day.as_task(minute))
        // What it comes to is kept for so short a time that nobody may take longer to approve it than a few seconds.
        .method("site/brief", pay)
        .idempotent("site/brief", Idempotent::keep(Duration::from_secs(24)).as_task(Duration::from_secs(1)))
        .method("site/only", only)
        .idempotent("site/only", day.only_as_task(minute))
        .method("site/plain", only)
}

/// A service with tasks, and a gateway's files.
pub(super) struct Stage {
    pub(super) server: NatsServer,
    pub(super) site: Site,
    pub(super) done: Arc<Done>,
    served: Served,
    shell: Shell,
}

impl Stage {
    pub(super) async fn start(done: Done) -> Self {
        let server = NatsServer::start().await;
        let site = Site::new(&server.url());
        std::fs::write(site.path("policies/policy.toml"), POLICY).unwrap();
        let audience = site.endpoint.audience();
        let ann = agent_key("ann");
        let keys = vec![
            KeyEntry::hmac(ann.kid(), Name::new("ann").unwrap(), &ann.derived(audience).unwrap()),
            KeyEntry::ed25519("tess.k1", Name::new("tess").unwrap(), tess().public().unwrap()),
        ];
        let ring = serde_json::to_string(&KeyRingFile { audience: audience.to_string(), keys }).unwrap();
        write_secret(&site.path("ring.json"), &ring, true).unwrap();
        let done = Arc::new(done);
        let served = site.serve(router(&done)).await;
        let shell = before_site(
            &server,
            &site,
            &format!("seal_key = \"seal.key\"\nleave_s = 4\n{FAST}"),
            "timeout_s = 10\na2a = {}",
        );
        write_secret(&shell.path("seal.key"), &"5e".repeat(32), false).unwrap();
        Self { server, site, done, served, shell }
    }

    pub(super) async fn gateway(&self) -> Gateway {
        let gateway = Gateway::spawn(&self.shell).await;
        gateway.is_ready(200).await;
        gateway
    }

    /// Two replicas that know nothing of each other but their key.
    pub(super) async fn two(&self) -> [Gateway; 2] {
        [self.gateway().await, self.gateway().await]
    }

    pub(super) async fn treasurer(&self) -> Client {
        let name = |text: &str| Name::new(text).unwrap();
        let key = read_service_key(&self.site.path("service-key.json"), self.site.endpoint.audience()).unwrap();
        let bus = BusConfig::open(&self.server.url());
        let credentials = Credentials::new(name("test"), name("tess"), tess(), bus)
            .service_keys(name("site"), vec![key.public()])
            .token(self.site.token("tess", &["treasurer"]));
        within(LONG, Client::connect(credentials)).await.unwrap()
    }

    pub(super) async fn end(self) {
        self.served.stop().await.unwrap();
    }
}

fn tess() -> AgentKey {
    AgentKey::ed25519("tess.k1", [41; 32]).unwrap()
}

/// The requests for approval that are pending.
pub(super) async fn pending(treasurer: &Client, count: usize) -> Vec<String> {
    within(LONG, async {
        loop {
            let listed: Value = treasurer.call("site", "rpc.approvals", ()).await.unwrap();
            let all = listed["approvals"].as_array().unwrap().iter();
            let ids: Vec<String> = all
                .filter(|request| request["state"] == "pending")
                .map(|request| request["id"].as_str().unwrap().to_owned())
                .collect();
            if ids.len() == count {
                return ids;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
}

pub(super) async fn decide(treasurer: &Client, id: &str, decision: &str) {
    let shown: Value = treasurer.call("site", "rpc.approval", json!({ "id": id })).await.unwrap();
    let signed = desk::digest(&[b"sealwire-approval-v1\0", shown["text"].as_str().unwrap().as_bytes()].concat());
    let mut params = json!({ "id": id, "digest": signed, "decision": decision });
    if decision == "approve" {
        params["approval"] = "treasurer".into();
    }
    treasurer.call::<Value>("site", "rpc.approve", params).await.unwrap();
}

/// A client that nobody here wrote, and what it prints in the end.
fn client(python: &Path, name: &str, tool: &str, arguments: &Value, at: &str) -> tokio::task::JoinHandle<Value> {
    let script = root().join("crates/cli/tests/cli/gateway_http/tasks.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(script).args([name, tool, &arguments.to_string(), at]).kill_on_drop(true);
    tokio::spawn(async move {
        let output = within(3 * LONG, command.output()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    })
}

/// A request of a client that has tasks, in either revision.
#[derive(Clone, Copy)]
enum Speaks<'a> {
    New,
    /// With the lines of its session.
    Old(&'a str),
}

fn request(speaks: Speaks<'_>, method: &str, mut params: Value) -> String {
    let request = match speaks {
        Speaks::New => {
            let capable = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
            params["_meta"] = json!({ "io.modelcontextprotocol/clientCapabilities": capable });
            modern(&json!(1), method, params)
        }
        Speaks::Old(session) => legacy(session, &message(&json!(1), method, &params)),
    };
    request.replace("POST /mcp/tools", "POST /mcp/site")
}

async fn ask(gateway: &Gateway, speaks: Speaks<'_>, method: &str, params: Value) -> Answer {
    gateway.wire().await.ask(request(speaks, method, params)).await
}

/// Begins a task; its id, and what it is at first.
async fn begin(gateway: &Gateway, speaks: Speaks<'_>, tool: &str, arguments: Value) -> (String, Value) {
    let mut params = json!({ "name": tool, "arguments": arguments });
    if let Speaks::Old(_) = speaks {
        params["task"] = json!({ "ttl": 60_000 });
    }
    let answer = ask(gateway, speaks, "tools/call", params).await.json();
    let task = match speaks {
        Speaks::New => answer["result"].clone(),
        Speaks::Old(_) => answer["result"]["task"].clone(),
    };
    assert_eq!(task["status"], "working", "{answer}");
    (task["taskId"].as_str().unwrap().to_owned(), task)
}

async fn get(gateway: &Gateway, speaks: Speaks<'_>, id: &str) -> Value {
    let answer = ask(gateway, speaks, "tasks/get", json!({ "taskId": id })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["result"].clone()
}

/// How a task is once this holds.
async fn until(gateways: &[Gateway], speaks: Speaks<'_>, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
    within(LONG, async {
        for gateway in gateways.iter().cycle() {
            let found = get(gateway, speaks, id).await;
            if holds(&found) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("there are gateways")
    })
    .await
}

fn has_ended(task: &Value) -> bool {
    task["status"] != "working"
}

/// A session of 2025-11-25, as header lines.
async fn session(gateway: &Gateway) -> String {
    let hello =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
    let answer = ask(gateway, Speaks::Old(""), "initialize", hello).await;
    let id = answer.header("mcp-session-id").expect("a session");
    format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_clients_wait_for_people_through_tasks_at_replicas_of_which_one_is_stopped() {
    let Some(python) = python() else { return };
    let stage = Stage::start(Done::default()).await;
    let [one, other] = stage.two().await;
    let balancer = Balancer::start().await;
    balancer.add(one.at);
    balancer.add(other.at);
    let treasurer = stage.treasurer().await;
    within(LONG, balancer.is_ready()).await;
    let at = format!("http://{}/mcp/site", balancer.at);

    let counted = client(python, "fastmcp", "site_count", &json!({ "to": 3 }), &at).await.unwrap();
    assert_eq!(counted["result"], json!([false, { "counted": 3 }, ["{\"counted\":3}"]]), "{counted}");
    let failed = client(python, "mcp", "site_count", &json!({ "fails": true }), &at).await.unwrap();
    assert_eq!((&failed["result"][0], &failed["result"][2]), (&json!(true), &json!(["cannot count"])), "{failed}");

    let waiting = [("fastmcp", 70), ("mcp", 80)]
        .map(|(name, amount)| client(python, name, "site_pay", &json!({ "amount": amount }), &at));
    let ids = pending(&treasurer, 2).await;
    // Whichever replica began a call, it is gone when the call is approved.
    assert_eq!(one.stop().await.0, Some(0));
    for id in &ids {
        decide(&treasurer, id, "approve").await;
    }
    for (client, amount) in waiting.into_iter().zip([70, 80]) {
        let paid = client.await.unwrap();
        assert_eq!((&paid["result"][0], &paid["result"][1]), (&json!(false), &json!({ "paid": amount })), "{paid}");
    }
    assert_eq!(stage.done.paid.load(Ordering::SeqCst), 2, "each once");

    let refused = client(python, "mcp", "site_pay", &json!({ "amount": 9_090_909 }), &at);
    let id = pending(&treasurer, 1).await.remove(0);
    decide(&treasurer, &id, "deny").await;
    let refused = refused.await.unwrap();
    assert_eq!(refused["result"][0], true, "{refused}");
    let seen = refused["seen"].to_string();
    assert!(
        seen.contains(&id) && seen.contains("treasurer (0 of 1 so far, by treasurer)") && !seen.contains("9090909"),
        "{seen}"
    );
    assert_eq!(stage.done.paid.load(Ordering::SeqCst), 2);
    drop(other);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_41_tasks_of_both_revisions_are_begun_found_cancelled_and_ended_at_any_replica() {
    let stage = Stage::start(Done { may_end: Some(Semaphore::new(0)), ..Done::default() }).await;
    let gateways = stage.two().await;
    let [one, other] = &gateways;
    let session = session(one).await;
    let may_end = stage.done.may_end.as_ref().unwrap();

    let discovered = ask(one, Speaks::New, "server/discover", json!({})).await.json();
    assert_eq!(discovered["result"]["capabilities"]["extensions"], json!({ "io.modelcontextprotocol/tasks": {} }));
    let listed = ask(one, Speaks::Old(&session), "tools/list", json!({})).await.json();
    let supports = |name: &str| {
        let tool = listed["result"]["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap();
        tool["execution"]["taskSupport"].clone()
    };
    // The gateway waits for clients that do not.
    assert_eq!((supports("site_only"), supports("site_plain")), (json!("optional"), Value::Null), "{listed}");

    for speaks in [Speaks::New, Speaks::Old(&session)] {
        let is_new = matches!(speaks, Speaks::New);
        let (id, begun) = begin(one, speaks, "site_count", json!({ "to": 3 })).await;
        let ttl = &begun[if is_new { "ttlMs" } else { "ttl" }];
        assert!(ttl.as_u64().is_some_and(|ttl| ttl > 24 * 3_600_000), "{begun}");
        until(&gateways, speaks, &id, |task| task["statusMessage"] == "1 of 2: half").await;
        let blocked = tokio::spawn({
            let (at, asks) = (other.at, request(speaks, "tasks/result", json!({ "taskId": id })));
            async move { super::wire::Wire::open(at).await.ask(asks).await }
        });
        if is_new {
            // Nothing is asked, so nothing can be answered; and nothing blocks.
            let update = json!({ "taskId": id, "inputResponses": { "x": { "action": "accept" } } });
            assert_eq!(ask(other, speaks, "tasks/update", update).await.json()["result"]["resultType"], "complete");
            within(LONG, blocked).await.unwrap().is(404, -32601);
            may_end.add_permits(1);
        } else {
            may_end.add_permits(1);
            let result = within(LONG, blocked).await.unwrap().json();
            assert_eq!(result["result"]["structuredContent"], json!({ "counted": 3 }), "{result}");
            let related = json!({ "io.modelcontextprotocol/related-task": { "taskId": id } });
            assert_eq!(result["result"]["_meta"], related, "{result}");
        }
        let ended = until(&gateways, speaks, &id, has_ended).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        assert_eq!(ended["result"]["structuredContent"] == json!({ "counted": 3 }), is_new, "{ended}");
        let cancelled = ask(other, speaks, "tasks/cancel", json!({ "taskId": id })).await;
        if is_new {
            assert_eq!(cancelled.json()["result"]["resultType"], "complete")
        } else {
            cancelled.is(200, -32602)
        }

        // A tool that says that it has failed.
        may_end.add_permits(1);
        let (id, _) = begin(other, speaks, "site_count", json!({ "fails": true })).await;
        let failed = until(&gateways, speaks, &id, has_ended).await;
        assert_eq!(failed["status"], if is_new { "completed" } else { "failed" }, "{failed}");
        assert_eq!(failed["result"]["isError"] == true, is_new, "{failed}");

        let (id, _) = begin(other, speaks, "site_count", json!({ "to": 4 })).await;
        let cancelled = ask(one, speaks, "tasks/cancel", json!({ "taskId": id })).await.json();
        assert_eq!(cancelled["result"]["status"] == "cancelled", !is_new, "{cancelled}");
        let cancelled = until(&gateways, speaks, &id, has_ended).await;
        assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    }
    assert_eq!(stage.done.counted.load(Ordering::SeqCst), 6, "each call once");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_41_who_has_no_tasks_gets_results_and_what_is_no_task_is_refused() {
    let stage = Stage::start(Done::default()).await;
    let gateway = stage.gateway().await;
    let session = session(&gateway).await;
    let (new, old) = (Speaks::New, Speaks::Old(&session));
    let at = |request: String| request.replace("POST /mcp/tools", "POST /mcp/site");
    let call = |name: &str| json!({ "name": name, "arguments": { "to": 3 } });

    // A client that does not declare that it has tasks gets a result, also of a method that is always one.
    for (tool, expected) in [("site_count", json!({ "counted": 3 })), ("site_only", json!({ "to": 3 }))] {
        for asks in [at(modern(&json!(1), "tools/call", call(tool))), request(old, "tools/call", call(tool))] {
            let answer = gateway.wire().await.ask(asks).await.json();
            assert_eq!(answer["result"]["structuredContent"], expected, "{tool} {answer}");
        }
    }
    // One that has some gets a result of a method that is none; in 2025-11-25 it must not have asked for a task.
    let plain = ask(&gateway, new, "tools/call", call("site_plain")).await.json();
    assert_eq!(
        (&plain["result"]["resultType"], &plain["result"]["structuredContent"]),
        (&json!("complete"), &json!({ "to": 3 }))
    );
    let mut asked = call("site_plain");
    asked["task"] = json!({});
    ask(&gateway, old, "tools/call", asked).await.is(200, -32601);

    let (id, _) = begin(&gateway, new, "site_count", json!({ "to": 3 })).await;
    let undeclared = at(modern(&json!(1), "tasks/get", json!({ "taskId": id })));
    let refused = gateway.wire().await.ask(undeclared).await;
    refused.is(400, -32021);
    let wanted = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    assert_eq!(refused.json()["error"]["data"]["requiredCapabilities"], wanted);
    let watch = json!({ "notifications": { "taskIds": [id] } });
    gateway.wire().await.ask(at(modern(&json!(1), "subscriptions/listen", watch))).await.is(400, -32021);
    // Intermediaries route by the head, so it must not say anything else; fastmcp 4.1.2 leaves the id out.
    let get = request(new, "tasks/get", json!({ "taskId": id }));
    assert!(get.contains("Mcp-Name: "), "{get}");
    gateway.wire().await.ask(get.replacen(&format!("Mcp-Name: {id}"), "Mcp-Name: other", 1)).await.is(400, -32020);
    let nameless = get.replacen(&format!("Mcp-Name: {id}\r\n"), "", 1);
    assert_eq!(gateway.wire().await.ask(nameless).await.status, 200);

    // What is no task of this caller, or no longer one.
    for wrong in ["", "t", &id[1..], &id.replace(&id[40..44], "AAAA")] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({ "taskId": wrong, "inputResponses": {} });
            let refused = ask(&gateway, new, method, params).await;
            refused.is(200, -32602);
            assert_eq!(refused.json()["error"]["message"], "Task not found");
        }
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            ask(&gateway, old, method, json!({ "taskId": wrong })).await.is(200, -32602);
        }
    }
    ask(&gateway, new, "tasks/get", json!({})).await.is(200, -32602);
    ask(&gateway, new, "tasks/update", json!({ "taskId": id })).await.is(200, -32602);
    ask(&gateway, old, "tasks/list", json!({})).await.is(200, -32601);
    ask(&gateway, new, "tasks/list", json!({})).await.is(404, -32601);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_for_people_runs_once_however_often_and_wherever_it_is_asked_for() {
    let stage = Stage::start(Done::default()).await;
    let gateways = stage.two().await;
    let session = session(&gateways[0]).await;
    let treasurer = stage.treasurer().await;
    for speaks in [Speaks::New, Speaks::Old(&session)] {
        let is_new = matches!(speaks, Speaks::New);
        let paid = stage.done.paid.load(Ordering::SeqCst);
        let (id, begun) = begin(&gateways[0], speaks, "site_pay", json!({ "amount": 7_171_717 })).await;
        let request = pending(&treasurer, 1).await.remove(0);
        let told = begun["statusMessage"].as_str().unwrap();
        assert!(told.contains(&request) && told.contains("has not run") && !told.contains("7171717"), "{told}");
        // Asked for again and again, it is one request.
        for gateway in gateways.iter().cycle().take(6) {
            assert_eq!(get(gateway, speaks, &id).await["status"], "working");
        }
        assert_eq!(pending(&treasurer, 1).await, [request.as_str()]);
        let cancelled = ask(&gateways[1], speaks, "tasks/cancel", json!({ "taskId": id })).await;
        // In 2025-11-25 it would have to be cancelled at once, which nobody could know at another replica.
        if is_new {
            assert_eq!(cancelled.status, 200)
        } else {
            cancelled.is(200, -32603)
        }
        decide(&treasurer, &request, "approve").await;
        assert_eq!(stage.done.paid.load(Ordering::SeqCst), paid, "nothing runs for a client that does not ask");
        let all = (0..8).map(|number| get(&gateways[number % 2], speaks, &id));
        futures_util::future::join_all(all).await;
        let ended = until(&gateways, speaks, &id, has_ended).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        for gateway in &gateways {
            assert_eq!(get(gateway, speaks, &id).await, ended);
        }
        assert_eq!(stage.done.paid.load(Ordering::SeqCst), paid + 1);

        // Arguments that do not fit an id are not asked for again: that is said at once.
        let large = json!({ "amount": 72, "note": "x".repeat(5_000) });
        let mut params = json!({ "name": "site_pay", "arguments": large });
        params["task"] = json!({});
        let refused = ask(&gateways[0], speaks, "tools/call", params).await.json();
        match is_new {
            true => {
                let text = refused["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{refused}"));
                assert!(refused["result"]["isError"] == true && text.contains("more than 4096 bytes"), "{text}");
            }
            false => assert_eq!(refused["error"]["code"], 32018, "{refused}"),
        }
        let left = pending(&treasurer, 1).await.remove(0);
        decide(&treasurer, &left, "deny").await;
        assert_eq!(stage.done.paid.load(Ordering::SeqCst), paid + 1);
    }
    stage.end().await;
}

/// The same for callers with tokens.
pub(super) struct Minted {
    pub(super) stage: Stage,
    pub(super) gateway: Gateway,
    issuer: TokenIssuer,
}

impl Minted {
    pub(super) async fn start(done: Done) -> Self {
        let issuer = TokenIssuer::generate("https://idp.example").unwrap();
        let stage = Stage::start(done).await;
        let shell = &stage.shell;
        shell.run("keys new-token-key https://gateway.example --out gateway-key.json --jwks gateway-jwks.json").ok();
        shell.write("idp-jwks.json", &issuer.public_jwks());
        std::fs::copy(shell.path("gateway-jwks.json"), stage.site.path("gateway-jwks.json")).unwrap();
        let delegated = "[rule.others]\nroles = [\"user\"]\nallow = [\"site/*\"]\ndelegated = \"only\"\n[role.user]\n";
        std::fs::write(stage.site.path("policies/policy.toml"), format!("{POLICY}{delegated}")).unwrap();
        stage.site.write_config(
            "[[tokens.issuer]]\nissuer = \"https://gateway.example\"\njwks = \"gateway-jwks.json\"\n\
             require = { \"act.sub\" = \"ann\" }\nmay = { agents = [\"ann\"], roles = [\"user\"], subjects = [\"*\"] }\n",
        );
        let config = stage.site.path("sealwire.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        let ours = "jwks = \"jwks.json\"\n";
        let may = "may = { agents = [\"*\"], roles = [\"*\"] }\n";
        std::fs::write(&config, text.replacen(ours, &format!("{ours}{may}"), 1)).unwrap();
        let Stage { site, done, served, shell, server } = stage;
        served.stop().await.unwrap();
        let served = site.serve(router(&done)).await;
        let identity = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\ncredentials = \"ann.json\"\nseal_key = \"seal.key\"\n\
             public_url = \"https://gateway.example\"\nidentity = {{ mode = \"mint\", key = \"gateway-key.json\" }}\n{FAST}\n\
             [[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n\
             [[gateway.expose]]\nservice = \"site\"\na2a = {{}}\n"
        );
        shell.write("gateway.toml", &identity);
        let gateway = Gateway::spawn(&shell).await;
        gateway.is_ready(200).await;
        Self { stage: Stage { server, site, done, served, shell }, gateway, issuer }
    }

    pub(super) fn token(&self, subject: &str) -> String {
        self.token_for(subject, None)
    }

    /// One that is good for so many seconds.
    pub(super) fn token_for(&self, subject: &str, ttl_s: Option<u64>) -> String {
        let mut request = mint::request(subject);
        request.claims = json!({ "scope": "site" }).as_object().unwrap().clone();
        request.ttl_s = ttl_s.unwrap_or(request.ttl_s);
        self.issuer.issue(&request).unwrap()
    }

    /// Sends a request of MCP.
    pub(super) async fn ask(&self, token: &str, method: &str, params: Value) -> Answer {
        let shown = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n");
        let asks = request(Speaks::New, method, params).replacen("Host: localhost\r\n", &shown, 1);
        self.gateway.wire().await.ask(asks).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_caller_finds_no_task_of_this_one() {
    let minted = Minted::start(Done::default()).await;
    let (ann, bob) = (minted.token("ann-lee"), minted.token("bob"));
    let begun = minted.ask(&ann, "tools/call", json!({ "name": "site_count", "arguments": { "to": 3 } })).await.json();
    let id = begun["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{begun}"));
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let params = json!({ "taskId": id, "inputResponses": {} });
        let [foreign, none] = [id, "none"].map(|id| {
            let mut params = params.clone();
            params["taskId"] = id.into();
            params
        });
        let (foreign, none) = (minted.ask(&bob, method, foreign).await, minted.ask(&bob, method, none).await);
        foreign.is(200, -32602);
        assert_eq!(foreign.json(), none.json());
    }
    // With another token of its own, it is found.
    let again = minted.token("ann-lee");
    within(LONG, async {
        while minted.ask(&again, "tasks/get", json!({ "taskId": id })).await.json()["result"]["status"] != "completed" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    minted.stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_begun_on_standard_input_is_found_by_the_agents_next_process() {
    let stage = Stage::start(Done::default()).await;
    let credentials = stage.shell.path("ann.json").display().to_string();
    let command = ["mcp", "--creds", &credentials, "--service", "site"].map(str::to_owned);
    let mut first = Raw::start(&command, Some("2025-11-25")).await;
    let call = json!({ "name": "site_count", "arguments": { "to": 3 }, "task": {} });
    let begun = first.ask("tools/call", call).await;
    first.end().await;
    let mut next = Raw::start(&command, Some("2025-11-25")).await;
    let task = json!({ "taskId": begun["result"]["task"]["taskId"] });
    let found = next.ask("tasks/result", task).await;
    assert_eq!(found["result"]["structuredContent"], json!({ "counted": 3 }), "{begun} {found}");
    next.end().await;
    assert_eq!(stage.done.counted.load(Ordering::SeqCst), 1);
    stage.end().await;
}
