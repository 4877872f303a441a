//! An application's own error codes, by every way out of a gateway, of the command and of the library. SPEC.md §14, docs/gateway/json-rpc.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sealwire::{Client, Credentials, Ctx, Router, RpcError};
use sealwire_testkit::site::Site;
use sealwire_testkit::{NatsServer, within};
use serde_json::{Value, json};

use super::wire::{call, post};
use super::ws::Socket;
use super::{FAST, Gateway, before_site, mcp};
use crate::backends::stage::{CODES, LONG};

/// What every method here fails with. The data holds what would mean something in an error of Sealwire's own.
fn failure(code: i32) -> RpcError {
    RpcError::application(code, "as given").with_data(&data())
}

fn data() -> Value {
    json!({ "outcome": "not_sent", "retry_after_ms": 1, "idempotency": "running", "server_time": 1, "application_error": false })
}

fn given(code: i32) -> Value {
    json!({ "code": code, "message": "as given", "data": data() })
}

/// The response as plain clients of JSON-RPC get it.
fn response(code: i32, id: u64) -> Value {
    let mut response = json!({ "jsonrpc": "2.0", "error": given(code), "id": id });
    if (-32768..=-32000).contains(&code) {
        response["application_error"] = json!(true);
    }
    response
}

#[derive(serde::Deserialize)]
struct Asked {
    code: i32,
}

const A2A: &str = "A2A-Version: 1.0\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_applications_code_comes_out_as_it_is_and_passes_for_nobody_elses() {
    let runs = Arc::new(AtomicUsize::new(0));
    let fails = |ctx: Ctx<Arc<AtomicUsize>>, Asked { code }: Asked| async move {
        ctx.state().fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(failure(code))
    };
    // An agent of A2A.
    let send = |_: Ctx<Arc<AtomicUsize>>, params: Value| async move {
        Err::<(), _>(failure(params["metadata"]["code"].as_i64().unwrap().try_into().unwrap()))
    };
    let router = Router::new(Arc::clone(&runs)).method("site/fails", fails).method("SendMessage", send);
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let declared = "[method.\"site/fails\"]\nparams = [{ name = \"code\", type = \"integer\" }]\n";
    let policy = format!("{declared}[role.worker]\nallow = [\"site/fails\", \"SendMessage\"]\n");
    std::fs::write(site.path("policies/policy.toml"), policy).unwrap();
    let served = site.serve(router).await;
    let shell = before_site(&server, &site, FAST, "a2a = { native = true }");
    let gateway = Gateway::spawn(&shell).await;
    gateway.is_ready(200).await;

    let mut wire = gateway.wire().await;
    let mut socket = Socket::open(gateway.wire().await, "site", "").await;
    let mut parts = Socket::open(gateway.wire().await, "site", super::ws::PARTS).await;
    let client = Client::builder(Credentials::load(shell.path("ann.json")).unwrap()).deadline(LONG).connect();
    let client = within(LONG, client).await.unwrap();
    for code in CODES {
        let params = format!("[{code}]");
        let asked = call(1, "site/fails", &params);
        let posted = wire.ask(post("/rpc/site", "", &asked)).await;
        assert_eq!((posted.status, posted.json()), (200, response(code, 1)));
        let batch = wire.ask(post("/rpc/site", "", &format!("[{asked},{}]", call(2, "site/fails", &params)))).await;
        let mut batch = batch.json();
        batch.as_array_mut().unwrap().sort_by_key(|response| response["id"].as_u64());
        assert_eq!(batch, json!([response(code, 1), response(code, 2)]));
        let mut stream = gateway.wire().await;
        stream.write(post("/rpc/site/stream", "", &asked)).await;
        stream.head().await;
        let end: Value = serde_json::from_str(&stream.event().await.unwrap()).unwrap();
        assert_eq!((end, stream.event().await.as_deref()), (response(code, 1), Some("[DONE]")));
        assert_eq!(socket.ask(&asked).await, response(code, 1));
        assert_eq!(parts.ask(&asked).await, response(code, 1));
        // In the tool's result, where models and clients of MCP can read it.
        let tool = wire
            .ask(mcp::call(1, "site/fails", &json!({ "code": code })).replacen("/mcp/tools", "/mcp/site", 1))
            .await
            .json();
        assert_eq!(tool["result"]["isError"], true, "{tool}");
        assert_eq!(tool["result"]["content"][0]["text"], "as given", "{tool}");
        let said = &tool["result"]["_meta"]["dev.sealwire/error"];
        assert_eq!(
            (&said["code"], said.get("application_error")),
            (&json!(code), response(code, 1).get("application_error"))
        );
        // 32001 and its like are the agent's way of saying it without the sign.
        let message =
            json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [] }, "metadata": { "code": code } });
        let sent = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message }).to_string();
        let agent = wire.ask(post("/a2a/site", A2A, &sent)).await;
        if code == 32001 {
            agent.is(200, -32001);
        } else {
            assert_eq!((agent.status, &agent.json()["error"]), (200, &given(code)));
        }

        // Not called again, though the call says that it may be.
        let before = runs.load(Ordering::Relaxed);
        let error = client.request("site").idempotent().call::<Value>("site/fails", (code,)).await.unwrap_err();
        assert_eq!(runs.load(Ordering::Relaxed), before + 1, "{error}");
        assert!(!error.is_outcome_unknown(), "{error}");
        let error = error.remote().unwrap();
        assert_eq!((error.code(), error.is_application(), error.profile_code()), (code, true, None));
    }
    for code in [-32002, -32003, -32601, -32014, -32016, -32700, 7] {
        let ran =
            shell.run_args(&["call", "--creds", "ann.json", "--json", "site", "site/fails", &format!("[{code}]")]);
        let said: Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
        assert_eq!(
            (ran.code, &said["error"]["kind"], &said["error"]["rpc"]),
            (21, &json!("remote_error"), &given(code))
        );
        assert_eq!(said["error"]["application_error"], true, "{said}");
    }

    // The same numbers from the service and from the gateway.
    let denied = json!({ "jsonrpc": "2.0", "error": { "code": -32002, "message": "permission denied" }, "id": 1 });
    assert_eq!(wire.ask(post("/rpc/site", "", &call(1, "site/other", "[]"))).await.json(), denied);
    assert_eq!(socket.ask(&call(1, "site/other", "[]")).await, denied);
    let ran = shell.run("call --creds ann.json --json site site/other");
    let said: Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(
        (ran.code, &said["error"]["kind"], said["error"].get("application_error")),
        (10, &json!("denied"), None)
    );
    let broken = wire.ask(post("/rpc/site", "", "{")).await;
    assert_eq!((broken.status, broken.json().get("application_error")), (400, None));
    let (code, log) = gateway.stop().await;
    assert_eq!(code, Some(0));
    // The entries of a batch, each with its own id.
    for (entry, id) in [(0, 1), (1, 2)] {
        let said = format!("\"entry\":{entry},\"id\":\"{id}\",\"method\":\"site/fails\"");
        assert_eq!(log.matches(&said).count(), CODES.len(), "{said}: {log}");
    }
    served.stop().await.unwrap();
}
