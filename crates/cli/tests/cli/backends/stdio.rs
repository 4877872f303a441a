//! Kind `stdio`: programs that read and write lines, well-behaved and not.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use sealwire::RpcError;
use sealwire::internal::rpc::Request;
use sealwire_testkit::NatsServer;
use sealwire_testkit::python::python;
use sealwire_testkit::within;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::stage::{CODES, LONG, POLICY, Stage, code, prepared};
use crate::process::{SIGKILL, heard, says, send};

/// The program with these methods; `name` on the bus is `t/name`.
fn backend(python: &Path, more: &str, methods: &[&str]) -> String {
    let program = sealwire_testkit::root().join("crates/cli/tests/cli/backends/program.py");
    let mut text = format!(
        "[[backend]]\nname = \"program\"\nkind = \"stdio\"\n\
         command = [\"{}\", \"-B\", \"{}\", \"--ticks\"]\n{more}\n",
        python.display(),
        program.display()
    );
    for method in methods {
        write!(text, "[[backend.method]]\nname = \"t/{method}\"\ntool = \"{method}\"\n").unwrap();
    }
    text
}

pub(super) fn alive(pid: u64) -> bool {
    // A zombie counts as gone.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

pub(super) async fn gone(pid: u64) {
    let gone = async {
        while alive(pid) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(LONG, gone).await;
}

fn pids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|pid| pid.as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tools_of_a_program_are_methods_under_policies() {
    let Some(python) = python() else { return };
    let policy = "[role.user]\nallow = [\"t/*\"]\n[rule.small]\nroles = [\"user\"]\ndeny = [\"t/echo\"]\n\
                  when.params.amount = { min = 100 }\n";
    let mut text = backend(
        python,
        "env = { COLOUR = \"blue\" }\nsend_caller = true",
        &["refuse", "who", "env", "later", "job", "ask", "wait", "cancelled", "nothing"],
    );
    text += "[[backend.method]]\nname = \"t/echo\"\ntool = \"echo\"\n\
             params = [{ name = \"amount\", type = \"integer\" }, { name = \"to\", type = \"string\", optional = true }]\n\
             [[backend.method]]\nname = \"t/ticks\"\ntool = \"tick\"\npush = true\n";
    let stage = Stage::new(policy, &text).await;

    assert_eq!(stage.call("t/echo", json!({ "amount": 5 })).await.unwrap(), json!({ "amount": 5 }));
    assert_eq!(stage.call("t/echo", json!([5, "alice"])).await.unwrap(), json!([5, "alice"]), "as it came");
    let denied = stage.call("t/echo", json!({ "amount": 100 })).await.unwrap_err();
    assert_eq!(code(&denied), Some(-32002), "{denied}");
    // The policy denies it, since its rule needs the amount, not the program.
    let wrong = stage.call("t/echo", json!({ "amount": "5" })).await.unwrap_err();
    assert_eq!(code(&wrong), Some(-32602), "{wrong}");

    let refused = stage.call("t/refuse", json!([])).await.unwrap_err();
    let refused = refused.remote().unwrap();
    assert_eq!((refused.code(), refused.message()), (42, "not today"));
    assert_eq!(refused.data().unwrap().get(), r#"{"day": "Monday"}"#);
    // Nor is any other code of a program taken for one of Sealwire's own.
    assert_eq!(stage.call("t/nothing", json!([])).await.unwrap_err().remote().unwrap().profile_code(), None);
    for given in CODES {
        let refused = stage.call("t/refuse", json!([given])).await.unwrap_err();
        assert!(!refused.is_outcome_unknown(), "{refused}");
        let refused = refused.remote().unwrap();
        assert_eq!((refused.code(), refused.profile_code(), refused.message()), (given, None, "not today"));
        assert_eq!(refused.data().unwrap().get(), r#"{"day": "Monday"}"#);
    }
    let caller = json!({ "agent": "planner", "subject": "planner" });
    assert_eq!(stage.call("t/who", json!([])).await.unwrap(), caller);
    let env = stage.call("t/env", json!([])).await.unwrap();
    let names: Vec<&String> = env.as_object().unwrap().keys().filter(|name| !name.starts_with("LC_")).collect();
    assert_eq!((&names[..], &env["COLOUR"]), (&[&"COLOUR".into(), &"HOME".into(), &"PATH".into()][..], &json!("blue")));

    // What it sends during a call: parts, progress, a notification; and a question.
    let told: Arc<Mutex<Vec<Request>>> = Arc::default();
    let listener = Arc::clone(&told);
    let request = stage.client.request("tools").on_notification(move |note| listener.lock().unwrap().push(note));
    let mut parts = request.stream::<String>("t/job", json!([]));
    for word in ["Once", "upon", "a time"] {
        assert_eq!(within(LONG, parts.next()).await.unwrap().unwrap(), word);
    }
    assert_eq!(within(LONG, parts.finish::<String>()).await.unwrap(), "Once upon a time");
    let told = told.lock().unwrap().iter().map(|note| String::from_utf8(note.to_bytes()).unwrap()).collect::<Vec<_>>();
    let progress =
        r#"{"jsonrpc":"2.0","method":"rpc.progress","params":{"progress":1.0,"total":3.0,"message":"on it"}}"#;
    assert_eq!(told, [progress, r#"{"jsonrpc":"2.0","method":"job/began","params":{"by":"me"}}"#]);
    // Without frames, there is only the result.
    assert_eq!(stage.call("t/job", json!([])).await.unwrap(), "Once upon a time");
    let asked = stage.client.request("tools").on_ask(|question: Request| async move {
        assert_eq!(question.method, "which");
        Ok::<_, RpcError>(2)
    });
    let mut asked = asked.stream::<Value>("t/ask", json!([]));
    assert!(within(LONG, asked.next()).await.is_none());
    assert_eq!(within(LONG, asked.finish::<Value>()).await.unwrap(), 2);

    // Messages that belong to no call are pushed.
    let mut ticks = stage.client.subscribe::<Value>("tools", "t/ticks", json!([]));
    let first = within(LONG, ticks.next()).await.unwrap().unwrap()["n"].as_u64().unwrap();
    assert_eq!(within(LONG, ticks.next()).await.unwrap().unwrap(), json!({ "n": first + 1 }));
    assert!(within(LONG, ticks.cancel()).await);

    // The program is told about a call that nobody waits for any more.
    let mut waiting = stage.client.stream::<Value>("tools", "t/wait", json!([]));
    assert_eq!(within(LONG, waiting.next()).await.unwrap().unwrap(), "waiting");
    assert!(within(LONG, waiting.cancel()).await);
    let told = async { while stage.call("t/cancelled", json!([])).await.unwrap() == json!([]) {} };
    within(LONG, told).await;

    // Text with line ends is one message, and the program does not take a caller's text for a message.
    let inner = r#"{"jsonrpc":"2.0","method":"exit","params":[],"id":1}"#;
    let params = RawValue::from_string(format!("[1,\r\n{inner}\n]")).unwrap();
    let same = within(LONG, stage.client.call::<Value>("tools", "t/later", &params)).await.unwrap();
    assert_eq!(same[1]["method"], "exit");

    // A thousand at once, answered in any order.
    let calls = (0..1_000).map(|number| {
        let stage = &stage;
        async move { assert_eq!(stage.call("t/later", json!([number])).await.unwrap(), json!([number])) }
    });
    join_all(calls).await;
    let said = stage.end().await;
    assert!(said.contains("stderr: it has begun"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_none_ends_its_call_at_once_and_costs_no_other() {
    let Some(python) = python() else { return };
    // Far longer than the test waits.
    let stage = Stage::new(POLICY, &backend(python, "timeout_s = 600", &["raw"])).await;
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    for text in
        ["{\"a\": 1, \"a\": 2}", "\"\\ud800\"", "1, \"result\": 2", "1, \"error\": {}", &nested(61), &nested(200)]
    {
        let error = stage.call("t/raw", json!({ "text": text })).await.unwrap_err();
        assert_eq!(code(&error), Some(-32004), "{text}: {error}");
    }
    let deepest: Value = serde_json::from_str(&nested(60)).unwrap();
    assert_eq!(stage.call("t/raw", json!({ "text": nested(60) })).await.unwrap(), deepest);
    stage.end().await;
}

/// Answers in forms seen in the wild, and what the one call in progress gets: a result, the program's own error, or -32004 with this word
/// for the caller. `ID` is its id.
const FORMS: [(&str, &str, Result<i32, &str>); 31] = [
    ("a mark ahead", "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}\n", Ok(1)),
    ("CR LF", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}\r\n", Ok(1)),
    ("CR", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}\r", Ok(1)),
    ("spread", "{\n  \"jsonrpc\": \"2.0\",\n  \"id\": ID,\n  \"result\": 1\n}\n", Ok(1)),
    ("spread, CR LF", "{\r\n  \"id\": ID,\r\n  \"result\": 1, \"jsonrpc\": \"2.0\"\r\n}\r\n", Ok(1)),
    ("noise ahead", "{ starting\nready {\n{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}\n", Ok(1)),
    (
        "a log line ahead",
        "{\"level\":\"error\",\"error\":\"x\"}\n{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}\n",
        Ok(1),
    ),
    ("float id", "{\"jsonrpc\":\"2.0\",\"id\":ID.0,\"result\":1}\n", Ok(1)),
    ("batch", "[{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}]\n", Ok(1)),
    (
        "batch with what was not asked",
        "[{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":0},{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}]\n",
        Ok(1),
    ),
    ("error without id", "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":7,\"message\":\"no\"}}\n", Ok(7)),
    ("NaN", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":NaN}\n", Err("no NaN")),
    ("Infinity", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":[-Infinity]}\n", Err("no NaN and no Infinity")),
    ("single quotes", "{'jsonrpc': '2.0', 'id': ID, 'result': None}\n", Err("not JSON")),
    ("trailing comma", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1,}\n", Err("not JSON")),
    ("comment", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1} # done\n", Err("not JSON")),
    (
        "cut off",
        "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":\"x}\n{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":1}\n",
        Err("not JSON"),
    ),
    ("spread and wrong", "{\n\"jsonrpc\": \"2.0\",\n\"id\": ID,\n\"result\": NaN\n}\n", Err("no NaN")),
    ("text id", "{\"jsonrpc\":\"2.0\",\"id\":\"ID\",\"result\":1}\n", Err("its id is a string")),
    (
        "text id, error",
        "{\"jsonrpc\":\"2.0\",\"id\":\"ID\",\"error\":{\"code\":1,\"message\":\"\"}}\n",
        Err("its id is a string"),
    ),
    ("no id", "{\"jsonrpc\":\"2.0\",\"result\":1}\n", Err("its id is missing")),
    ("null id", "{\"jsonrpc\":\"2.0\",\"id\":null,\"result\":1}\n", Err("its id is missing")),
    ("list id", "{\"jsonrpc\":\"2.0\",\"id\":[ID],\"result\":1}\n", Err("its id is missing")),
    ("no version", "{\"id\":ID,\"result\":1}\n", Err("`jsonrpc`")),
    ("version 1", "{\"jsonrpc\":\"1.0\",\"id\":ID,\"result\":1}\n", Err("`jsonrpc`")),
    ("version 1.0, all", "{\"id\":ID,\"result\":1,\"error\":null}\n", Err("`jsonrpc`")),
    ("both", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1,\"error\":{\"code\":1,\"message\":\"\"}}\n", Err("neither")),
    ("neither", "{\"jsonrpc\":\"2.0\",\"id\":ID}\n", Err("neither")),
    ("bad error", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":\"no\"}\n", Err("its `error`")),
    ("twice", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"a\":1,\"a\":2}}\n", Err("twice")),
    ("half a pair", "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":\"\\ud800\"}\n", Err("not Unicode")),
];

/// What a call got of an answer in some form.
pub(super) fn got(outcome: Result<Value, sealwire::ClientError>) -> Result<i64, (i32, String)> {
    match outcome {
        Ok(result) => Ok(result.as_i64().unwrap()),
        Err(error) => {
            let refused = error.remote().unwrap_or_else(|| panic!("{error}"));
            let data = refused.data().map(|data| data.get().to_owned()).unwrap_or_default();
            Err((refused.code(), data))
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_in_whatever_form_ends_its_call_at_once_with_the_reason() {
    let Some(python) = python() else { return };
    // Far longer than the test waits.
    let text = backend(python, "timeout_s = 600", &["form", "wait", "echo"]).replace(", \"--ticks\"", "");
    let mut stage = Stage::new(POLICY, &text).await;
    let encoded = ["utf-16-le", "utf-16-be", "utf-16"].map(|encoding| {
        let text = "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}\n";
        (encoding, json!({ "text": text, "encoding": encoding }), Err("it is UTF-16"))
    });
    let bytes = "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":\"\u{e9}\"}\n";
    let latin = ("latin", json!({ "text": bytes, "encoding": "latin-1" }), Err("it is not UTF-8"));
    let forms = FORMS.iter().map(|(name, text, expected)| (*name, json!({ "text": text }), *expected));
    for (name, params, expected) in forms.chain(encoded).chain([latin]) {
        let outcome = got(stage.call("t/form", params).await);
        match (expected, outcome) {
            (Ok(result), Ok(given)) => assert_eq!(given, i64::from(result), "{name}"),
            (Ok(own), Err((code, _))) => assert_eq!(code, own, "{name}"),
            (Err(why), Err((code, data))) => assert!(code == -32004 && data.contains(why), "{name}: {code} {data}"),
            (Err(why), Ok(given)) => panic!("{name}: {given}, and not {why}"),
        }
    }
    // With two calls in progress, what names its call still ends it, and what does not belongs to neither.
    let mut other = stage.client.stream::<Value>("tools", "t/wait", json!([]));
    assert_eq!(within(LONG, other.next()).await.unwrap().unwrap(), "waiting");
    for (name, text, expected) in FORMS {
        let names = text.contains("ID");
        let right = "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":99}\n";
        let text = if names && name != "list id" { text.to_owned() } else { format!("{text}{right}") };
        let outcome = got(stage.call("t/form", json!({ "text": text })).await);
        match (expected, outcome) {
            (_, Ok(99)) => assert!(!names || name == "list id", "{name}"),
            (Ok(result), Ok(given)) => assert_eq!(given, i64::from(result), "{name}"),
            (Err(why), Err((code, data))) => assert!(names && code == -32004 && data.contains(why), "{name}: {data}"),
            (expected, outcome) => panic!("{name}: {expected:?} {outcome:?}"),
        }
    }
    // A line of a log may have the id of a call, chosen by some caller.
    let log =
        "{\"level\":\"info\",\"id\":ID}\n{'user': 'x', 'id': ID}\n{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":99}\n";
    assert_eq!(got(stage.call("t/form", json!({ "text": log })).await), Ok(99));
    says(&mut stage.stderr, "an answer whose id is null, while not exactly one call is in progress").await;
    says(&mut stage.stderr, "an answer without an id, while not exactly one call is in progress").await;
    assert!(within(LONG, other.cancel()).await);
    let said = stage.end().await;
    assert!(said.contains("its answer cannot be used"), "the operator reads why: {said}");
    assert!(!said.contains("the program is not running"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_one_line_for_every_reader() {
    let Some(python) = python() else { return };
    let stage = Stage::new(POLICY, &backend(python, "", &["split", "echo"])).await;
    let odd = "\u{b}\u{c}\u{1c}\u{1d}\u{1e}\u{85}\u{2028}\u{2029}\r\n\0\u{feff}\u{1f}\u{7f}";
    let params = json!({ odd: [odd] });
    assert_eq!(stage.call("t/split", params.clone()).await.unwrap(), json!([1, 1]));
    assert_eq!(stage.call("t/echo", params.clone()).await.unwrap(), params);
    // However the caller writes it.
    let raw = RawValue::from_string("{\"a\":\"\u{2028}\\u2028\u{2029}\u{85}\"\r\n}".to_owned()).unwrap();
    assert_eq!(within(LONG, stage.client.call::<Value>("tools", "t/split", &raw)).await.unwrap(), json!([1, 1]));
    assert_eq!(
        within(LONG, stage.client.call::<Value>("tools", "t/echo", &raw)).await.unwrap(),
        json!({ "a": "\u{2028}\u{2028}\u{2029}\u{85}" })
    );
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_prints_many_parts_at_once_waits_for_its_caller() {
    let Some(python) = python() else { return };
    let stage =
        Stage::new(POLICY, &backend(python, "", &["burst", "echo", "deluge"]).replace(", \"--ticks\"", "")).await;
    for count in [400_u64, 3_000] {
        let mut parts = stage.client.stream::<u64>("tools", "t/burst", json!([count]));
        for number in 0..count {
            assert_eq!(within(LONG, parts.next()).await.unwrap().unwrap(), number);
        }
        assert_eq!(within(LONG, parts.finish::<u64>()).await.unwrap(), count);
    }
    // A caller that looks away for a while gets them, too: nobody else is held up by it.
    let mut parts = stage.client.stream::<u64>("tools", "t/burst", json!([20_000]));
    assert_eq!(within(LONG, parts.next()).await.unwrap().unwrap(), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    for number in 1..20_000 {
        assert_eq!(within(LONG, parts.next()).await.unwrap().unwrap(), number);
    }
    assert_eq!(within(LONG, parts.finish::<u64>()).await.unwrap(), 20_000);
    // A caller that takes no parts costs nothing of that.
    assert_eq!(stage.call("t/burst", json!([2_000])).await.unwrap(), 2_000);
    let said = stage.end().await;
    assert!(!said.contains("too slowly") && !said.contains("the program is not running"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_pushes_without_end_is_read_slowly_and_not_ended() {
    let Some(python) = python() else { return };
    let text = backend(python, "", &["deluge", "echo"]).replace(", \"--ticks\"", "")
        + "[[backend.method]]\nname = \"t/ticks\"\ntool = \"tick\"\npush = true\n";
    let mut stage = Stage::new(POLICY, &text).await;
    let began = Instant::now();
    assert_eq!(stage.call("t/deluge", json!([12_000])).await.unwrap(), 12_000);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    says(&mut stage.stderr, "more than 5000 things a second").await;
    assert_eq!(stage.call("t/echo", json!([1])).await.unwrap(), json!([1]));
    let said = stage.end().await;
    assert!(!said.contains("the program is not running"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_ignores_its_end_is_gone_within_a_second_of_its_service() {
    let text = "[[backend]]\nname = \"a\"\nkind = \"stdio\"\ncommand = [\"sh\", \"-c\", \"trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done\"]\n\
                [[backend.method]]\nname = \"a/b\"\n";
    // On a machine under load, one of three must do.
    let mut took = Vec::new();
    for _ in 0..3 {
        let mut stage = Stage::new(POLICY, text).await;
        let pid = super::exec::written(&stage, "pid").await;
        send(SIGKILL, stage.service.id().unwrap());
        let began = Instant::now();
        gone(pid).await;
        within(LONG, stage.service.wait()).await.unwrap();
        took.push(began.elapsed());
        if took.last().is_some_and(|took| *took < Duration::from_secs(1)) {
            return;
        }
    }
    panic!("{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_breaks_off_is_started_again_and_the_service_goes_on() {
    let Some(python) = python() else { return };
    let methods = ["echo", "exit", "stuck", "endless", "deaf", "wait"];
    let mut stage = Stage::new(POLICY, &backend(python, "timeout_s = 5", &methods)).await;
    // Five starts a minute are allowed: the first, and one after each of these.
    for (method, told) in [
        ("t/exit", "it has ended with code 3"),
        ("t/stuck", "calls have waited for 5 s, and none was answered"),
        ("t/endless", "a line without an end"),
    ] {
        // Each goes on ticking meanwhile.
        let (one, other) = (stage.call("t/wait", json!([])), stage.call(method, json!([])));
        let (one, other) = futures_util::future::join(one, other).await;
        // Other waiting callers are told as well.
        assert_eq!((code(&one.unwrap_err()), code(&other.unwrap_err())), (Some(-32004), Some(-32004)), "{method}");
        stage.comes_back("t/echo", json!([method])).await;
        says(&mut stage.stderr, told).await;
    }
    // It goes on printing, but reads nothing.
    assert_eq!(code(&stage.call("t/deaf", json!([])).await.unwrap_err()), Some(-32004));
    stage.comes_back("t/echo", json!(["deaf"])).await;
    let said = stage.end().await;
    assert!(!said.contains("panicked"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_given_up_may_stay_unanswered_and_a_program_that_hangs_is_found() {
    let Some(python) = python() else { return };
    // Without ticks, its answers are the only sign of life.
    let text =
        backend(python, "timeout_s = 2", &["echo", "ignored", "cancelled", "stuck"]).replace(", \"--ticks\"", "");
    let mut stage = Stage::new(POLICY, &text).await;
    let waiting = stage.client.stream::<Value>("tools", "t/ignored", json!([]));
    says(&mut stage.stderr, "it is ignored").await;
    assert!(within(LONG, waiting.cancel()).await);
    // Nor does one need to whose caller waits for a shorter time than the backend.
    let impatient = |method: &'static str| {
        let request = stage.client.request("tools").deadline(Duration::from_millis(500));
        within(LONG, async move { request.call::<Value>(method, json!([])).await.unwrap_err() })
    };
    let mut stderr = stage.stderr.clone();
    let ignored = |said: &str| said.matches("it is ignored").count();
    // On a busy machine, a call may have ended before it reaches the program.
    let reached = async {
        while ignored(&stderr.borrow()) < 2 {
            impatient("t/ignored").await;
            let reached = stderr.wait_for(|said| ignored(said) >= 2);
            drop(tokio::time::timeout(Duration::from_secs(1), reached).await);
        }
    };
    within(LONG, reached).await;
    // Longer than such calls are remembered, plus the time that a sign of life may take.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let told = stage.call("t/cancelled", json!([])).await.unwrap();
    let told = told.as_array().unwrap().len();
    assert_eq!(told, ignored(&stage.stderr.borrow()), "it was told, and is the same process");

    // A program that does hang is detected, though nobody waits for as long as that takes.
    let detected = async {
        loop {
            impatient("t/stuck").await;
            let detected = stderr.wait_for(|said| said.contains("none was answered"));
            if tokio::time::timeout(Duration::from_secs(10), detected).await.is_ok() {
                break;
            }
        }
    };
    within(LONG, detected).await;
    stage.comes_back("t/echo", json!(["again"])).await;

    // So is one that gives signs of life, but answers no call.
    impatient("t/ignored").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(code(&stage.call("t/ignored", json!([])).await.unwrap_err()), Some(-32004));
    let again = stage.stderr.wait_for(|said| said.matches("the program is not running").count() == 2);
    let found = tokio::time::timeout(LONG, again).await.is_ok();
    assert!(found, "{}", *stage.stderr.borrow());
    stage.end().await;
}

/// The three questions that clients of MCP answer, and one that only callers know who know the program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_asks_for_models_and_folders_only_where_it_may() {
    let Some(python) = python() else { return };
    let names = ["elicitation/create", "sampling/createMessage", "roots/list", "which"];
    for (may_ask, reach) in [
        ("", [true, false, false, true]),
        ("may_ask = []", [false, false, false, true]),
        ("may_ask = [\"sampling\"]", [false, true, false, true]),
        ("may_ask = [\"roots\", \"elicitation\"]", [true, false, true, true]),
    ] {
        let stage = Stage::new(POLICY, &backend(python, may_ask, &["put"])).await;
        for (name, reaches) in names.into_iter().zip(reach) {
            let asked = stage
                .client
                .request("tools")
                .on_ask(|question: Request| async move { Ok::<_, RpcError>(json!({ "asked": question.method })) });
            let mut asked = asked.stream::<Value>("t/put", json!([name]));
            assert!(within(LONG, asked.next()).await.is_none());
            let answer = within(LONG, asked.finish::<Value>()).await.unwrap();
            assert_eq!(answer["asked"] == name, reaches, "{may_ask} {name} {answer}");
            assert_eq!(answer["code"] == 1, !reaches, "{may_ask} {name} {answer}");
        }
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_nobody_answers_holds_up_no_other_call() {
    let Some(python) = python() else { return };
    // Far longer than the test waits.
    let stage = Stage::new(POLICY, &backend(python, "timeout_s = 600", &["echo", "quiz", "quizzed"])).await;
    // The call is given up while its caller thinks ...
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let thinking = stage.client.request("tools").on_ask(move |question: Request| {
        tell.send(question.method).unwrap();
        std::future::pending::<Result<Value, RpcError>>()
    });
    let mut thinking = thinking.stream::<Value>("t/quiz", json!([]));
    tokio::select! {
        asked = within(LONG, told.recv()) => assert_eq!(asked.unwrap(), "which"),
        part = thinking.next() => panic!("{part:?}"),
    }
    assert!(within(LONG, thinking.cancel()).await);
    assert_eq!(stage.call("t/echo", json!([1])).await.unwrap(), json!([1]));
    // ... or before it asks.
    let mut waiting = stage.client.stream::<Value>("tools", "t/quiz", json!(["late"]));
    assert_eq!(within(LONG, waiting.next()).await.unwrap().unwrap(), "waiting");
    assert!(within(LONG, waiting.cancel()).await);
    assert_eq!(stage.call("t/quizzed", json!([])).await.unwrap(), json!([1, 1]));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_gives_its_calls_up_has_no_more_of_them_in_the_program_than_its_share() {
    let Some(python) = python() else { return };
    let text = backend(python, "in_flight = 4", &["echo", "wait", "held", "release"]);
    let stage = Stage::new(POLICY, &text).await;
    let quiet = stage.agent("quiet").await;
    let ask = async |method: &str| within(LONG, quiet.call::<Value>("tools", method, json!([]))).await.unwrap();
    let began = Instant::now();
    for _ in 0..2 {
        let mut waiting = stage.client.stream::<Value>("tools", "t/wait", json!([]));
        assert_eq!(within(LONG, waiting.next()).await.unwrap().unwrap(), "waiting");
        assert!(within(LONG, waiting.cancel()).await);
    }
    // It goes on with both, whether cancelled or past their deadline, and gets no third one until it has had time to stop.
    let held = async || {
        let held = ask("t/held").await.as_array().unwrap().len();
        assert!(held == 2 || began.elapsed() >= Duration::from_secs(10), "{held}");
    };
    for _ in 0..3 {
        let waiting = stage.client.stream::<Value>("tools", "t/wait", json!([]));
        held().await;
        drop(waiting);
        let brief = stage.client.request("tools").deadline(Duration::from_millis(500));
        within(LONG, brief.call::<Value>("t/wait", json!([]))).await.unwrap_err();
    }
    held().await;
    // Its late answers free the places.
    ask("t/release").await;
    assert_eq!(stage.call("t/echo", json!([1])).await.unwrap(), json!([1]));
    stage.end().await;

    // A call that is never answered keeps its place for a while, but not for as long as a call may take.
    let text = backend(python, "in_flight = 2\ntimeout_s = 600", &["echo", "wait"]);
    let stage = Stage::new(POLICY, &text).await;
    let mut waiting = stage.client.stream::<Value>("tools", "t/wait", json!([]));
    assert_eq!(within(LONG, waiting.next()).await.unwrap().unwrap(), "waiting");
    assert!(within(LONG, waiting.cancel()).await);
    stage.comes_back("t/echo", json!([1])).await;
    let said = stage.end().await;
    assert!(!said.contains("the program is not running"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_hundreds_of_slow_calls_keeps_nobody_else_waiting() {
    let Some(python) = python() else { return };
    let stage = Stage::new(POLICY, &backend(python, "in_flight = 4", &["wait", "echo"])).await;
    let quiet = stage.agent("quiet").await;
    // The agent's share of the places is taken for as long as it waits.
    let mut held: Vec<_> = (0..2).map(|_| stage.client.stream::<Value>("tools", "t/wait", json!([]))).collect();
    for stream in &mut held {
        assert_eq!(within(LONG, stream.next()).await.unwrap().unwrap(), "waiting");
    }
    let long = || stage.client.request("tools").deadline(Duration::from_secs(30));
    let loud: Vec<_> = (0..200)
        .map(|_| {
            let request = long();
            tokio::spawn(async move { request.call::<Value>("t/wait", json!([])).await })
        })
        .collect();
    // Calls are taken in order, so all but a few of these have arrived when this one is answered.
    let asked: Value = within(LONG, long().call("rpc.can", json!({ "method": "t/echo" }))).await.unwrap();
    assert!(asked.to_string().contains("true"), "{asked}");
    for number in 0..20 {
        let request = quiet.request("tools").deadline(Duration::from_secs(20));
        let answer: Value = within(LONG, request.call("t/echo", json!([number]))).await.unwrap();
        assert_eq!(answer, json!([number]));
    }
    loud.iter().for_each(tokio::task::JoinHandle::abort);
    drop(held);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_memory_and_leftovers_of_a_program_are_bounded() {
    let Some(python) = python() else { return };
    let methods = ["echo", "noise", "garbage", "flood", "parts", "forked", "leak", "files", "usurp"];
    let text = backend(python, "memory_mib = 256\nopen_files = 64", &methods);
    let server = NatsServer::start().await;
    let shell = prepared(&server.url(), POLICY, &text);
    // A child that is not a backend's program.
    let command = shell.command_after("sleep 600 >/dev/null 2>&1 & echo $! > inherited;", &["serve"]);
    let mut stage = Stage::of(server, shell, command, &std::env::var("PATH").unwrap()).await.ready().await;
    let inherited: u64 = stage.shell.read("inherited").trim().parse().unwrap();

    assert_eq!(stage.call("t/noise", json!([])).await.unwrap(), "noisy");
    says(&mut stage.stderr, "stderr: line\\u{1b}[2J of noise").await;
    assert_eq!(stage.call("t/garbage", json!([])).await.unwrap(), "after the garbage");
    says(&mut stage.stderr, "a line was dropped").await;
    let leaked = stage.call("t/leak", json!([])).await.unwrap_err();
    assert_eq!(code(&leaked), Some(7), "{leaked}");
    assert!(stage.call("t/files", json!([])).await.unwrap().as_u64().unwrap() < 64);

    // A caller that does not read what is sent loses its own call, and nothing else.
    let mut slow = stage.client.request("tools").stream::<String>("t/parts", json!([]));
    for _ in 0..20 {
        assert_eq!(stage.call("t/echo", json!(["meanwhile"])).await.unwrap(), json!(["meanwhile"]));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let lost = async {
        loop {
            match slow.next().await.unwrap() {
                Ok(part) => assert_eq!(part.len(), 10_000),
                Err(error) => break error,
            }
        }
    };
    assert_eq!(code(&within(LONG, lost).await), Some(-32603));

    let left = pids(&stage.call("t/forked", json!([])).await.unwrap());
    assert!(left.iter().all(|pid| alive(*pid)));
    assert_eq!(code(&stage.call("t/flood", json!([])).await.unwrap_err()), Some(-32004));
    stage.comes_back("t/echo", json!(["again"])).await;
    for pid in left {
        gone(pid).await;
    }
    // Killing the guard leaves nothing behind either.
    assert_eq!(code(&stage.call("t/usurp", json!([])).await.unwrap_err()), Some(-32004));
    says(&mut stage.stderr, " alone").await;
    let said = stage.stderr.borrow().clone();
    let left = said.split("left ").filter_map(|rest| rest.split_once(" alone")?.0.parse().ok()).next().unwrap();
    gone(left).await;
    stage.comes_back("t/echo", json!(["once more"])).await;
    assert!(alive(inherited));
    send(SIGKILL, u32::try_from(inherited).unwrap());
    let said = stage.end().await;
    assert!(said.contains("1000 useless lines"), "{said}");
    // Of two hundred thousand lines, the log has a few.
    assert!(said.lines().count() < 1_000, "{}", said.lines().count());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_program_outlives_the_service_however_that_ends() {
    let Some(python) = python() else { return };
    let text = backend(python, "processes = 2", &["forked"]);
    for signal in [SIGKILL, crate::process::SIGTERM] {
        let mut stage = Stage::new(POLICY, &text).await;
        // Two processes take turns, each with a daemon of its own.
        let mut left = pids(&stage.call("t/forked", json!([])).await.unwrap());
        left.extend(pids(&stage.call("t/forked", json!([])).await.unwrap()));
        assert_eq!(left.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        send(signal, stage.service.id().unwrap());
        within(LONG, stage.service.wait()).await.unwrap();
        for pid in left {
            gone(pid).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_program_is_not_there_calls_are_refused_at_once_and_the_service_is_not_ready() {
    let Some(python) = python() else { return };
    let text = "[[backend]]\nname = \"broken\"\nkind = \"stdio\"\ncommand = [\"/bin/sh\", \"-c\", \"echo x >> starts\"]\n\
                [[backend.method]]\nname = \"broken/do\"\n";
    let text = backend(python, "", &["echo"]) + text;
    let mut stage = Stage::start(POLICY, &text, &["serve", "--state-file", "state.json"]).await;
    within(LONG, stage.client.wait_for("tools", LONG)).await.unwrap();
    let began = Instant::now();
    // The service ends it at once: a call that waited for the program would end with its deadline.
    for _ in 0..20 {
        let error = stage.call("broken/do", json!([])).await.unwrap_err();
        assert_eq!(code(&error), Some(-32004), "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The others go on.
    assert_eq!(stage.call("t/echo", json!([1])).await.unwrap(), json!([1]));
    // More than five starts a minute would be too many, and the test needs none.
    let starts = stage.shell.read("starts").lines().count();
    assert!((1..=5).contains(&starts) || began.elapsed() > LONG, "{starts}");
    let ping = stage.shell.run("ping --config sealwire.toml --own state.json --within 30s");
    ping.fails_with(20, "interrupted");
    assert!(!stage.stdout.borrow().contains("takes messages"), "it is not ready");
    says(&mut stage.stderr, "it has ended with code 0").await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_program_is_served_without_a_description_in_the_file() {
    let Some(python) = python() else { return };
    let program = sealwire_testkit::root().join("crates/cli/tests/cli/backends/program.py");
    let (python, program) = (python.to_str().unwrap(), program.to_str().unwrap());
    let policy = "[role.user]\n[rule.small]\nroles = [\"user\"]\nallow = [\"echo\"]\nwhen.params.amount = { min = 0, max = 5 }\n";
    let quick =
        ["serve", "--json", "stdio", "--method", "echo(amount: integer, to?: string)", "--", python, "-B", program];
    let stage = Stage::run(policy, "", &quick).await;
    let ready: Value = serde_json::from_str(&stage.stdout.borrow()).unwrap();
    assert_eq!((&ready["ready"], &ready["audience"]), (&json!(true), &json!("dev/tools")));
    assert_eq!(stage.call("echo", json!([5])).await.unwrap(), json!([5]));
    assert_eq!(code(&stage.call("echo", json!([6])).await.unwrap_err()), Some(-32002));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_why_a_program_does_not_start() {
    let server = NatsServer::start().await;
    let shell = prepared(&server.url(), POLICY, "");
    let base = shell.read("sealwire.toml");
    for (name, text, mode) in [
        ("no-interpreter", "#!/nowhere/at/all\n", 0o755),
        ("no-program", "\u{1}\n", 0o755),
        ("plain", "#!/bin/sh\n", 0o644),
    ] {
        shell.write(name, text);
        shell.set_mode(name, mode);
    }
    for (command, said) in [
        (r#"["nowhere-at-all"]"#, "`nowhere-at-all` is not found in PATH"),
        (r#"["./nowhere"]"#, "`./nowhere`: No such file"),
        (r#"["./plain"]"#, "`./plain` is not executable"),
        (r#"["./no-interpreter"]"#, "names an interpreter in its first line"),
        (r#"["./no-program"]"#, "is no program, nor a script"),
        (
            r#"["sh", "-c", "echo trouble >&2; echo 'Error: no module x' >&2; exit 1"]"#,
            "code 1; its last words: trouble | Error: no module x",
        ),
        (r#"["sh", "-c", "echo hurt >&2; kill -9 $$"]"#, "signal 9; its last words: hurt"),
        (r#"["sh", "-c", "echo fine >&2; exit 0"]"#, "it has ended with code 0"),
        ("[\"sh\"]\ndir = \"gone\"", "there is no folder"),
    ] {
        let backend = format!(
            "[[backend]]\nname = \"a\"\nkind = \"stdio\"\ncommand = {command}\n[[backend.method]]\nname = \"a/b\"\n"
        );
        shell.write("sealwire.toml", &format!("{base}{backend}"));
        let mut service = crate::process::spawn(&shell, &["serve"]);
        let mut stderr = heard(service.stderr.take().unwrap());
        says(&mut stderr, "the program is not running").await;
        let told = stderr.borrow().clone();
        let reason = told.lines().find(|line| line.contains("the program is not running")).unwrap();
        assert!(reason.contains(said), "{command}: {told}");
        send(SIGKILL, service.id().unwrap());
        within(LONG, service.wait()).await.unwrap();
    }
}

#[test]
fn descriptions_with_a_mistake_are_refused_with_what_to_do() {
    let shell = prepared("nats://127.0.0.1:4222", POLICY, "");
    let base = shell.read("sealwire.toml");
    let help = ["has no `[[backend]]`", "docs/backends.md", "sealwire serve demo"];
    shell.run("serve").fails(30, &help);
    let with = |text: &str| {
        shell.write("sealwire.toml", &format!("{base}{text}"));
        shell.run("serve --check")
    };
    let stdio = "[[backend]]\nname = \"a\"\nkind = \"stdio\"\n";
    let method = "[[backend.method]]\nname = \"a/b\"\n";
    with(&format!("{stdio}command = [\"x\"]\n{method}")).ok();
    // What cannot be started here is said, and is no mistake: it may be elsewhere.
    for (command, said) in [
        ("[\"nowhere-at-all\"]", "warning: backend `a`: `nowhere-at-all` is not found in PATH"),
        ("[\"./nowhere\"]", "`./nowhere`: No such file"),
        ("[\"/etc/passwd\"]", "`/etc/passwd` is not executable"),
        ("[\"sh\"]\ndir = \"nowhere\"", "there is no folder"),
        ("[\"sh\"]\nenv = { PATH = \"/nowhere\" }", "`sh` is not found in PATH"),
        ("[\"sh\"]", ""),
    ] {
        let checked = with(&format!("{stdio}command = {command}\n{method}"));
        let told = checked.ok().stderr;
        assert!(told.contains(said) && (!said.is_empty() || !told.contains("warning")), "{command}: {told}");
    }
    with(stdio).fails(30, &["backend `a`: `command` names no program"]);
    with(&format!("{stdio}command = [\"x\"]\n")).fails(30, &["`[[backend.method]]`"]);
    with(&format!("{stdio}comand = [\"x\"]\n")).fails(30, &["sealwire.toml`, line", "unknown member"]);
    with(&format!("{stdio}command = [\"x\"]\nprocesses = 65\n{method}")).fails(30, &["write 1 to 64"]);
    with(&format!("{stdio}command = [\"x\"]\n{method}{stdio}command = [\"x\"]\n{method}")).fails(30, &["rename one"]);
    with(&format!("{stdio}command = [\"x\"]\npass_env = [\"A=B\"]\n{method}")).fails(30, &["not a variable name"]);
    with(&format!("{stdio}command = [\"x\"]\n{method}{method}"))
        .fails(30, &["`a/b` is taken by method 1 of backend `a`: rename"]);
    with(&format!("{stdio}command = [\"x\"]\n[[backend.method]]\nname = \"rpc.x\"\n")).fails(30, &["rpc"]);
    let twice = "params = [{ name = \"x\", type = \"any\" }, { name = \"x\", type = \"any\" }]\n";
    with(&format!("{stdio}command = [\"x\"]\n{method}{twice}")).fails(30, &["two parameters `x`"]);
    // The policy is checked against what the backends offer.
    shell.write("policies/tools.toml", "[role.user]\nallow = [\"a/c\"]\n");
    with(&format!("{stdio}command = [\"x\"]\n{method}")).fails(11, &["a/c"]);
    // Neither a program of the user's own, nor the demonstration.
    shell.run("serve demo").fails(30, &["only `sealwire serve` runs"]);
    shell.run("serve stdio --method a(b -- x").fails(2, &["the parameters end with `)`"]);
    shell.run("serve stdio --method a/b -- x").fails(30, &[]);
}
