//! What the record of a service holds, and what holds when it cannot be written (docs/records.md).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire::ServiceLimits;
use sealwire::configure::RecordConfig;
use sealwire::errors::{RecordError, code as codes};
use sealwire::internal::record::record_files;
use sealwire::serve::{QuotaLimits, Recorder};
use sealwire_testkit::desk::{Desk, Runs, Setup, call, code, digest, recording};
use serde_json::{Value, json};

/// A desk with a record, and the record's folder.
struct Recorded {
    desk: Desk,
    runs: Arc<Runs>,
    outer: tempfile::TempDir,
}

impl Recorded {
    fn open(policy: &'static str) -> Self {
        Self::open_with(policy, |_| {})
    }

    fn open_with(policy: &'static str, change: impl FnOnce(&mut RecordConfig)) -> Self {
        let outer = tempfile::tempdir().unwrap();
        let mut config = RecordConfig::in_folder(outer.path().join("records"));
        change(&mut config);
        let recorder = Recorder::open(&config, "test/desk", "s1").unwrap();
        let (router, runs) = recording();
        let quota = QuotaLimits { per_second: 1_000_000, burst: 1_000_000, in_flight: 1_000 };
        let limits = ServiceLimits { quota, ..ServiceLimits::default() };
        let setup = Setup { policy, limits, ..Setup::default() };
        let desk = Desk::open_as(setup, |service| service.record(recorder).methods(router));
        Self { desk, runs, outer }
    }

    fn folder(&self) -> PathBuf {
        self.outer.path().join("records")
    }

    fn recorder(&self) -> &Recorder {
        self.desk.service.recorder().unwrap()
    }

    /// Asks as ann, and returns the code of the error.
    async fn ask(&self, method: &str, params: &str) -> Option<i64> {
        let ann = self.desk.agent("ann", &["worker"]);
        code(&self.desk.ask(&ann, &call(method, params)).await.unwrap())
    }

    /// Ends the record, and returns its lines, which are chained from the first on.
    fn lines(&self) -> Vec<Value> {
        self.recorder().finish();
        lines(&self.folder())
    }
}

/// The lines of the one session in a folder.
fn lines(folder: &Path) -> Vec<Value> {
    let mut prev = "A".repeat(43);
    let mut lines = Vec::new();
    for file in record_files(folder).unwrap() {
        let text = std::fs::read_to_string(file.path).unwrap();
        for line in text.lines() {
            assert!(line.len() <= 16_384, "{}", line.len());
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(
                (&value["v"], &value["session"], &value["seq"]),
                (&json!(1), &json!("s1"), &json!(lines.len() + 1))
            );
            assert_eq!(value["prev"], prev, "{line}");
            prev = digest(line.as_bytes());
            lines.push(value);
        }
        assert!(text.ends_with('\n') || text.is_empty());
    }
    lines
}

fn kinds(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["kind"].as_str().unwrap()).collect()
}

/// Waits until something holds, but not for long.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const POLICY: &str = r#"
[method."desk/echo"]
params = [
  { name = "to", type = "string" },
  { name = "account", type = "string", audit = "hash" },
  { name = "pin", type = "string", optional = true, audit = "drop" },
]
[role.worker]
allow = ["desk/*"]
"#;

/// Everything that a line may have, and nothing that it must not: undeclared parameters, results, tokens, signatures.
#[tokio::test]
async fn decisions_and_outcomes_are_recorded_and_nothing_undeclared_or_secret() {
    let recorded = Recorded::open(POLICY);
    let desk = &recorded.desk;
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", r#"{"to":"alice","account":"DE-4711","pin":"98761234"}"#));
    let answer = desk.answer(&letter).await.unwrap();
    // The second method declares nothing, the third may not be called, the fourth call has a parameter too many.
    assert_eq!(recorded.ask("desk/note", r#"{"password":"hunter2"}"#).await, None);
    assert_eq!(recorded.ask("vault/open", r#"["sesame"]"#).await, Some(codes::PERMISSION_DENIED.into()));
    recorded.ask("desk/echo", r#"{"to":"alice","account":"DE-4711","undeclared-name":"undeclared-value"}"#).await;
    let batch = format!("[{},{}]", call("desk/note", "[]"), call("vault/open", "[]"));
    desk.ask(&ann, &batch).await.unwrap();
    let note = r#"{"jsonrpc":"2.0","method":"desk/note","params":[]}"#;
    assert_eq!(desk.ask(&ann, note).await, None);

    let lines = recorded.lines();
    let text = Value::from(lines.clone()).to_string();
    let (token, proof) = letter.credentials();
    for secret in [
        "DE-4711",
        "98761234",
        "hunter2",
        "sesame",
        "undeclared-name",
        "undeclared-value",
        &token,
        &proof,
        &letter.reply,
    ] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert_eq!((lines[0]["kind"].as_str(), lines[0]["audience"].as_str()), (Some("start"), Some("test/desk")));
    let of = |message: &str| -> Vec<&Value> { lines.iter().filter(|line| line["message"] == message).collect() };
    let [decision, outcome] = of(letter.expectation.message_id())[..] else { panic!("{text}") };
    assert_eq!(decision["params"], json!({ "to": "alice" }));
    assert_eq!(decision["dropped"], json!(["pin"]));
    assert_eq!(decision["hashed"]["account"].as_str().unwrap().len(), 43);
    let told = ["agent", "method", "verdict", "rule", "key"].map(|member| decision[member].as_str().unwrap());
    assert_eq!(told, ["ann", "desk/echo", "allow", "role.worker.allow", "ann.k1"]);
    assert_eq!((&decision["roles"], decision["revision"].is_string()), (&json!(["worker"]), true));
    assert_eq!((outcome["by"].as_str(), outcome["code"].is_null()), (Some("answered"), true));
    assert_eq!(
        outcome["answer"].as_str(),
        Some(digest(answer.as_bytes()).as_str()),
        "the digest of the answer as sent"
    );
    assert!(outcome["duration_us"].is_u64() && outcome["agent"] == "ann" && outcome["method"] == "desk/echo");

    let outcomes = |method: &str, entry: Value| -> Vec<(Value, bool)> {
        let lines = lines.iter().filter(|line| line["kind"] == "outcome");
        let lines = lines.filter(|line| line["method"] == method && line["entry"] == entry);
        lines.map(|line| (line["code"].clone(), line["answer"].is_string())).collect()
    };
    let denied = json!(codes::PERMISSION_DENIED);
    assert_eq!(outcomes("vault/open", Value::Null), [(denied.clone(), true)]);
    assert_eq!(outcomes("desk/note", json!(0)), [(Value::Null, true)]);
    assert_eq!(outcomes("vault/open", json!(1)), [(denied, true)]);
    assert_eq!(
        outcomes("desk/note", Value::Null),
        [(Value::Null, true), (Value::Null, false)],
        "a call, and a notification"
    );
    assert_eq!(kinds(&lines).last(), Some(&"stop"));
}

/// A stranger does not write our record: what is refused before its sender is known is a number.
#[tokio::test]
async fn refusals_of_unknown_senders_are_counted_and_not_lines() {
    let recorded = Recorded::open(POLICY);
    let desk = &recorded.desk;
    let ann = desk.agent("ann", &["worker"]);
    for _ in 0..300 {
        let letter = desk.letter(&ann, &call("desk/note", "[]"));
        let (token, proof) = letter.credentials();
        let forged = letter.with_credentials(&token, &format!("{}AAAA", &proof[..proof.len() - 4]));
        desk.offer(&forged).await;
    }
    let letter = desk.letter(&ann, &call("desk/note", "[]"));
    desk.answer(&letter).await.unwrap();
    desk.offer(&letter).await;
    let lines = recorded.lines();
    assert_eq!(kinds(&lines), ["start", "decision", "outcome", "beat", "stop"]);
    assert_eq!(lines[3]["refused"], json!({ "replayed": 1, "signature": 300 }));
}

/// Ten thousand denied calls are ten thousand decisions and outcomes, or counted as lost, and cost nobody else an answer.
#[tokio::test]
async fn ten_thousand_denied_calls_are_recorded_or_counted() {
    let recorded = Recorded::open_with(POLICY, |config| {
        (config.file_bytes, config.keep_bytes) = (Some(1 << 20), Some(1 << 30));
    });
    let ann = recorded.desk.agent("ann", &["worker"]);
    // A batch is one signature: this is about the record.
    let entries = vec![call("vault/open", r#"["sesame"]"#); 50].join(",");
    for _ in 0..200 {
        recorded.desk.ask(&ann, &format!("[{entries}]")).await.unwrap();
    }
    assert_eq!(recorded.ask("desk/note", "[]").await, None);
    let lost = recorded.recorder().finish();
    let lines = lines(&recorded.folder());
    let count = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count() as u64;
    let told: u64 = lines.iter().filter_map(|line| line["lines"].as_u64()).sum();
    assert_eq!(told, lost);
    assert_eq!(count("decision") + count("outcome") + lost, 20_002);
    let files = record_files(&recorded.folder()).unwrap();
    assert!(files.len() > 1 && files.iter().all(|file| file.bytes <= 1 << 20), "{files:?}");
    println!("{} files, {} lines, {lost} lost", files.len(), lines.len());
}

/// The oldest files go, and the chain of the rest holds.
#[tokio::test]
async fn files_beyond_what_is_kept_are_deleted() {
    let outer = tempfile::tempdir().unwrap();
    let mut config = RecordConfig::in_folder(outer.path().join("records"));
    (config.file_bytes, config.keep_bytes) = (Some(64 * 1024), Some(128 * 1024));
    std::fs::create_dir(&config.folder).unwrap();
    let old = config.folder.join("20200101T000000Z-old-000001.jsonl");
    std::fs::write(&old, "x".repeat(200 * 1024)).unwrap();
    let other = config.folder.join("mine.txt");
    std::fs::write(&other, "mine").unwrap();
    let recorder = Recorder::open(&config, "test/desk", "s1").unwrap();
    recorder.finish();
    assert!(!old.exists() && other.exists());
    assert_eq!(kinds(&lines(&config.folder)), ["start", "stop"]);
}

const BEFORE: &str = r#"
[method."desk/echo"]
audit = "before"
params = [{ name = "to", type = "string" }]
[role.worker]
allow = ["desk/*"]
"#;

/// A disk that fails neither stops nor delays calls, except for a method whose decisions have to be on disk: that one does not run, and
/// its caller is told at once. What was lost is counted in the next line.
#[tokio::test]
async fn failing_disk_stops_only_methods_that_are_recorded_before() {
    let recorded = Recorded::open_with(BEFORE, |config| config.file_age_s = Some(1));
    assert_eq!(recorded.ask("desk/echo", r#"["alice"]"#).await, None);
    // On disk before the method ran, so before the answer.
    assert_eq!(kinds(&lines(&recorded.folder()))[..2], ["start", "decision"]);

    // Nor is anything of it still to be written.
    let written = || {
        let files = record_files(&recorded.folder()).unwrap();
        let lines = files.into_iter().map(|file| std::fs::read_to_string(file.path).unwrap().matches('\n').count());
        lines.sum::<usize>() >= 3
    };
    eventually("its outcome is on disk", written).await;
    // No new file can be made, as on a full disk.
    let (folder, away) = (recorded.folder(), recorded.outer.path().join("away"));
    std::fs::rename(&folder, &away).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let began = Instant::now();
    let ann = recorded.desk.agent("ann", &["worker"]);
    let refused = recorded.desk.ask(&ann, &call("desk/echo", r#"["bob"]"#)).await.unwrap();
    assert_eq!(code(&refused), Some(codes::OVERLOADED.into()), "{refused}");
    assert!(refused.contains("retry_after_ms") && refused.contains("not executed"), "{refused}");
    for _ in 0..20 {
        assert_eq!(recorded.ask("desk/note", "[]").await, None);
    }
    // The disk comes back only afterwards, so nobody has waited for it.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(recorded.runs.count(), 21, "one echo, and the notes");
    eventually("all is lost", || recorded.recorder().lost() >= 42).await;

    std::fs::rename(&away, &folder).unwrap();
    assert_eq!(recorded.ask("desk/echo", r#"["carol"]"#).await, None);
    let lost = recorded.recorder().finish();
    let lines = lines(&folder);
    assert_eq!(kinds(&lines), ["start", "decision", "outcome", "lost", "decision", "outcome", "stop"]);
    assert_eq!((&lines[3]["lines"], &lines[3]["disk"]), (&json!(lost), &json!(lost)));
    assert_eq!(lost, 42, "decisions and outcomes of 21 calls");
    assert_eq!(lines[4]["params"]["to"], "carol");
}

/// No record, no execution: also where nobody configured one.
#[tokio::test]
async fn method_that_is_recorded_before_does_not_run_without_a_record() {
    let (router, runs) = recording();
    let desk = Desk::open_with(router, BEFORE, ServiceLimits::default());
    let ann = desk.agent("ann", &["worker"]);
    let echo = |params: &str| desk.letter(&ann, &call("desk/echo", params));
    assert_eq!(desk.offer(&echo(r#"["alice"]"#)).await, Some(codes::OVERLOADED.into()));
    // A denied call needs no record, and other methods ask for none.
    let denied = desk.letter(&ann, &call("vault/open", "[]"));
    assert_eq!(desk.offer(&denied).await, Some(codes::PERMISSION_DENIED.into()));
    assert_eq!(desk.offer(&desk.letter(&ann, &call("desk/note", "[]"))).await, None);
    assert_eq!(runs.count(), 1);
    desk.change_policy("[role.worker]\nallow = [\"desk/*\"]\n");
    assert_eq!(desk.offer(&echo(r#"["alice"]"#)).await, None);
    assert_eq!(desk.service.counters().refusals()["unrecorded"], 1);
}

/// A policy that is read again keeps what it says of the record.
#[tokio::test]
async fn what_is_kept_of_a_parameter_changes_with_the_policy() {
    let recorded = Recorded::open("[role.worker]\nallow = [\"desk/*\"]\n");
    let params = |lines: &[Value]| -> Vec<Value> {
        let decisions = lines.iter().filter(|line| line["kind"] == "decision");
        decisions.map(|line| json!([line["params"], line["dropped"]])).collect()
    };
    recorded.ask("desk/echo", r#"{"to":"alice"}"#).await;
    for audit in ["clear", "drop"] {
        let declared =
            format!("[method.\"desk/echo\"]\nparams = [{{ name = \"to\", type = \"string\", audit = \"{audit}\" }}]\n");
        recorded.desk.change_policy(&(declared + "[role.worker]\nallow = [\"desk/*\"]\n"));
        recorded.ask("desk/echo", r#"{"to":"alice"}"#).await;
    }
    let seen = params(&recorded.lines());
    assert_eq!(seen, [json!([null, null]), json!([{ "to": "alice" }, null]), json!([{}, ["to"]])]);
}

/// What would make a line too long is replaced by its digest; the call itself is answered.
#[tokio::test]
async fn parameters_that_are_too_long_for_a_line_are_cut() {
    let recorded = Recorded::open(
        "[method.\"desk/echo\"]\nparams = [{ name = \"to\", type = \"string\" }]\n[role.worker]\nallow = [\"desk/*\"]\n",
    );
    assert_eq!(recorded.ask("desk/echo", &format!("[\"{}\"]", "x".repeat(50_000))).await, None);
    let lines = recorded.lines();
    assert_eq!(kinds(&lines), ["start", "decision", "outcome", "stop"]);
    assert_eq!((lines[1]["cut"].as_str().unwrap().len(), &lines[1]["params"]), (43, &Value::Null));
}

/// The next session says where the one before ended, so that a missing end is noticed.
#[test]
fn session_names_the_last_line_of_the_one_before() {
    let outer = tempfile::tempdir().unwrap();
    let config = RecordConfig::in_folder(outer.path().join("records"));
    Recorder::open(&config, "test/desk", "s1").unwrap().finish();
    let before = std::fs::read_to_string(&record_files(&config.folder).unwrap()[0].path).unwrap();
    let last = before.lines().last().unwrap();
    Recorder::open(&config, "test/desk", "s2").unwrap().finish();
    let files = record_files(&config.folder).unwrap();
    let texts: Vec<String> = files.iter().map(|file| std::fs::read_to_string(&file.path).unwrap()).collect();
    let second = texts.iter().find(|text| text.contains("\"session\":\"s2\",\"seq\":1")).unwrap();
    let start: Value = serde_json::from_str(second.lines().next().unwrap()).unwrap();
    assert_eq!(start["prior"], json!({ "session": "s1", "seq": 2, "hash": digest(last.as_bytes()) }));
}

/// Whoever could write to the folder could write the record anew, and whoever could read it would see everybody's arguments.
#[test]
#[cfg(unix)]
fn a_folder_that_others_can_write_to_gets_no_record() {
    use std::os::unix::fs::PermissionsExt as _;
    let outer = tempfile::tempdir().unwrap();
    let config = RecordConfig::in_folder(outer.path().join("records"));
    Recorder::open(&config, "test/desk", "s1").unwrap().finish();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&config.folder), 0o700);
    for entry in std::fs::read_dir(&config.folder).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    std::fs::set_permissions(&config.folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Recorder::open(&config, "test/desk", "s2").unwrap_err();
    assert!(matches!(&refused, RecordError::File(_)) && refused.to_string().contains("written by others"), "{refused}");
}
