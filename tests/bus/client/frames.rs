//! Frames, questions and control between the client and a service that signs whatever a test wants (SPEC.md §25.4, §25.6).

use std::time::Duration;

use sealwire::call::Attachment;
use sealwire::internal::wire::FrameFault;
use sealwire::{Client, ClientError};
use sealwire_testkit::desk::{b64, digest};
use sealwire_testkit::scripted::{Scripted, ScriptedCall};
use sealwire_testkit::site::{Site, agent_key};
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::{Value, json};

use super::eventually;
use super::streams::connect;

struct Scene {
    _server: NatsServer,
    service: Scripted,
    client: Client,
}

impl Scene {
    async fn open() -> Self {
        let server = NatsServer::start().await;
        let site = Site::new(&server.url());
        let mut master = [0x5a; 32];
        master[..3].copy_from_slice(b"ann");
        assert_eq!(agent_key("ann").kid(), "ann.k1");
        let service = Scripted::start(&server, "test/site", "ann", "ann.k1", &master).await;
        let client = connect(&site, &server, "ann").await;
        Self { _server: server, service, client }
    }
}

fn response(call: &ScriptedCall, result: &Value) -> String {
    json!({ "jsonrpc": "2.0", "result": result, "id": call.id() }).to_string()
}

/// Each member missing, short, long, of another type or of another value; as JSON text, so that members may occur twice.
fn malformed(good: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let text = |claims: &Value| claims.to_string();
    for (name, value) in good.as_object().unwrap() {
        let mut add = |what: &str, value: Option<Value>| {
            let mut claims = good.clone();
            match value {
                Some(value) => claims[name] = value,
                None => drop(claims.as_object_mut().unwrap().remove(name)),
            }
            all.push((format!("{name} {what}"), text(&claims)));
        };
        add("missing", None);
        add("null", Some(Value::Null));
        add("array", Some(json!([value])));
        add("object", Some(json!({})));
        add("true", Some(json!(true)));
        match value {
            Value::String(value) => {
                add("empty", Some(json!("")));
                // Another name is well-formed.
                if name != "rep" {
                    add("short", Some(json!(value[..value.len() - 1])));
                    add("long", Some(json!(format!("{value}A"))));
                }
                add("padded", Some(json!(format!("{value}="))));
                add("blank", Some(json!(format!("{value} "))));
                add("number", Some(json!(5)));
            }
            _ => {
                add("text", Some(json!(value.to_string())));
                add("fraction", Some(json!(1.5)));
                add("exponent", Some(json!(1e300)));
                add("negative", Some(json!(-1)));
                add("too large", Some(json!(1_u64 << 53)));
            }
        }
        all.push((format!("{name} twice"), text(good).replacen('{', &format!("{{\"{name}\":{value},"), 1)));
    }
    let mut more = good.clone();
    more["more"] = json!(1);
    all.push(("another member".to_owned(), text(&more)));
    for (what, name, value) in [
        ("another kind", "knd", json!("stop")),
        ("capital", "knd", json!("End")),
        ("all replicas", "rep", json!("all")),
        ("no name", "rep", json!("r 1")),
        ("no digest", "acc", json!("=".repeat(43))),
        ("not canonical", "acc", json!(format!("{}B", "A".repeat(42)))),
        ("0", "seq", json!(0)),
        ("of another service", "iss", json!("test/other")),
        ("of another inbox", "to", json!("_INBOX.bob.1")),
        ("of another request", "req", json!(digest(b"other"))),
        ("of another payload", "dig", json!(digest(b"other"))),
    ] {
        let mut claims = good.clone();
        claims[name] = value;
        all.push((format!("{name} {what}"), text(&claims)));
    }
    all.extend([("no object".to_owned(), "[]".to_owned()), ("nothing".to_owned(), String::new())]);
    all
}

/// SPEC.md §25.4: what is malformed is ignored and counted, however well it is signed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_frame_is_ignored_and_the_stream_goes_on() {
    let mut scene = Scene::open().await;
    let stream = scene.client.request("site").deadline(Duration::from_secs(100)).stream::<i64>("site/any", ());
    let result = tokio::spawn(stream.finish::<String>());
    let mut call = scene.service.call().await;
    call.frame("open", "").await;
    let wrong = response(&call, &json!("of a malformed frame"));
    let bad = malformed(&call.claims("end", &wrong));
    for (_, claims) in &bad {
        call.frame_of(claims, &wrong).await;
    }
    // Kinds that do not fit their other members.
    let mut others = 0;
    for (kind, change) in [("item", "acc"), ("item", "seq"), ("open", "seq"), ("beat", "acc"), ("end", "acc")] {
        let mut claims = call.claims(kind, &wrong);
        match (kind, change) {
            ("end", _) => drop(claims.as_object_mut().unwrap().remove("acc")),
            (_, "acc") => claims["acc"] = json!(b64(&[1; 32])),
            ("open", _) => claims["seq"] = json!(7),
            _ => claims["seq"] = json!(0),
        }
        call.frame_of(&claims.to_string(), &wrong).await;
        others += 1;
    }
    for kind in ["open", "beat"] {
        let mut claims = call.claims(kind, "x");
        claims["seq"] = json!(0);
        call.frame_of(&claims.to_string(), "x").await;
        others += 1;
    }
    let all = u64::try_from(bad.len()).unwrap() + others;
    eventually("all are counted", || scene.client.stats().frames_refused == all).await;
    assert!(!result.is_finished(), "none of {all} is the end");
    let right = response(&call, &json!("right"));
    call.frame("end", &right).await;
    assert_eq!(within(SOON, result).await.unwrap().unwrap(), "right");
    println!("{all} malformed frames");
    assert!(all > 90);
}

/// SPEC.md §25.4: what is well-formed and contradicts the stream ends it, with an unknown outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_contradicts_the_stream_ends_it() {
    let mut scene = Scene::open().await;
    for (what, fault) in [
        ("acc", FrameFault::Digest),
        ("rep", FrameFault::Replica),
        ("seq", FrameFault::Window),
        ("twice", FrameFault::Conflict),
    ] {
        let request = scene.client.request("site").deadline(Duration::from_secs(100)).window(4);
        let result = tokio::spawn(request.stream::<i64>("site/any", ()).finish::<String>());
        let mut call = scene.service.call().await;
        call.frame("open", "").await;
        let end = response(&call, &json!("wrong"));
        let mut claims = call.claims("end", &end);
        match what {
            "acc" => claims["acc"] = json!(b64(&[1; 32])),
            "rep" => claims["rep"] = json!("r2"),
            "seq" => claims["seq"] = json!(40),
            _ => claims["seq"] = json!(3),
        }
        call.frame_of(&claims.to_string(), &end).await;
        if what == "twice" {
            let other = response(&call, &json!("another"));
            let mut claims = call.claims("item", &other);
            claims["seq"] = json!(3);
            call.frame_of(&claims.to_string(), &other).await;
        }
        let error = within(SOON, result).await.unwrap().unwrap_err();
        assert!(matches!(error, ClientError::Frames(found) if found == fault), "{what}: {error:?}");
        assert!(error.is_outcome_unknown());
    }
}

/// SPEC.md §25.6: whatever cannot be answered is refused with -32602.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_about_attachments_that_cannot_be_answered_are_refused_as_such() {
    let mut scene = Scene::open().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let bytes = vec![7_u8; 1_000];
    for (kind, cut) in [("nothing", false), ("bytes", false), ("file", false), ("file", true)] {
        std::fs::write(&path, &bytes).unwrap();
        let request = scene.client.request("site").deadline(Duration::from_secs(100));
        let request = match kind {
            "nothing" => request,
            "bytes" => request.attach(&Attachment::bytes("text/plain", bytes.clone())),
            _ => request.attach(&Attachment::file("text/plain", &path).await.unwrap()),
        };
        let result = tokio::spawn(request.stream::<i64>("site/any", ()).finish::<String>());
        let mut call = scene.service.call().await;
        call.frame("open", "").await;
        if cut {
            std::fs::write(&path, b"short").unwrap();
        }
        let sha = digest(&bytes);
        let good = json!({ "sha256": sha, "offset": 900, "length": 100 });
        let mut questions = vec![
            (json!([sha, 0, 10]), false),
            (json!({ "sha256": digest(b"other"), "offset": 0, "length": 1 }), false),
            (json!({ "sha256": sha, "offset": 900, "length": 101 }), false),
            (json!({ "sha256": sha, "offset": 0, "length": 0 }), false),
            (json!({ "sha256": sha, "offset": 0, "length": 98_305 }), false),
            (json!({ "sha256": sha, "offset": u64::MAX, "length": 2 }), false),
            (json!({ "sha256": sha, "offset": -1, "length": 2 }), false),
            (json!({ "sha256": sha, "offset": "0", "length": 2 }), false),
            (json!({ "sha256": sha, "offset": 0 }), false),
            (json!({ "sha256": sha, "offset": 0, "length": 2, "more": 1 }), false),
            (json!({}), false),
            (json!([]), false),
            (Value::Null, false),
        ];
        questions.push((good, kind != "nothing" && !cut));
        for (params, is_answered) in questions {
            let mut question = json!({ "jsonrpc": "2.0", "method": "rpc.attachment", "params": params, "id": 9 });
            if params.is_null() {
                question.as_object_mut().unwrap().remove("params");
            }
            let asked = call.frame("ask", &question.to_string()).await;
            let answer = loop {
                let answer = scene.service.control_that("answer").await;
                if answer.claims["ask"] == asked {
                    break serde_json::from_slice::<Value>(&answer.payload).unwrap();
                }
            };
            if is_answered {
                assert_eq!(answer["result"], b64(&bytes[900..]), "{kind} {question}");
            } else {
                assert_eq!(answer["error"]["code"], -32602, "{kind} {cut} {question}: {answer}");
            }
        }
        // Other questions are not known.
        let asked = call.frame("ask", r#"{"jsonrpc":"2.0","method":"user/name","id":9}"#).await;
        let answer = loop {
            let answer = scene.service.control_that("answer").await;
            if answer.claims["ask"] == asked {
                break serde_json::from_slice::<Value>(&answer.payload).unwrap();
            }
        };
        assert_eq!(answer["error"]["code"], -32601);
        let end = response(&call, &json!("done"));
        call.frame("end", &end).await;
        assert_eq!(within(SOON, result).await.unwrap().unwrap(), "done");
    }
}

/// SPEC.md §25.2: `ctr` rises on the wire, whoever sends control of a call at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn control_leaves_in_the_order_of_its_counter() {
    let mut scene = Scene::open().await;
    let (mut messages, mut operations) = (0, std::collections::BTreeSet::new());
    for _ in 0..20 {
        let request = scene.client.request("site").deadline(Duration::from_secs(100)).window(2);
        let request = request.on_ask(|_| async { Ok("yes") });
        let stream = request.stream::<i64>("site/any", ());
        let stop = stream.cancelling();
        let result = tokio::spawn(stream.finish::<String>());
        let mut call = scene.service.call().await;
        call.frame("open", "").await;
        let cancels: Vec<_> = [stop].into_iter().map(tokio::spawn).collect();
        let mut last = 0;
        for round in 0..30 {
            let question = json!({ "jsonrpc": "2.0", "method": "user/name", "id": round }).to_string();
            call.frame("ask", &question).await;
            loop {
                let control = scene.service.control().await;
                if control.claims["req"] != call.request {
                    continue;
                }
                let counter = control.claims["ctr"].as_u64().unwrap();
                assert!(counter > last, "{counter} after {last}: {control:?}");
                last = counter;
                messages += 1;
                operations.insert(control.claims["op"].as_str().unwrap().to_owned());
                if control.claims["op"] == "answer" {
                    break;
                }
            }
        }
        let end = response(&call, &json!("done"));
        call.frame("end", &end).await;
        assert_eq!(within(SOON, result).await.unwrap().unwrap(), "done");
        cancels.into_iter().for_each(|cancel| cancel.abort());
    }
    println!("{messages} control messages, {operations:?}");
    assert!(messages > 600 && operations.len() >= 3);
}
