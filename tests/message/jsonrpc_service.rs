//! JSON-RPC 2.0 through a whole service: signed raw text in, raw text out. Each test of server behaviour cites the sentences
//! of the specification that it checks; `jsonrpc_text.rs` has those that need no server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sealwire::internal::rpc::{Limits, Responses};
use sealwire::{Ctx, Router, RpcError, ServiceLimits};
use sealwire_testkit::desk::{Agent, Desk, OPEN_POLICY, POLICY, code, specification_methods};
use sealwire_testkit::jsonrpc_examples::{EXAMPLES, same_response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Barrier;

/// A desk with these methods where ann may call every method, and ann.
fn open<S: Send + Sync + 'static>(router: Router<S>) -> (Desk, Agent) {
    let desk = Desk::open_with(router, OPEN_POLICY, ServiceLimits::default());
    let ann = desk.agent("ann", &["worker"]);
    (desk, ann)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

// §7: the examples. Messages of errors may say more than the examples do: "The message SHOULD be limited to a concise
// single sentence" (§5.1).
#[tokio::test]
async fn examples_of_the_specification_are_answered_as_it_says() {
    let (desk, _) = open(specification_methods());
    for name in ["ann", "eve"] {
        let agent = desk.agent(name, &["worker"]);
        for (what, sent, expected) in EXAMPLES {
            let answer = desk.ask(&agent, sent).await;
            match (&answer, expected) {
                (None, None) => {}
                (Some(answer), Some(expected)) => {
                    assert!(same_response(expected, answer), "{what}: {answer} instead of {expected}");
                }
                _ => panic!("{what}: {answer:?} instead of {expected:?}"),
            }
        }
    }
}

/// Methods that count their runs and end as their names say.
fn counting() -> (Router<Arc<AtomicUsize>>, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let router = Router::new(Arc::clone(&runs))
        .method("desk/ok", |ctx: Ctx<Arc<AtomicUsize>>, p: Value| async move {
            ctx.state().fetch_add(1, Ordering::SeqCst);
            Ok::<_, RpcError>(p)
        })
        .method("desk/fail", |ctx: Ctx<Arc<AtomicUsize>>, _: Value| async move {
            ctx.state().fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(RpcError::application(50, "it failed"))
        })
        .method("desk/panic", |ctx: Ctx<Arc<AtomicUsize>>, _: Value| async move {
            ctx.state().fetch_add(1, Ordering::SeqCst);
            // Not `panic!`, whose hook would write to the test's output.
            std::panic::resume_unwind(Box::new("hunter2"));
            #[expect(unreachable_code, reason = "it gives the method its type")]
            Ok::<(), RpcError>(())
        })
        .method("desk/strict", |ctx: Ctx<Arc<AtomicUsize>>, (_,): (u8,)| async move {
            ctx.state().fetch_add(1, Ordering::SeqCst);
            Ok::<_, RpcError>(())
        });
    (router, runs)
}

// §4.1: "The Server MUST NOT reply to a Notification, including those that are within a batch request." And:
// "Notifications are not confirmable by definition [..] the Client would not be aware of any errors".
/// SPEC.md §11.
#[tokio::test]
async fn notifications_run_and_are_never_answered_not_even_with_an_error() {
    let (router, runs) = counting();
    let (desk, ann) = open(router);
    let denied = desk.agent("ann", &[]);
    for (params, method, ran) in [
        ("[1]", "desk/ok", 1),
        ("[1]", "desk/fail", 1),
        ("[1]", "desk/panic", 1),
        ("[\"no\"]", "desk/strict", 0),
        ("[1]", "no/such", 0),
        ("[1]", "not a name", 0),
    ] {
        let notification = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        let before = runs.load(Ordering::SeqCst);
        let subject = desk.endpoint.subject(&ann.name);
        // With a reply subject, without one, and in a batch.
        assert_eq!(desk.ask(&ann, &notification).await, None, "{method}");
        assert_eq!(desk.answer(&desk.letter_to(&ann, &subject, "", &notification, None)).await, None, "{method}");
        assert_eq!(desk.ask(&ann, &format!("[{notification},{notification}]")).await, None, "{method}");
        assert_eq!(runs.load(Ordering::SeqCst) - before, 4 * ran, "{method}");
        // And when denied.
        assert_eq!(desk.ask(&denied, &notification).await, None, "{method}");
        assert_eq!(runs.load(Ordering::SeqCst) - before, 4 * ran, "{method}");
    }
}

// §4.1: "A Notification is a Request object without an "id" member": an id of null makes a call.
/// SPEC.md §11.
#[tokio::test]
async fn id_of_null_makes_a_call() {
    let (desk, ann) = open(counting().0);
    let answer = desk.ask(&ann, r#"{"jsonrpc":"2.0","method":"desk/ok","params":[],"id":null}"#).await;
    assert_eq!(answer.unwrap(), r#"{"jsonrpc":"2.0","result":[],"id":null}"#);
}

// §6: "If there are no Response objects contained within the Response array as it is to be sent to the client, the server
// MUST NOT return an empty Array and should return nothing at all."
#[tokio::test]
async fn batch_of_notifications_only_is_silent_and_one_call_among_them_is_answered_in_an_array() {
    let (router, runs) = counting();
    let (desk, ann) = open(router);
    let notification = r#"{"jsonrpc":"2.0","method":"desk/fail"}"#;
    let batch = vec![notification; 49].join(",");
    assert_eq!(desk.ask(&ann, &format!("[{batch}]")).await, None);
    let call = r#"{"jsonrpc":"2.0","method":"desk/ok","id":1}"#;
    let answer = desk.ask(&ann, &format!("[{batch},{call}]")).await.unwrap();
    assert_eq!(answer, r#"[{"jsonrpc":"2.0","result":null,"id":1}]"#);
    assert_eq!(runs.load(Ordering::SeqCst), 99);
}

// §6: "The Server MAY process a batch rpc call as a set of concurrent tasks, processing them in any order and with any
// width of parallelism."
#[tokio::test]
async fn batch_entries_run_concurrently_up_to_the_bound() {
    #[derive(Default)]
    struct Width {
        now: AtomicUsize,
        most: AtomicUsize,
    }
    for bound in [1, 3, 8] {
        let width = Arc::new(Width::default());
        let router =
            Router::new(Arc::clone(&width)).method("desk/work", |ctx: Ctx<Arc<Width>>, (n,): (u64,)| async move {
                let now = ctx.state().now.fetch_add(1, Ordering::SeqCst) + 1;
                ctx.state().most.fetch_max(now, Ordering::SeqCst);
                for _ in 0..n {
                    tokio::task::yield_now().await;
                }
                ctx.state().now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, RpcError>(n)
            });
        let limits = ServiceLimits { batch_concurrency: bound, ..ServiceLimits::default() };
        let desk = Desk::open_with(router, POLICY, limits);
        let ann = desk.agent("ann", &["worker"]);
        let entry = |n: u64| format!(r#"{{"jsonrpc":"2.0","method":"desk/work","params":[{}],"id":{n}}}"#, 40 - n);
        let batch = (0..20).map(entry).collect::<Vec<_>>().join(",");
        let answer = json(&desk.ask(&ann, &format!("[{batch}]")).await.unwrap());
        assert_eq!(width.most.load(Ordering::SeqCst), bound);
        let answers = answer.as_array().unwrap();
        assert_eq!(answers.len(), 20);
        assert!(answers.iter().all(|answer| answer["result"].as_u64().unwrap() == 40 - answer["id"].as_u64().unwrap()));
    }
}

#[tokio::test]
async fn slow_entry_of_a_batch_does_not_hold_up_those_behind_it() {
    // The first entry ends only when all the others have run, so it may occupy only one of the eight places.
    let gate = Arc::new((AtomicUsize::new(0), tokio::sync::Notify::new()));
    type Gate = Arc<(AtomicUsize, tokio::sync::Notify)>;
    let router = Router::new(Arc::clone(&gate))
        .method("desk/first", |ctx: Ctx<Gate>, (): ()| async move {
            while ctx.state().0.load(Ordering::SeqCst) < 30 {
                ctx.state().1.notified().await;
            }
            Ok::<_, RpcError>("first")
        })
        .method("desk/other", |ctx: Ctx<Gate>, (): ()| async move {
            ctx.state().0.fetch_add(1, Ordering::SeqCst);
            ctx.state().1.notify_one();
            Ok::<_, RpcError>("other")
        });
    let (desk, ann) = open(router);
    let entry = |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"desk/{method}","id":"{method}"}}"#);
    let batch = format!("[{},{}]", entry("first"), vec![entry("other"); 30].join(","));
    let answer = tokio::time::timeout(Duration::from_secs(60), desk.ask(&ann, &batch)).await.unwrap().unwrap();
    assert_eq!((answer.matches(r#""result":"other""#).count(), answer.matches(r#""result":"first""#).count()), (30, 1));
    // The answers are in the order of the requests all the same.
    assert!(answer.starts_with(r#"[{"jsonrpc":"2.0","result":"first","id":"first"}"#), "{answer}");
}

// §6: "A Response object SHOULD exist for each Request object, except that there SHOULD NOT be any Response objects for
// notifications."
/// SPEC.md §11.
#[tokio::test]
async fn each_entry_of_a_batch_fails_alone() {
    let (router, runs) = counting();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let batch = r#"[
        {"jsonrpc":"2.0","method":"desk/ok","params":["a"],"id":1},
        {"jsonrpc":"2.0","method":"desk/fail","params":[],"id":2},
        {"jsonrpc":"2.0","method":"desk/panic","params":[],"id":3},
        {"jsonrpc":"2.0","method":"desk/strict","params":["x"],"id":4},
        {"jsonrpc":"2.0","method":"desk/nowhere","params":[],"id":5},
        {"jsonrpc":"2.0","method":"vault/open","params":[],"id":6},
        {"jsonrpc":"1.0","method":"desk/ok","params":[],"id":7},
        {"jsonrpc":"2.0","method":"desk/ok","params":5,"id":8},
        {"jsonrpc":"2.0","method":"desk/ok","params":[],"id":{}},
        {"jsonrpc":"2.0","method":"desk/panic","params":[]},
        [], [{"jsonrpc":"2.0","method":"desk/ok","params":[],"id":9}], null, 1, "x", {},
        {"jsonrpc":"2.0","method":"desk/ok","params":["z"],"id":1}
    ]"#;
    let answer = json(&desk.ask(&ann, batch).await.unwrap());
    let found: Vec<(Value, Value)> = answer
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| (answer["id"].clone(), answer.get("result").unwrap_or(&answer["error"]["code"]).clone()))
        .collect();
    let expected = [
        (json!(1), json!(["a"])),
        (json!(2), json!(50)),
        (json!(3), json!(-32603)),
        (json!(4), json!(-32602)),
        (json!(5), json!(-32601)),
        (json!(6), json!(-32002)),
        (json!(7), json!(-32600)),
        (json!(8), json!(-32600)),
        (Value::Null, json!(-32600)),
        (Value::Null, json!(-32600)),
        (Value::Null, json!(-32600)),
        (Value::Null, json!(-32600)),
        (Value::Null, json!(-32600)),
        (Value::Null, json!(-32600)),
        (Value::Null, json!(-32600)),
        (json!(1), json!(["z"])),
    ];
    assert_eq!(found, expected);
    // ok, fail, panic, the notification, and ok again.
    assert_eq!(runs.load(Ordering::SeqCst), 5);
}

// §5: id "MUST be the same as the value of the id member in the Request Object."
/// SPEC.md §11.
#[tokio::test]
async fn ids_are_echoed_byte_for_byte() {
    let (desk, ann) = open(counting().0);
    let ids = [
        "0",
        "-0",
        "-1",
        "9007199254740993",
        "123456789012345678901234567890123456789012345678901234567890",
        "1.5",
        "1.50",
        "1e3",
        "1E+3",
        "0.1e-400",
        "null",
        r#""""#,
        r#""a""#,
        r#""\u0061""#,
        r#""\/\b\f\n\r\t\"\\""#,
        r#""\ud83d\ude00""#,
        "\"\u{1f600} \u{202e}\"",
        r#""1""#,
    ];
    for id in ids {
        for method in ["desk/ok", "desk/fail", "desk/panic", "no/such"] {
            let request = format!(r#"{{"jsonrpc":"2.0","id" : {id} ,"method":"{method}","params":[]}}"#);
            let answer = desk.ask(&ann, &request).await.unwrap();
            assert!(answer.ends_with(&format!(r#","id":{id}}}"#)), "{id} in {answer}");
            let answer = desk.ask(&ann, &format!("[{request}]")).await.unwrap();
            assert!(answer.ends_with(&format!(r#","id":{id}}}]"#)), "{id} in {answer}");
        }
        // Also in a refusal for another reason.
        let answer = desk.ask(&ann, &format!(r#"{{"jsonrpc":"1.0","id":{id},"method":"desk/ok"}}"#)).await.unwrap();
        assert!(answer.ends_with(&format!(r#","id":{id}}}"#)), "{id} in {answer}");
    }
    // §5: "If there was an error in detecting the id in the Request object (e.g. Parse error/Invalid Request), it MUST be
    // Null."
    for id in ["true", "[]", "{}", r#"{"a":1}"#] {
        let answer = desk.ask(&ann, &format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"desk/ok"}}"#)).await.unwrap();
        assert!(answer.ends_with(r#","id":null}"#) && code(&answer) == Some(-32600), "{answer}");
    }
}

#[tokio::test]
async fn results_and_params_are_handed_on_as_they_came() {
    let router = Router::new(())
        .method("desk/raw", |_: Ctx, p: Box<serde_json::value::RawValue>| async move { Ok::<_, RpcError>(p) });
    let (desk, ann) = open(router);
    for params in [r#"[ 1.0 , 12345678901234567890.000, "\u0061" ]"#, r#"{ "b" : 1e999 , "a" : [ ] }"#] {
        let answer =
            desk.ask(&ann, &format!(r#"{{"jsonrpc":"2.0","method":"desk/raw","params":{params},"id":1}}"#)).await;
        assert_eq!(answer.unwrap(), format!(r#"{{"jsonrpc":"2.0","result":{params},"id":1}}"#));
    }
}

#[tokio::test]
async fn method_that_panics_costs_one_internal_error_and_nothing_else() {
    struct Unwritable;
    impl serde::Serialize for Unwritable {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            std::panic::resume_unwind(Box::new("hunter2"))
        }
    }
    #[derive(Deserialize)]
    struct Unreadable(#[serde(deserialize_with = "unreadable")] ());
    fn unreadable<'de, D: serde::Deserializer<'de>>(_: D) -> Result<(), D::Error> {
        std::panic::resume_unwind(Box::new("hunter2"))
    }
    async fn at_once(_: Ctx, (): ()) -> Result<(), RpcError> {
        std::panic::resume_unwind(Box::new("hunter2"))
    }
    async fn later(_: Ctx, (): ()) -> Result<(), RpcError> {
        tokio::task::yield_now().await;
        std::panic::resume_unwind(Box::new("hunter2"))
    }
    let router = Router::new(())
        .method("at/once", at_once)
        .method("later", later)
        .method("before/the/future", |_: Ctx, (): ()| -> std::future::Ready<Result<(), RpcError>> {
            std::panic::resume_unwind(Box::new("hunter2"))
        })
        .method("unwritable", |_: Ctx, (): ()| async { Ok::<_, RpcError>(Unwritable) })
        .method("unreadable", |_: Ctx, _: Unreadable| async { Ok::<_, RpcError>(()) })
        .method("fine", |_: Ctx, (): ()| async { Ok::<_, RpcError>("fine") });
    let (desk, ann) = open(router);
    let call = |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}","id":"{method}"}}"#);
    let internal = |method: &str| {
        format!(r#"{{"jsonrpc":"2.0","error":{{"code":-32603,"message":"Internal error"}},"id":"{method}"}}"#)
    };
    let (fine, well) = (call("fine"), r#"{"jsonrpc":"2.0","result":"fine","id":"fine"}"#);
    for method in ["at/once", "later", "before/the/future", "unwritable"] {
        assert_eq!(desk.ask(&ann, &call(method)).await.unwrap(), internal(method));
        let answer = desk.ask(&ann, &format!("[{fine},{},{fine}]", call(method))).await.unwrap();
        assert_eq!(answer, format!("[{well},{},{well}]", internal(method)));
        assert_eq!(desk.ask(&ann, &fine).await.unwrap(), well);
    }
    let unreadable = r#"{"jsonrpc":"2.0","method":"unreadable","params":[1],"id":"unreadable"}"#;
    assert_eq!(desk.ask(&ann, unreadable).await.unwrap(), internal("unreadable"));
}

#[tokio::test(start_paused = true)]
async fn method_that_panics_while_it_is_cancelled_costs_nothing_but_itself() {
    struct PanicsWhenDropped;
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("hunter2"));
        }
    }
    let router = Router::new(())
        .method("when/dropped", |_: Ctx, (): ()| async {
            let _bomb = PanicsWhenDropped;
            std::future::pending::<()>().await;
            Ok::<_, RpcError>(())
        })
        .method("fine", |_: Ctx, (): ()| async { Ok::<_, RpcError>("fine") });
    let (desk, ann) = open(router);
    let call = |method: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}","id":"{method}"}}"#);
    let batch = format!("[{},{},{}]", call("fine"), call("when/dropped"), call("fine"));
    let soon = Some(Duration::from_millis(40));
    let letter = desk.letter_to(&ann, "rpc.v1.desk.ann", "_INBOX.ann.r1", &batch, soon);
    let answer = json(&desk.answer(&letter).await.unwrap());
    assert_eq!((&answer[0]["result"], &answer[2]["result"]), (&json!("fine"), &json!("fine")));
    assert_eq!(answer[1]["error"]["code"], -32003);
}

// §5.1: "The error codes from and including -32768 to -32000 are reserved for pre-defined errors."; "data: A Primitive or
// Structured value that contains additional information about the error. This may be omitted."
/// SPEC.md §14.1.
#[tokio::test]
async fn errors_of_the_application_are_sent_as_they_are_and_never_pass_for_ours() {
    let router = Router::new(())
        .method("desk/fail", |_: Ctx, (code,): (i32,)| async move {
            Err::<(), _>(RpcError::application(code, "as asked").with_data(&json!({"limit": 3, "of": [null, "x"]})))
        })
        // An error received from another service and passed on.
        .method("desk/relay", |_: Ctx, (code,): (i32,)| async move {
            let text = format!(r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"as received"}},"id":1}}"#);
            match Responses::parse(text.as_bytes(), &Limits::default()).unwrap() {
                Responses::Single(response) => response.outcome,
                Responses::Batch(_) => unreachable!("an object was given"),
            }
        })
        // The meanings that an application shares with Sealwire.
        .method("desk/shared", |_: Ctx, (code,): (i32,)| async move {
            Err::<(), _>(match code {
                -32001 => RpcError::validation("no"),
                -32004 => RpcError::dependency("down"),
                -32602 => RpcError::invalid_params("no"),
                _ => RpcError::internal("down"),
            })
        });
    let (desk, ann) = open(router);
    let ask = async |method: &str, code: i32| {
        let request = format!(r#"{{"jsonrpc":"2.0","method":"desk/{method}","params":[{code}],"id":1}}"#);
        json(&desk.ask(&ann, &request).await.unwrap())
    };
    let data = json!({"limit": 3, "of": [null, "x"]});
    for code in [-1, 0, 1, 404, i32::MAX, i32::MIN, -31999, -32769] {
        let error = json!({"code": code, "message": "as asked", "data": data});
        assert_eq!(ask("fail", code).await, json!({"jsonrpc": "2.0", "error": error, "id": 1}));
        let error = json!({"code": code, "message": "as received"});
        assert_eq!(ask("relay", code).await, json!({"jsonrpc": "2.0", "error": error, "id": 1}));
    }
    // The member is not the application's to write: it stands beside the error.
    let of = |error: Value| json!({"jsonrpc": "2.0", "error": error, "application_error": true, "id": 1});
    for code in (-32768..=-32100).step_by(17).chain(-32099..=-32000).chain([-32700, -32603, -32602, -32601, -32600]) {
        assert_eq!(ask("fail", code).await, of(json!({"code": code, "message": "as asked", "data": data})), "{code}");
        assert_eq!(ask("relay", code).await, of(json!({"code": code, "message": "as received"})), "{code}");
    }
    for code in [-32001, -32004, -32602, -32603] {
        let said = ask("shared", code).await;
        assert_eq!((&said["error"]["code"], said.get("application_error")), (&json!(code), None));
    }
}

// §4.2: "by-position: params MUST be an Array, containing the values in the Server expected order"; "by-name: params MUST
// be an Object, with member names that match the Server expected parameter names."; §4: params "MAY be omitted."
#[tokio::test]
async fn one_method_takes_named_positional_and_absent_params() {
    #[derive(Deserialize)]
    struct Page {
        #[serde(default)]
        from: u64,
        #[serde(default = "ten")]
        size: u64,
    }
    fn ten() -> u64 {
        10
    }
    let router = Router::new(())
        .method("desk/page", |_: Ctx, p: Page| async move { Ok::<_, RpcError>((p.from, p.size)) })
        .method("desk/sub", |_: Ctx, (a, b): (i64, i64)| async move { Ok::<_, RpcError>(a - b) });
    let (desk, ann) = open(router);
    let ask = async |method: &str, params: &str| {
        let request = format!(r#"{{"jsonrpc":"2.0","method":"desk/{method}"{params},"id":1}}"#);
        let answer = json(&desk.ask(&ann, &request).await.unwrap());
        answer.get("result").unwrap_or(&answer["error"]["code"]).clone()
    };
    for (params, page) in [
        ("", json!([0, 10])),
        (r#","params":{}"#, json!([0, 10])),
        (r#","params":[]"#, json!([0, 10])),
        (r#","params":[5]"#, json!([5, 10])),
        (r#","params":[5,6]"#, json!([5, 6])),
        (r#","params":{"size":6}"#, json!([0, 6])),
        (r#","params":{"size":6,"from":5}"#, json!([5, 6])),
        // §4.2: "The names MUST match exactly, including case, to the method's expected parameters."
        (r#","params":{"Size":6,"FROM":5}"#, json!([0, 10])),
        (r#","params":[5,6,7]"#, json!(-32602)),
        (r#","params":{"size":"6"}"#, json!(-32602)),
        // §4.2: "parameters for the rpc call MUST be provided as a Structured value".
        (r#","params":null"#, json!(-32600)),
        (r#","params":"5""#, json!(-32600)),
        (r#","params":5"#, json!(-32600)),
        (r#","params":true"#, json!(-32600)),
    ] {
        assert_eq!(ask("page", params).await, page, "{params}");
    }
    assert_eq!(ask("sub", r#","params":[5,3]"#).await, json!(2));
    assert_eq!(ask("sub", "").await, json!(-32602));
    assert_eq!(ask("sub", r#","params":[5]"#).await, json!(-32602));
}

// §4: "Method names that begin with the word rpc followed by a period character (U+002E or ASCII 46) are reserved for
// rpc-internal methods and extensions".
/// SPEC.md §14.1.
#[tokio::test]
async fn unknown_methods_are_told_from_denied_ones_only_where_the_policy_allows_the_name() {
    let (router, runs) = counting();
    let desk = Desk::open(router);
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &[]));
    let ask = async |agent: &Agent, method: &str| {
        code(&desk.ask(agent, &format!(r#"{{"jsonrpc":"2.0","method":{},"id":1}}"#, json!(method))).await.unwrap())
    };
    for method in ["desk/nowhere", "desk/a/b.c", "desk.nowhere"] {
        let expected = if method.starts_with("desk/") { -32601 } else { -32002 };
        assert_eq!(ask(&ann, method).await, Some(expected), "{method}");
        assert_eq!(ask(&bob, method).await, Some(-32002), "{method}");
    }
    for method in ["vault/open", "vault/nowhere", "rpc.nowhere", "rpc/x", "", "Desk/ok", "desk/", "/desk", "desk//ok"] {
        assert_eq!(ask(&ann, method).await, Some(-32002), "{method}");
    }
    // The name of an existing method in the notation of subjects is another name.
    assert_eq!(ask(&ann, "desk.ok").await, Some(-32002));
    assert_eq!(ask(&bob, "desk/ok").await, Some(-32002));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    // Names outside the grammar are unknown methods, not invalid requests; no policy can allow them.
    desk.change_policy(OPEN_POLICY);
    assert_eq!(ask(&ann, "rpc.nowhere").await, Some(-32601));
    for method in ["a\u{0}b", "d\u{e9}sk", &"x".repeat(129), "a b", "*"] {
        assert_eq!(ask(&ann, method).await, Some(-32002), "{method}");
    }
}

// §5.1: -32700 "Invalid JSON was received by the server", -32600 "The JSON sent is not a valid Request object."
#[tokio::test]
async fn parse_errors_and_invalid_requests_are_told_apart() {
    let (desk, ann) = open(counting().0);
    let deep =
        |n| format!(r#"{{"jsonrpc":"2.0","method":"desk/ok","params":{}{},"id":1}}"#, "[".repeat(n), "]".repeat(n));
    for (body, expected) in [
        ("", -32700),
        (" ", -32700),
        ("{", -32700),
        ("nul", -32700),
        ("{}{}", -32700),
        ("[1,]", -32700),
        (r#"{"jsonrpc":"2.0","method":"desk/ok","id":01}"#, -32700),
        ("\u{feff}{}", -32700),
        (&deep(64), -32700),
        ("{}", -32600),
        ("null", -32600),
        ("1", -32600),
        ("\"x\"", -32600),
        ("[]", -32600),
        (r#"["2.0","desk/ok",[],1]"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
        (r#"{"jsonrpc":2.0,"method":"desk/ok","id":1}"#, -32600),
        (r#"{"jsonrpc":"2.0","method":"desk/ok","id":1,"id":2}"#, -32600),
        (r#"{"jsonrpc":"2.0","method":"desk/ok","params":[{"a":1,"\u0061":2}],"id":1}"#, -32600),
    ] {
        let answer = desk.ask(&ann, body).await.unwrap();
        // An array of four is a batch whose four entries are not requests.
        let first = json(&answer);
        let first = first.get(0).unwrap_or(&first);
        assert_eq!(first["error"]["code"], expected, "{body}: {answer}");
    }
    assert_eq!(code(&desk.ask(&ann, &deep(63)).await.unwrap()), None);
    // Bytes that are not UTF-8 cannot be written as text here.
    let mut letter = desk.letter(&ann, "x");
    letter.payload = b"\"\xff\"".to_vec();
    let signed = desk.letter_claiming(&ann, "x", |claims| claims.dig = sealwire_testkit::desk::digest(&letter.payload));
    let letter = sealwire_testkit::desk::Letter { payload: letter.payload, ..signed };
    assert_eq!(code(&desk.answer(&letter).await.unwrap()), Some(-32700));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_different_messages_run_at_the_same_time() {
    let barrier = Arc::new(Barrier::new(6));
    let router = Router::new(Arc::clone(&barrier)).method("desk/meet", |ctx: Ctx<Arc<Barrier>>, (): ()| async move {
        ctx.state().wait().await;
        Ok::<_, RpcError>(())
    });
    let (desk, _) = open(router);
    let call = r#"{"jsonrpc":"2.0","method":"desk/meet","id":1}"#;
    let letters: Vec<_> = ["ann", "bob", "eve", "ann", "bob", "eve"]
        .map(|name| desk.letter(&desk.agent(name, &["worker"]), call))
        .into_iter()
        .collect();
    let all = futures_util::future::join_all(letters.iter().map(|letter| desk.answer(letter)));
    let answers = tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().contains("result")));
}
