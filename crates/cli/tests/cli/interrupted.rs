//! Commands that a signal interrupts while the service is at work: whatever it then answers is the outcome.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use sealwire_testkit::NatsServer;
use sealwire_testkit::scripted::{Scripted, ScriptedCall};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::process::{SIGINT, SIGTERM, heard, says, send, whole};
use crate::shell::Shell;

/// What is interrupted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Call,
    Attach,
    /// Before the first frame, and after an item.
    StreamBefore,
    StreamAfter,
    WatchBefore,
    WatchAfter,
    Batch,
    Send,
}

/// How the service ends it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Result,
    Error(i32),
    /// With a code that is the application's own.
    Own(i32),
    Nothing,
}

const KINDS: [Kind; 8] = [
    Kind::Call,
    Kind::Attach,
    Kind::StreamBefore,
    Kind::StreamAfter,
    Kind::WatchBefore,
    Kind::WatchAfter,
    Kind::Batch,
    Kind::Send,
];

/// The service's own error, one of the application, and every other class.
const ENDS: [End; 13] = [
    End::Result,
    End::Error(-32016),
    End::Error(7),
    End::Error(-32602),
    End::Error(-32603),
    End::Error(-32003),
    End::Error(-32004),
    End::Error(-32002),
    End::Error(-32010),
    End::Error(-32013),
    End::Error(-32014),
    End::Own(-32016),
    End::Nothing,
];

impl Kind {
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Call => &["call", "demo", "math/add", "[2,3]"],
            Self::Attach => &["call", "demo", "math/add", "--attach", "file=file"],
            Self::StreamBefore | Self::StreamAfter => &["call", "demo", "math/add", "--stream"],
            Self::WatchBefore | Self::WatchAfter => &["watch", "demo", "math/add"],
            Self::Batch => &["batch", "demo", r#"[{"method":"math/add"}]"#],
            Self::Send => &["send", "demo", r#"{"jsonrpc":"2.0","method":"math/add","id":1}"#],
        }
    }

    fn is_watch(self) -> bool {
        matches!(self, Self::WatchBefore | Self::WatchAfter)
    }

    /// SPEC.md §25.4, and the table of exit codes: as if there had been no signal, unless the service has cancelled it.
    fn code(self, end: End) -> i32 {
        match (self, end) {
            (_, End::Result) => 0,
            // Ending it is what it was interrupted for.
            (kind, End::Error(-32016) | End::Nothing) if kind.is_watch() => 0,
            (_, End::Error(-32016) | End::Nothing) => 130,
            (_, End::Error(-32002)) => 10,
            (_, End::Error(-32003)) => 23,
            (_, End::Error(_) | End::Own(_)) => 21,
        }
    }

    /// What it says about the outcome.
    fn says(self, end: End) -> String {
        match end {
            End::Result => "\"outcome\"".to_owned(),
            End::Error(-32016) if self.is_watch() => String::new(),
            End::Error(-32016) if self == Self::Send => "-32016".to_owned(),
            End::Error(-32016) => "stopped by a signal: the service has cancelled the call".to_owned(),
            End::Error(code) if self == Self::Send => format!("\"code\":{code}"),
            End::Own(code) if self == Self::Send => format!("\"code\":{code}"),
            End::Error(code) => format!("of the service ({code})"),
            End::Own(code) => format!("of the service ({code} of the application)"),
            End::Nothing if self.is_watch() => "the service has not confirmed that it has ended".to_owned(),
            End::Nothing => "has not confirmed it; outcome unknown".to_owned(),
        }
    }
}

async fn ends(kind: Kind, end: End, call: &mut ScriptedCall) {
    let outcome = match end {
        End::Nothing => return,
        End::Result => json!({ "result": { "outcome": true } }),
        End::Error(code) => json!({ "error": { "code": code, "message": "of the service" } }),
        End::Own(code) => {
            json!({ "error": { "code": code, "message": "of the service" }, "application_error": true })
        }
    };
    let single = json!([call.body]);
    let entries = call.body.as_array().or(single.as_array()).unwrap();
    let response = |entry: &Value| {
        let mut response = outcome.clone();
        response["jsonrpc"] = "2.0".into();
        response["id"] = entry["id"].clone();
        response
    };
    let payload = match kind {
        Kind::Batch => json!(entries.iter().map(response).collect::<Vec<_>>()),
        _ => response(&entries[0]),
    };
    match kind {
        Kind::StreamAfter | Kind::WatchAfter => drop(call.frame("end", &payload.to_string()).await),
        _ => call.answer(&payload.to_string()).await,
    }
}

/// Interrupts a command once for each end; returns what differs from what is right.
async fn cases(kind: Kind) -> Vec<String> {
    let server = NatsServer::start().await;
    let shell = Shell::new();
    shell.write("file", "content");
    shell.run("keys new-token-key https://dev.example").ok();
    let agent = "keys new-agent planner --alg hs256 --service dev/demo=demo.ring.json";
    shell.run(&format!("{agent} --url {}", server.url())).ok();
    let issue = "token issue --key token-key.json --audience dev/demo --subject planner --out planner.jwt";
    shell.run(issue).ok();
    let secret = shell.read_json("planner.creds.json")["key"]["secret"].as_str().unwrap().to_owned();
    let master = URL_SAFE_NO_PAD.decode(secret).unwrap();
    let mut service = Scripted::start(&server, "dev/demo", "planner", "planner.k1", &master).await;
    let mut wrong = Vec::new();
    for (at, end) in ENDS.into_iter().enumerate() {
        let signal = if at % 2 == 0 { SIGINT } else { SIGTERM };
        // On a busy machine the end may come too late, but not every time.
        let mut tried = Err(Duration::ZERO);
        for _ in 0..3 {
            if tried.is_err() {
                tried = case(&shell, &mut service, kind, end, signal).await;
            }
        }
        wrong.extend(tried.unwrap_or_else(|took| Some(format!("{kind:?} {end:?}: ended after {took:?}"))));
    }
    wrong
}

/// How long the service has to confirm a cancellation: `src/client/stop_signal.rs`.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);

/// Interrupts a command; `Err` if that took so long that the command did not have to wait for the end any more.
async fn case(
    shell: &Shell,
    service: &mut Scripted,
    kind: Kind,
    end: End,
    signal: i32,
) -> Result<Option<String>, Duration> {
    let (command, rest) = kind.words().split_first().unwrap();
    let args = [&[*command, "--creds", "planner.creds.json"][..], rest].concat();
    let mut child = Command::from(shell.command(&args)).kill_on_drop(true).spawn().unwrap();
    let (mut out, mut err) = (heard(child.stdout.take().unwrap()), heard(child.stderr.take().unwrap()));
    let mut call = service.call().await;
    let note = r#"{"jsonrpc":"2.0","method":"note","params":{"at":1}}"#;
    match kind {
        Kind::StreamAfter => {
            let item = json!({ "jsonrpc": "2.0", "result": { "at": 1 }, "id": call.id() });
            call.frame("open", "").await;
            call.frame("item", &item.to_string()).await;
        }
        Kind::WatchAfter => {
            call.frame("open", "").await;
            call.frame("note", note).await;
        }
        _ => {}
    }
    if matches!(kind, Kind::StreamAfter | Kind::WatchAfter) {
        says(&mut out, "{\"at\":1}").await;
    }
    let told = Instant::now();
    send(signal, child.id().unwrap());
    while service.control_that("cancel").await.claims["req"] != call.request {}
    // What was under way when the service heard of it is still taken.
    if kind == Kind::StreamAfter {
        let item = json!({ "jsonrpc": "2.0", "result": { "at": 2 }, "id": call.id() });
        call.frame("item", &item.to_string()).await;
    }
    ends(kind, end, &mut call).await;
    let status = tokio::time::timeout(sealwire_testkit::SOON, child.wait()).await.unwrap().unwrap();
    let took = told.elapsed();
    let (out, err) = (whole(&mut out).await, whole(&mut err).await);
    let said = format!("{out}{err}");
    let is_right = status.code() == Some(kind.code(end))
        && said.contains(&kind.says(end))
        && (end == End::Error(-32016) || !said.contains("has cancelled"))
        && (end == End::Nothing || !said.contains("not confirmed"))
        && (kind != Kind::StreamAfter || out.contains("{\"at\":2}"));
    if !is_right && end != End::Nothing && took >= CONFIRMED_WITHIN {
        return Err(took);
    }
    Ok((!is_right).then(|| format!("{kind:?} {end:?}: {status}, and not {}: {said}", kind.code(end))))
}

/// SPEC.md §25.4: the end under way may be another than -32016; that end is then the outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_that_the_service_gives_is_the_outcome_of_what_was_interrupted() {
    let wrong: Vec<String> = join_all(KINDS.map(cases)).await.concat();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), KINDS.len() * ENDS.len(), wrong.join("\n"));
}
