//! `sealwire call --stream` and `sealwire watch`: they print items as they arrive, and leave nothing running.

use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream;
use sealwire::serve::Attachment;
use sealwire::{Ctx, Router, RpcError, Sink};
use serde_json::{Value, json};

use crate::call::Bench;
use crate::process::{SIGINT, SIGTERM, heard, says, send, spawn, whole};
use crate::terminal::on_terminal;
use sealwire_lab::demo_methods::Demo;

/// How many endless methods were begun, and dropped before their end.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

struct Counted;

impl Counted {
    fn begin() -> Self {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::SeqCst);
    }
}

/// Endless: a number every 20 ms. `held` is dropped with it.
fn numbers<T: Send>(held: T) -> impl stream::Stream<Item = Result<Value, RpcError>> + Send {
    stream::unfold((0_u64, held), |(number, counted)| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some((Ok(json!({ "at": number })), (number + 1, counted)))
    })
}

pub(crate) fn methods(router: Router<Demo>) -> Router<Demo> {
    router
        .method_with_sink("test/tell", |_: Ctx<Demo>, (end,): (String,), sink: Sink<String>| async move {
            let words = ["Once ", "upon", " a\u{1b}[2J", " time", &end];
            for word in words {
                sink.send(&word.to_owned()).await?;
            }
            Ok::<_, RpcError>(words.concat())
        })
        .stream("test/list", |_: Ctx<Demo>, (): ()| async move {
            let items = [json!({ "a": 1 }), json!("text"), json!([2.5])];
            Ok::<_, RpcError>(stream::iter(items.map(Ok::<_, RpcError>)))
        })
        .method_with_sink("test/job", |ctx: Ctx<Demo>, (): (), _: Sink<()>| async move {
            ctx.notify("job/began", &json!({ "by": "\u{1b}]0;x" })).await?;
            for done in 1..=4 {
                ctx.progress(f64::from(done), Some(4.0), Some("working"));
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
            Ok::<_, RpcError>(json!({ "done": true }))
        })
        // These three are for one test alone, which counts their ends.
        .stream("test/endless", |_: Ctx<Demo>, (): ()| async move { Ok::<_, RpcError>(numbers(Counted::begin())) })
        .subscription(
            "test/counted",
            |_: Ctx<Demo>, (): ()| async move { Ok::<_, RpcError>(numbers(Counted::begin())) },
        )
        .method("test/forever", |_: Ctx<Demo>, (): ()| async move {
            let _counted = Counted::begin();
            std::future::pending::<Result<(), RpcError>>().await
        })
        .subscription("test/ticks", |_: Ctx<Demo>, (): ()| async move { Ok::<_, RpcError>(numbers(())) })
        .method("test/keep", |ctx: Ctx<Demo>, p: Keep| async move {
            let document = ctx.attachment(&p.document).await?;
            let kind = p.document.media_type();
            Ok::<_, RpcError>(json!({ "title": p.title, "bytes": document.len(), "type": kind }))
        })
        .method("test/large", |_: Ctx<Demo>, (): ()| async move { Ok::<_, RpcError>("x".repeat(1_000_000)) })
}

const CANCELLED: &str = "error: stopped by a signal: the service has cancelled the call\n";

#[derive(serde::Deserialize)]
struct Keep {
    document: Attachment,
    title: Option<String>,
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_are_printed_as_they_come_and_a_result_that_repeats_them_is_not() {
    let bench = Bench::start().await;
    // Texts follow each other directly, even in a pipe, and cannot control a terminal.
    let told = bench.run(&["call", "demo", "test/tell", r#"["."]"#, "--stream"]).ok();
    assert_eq!((told.stdout.as_str(), told.stderr.as_str()), ("Once upon a\\u{1b}[2J time.\n", ""));
    let told = bench.run(&["call", "demo", "test/tell", r#"["!\n"]"#, "--stream"]).ok();
    assert_eq!(told.stdout, "Once upon a\\u{1b}[2J time!\n", "its own end of line is enough");
    let told = bench.run(&["call", "demo", "test/tell", r#"["."]"#, "--stream", "--json"]).ok();
    let told = lines(&told.stdout);
    assert_eq!((&told[0], told.len()), (&json!({ "item": "Once " }), 6));
    assert_eq!(told[5], json!({ "result": "Once upon a\u{1b}[2J time." }));

    let list = bench.run(&["call", "demo", "test/list", "--stream"]).ok();
    assert_eq!(list.stdout, "{\"a\":1}\ntext\n[2.5]\n");
    let list = lines(&bench.run(&["call", "demo", "test/list", "--stream", "--json"]).ok().stdout);
    assert_eq!(list[3], json!({ "result": null }));

    // A method that sends nothing still has its result, which may be large.
    assert_eq!(bench.run(&["call", "demo", "math/add", "[2,3]", "--stream"]).ok().stdout, "5\n");
    assert_eq!(bench.run(&["call", "demo", "test/large", "--stream"]).ok().stdout.len(), 1_000_003);
    let bounded = ["call", "demo", "test/large", "--stream", "--max-bytes", "1000"];
    bench.run(&bounded).fails(21, &["more than 1000 bytes", "--max-bytes"]);
    bench.run(&["call", "demo", "test/large"]).fails(21, &["too large (-32015)"]);
    // Errors are the same as for a call.
    bench.run(&["call", "demo", "math/reset", "--stream"]).fails(10, &["permission denied (-32002)", "rpc.can"]);
    let slow = ["call", "demo", "test/slow", "--stream", "--deadline", "3s"];
    bench.run(&slow).fails(23, &["timeout"]);
    bench.run(&["call", "demo", "test/list", "--stream", "--every", "1s"]).fails(2, &["cannot be used with"]);
    bench.run(&["call", "demo", "test/ticks"]).fails(21, &["-32600", "`sealwire watch demo test/ticks` listens to it"]);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_goes_with_a_call_as_an_argument_larger_than_a_message() {
    let bench = Bench::start().await;
    std::fs::write(bench.shell.path("report.pdf"), vec![7; 700_000]).unwrap();
    let attach = ["--attach", "document=report.pdf;type=application/pdf"];
    let kept = bench.run(&[&["call", "demo", "test/keep", r#"{"title":"x"}"#][..], &attach].concat()).ok();
    assert_eq!(kept.json(), json!({ "title": "x", "bytes": 700_000, "type": "application/pdf" }));
    let kept = bench.run(&["call", "demo", "test/keep", "--stream", "--attach", "document=report.pdf"]).ok();
    assert_eq!(kept.json(), json!({ "title": null, "bytes": 700_000, "type": "application/octet-stream" }));

    bench.run(&[&["call", "demo", "test/keep", "[1]"][..], &attach].concat()).fails(30, &["by position", "by name"]);
    bench.run(&["call", "demo", "test/keep", "--attach", "document=none.pdf"]).fails(30, &["none.pdf"]);
    bench.run(&["call", "demo", "test/keep", "--attach", "document"]).fails(2, &["document=report.pdf"]);
    // Only attached files are given.
    let digest = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
    let other = json!({ "document": { "sha256": digest, "size": 9, "type": "text/plain" } }).to_string();
    bench.run(&["call", "demo", "test/keep", &other, "--stream"]).fails(21, &["-32602", "did not give the attachment"]);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_a_bar_on_a_terminal_and_a_line_for_scripts() {
    let bench = Bench::start().await;
    let args = ["call", "--creds", "planner.creds.json", "demo", "test/job", "--stream"];
    let shown = on_terminal(&bench.shell, &args, &[]);
    assert!(shown.contains("[#######-----------------------]  25 % working"), "{shown:?}");
    assert!(shown.contains("job/began") && !shown.contains("\u{1b}]0;x"), "{shown:?}");
    assert!(shown.ends_with("\r\u{1b}[K{\"done\":true}\n"), "the bar goes: {shown:?}");
    for dumb in ["dumb", ""] {
        let shown = on_terminal(&bench.shell, &args, &[("TERM", dumb)]);
        assert!(
            shown.ends_with("{\"done\":true}\n") && !shown.contains('\u{1b}') && !shown.contains('#'),
            "{dumb}: {shown:?}"
        );
    }
    let piped = bench.run(&["call", "demo", "test/job", "--stream"]).ok();
    assert_eq!(piped.stdout, "{\"done\":true}\n");
    assert!(piped.stderr.starts_with("job/began {") && piped.stderr.lines().count() == 1, "{piped:?}");
    let told = lines(&bench.run(&["call", "demo", "test/job", "--stream", "--json"]).ok().stdout);
    assert_eq!(told[0]["notification"]["method"], "job/began");
    let progress =
        json!({ "method": "rpc.progress", "params": { "progress": 1.0, "total": 4.0, "message": "working" } });
    assert_eq!((&told[1]["notification"], &told[5]), (&progress, &json!({ "result": { "done": true } })));
    bench.end().await;
}

/// Has the command call a counted method, and stops it. Returns its exit code and output.
async fn stopped_at_work(bench: &Bench, words: &[&str], signal: i32) -> (Option<i32>, String, String) {
    let (command, rest) = words.split_first().unwrap();
    let begun = BEGUN.load(Ordering::SeqCst);
    let args = [&[*command, "--creds", "planner.creds.json", "demo"][..], rest, &["--deadline=500s"]].concat();
    let mut child = spawn(&bench.shell, &args);
    let (mut out, mut err) = (heard(child.stdout.take().unwrap()), heard(child.stderr.take().unwrap()));
    let begins = async {
        while BEGUN.load(Ordering::SeqCst) == begun {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), begins).await.unwrap();
    send(signal, child.id().unwrap());
    let status = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.unwrap().unwrap();
    (status.code(), whole(&mut out).await, whole(&mut err).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_stops_it_has_the_call_cancelled_at_the_service() {
    let bench = Bench::start().await;
    let creds = ["--creds", "planner.creds.json", "demo"];
    for (words, signal, code) in [
        (["call", "test/endless", "--stream"], SIGINT, 130),
        (["call", "test/endless", "--stream"], SIGTERM, 130),
        (["watch", "test/counted", "--lease=10s"], SIGINT, 0),
    ] {
        let [command, method, option] = words;
        let before = DROPPED.load(Ordering::SeqCst);
        let mut child = spawn(&bench.shell, &[&[command][..], &creds, &[method, option]].concat());
        let (mut out, mut err) = (heard(child.stdout.take().unwrap()), heard(child.stderr.take().unwrap()));
        says(&mut out, "{\"at\":3}\n").await;
        send(signal, child.id().unwrap());
        let status = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.unwrap().unwrap();
        let said = whole(&mut err).await;
        assert_eq!(status.code(), Some(code), "{said}");
        assert_eq!(DROPPED.load(Ordering::SeqCst), before + 1, "{command}");
        let told = if code == 0 { "" } else { CANCELLED };
        assert_eq!(said, told);
    }
    // Commands that print nothing until they end.
    let entries = r#"[{"method":"test/forever"},{"method":"math/add","params":[2,3]}]"#;
    let raw = r#"{"jsonrpc":"2.0","method":"test/forever","id":7}"#;
    for (words, signal, printed, told) in [
        (&["call", "test/forever"][..], SIGINT, "", CANCELLED),
        (&["call", "test/forever", "--idempotent"], SIGTERM, "", CANCELLED),
        (
            &["batch", entries],
            SIGINT,
            "test/forever  error: stopped by a signal: the service has cancelled the call\n",
            "",
        ),
        (&["send", raw], SIGINT, "\"code\":-32016", ""),
    ] {
        let dropped = DROPPED.load(Ordering::SeqCst);
        let (code, out, said) = stopped_at_work(&bench, words, signal).await;
        assert_eq!((code, said.as_str()), (Some(130), told), "{words:?}: {out}");
        assert!(out.contains(printed) && out.is_empty() == printed.is_empty(), "{words:?}: {out}");
        assert_eq!(DROPPED.load(Ordering::SeqCst), dropped + 1, "{words:?}");
    }
    // It ends at once without waiting for the service: on a busy machine it may even end before it has sent the cancellation.
    let mut is_cancelled = false;
    for _ in 0..5 {
        let dropped = DROPPED.load(Ordering::SeqCst);
        let (code, out, _) = stopped_at_work(&bench, &["call", "test/forever", "--every=1s"], SIGINT).await;
        assert!(code == Some(130) && out.contains("given up because of a signal"), "{code:?} {out}");
        let told = Instant::now();
        while !is_cancelled && told.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            is_cancelled = DROPPED.load(Ordering::SeqCst) > dropped;
        }
        if is_cancelled {
            break;
        }
    }
    assert!(is_cancelled);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_have_a_line_each_until_enough_came_or_the_service_stops() {
    let bench = Bench::start().await;
    let three = bench.run(&["watch", "demo", "test/ticks", "--times", "3"]).ok();
    assert_eq!(three.stdout, "{\"at\":0}\n{\"at\":1}\n{\"at\":2}\n");
    let two = lines(&bench.run(&["watch", "demo", "test/ticks", "--times", "2", "--json"]).ok().stdout);
    assert_eq!(two, [json!({ "item": { "at": 0 } }), json!({ "item": { "at": 1 } })]);
    bench.run(&["watch", "demo", "test/ticks", "--lease", "1s"]).fails(30, &["a lease of 1000 ms"]);
    bench.run(&["watch", "demo", "math/reset"]).fails(10, &["permission denied", "with message_id"]);
    let mut command = tokio::process::Command::from(bench.shell.command(&[
        "watch",
        "--creds",
        "planner.creds.json",
        "demo",
        "test/ticks",
    ]));
    let mut child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let (mut out, mut err) = (heard(child.stdout.take().unwrap()), heard(child.stderr.take().unwrap()));
    says(&mut out, "{\"at\":3}\n").await;
    bench.end().await;
    let status = tokio::time::timeout(Duration::from_secs(20), child.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
    assert!(whole(&mut out).await.ends_with("{\"closed\":\"draining\"}\n"));
    assert!(whole(&mut err).await.contains("the service has ended it"));
}
