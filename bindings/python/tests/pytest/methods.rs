//! What Python calls in these tests: a service made with the library, and one below it that answers whatever it is told to.
//! Never knows what Python expects.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use sealwire::serve::Attachment;
use sealwire::{Clock as _, Ctx, Idempotent, Router, RpcError, Sink, SystemClock};
use sealwire_testkit::scripted::Scripted;
use serde_json::{Value, json};

/// What the methods have seen.
#[derive(Default)]
pub(crate) struct Seen {
    notes: Mutex<Vec<String>>,
    paid: AtomicU64,
    /// Runs of `site/sleep` that have begun, and that were cancelled.
    begun: AtomicU64,
    cancelled: AtomicU64,
}

type State = Arc<Seen>;

pub(crate) fn router() -> Router<State> {
    calls()
        .stream("site/count", |_: Ctx<State>, (to,): (u64,)| async move {
            Ok::<_, RpcError>(stream::iter((1..=to).map(Ok::<_, RpcError>)))
        })
        .stream("site/slowly", |_: Ctx<State>, (to, ms): (u64, u64)| async move {
            Ok::<_, RpcError>(stream::iter(1..=to).then(move |number| async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok::<_, RpcError>(number)
            }))
        })
        .stream("site/breaks", |_: Ctx<State>, (): ()| async move {
            let error = RpcError::application(7, "broken").with_data(&json!({ "after": 2 }));
            Ok::<_, RpcError>(stream::iter([Ok(1), Ok(2), Err(error)]))
        })
        .subscription("site/ticks", |_: Ctx<State>, (to,): (u64,)| async move {
            Ok::<_, RpcError>(stream::iter((1..=to).map(|tick| Ok::<_, RpcError>(json!({ "tick": tick })))))
        })
        .subscription("site/forever", |_: Ctx<State>, (): ()| async move {
            Ok::<_, RpcError>(stream::iter(0_u64..).then(|tick| async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok::<_, RpcError>(json!([tick]))
            }))
        })
        .method_with_sink("site/job", |ctx: Ctx<State>, (steps,): (u32,), sink: Sink<String>| async move {
            for step in 1..=steps {
                ctx.progress(f64::from(step), Some(f64::from(steps)), Some("working"));
                ctx.notify("site/step", &json!({ "step": step })).await?;
                sink.send(&format!("part {step}")).await?;
            }
            Ok::<_, RpcError>(json!({ "steps": steps }))
        })
        .method("site/ask", |ctx: Ctx<State>, (question,): (String,)| async move {
            let asked = ctx.ask::<Value>("user/confirm", &json!({ "question": question })).await;
            Ok::<_, RpcError>(match asked {
                Ok(answer) => json!({ "answer": answer }),
                Err(error) => json!({ "error": error.to_string() }),
            })
        })
        .method("site/store", |ctx: Ctx<State>, (document,): (Attachment,)| async move {
            let bytes = ctx.attachment(&document).await?;
            Ok::<_, RpcError>(json!([bytes.len(), document.media_type(), bytes.first()]))
        })
}

fn calls() -> Router<State> {
    Router::new(State::default())
        .method("site/add", |_: Ctx<State>, p: Add| async move { Ok::<_, RpcError>(p.a + p.b) })
        .method("site/echo", |_: Ctx<State>, (value,): (Value,)| async move { Ok::<_, RpcError>(value) })
        .method("site/large", |_: Ctx<State>, (bytes,): (usize,)| async move { Ok::<_, RpcError>("x".repeat(bytes)) })
        .method("site/nothing", |_: Ctx<State>, (): ()| async move { Ok::<_, RpcError>(()) })
        .method("site/sleep", |ctx: Ctx<State>, (ms,): (u64,)| async move {
            ctx.state().begun.fetch_add(1, Ordering::SeqCst);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(ms)) => Ok::<_, RpcError>(ms),
                () = ctx.cancelled() => {
                    ctx.state().cancelled.fetch_add(1, Ordering::SeqCst);
                    Err(RpcError::application(1, "cancelled"))
                }
            }
        })
        .method("site/begun", |ctx: Ctx<State>, (): ()| async move {
            Ok::<_, RpcError>(ctx.state().begun.load(Ordering::SeqCst))
        })
        .method("site/cancelled", |ctx: Ctx<State>, (): ()| async move {
            Ok::<_, RpcError>(ctx.state().cancelled.load(Ordering::SeqCst))
        })
        .method("site/note", |ctx: Ctx<State>, (text,): (String,)| async move {
            ctx.state().notes.lock().unwrap().push(text);
            Ok::<_, RpcError>(())
        })
        .method("site/notes", |ctx: Ctx<State>, (): ()| async move {
            Ok::<_, RpcError>(ctx.state().notes.lock().unwrap().clone())
        })
        .method("site/pay", |ctx: Ctx<State>, (_,): (u64,)| async move {
            Ok::<_, RpcError>(ctx.state().paid.fetch_add(1, Ordering::SeqCst) + 1)
        })
        .idempotent("site/pay", HOUR)
        .method("site/work", work)
        .idempotent("site/work", Idempotent::keep(HOUR).as_task(HOUR))
        .method("site/brief", work)
        .idempotent("site/brief", Idempotent::keep(Duration::from_secs(1)).only_as_task(HOUR))
        .method("site/fail", |_: Ctx<State>, (code, message, data): (i32, String, Value)| async move {
            Err::<(), _>(RpcError::application(code, message).with_data(&data))
        })
        .method("site/boom", |_: Ctx<State>, (): ()| async move {
            Err::<(), _>(RpcError::internal("a secret of the service"))
        })
        .method("site/who", |ctx: Ctx<State>, (): ()| async move {
            let caller = ctx.caller();
            let key = ctx.idempotency_key();
            Ok::<_, RpcError>(json!([caller.agent.as_str(), caller.subject, caller.delegated, key, ctx.traceparent()]))
        })
        .method("secret/open", |_: Ctx<State>, (): ()| async move { Ok::<_, RpcError>("the secret") })
}

/// Goes on until somebody notes its key, and then does what it is told.
async fn work(ctx: Ctx<State>, (how,): (String,)) -> Result<String, RpcError> {
    ctx.state().begun.fetch_add(1, Ordering::SeqCst);
    ctx.progress(0.5, Some(1.0), Some("at it"));
    let key = ctx.idempotency_key().unwrap_or_default().to_owned();
    while !ctx.state().notes.lock().unwrap().contains(&key) {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
            () = ctx.cancelled() => {
                ctx.state().cancelled.fetch_add(1, Ordering::SeqCst);
                return Err(RpcError::application(1, "cancelled"));
            }
        }
    }
    match &*how {
        "fail" => Err(RpcError::application(7, "it fails").with_data(&json!({ "how": how }))),
        "large" => Ok("x".repeat(300_000)),
        _ => Ok(how),
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[derive(serde::Deserialize)]
struct Add {
    a: f64,
    b: f64,
}

/// Answers each call with what its method's name says.
pub(crate) async fn lie(mut liar: Scripted) {
    let (mut repeated, mut late) = (0, 0);
    loop {
        let mut call = liar.call_whenever().await;
        let method = call.body["method"].as_str().unwrap_or_default().to_owned();
        let params = call.body["params"].clone();
        let error = |code: &Value, data: Value| json!({ "jsonrpc": "2.0", "id": call.id(), "error": { "code": code, "message": "no", "data": data } });
        match method.as_str() {
            "rpc.discover" => {
                let answer = json!({ "jsonrpc": "2.0", "id": call.id(), "result": hostile() });
                call.answer(&answer.to_string()).await;
            }
            "liar/late" => {
                late += 1;
                call.answer(&error(&json!(-32003), Value::Null).to_string()).await;
            }
            "liar/times" => {
                call.answer(&json!({ "jsonrpc": "2.0", "id": call.id(), "result": late }).to_string()).await;
            }
            "liar/silence" => {}
            "liar/hint" => call.answer_unsigned(HINT).await,
            "liar/unsigned" => call.answer_unsigned(r#"{"jsonrpc":"2.0","result":666,"id":1}"#).await,
            "liar/protocol" => call.answer("[]").await,
            "liar/stale" => {
                let now_s = SystemClock.now_s() + 500;
                let data = json!({ "server_time": now_s });
                call.answer_at(now_s, &error(&json!(-32011), data).to_string()).await;
            }
            "liar/code" if params.is_object() => {
                call.answer(&error(&params["code"], params["data"].clone()).to_string()).await;
            }
            "liar/code" => call.answer(&error(&params[0], params[1].clone()).to_string()).await,
            // First an unsigned hint, then a denial: the first attempt may have run.
            "liar/repeated" => {
                repeated += 1;
                if repeated % 2 == 1 {
                    call.answer_unsigned(HINT).await;
                } else {
                    call.answer(&error(&json!(-32002), Value::Null).to_string()).await;
                }
            }
            "liar/cut" => {
                call.frame("open", "").await;
                let item = json!({ "jsonrpc": "2.0", "id": call.id(), "result": 1 }).to_string();
                call.frame("item", &item).await;
                call.frame("piece", r#"{"jsonrpc":"#).await;
                call.frame("end", "").await;
            }
            "liar/frames" => {
                call.frame("open", "").await;
                call.frame("item", "5").await;
            }
            other => panic!("{other}"),
        }
    }
}

/// What no honest service says of its methods: too many, with names that are taken for others, and schemas that do harm.
fn hostile() -> Value {
    let method = |name: &str, description: Value, params: Value| {
        let result = json!({ "name": "result", "schema": {} });
        json!({ "name": name, "description": description, "params": [], "x-params": params, "result": result })
    };
    let plain = |name: &str| method(name, Value::Null, json!({}));
    let mut methods: Vec<Value> = (0..3000).map(|number| plain(&format!("f{number}"))).collect();
    methods.extend(["a/b", "a.b", "a_b", FORGED, "liar/code", "liar/late", "liar/times", "sp ace", "é"].map(plain));
    methods.push(method("liar/long", "x".repeat(300_000).into(), json!({})));
    methods.push(method("liar/none", Value::Null, json!(true)));
    let mut with = |name: &str, params: Value| methods.push(method(name, Value::Null, params));
    with(
        "liar/loop",
        json!({ "$ref": "#/$defs/node", "$defs": { "node": { "properties": { "child": { "$ref": "#/$defs/node" } } } } }),
    );
    with("liar/remote", json!({ "properties": { "a": { "$ref": "http://127.0.0.1:1/a" }, "b": { "$ref": "#/x/y" } } }));
    with("liar/spaces", json!({ "properties": { "a b": {} } }));
    with("liar/wide", json!({ "properties": { "a": { "enum": ["x".repeat(20_000)] } } }));
    let wrong =
        json!({ "required": "a", "type": 5, "properties": { "a": { "anyOf": 1, "properties": [], "default": 1 } } });
    with("liar/kinds", wrong);
    let chain = (0..100).map(|link| (link.to_string(), json!({ "$ref": format!("#/$defs/{}", link + 1) })));
    with("liar/deep", json!({ "$ref": "#/$defs/0", "$defs": serde_json::Map::from_iter(chain) }));
    // Each refers to the one below twice.
    let mut bomb = serde_json::Map::from_iter([("0".to_owned(), json!({ "type": "string" }))]);
    for level in 1..40 {
        let below = json!({ "$ref": format!("#/$defs/{}", level - 1) });
        bomb.insert(level.to_string(), json!({ "anyOf": [below, below] }));
    }
    with("liar/bomb", json!({ "properties": { "a": { "$ref": "#/$defs/39" } }, "$defs": bomb }));
    let unseen = json!({ "properties": { "a": { "description": "\u{202e}\u{e0041}" } } });
    methods.push(method("liar/seen", "do\u{1b} it\u{9b}".into(), unseen));
    methods.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    json!({ "openrpc": "1.3.2", "info": { "title": "test/liar", "version": "1" }, "methods": methods })
}

/// The name that `a/b` has among names that are alike.
const FORGED: &str = "a_b_bc709e62";

const HINT: &str = r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#;
