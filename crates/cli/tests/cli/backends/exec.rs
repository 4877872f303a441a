//! Kind `exec`: a command for each call.

use std::time::Duration;

use sealwire_testkit::within;
use serde_json::{Value, json};

use super::stage::{LONG, POLICY, Stage, code, prepared};
use super::stdio::{alive, gone};

const COMMANDS: &str = r#"
[[backend]]
name = "commands"
kind = "exec"
command = ["env"]

[[backend.method]]
name = "x/echo"
args = ["cat"]
params = [{ name = "a", type = "integer" }, { name = "b", type = "any", optional = true }]

[[backend.method]]
name = "x/print"
args = ["printf", "%s|", "--name={name}", "{free}", "--", "{free}", "{last}"]
params = [
  { name = "name", type = "string" }, { name = "free", type = "string" }, { name = "last", type = "string", optional = true },
]
output = "text"

[[backend.method]]
name = "x/tell"
args = ["printf", "--", "%s", "{what}"]
params = [{ name = "what", type = "string" }]
output = "text"

[[backend.method]]
name = "x/env"
output = "text"

[[backend.method]]
name = "x/exit"
args = ["sh", "-c", "exit 3"]

[[backend.method]]
name = "x/killed"
args = ["sh", "-c", "kill -9 $$"]

[[backend.method]]
name = "x/flood"
args = ["yes"]
output = "text"

[[backend.method]]
name = "x/words"
args = ["echo", "no JSON"]

[[backend.method]]
name = "x/twice"
args = ["echo", '{{"a":1,"a":2}}']

[[backend.method]]
name = "x/missing"
args = ["/nowhere/at/all"]

[[backend.method]]
name = "x/waits"
args = ["sh", "-c", "echo $$ > waits; sleep 600 & sleep 600"]

[[backend]]
name = "slow"
kind = "exec"
command = ["sh", "-c", "echo $$ > slow; sleep 600"]
timeout_s = 1

[[backend.method]]
name = "x/slow"
"#;

/// The process that has written its id into this file.
async fn written(stage: &Stage, file: &str) -> u64 {
    let written = async {
        loop {
            let text = std::fs::read_to_string(stage.shell.path(file)).unwrap_or_default();
            match text.trim().parse() {
                Ok(pid) => break pid,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    within(LONG, written).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_for_each_call_and_its_arguments_are_what_was_declared() {
    let policy = "[role.user]\nallow = [\"x/*\"]\n[rule.small]\nroles = [\"user\"]\ndeny = [\"x/echo\"]\n\
                  when.params.a = { min = 100 }\n";
    let stage = Stage::new(policy, COMMANDS).await;
    let fails = async |method: &str, params: Value| code(&stage.call(method, params).await.unwrap_err());

    assert_eq!(stage.call("x/echo", json!({ "a": 5, "b": [1] })).await.unwrap(), json!({ "a": 5, "b": [1] }));
    assert_eq!(fails("x/echo", json!({ "a": 100 })).await, Some(-32002));

    // No shell, and no option.
    let odd = "-x $(touch pwned) `id` ; \u{e9}\n";
    let printed = stage.call("x/print", json!({ "name": odd, "free": "y" })).await.unwrap();
    assert_eq!(printed, format!("--name={odd}|y|--|y|"));
    assert_eq!(fails("x/print", json!({ "name": "", "free": "-y" })).await, Some(-32602));
    assert_eq!(stage.call("x/tell", json!(["--help"])).await.unwrap(), "--help");
    for wrong in [json!({ "name": 1, "free": "" }), json!({ "name": "" }), json!(["", "", "", ""])] {
        assert_eq!(fails("x/print", wrong.clone()).await, Some(-32602), "{wrong}");
    }
    assert_eq!(fails("x/tell", json!({ "what": "x", "more": 1 })).await, Some(-32602));
    assert!(!stage.shell.path("pwned").exists());

    let env = stage.call("x/env", json!([])).await.unwrap();
    let env: Vec<&str> = env.as_str().unwrap().lines().collect();
    for known in ["SEALWIRE_AGENT=planner", "SEALWIRE_SUBJECT=planner", "SEALWIRE_METHOD=x/env"] {
        assert!(env.contains(&known), "{env:?}");
    }
    assert!(!env.iter().any(|line| line.contains("hunter2")), "{env:?}");

    assert_eq!(fails("x/exit", json!([])).await, Some(3));
    for failed in ["x/killed", "x/flood", "x/words", "x/twice", "x/missing", "x/slow"] {
        assert_eq!(fails(failed, json!([])).await, Some(-32004), "{failed}");
    }
    // Processes that took too long are gone, and so are those that nobody waits for.
    if let Ok(pid) = std::fs::read_to_string(stage.shell.path("slow")).unwrap_or_default().trim().parse() {
        gone(pid).await;
    }
    let waiting = stage.client.stream::<Value>("tools", "x/waits", json!([]));
    let pid = written(&stage, "waits").await;
    assert!(alive(pid));
    assert!(within(LONG, waiting.cancel()).await);
    gone(pid).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_nobody_waits_for_keeps_its_place_until_it_is_gone() {
    // The first ignores the signal to end; the second checks whether the first is still there.
    let script = "if test -e first; then kill -0 $(cat first) 2>/dev/null && echo both || echo alone; \
                  else trap '' TERM; echo $$ > new; mv new first; while :; do sleep 1; done; fi";
    let backend = format!(
        "[[backend]]\nname = \"one\"\nkind = \"exec\"\ncommand = [\"sh\", \"-c\", \"{script}\"]\nin_flight = 1\n\
         [[backend.method]]\nname = \"x/one\"\noutput = \"text\"\n"
    );
    let stage = Stage::new(POLICY, &backend).await;
    let waiting = stage.client.stream::<Value>("tools", "x/one", json!([]));
    let first = written(&stage, "first").await;
    assert!(alive(first) && within(LONG, waiting.cancel()).await);
    assert_eq!(stage.call("x/one", json!([])).await.unwrap(), "alone");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_is_served_without_a_description_in_the_file() {
    let quick = ["serve", "exec", "--method", "say(what: string)", "--text", "--", "printf", "%s!", "{what}"];
    let stage = Stage::run("[role.user]\nallow = [\"say\"]\n", "", &quick).await;
    assert_eq!(stage.call("say", json!(["hello"])).await.unwrap(), "hello!");
    stage.end().await;
}

#[test]
fn commands_with_a_mistake_are_refused_with_what_to_do() {
    let shell = prepared("nats://127.0.0.1:4222", POLICY, "");
    let base = shell.read("sealwire.toml");
    let with = |backend: &str, method: &str| {
        let command = if backend.starts_with("command") { "" } else { "command = [\"x\"]" };
        let exec = format!("[[backend]]\nname = \"a\"\nkind = \"exec\"\n{command}\n{backend}");
        shell.write("sealwire.toml", &format!("{base}{exec}\n[[backend.method]]\nname = \"a/b\"\n{method}"));
        shell.run("serve --check")
    };
    with("", "").ok();
    with("", "args = [\"{x}\"]").fails(30, &["no parameter `x`", "declare it in `params`"]);
    let list = "params = [{ name = \"x\", type = \"string[]\" }]\n";
    with("", &format!("{list}args = [\"{{x}}\"]")).fails(30, &["`x` must be a string"]);
    with("", "args = [\"}\"]").fails(30, &["write it twice if it is meant literally"]);
    let text = "params = [{ name = \"x\", type = \"string\" }]\n";
    let script = format!("{text}args = [\"-c\", \"echo {{x}}\"]");
    with("", &script).ok();
    with("command = [\"sh\"]", &script).fails(30, &["`a/b`: parameter `x` would be a part of what `sh` runs", "$1"]);
    with("processes = 2", "").fails(30, &["for kind `stdio`"]);
    with("", "push = true").fails(30, &["for kind `stdio`"]);
    with("prefix = \"p\"", "").fails(30, &["for kind `mcp`"]);
    with("", "tool = \"x\"").fails(30, &["they run with `args`"]);
}
