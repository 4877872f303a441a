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
stdin = "data"

[[backend.method]]
name = "x/print"
args = ["printf", "%s|", "--name={name}", "{free}", "--", "{free}", "{last}"]
params = [
  { name = "name", type = "string", allow_argument = true }, { name = "free", type = "string", allow_argument = true },
  { name = "last", type = "string", optional = true, allow_argument = true },
]
output = "text"

[[backend.method]]
name = "x/tell"
args = ["printf", "--", "%s", "{what}"]
params = [{ name = "what", type = "string", allow_argument = true }]
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
pub(super) async fn written(stage: &Stage, file: &str) -> u64 {
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
async fn output_of_a_command_is_read_whatever_its_marks_and_line_ends() {
    let table = [
        ("mark", "json", r"\357\273\277 [1]\r\n", Ok(json!([1]))),
        ("spread", "json", r"[\r\n1\r\n]\n", Ok(json!([1]))),
        ("cr", "json", r"[1]\r", Ok(json!([1]))),
        ("nan", "json", r"NaN", Err("not JSON")),
        ("utf16", "json", r"\377\376[\0001\000]\000", Err("UTF-16")),
        ("latin", "json", r#"\042\351\042"#, Err("not UTF-8")),
        ("text", "text", r"\357\273\277x\ny\r\n", Ok(json!("x\ny"))),
        ("lines", "text", r"x\n\n", Ok(json!("x\n"))),
        ("bare", "text", r"x\r", Ok(json!("x\r"))),
        ("latin-text", "text", r"\351", Err("not UTF-8")),
    ];
    let mut backend = "[[backend]]\nname = \"a\"\nkind = \"exec\"\ncommand = [\"printf\"]\n".to_owned();
    for (name, output, printed, _) in &table {
        backend += &format!("[[backend.method]]\nname = \"x/{name}\"\noutput = \"{output}\"\nargs = ['{printed}']\n");
    }
    let stage = Stage::new(POLICY, &backend).await;
    for (name, _, _, expected) in table {
        let outcome = stage.call(&format!("x/{name}"), json!([])).await;
        let outcome = outcome.map_err(|error| error.remote().unwrap().data().unwrap().get().to_owned());
        match (outcome, expected) {
            (Ok(given), Ok(expected)) => assert_eq!(given, expected, "{name}"),
            (Err(data), Err(why)) => assert!(data.contains(why), "{name}: {data}"),
            (outcome, expected) => panic!("{name}: {outcome:?} {expected:?}"),
        }
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_command_is_served_without_a_description_in_the_file() {
    let quick = "serve exec --method say(what:string) --text --allow-argument what -- printf %s! {what}";
    let quick: Vec<&str> = quick.split(' ').collect();
    let stage = Stage::run("[role.user]\nallow = [\"say\"]\n", "", &quick).await;
    assert_eq!(stage.call("say", json!(["hello"])).await.unwrap(), "hello!");
    stage.end().await;
}

/// The command lines of all processes, each as one text.
fn command_lines() -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_are_in_no_command_line_but_that_of_a_program_that_was_given_them() {
    let methods = "[[backend]]\nname = \"a\"\nkind = \"exec\"\ncommand = [\"sh\", \"-c\"]\n\
        [[backend.method]]\nname = \"x/read\"\nargs = [\"cat > read; exec sleep 600\"]\n\
        params = [{ name = \"p\", type = \"string\" }]\nstdin = \"data\"\n\
        [[backend.method]]\nname = \"x/given\"\nargs = [\"cat > given; exec sleep 600\", \"sh\", \"{p}\"]\n\
        params = [{ name = \"p\", type = \"string\", allow_argument = true }]\nstdin = \"data\"\n\
        [[backend.method]]\nname = \"x/large\"\nargs = [\"cat > large; exec sleep 600\", \"sh\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \
        \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\", \"{p}\"]\n\
        params = [{ name = \"p\", type = \"string\", allow_argument = true }]\nstdin = \"data\"\n";
    let stage = Stage::new(POLICY, methods).await;
    // The last one is larger than a pipe holds at a time.
    for (method, secret, most) in [
        ("read", "hunter2-read".to_owned(), 0),
        ("given", "hunter2-given".to_owned(), 1),
        ("large", "hunter2-".repeat(500), 1),
    ] {
        let waiting = stage.client.stream::<Value>("tools", &format!("x/{method}"), json!({ "p": secret }));
        let read = async {
            while !std::fs::read_to_string(stage.shell.path(method)).is_ok_and(|read| read.contains(&secret)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within(LONG, read).await;
        // Without the test itself, and without the shell that becomes `sleep`.
        let seen = async {
            while command_lines().iter().filter(|line| line.contains(&secret)).count() > most {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within(LONG, seen).await;
        assert!(command_lines().iter().any(|line| line.contains("backend-child")), "its guard is there");
        assert!(within(LONG, waiting.cancel()).await);
    }
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
    // A text is an argument only with the operator's word, and then a whole one. Each row alone is said by the unit tests of the rule.
    let text = "params = [{ name = \"x\", type = \"string\" }]\n";
    let script = format!("{text}args = [\"-S\", \"sh -c {{x}}\"]");
    let word = "write `allow_argument = true`";
    with("command = [\"env\"]", &script)
        .fails(30, &["`a/b`: parameter `x` is a text", "reads its standard input as data", word]);
    let allowed = "params = [{ name = \"x\", type = \"string\", allow_argument = true }]\n";
    with("command = [\"env\"]", &script.replace(text, allowed))
        .fails(30, &["only a part of an argument", "`--name={x}`"]);
    with("command = [\"date\"]", &format!("{allowed}args = [\"--date={{x}}\"]")).ok();
    // What a command reads, it may run: whichever it is, it gets nothing to read without the word.
    for command in ["sh", "psql", "ssh"] {
        let command = format!("command = [\"{command}\", \"x\"]");
        with(&command, text).fails(30, &["parameter `x` does not reach the command", "write `stdin = \"data\"`"]);
        with(&command, &format!("{text}stdin = \"data\"")).ok();
    }
    with("", "stdin = \"code\"").fails(30, &["data"]);
    shell.write("sealwire.toml", &base);
    let quick = "serve exec --check --method x(p:string) -- env -S sh{p}";
    shell.run(quick).fails(30, &["parameter `p` is a text", word]);
    shell.run("serve exec --check --method x(p:string) --stdin-data -- x").ok();
    shell.run("serve exec --check --method x(p:string) --allow-argument q -- x").fails(2, &["no such parameter"]);
    with("processes = 2", "").fails(30, &["for kind `stdio`"]);
    with("", "push = true").fails(30, &["for kind `stdio`"]);
    with("prefix = \"p\"", "").fails(30, &["for kind `mcp`"]);
    with("", "tool = \"x\"").fails(30, &["they run with `args`"]);
}
