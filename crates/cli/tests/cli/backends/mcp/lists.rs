//! Lists of servers, as they are in the wild: one bad entry among good ones, cursors of every kind, changes while the service runs.

use std::path::Path;
use std::time::Duration;

use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};

use super::super::stage::{LONG, POLICY, Stage};
use super::{approved, refused, text};
use crate::process::says;
use crate::shell::Shell;

/// The backend `said`, which says what `said.json` in the folder says.
pub(super) fn said(python: &Path, more: &str) -> String {
    let script = root().join("crates/cli/tests/cli/backends/mcp/said.py");
    format!(
        "[[backend]]\nname = \"said\"\nkind = \"mcp\"\nprefix = \"t\"\n{more}command = [\"{}\", \"-B\", \"{}\", \"said.json\"]\n",
        python.display(),
        script.display()
    )
}

/// An answer with this list, in which entries stand as they are written.
pub(super) fn list(name: &str, entries: &[&str], more: &str) -> Value {
    let entries = entries.join(",");
    format!("{{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{{\"{name}\":[{entries}]{more}}}}}").into()
}

pub(super) fn say(shell: &Shell, answers: &[(&str, Value)]) {
    let answers: serde_json::Map<String, Value> =
        answers.iter().map(|(of, text)| ((*of).to_owned(), text.clone())).collect();
    // Whole or not at all: the server may read it just now.
    shell.write("said.json.new", &Value::Object(answers).to_string());
    std::fs::rename(shell.path("said.json.new"), shell.path("said.json")).unwrap();
}

/// A folder with a configuration of these backends, which needs no broker.
pub(super) fn folder(backends: &str) -> Shell {
    let shell = Shell::new();
    shell.write(
        "sealwire.toml",
        &format!(
            "environment = \"dev\"\nservice = \"tools\"\n[nats]\nurls = [\"nats://127.0.0.1:4222\"]\n[keys]\nring = \"ring.json\"\n\
             [[tokens.issuer]]\nissuer = \"https://dev.example\"\njwks = \"jwks.json\"\n[policy]\nfolder = \"policies\"\n{backends}"
        ),
    );
    shell
}

/// A stage of that server.
pub(super) async fn stage(more: &str, answers: &[(&str, Value)]) -> Option<Stage> {
    let server = sealwire_testkit::NatsServer::start().await;
    let shell = super::super::stage::prepared(&server.url(), POLICY, &said(python()?, more));
    say(&shell, answers);
    Some(
        Stage::begin(server, shell, &["serve", "--state-file", "state.json"], &std::env::var("PATH").unwrap())
            .await
            .ready()
            .await,
    )
}

const GOOD: &str = r#"{"name":"good","description":"It is.","inputSchema":{"type":"object"}}"#;
const CHANGED: &str = r#"{"name":"changed","inputSchema":{"type":"object"}}"#;
/// Entries that are no tools, and what is said of each.
const TOOLS: [(&str, &str); 37] = [
    ("null", "entry 2 of `tools`: it is null, not an object"),
    ("\"text\"", "it is a text, not an object"),
    ("7", "it is a number, not an object"),
    ("true", "it is a truth value, not an object"),
    ("[]", "it is a list, not an object"),
    ("{}", "it has no `name`"),
    (r#"{"inputSchema":{"type":"object"}}"#, "it has no `name`"),
    (r#"{"name":null,"inputSchema":{}}"#, "it has no `name`"),
    (r#"{"name":7,"inputSchema":{}}"#, "its `name` is a number, not a text"),
    (r#"{"name":["x"],"inputSchema":{}}"#, "its `name` is a list, not a text"),
    (r#"{"name":"","inputSchema":{}}"#, "its `name` is empty"),
    (r#"{"name":"\ud800","inputSchema":{}}"#, "its `name` is not Unicode text"),
    (r#"{"name":"LONG","inputSchema":{}}"#, "its `name` has more than 256 bytes"),
    (r#"{"name":"a1"}"#, "said: a1: it has no `inputSchema`"),
    (r#"{"name":"a2","inputSchema":null}"#, "said: a2: it has no `inputSchema`"),
    (r#"{"name":"a3","inputSchema":"object"}"#, "said: a3: its `inputSchema` is a text, not an object"),
    (r#"{"name":"a4","inputSchema":[]}"#, "said: a4: its `inputSchema` is a list, not an object"),
    (r#"{"name":"a5","inputSchema":true}"#, "said: a5: its `inputSchema` is a truth value, not an object"),
    (r#"{"name":"a6","inputSchema":{"$ref":"https://e.example/x"}}"#, "said: a6: `inputSchema`: the reference"),
    (r#"{"name":"a7","inputSchema":{},"outputSchema":7}"#, "said: a7: its `outputSchema` is a number, not an object"),
    (r#"{"name":"a8","inputSchema":{},"description":7}"#, "said: a8: its `description` is a number, not a text"),
    (
        r#"{"name":"a9","inputSchema":{},"description":{"en":"x"}}"#,
        "said: a9: its `description` is an object, not a text",
    ),
    (r#"{"name":"b1","inputSchema":{},"title":[]}"#, "said: b1: its `title` is a list, not a text"),
    (r#"{"name":"b2","inputSchema":{},"annotations":"x"}"#, "said: b2: its `annotations` is a text, not an object"),
    (
        r#"{"name":"b3","inputSchema":{},"annotations":{"readOnlyHint":"yes"}}"#,
        "said: b3: `annotations`: its `readOnlyHint` is a text",
    ),
    (
        r#"{"name":"b4","name":"b4","inputSchema":{}}"#,
        "said: b4: its definition has an object in which a member name occurs twice",
    ),
    (
        r#"{"name":"b5","inputSchema":{"properties":{"x":{},"x":{}}}}"#,
        "said: b5: its definition has an object in which a member",
    ),
    (r#"{"name":"b6","inputSchema":{},"description":"\udfff"}"#, "said: b6: its definition is not valid JSON"),
    (r#"{"name":"b7","inputSchema":{},"x":DEEP}"#, "said: b7: its definition is nested deeper than"),
    (r#"{"name":"b8","inputSchema":{},"description":"HUGE"}"#, "said: b8: it has more than 262144 bytes"),
    (
        r#"{"name":"b9","inputSchema":{"description":"WIDE"}}"#,
        "said: b9: `inputSchema`: the schema is longer than 65536 bytes",
    ),
    (
        r#"{"name":"c1","inputSchema":{"properties":{"x":{"pattern":"("}}}}"#,
        "said: c1: `inputSchema`: the schema cannot be read: `(`",
    ),
    (r#"{"name":"twice","inputSchema":{}}"#, "said: twice: the server lists two tools of this name"),
    (r#"{"name":"twice","inputSchema":{}}"#, "said: twice: the server lists two tools of this name"),
    (r#"{"name":"no method","inputSchema":{}}"#, "said: no method: "),
    (r#"{"name":"rpc.x y","inputSchema":{}}"#, "said: rpc.x y: "),
    (r#"{"name":"prompts/get","inputSchema":{}}"#, "said: prompts/get: `t/prompts/get` is a method of the protocol"),
];

fn bad_tools() -> Vec<String> {
    let fill = |entry: &str| {
        let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
        let entry = entry.replace("LONG", &"x".repeat(257)).replace("DEEP", &deep);
        entry.replace("HUGE", &"x".repeat(300_000)).replace("WIDE", &"x".repeat(70_000))
    };
    TOOLS.iter().map(|(entry, _)| fill(entry)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_entries_of_a_list_are_named_and_the_good_ones_go_on() {
    let bad = bad_tools();
    let mut all = vec![GOOD];
    all.extend(bad.iter().map(String::as_str));
    all.push(CHANGED);
    let prompts = [
        r#"{"name":"plain"}"#,
        r#"{"name":"whole","title":"W","description":"It is.","arguments":[{"name":"a","required":true},{"name":"b"}],"_meta":{"x":1}}"#,
        r#"{"name":"none","description":null,"arguments":null}"#,
        "null",
        r#"{"title":"x"}"#,
        r#"{"name":"p1","description":7}"#,
        r#"{"name":"p2","arguments":{}}"#,
        r#"{"name":"p3","arguments":[{"required":true}]}"#,
        r#"{"name":"p4","arguments":[{"name":"a"},{"name":"a"}]}"#,
        r#"{"name":"p5","arguments":[{"name":"a","required":"yes"}]}"#,
        r#"{"name":"p6","arguments":["a"]}"#,
        r#"{"name":"p7"}"#,
        r#"{"name":"p7"}"#,
    ];
    let resources = [
        r#"{"uri":"test://one","name":"one","description":null,"size":7}"#,
        "null",
        r#"{"uri":"test://two"}"#,
        r#"{"name":"three"}"#,
        r#"{"uri":7,"name":"four"}"#,
        r#"{"uri":"test://five","name":"five","size":"big"}"#,
        r#"{"uri":"test://six","name":"six","mimeType":{}}"#,
        r#"{"uri":"test://seven","name":"seven","name":"seven"}"#,
        r#"{"uri":"test://eight","name":"eight"}"#,
    ];
    let templates = [r#"{"uriTemplate":"test://{x}","name":"one"}"#, r#"{"uri":"test://{x}","name":"two"}"#, "[]"];
    let answers = [
        ("tools/list", list("tools", &all, "")),
        ("prompts/list", list("prompts", &prompts, "")),
        ("resources/list", list("resources", &resources, "")),
        ("resources/templates/list", list("resourceTemplates", &templates, "")),
    ];
    let Some(mut stage) = stage("resources = true\nprompts = true\n", &answers).await else { return };

    let listed = stage.shell.run("tools list").ok().stdout.clone();
    let shown = |said: &str| said.trim_start_matches("entry 2 of `tools`: ").to_owned();
    for (entry, said) in TOOLS {
        assert!(
            listed.lines().any(|line| line.starts_with("unusable  ") && line.contains(&shown(said))),
            "{entry} {said}\n{listed}"
        );
    }
    for line in [
        "new       said: good",
        "new       said: plain (prompt)",
        "new       said: none (prompt)",
        "unusable  said: entry 4 of `prompts`: it is null",
        "unusable  said: entry 5 of `prompts`: it has no `name`",
        "unusable  said: p1 (prompt): its `description` is a number",
        "unusable  said: p2 (prompt): its `arguments` is an object",
        "unusable  said: p3 (prompt): entry 1 of its `arguments`: it has no `name`",
        "unusable  said: p4 (prompt): two of its `arguments` have one name",
        "unusable  said: p5 (prompt): entry 1 of its `arguments`: its `required` is a text",
        "unusable  said: p6 (prompt): entry 1 of its `arguments`: it is a text",
        "unusable  said: p7 (prompt): the server lists two prompts of this name",
    ] {
        assert!(listed.contains(line), "{line}\n{listed}");
    }
    assert!(!listed.contains("at line"), "no parser's positions: {listed}");
    stage
        .shell
        .run("tools approve --tool a1 --yes")
        .fails(30, &["the tool `a1` cannot be used: it has no `inputSchema`"]);
    stage.shell.run("tools approve --yes").ok().says("5 approved");
    assert_eq!(approved(&stage, "t/good", json!({ "x": 1 })).await, text(&["{\"x\": 1}"]));
    says(&mut stage.stderr, "the tool `a1` cannot be used").await;
    let skipped =
        stage.stderr.borrow().contains("what the server lists cannot be used: entry 2 of `tools`: it is null");
    assert!(skipped, "{}", *stage.stderr.borrow());
    let prompts = stage.call("t/prompts/list", json!({})).await.unwrap();
    let whole = json!({ "name": "whole", "title": "W", "description": "It is.",
                        "arguments": [{ "name": "a", "required": true }, { "name": "b" }] });
    assert_eq!(prompts["prompts"].as_array().unwrap().len(), 3, "{prompts}");
    assert_eq!(prompts["prompts"][1], whole);
    let resources = stage.call("t/resources/list", json!({})).await.unwrap();
    let one = json!({ "uri": "test://one", "name": "one", "size": 7 });
    assert_eq!(resources, json!({ "resources": [one, { "uri": "test://eight", "name": "eight" }] }));
    let templates = stage.call("t/resources/templates/list", json!({})).await.unwrap();
    assert_eq!(templates, json!({ "resourceTemplates": [{ "uriTemplate": "test://{x}", "name": "one" }] }));
    says(&mut stage.stderr, "entry 3 of `resources`: it has no `name`").await;

    // While the service runs: each of them, one after the other.
    for entry in &bad {
        say(&stage.shell, &[("tools/list", list("tools", &[entry.as_str(), GOOD, CHANGED], ""))]);
        stage.call("t/changed", json!({})).await.unwrap();
        assert_eq!(stage.call("t/good", json!({})).await.unwrap(), text(&["{}"]), "{}", &entry[..entry.len().min(200)]);
    }
    stage.shell.run("ping --config sealwire.toml --own state.json --within 30s").ok();
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_which_nothing_can_be_used_is_not_ready() {
    let answers = [("tools/list", list("tools", &[GOOD, CHANGED], ""))];
    let Some(mut stage) = stage("", &answers).await else { return };
    stage.shell.run("tools approve --yes").ok();
    approved(&stage, "t/good", json!({})).await;
    // Its health is looked at from time to time.
    let becomes = async |stage: &Stage, code| {
        let waits = async {
            while stage.shell.run("ping --config sealwire.toml --own state.json --within 30s").code != code {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(LONG, waits).await;
    };
    becomes(&stage, 0).await;
    let no_tools = json!(r#"{"jsonrpc":"2.0","id":$ID,"result":{"tool":[]}}"#);
    let other =
        list("tools", &[&GOOD.replace("It is", "It was"), &CHANGED.replace("object\"", "object\",\"x\":1")], "");
    for (list_answer, why) in [
        (no_tools, "its answer has no `tools`"),
        (json!(r#"{"jsonrpc":"2.0","id":$ID,"result":[]}"#), "its answer is no object"),
        (
            json!(r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":{}}}"#),
            "`tools` in its answer is an object, not a list",
        ),
        (json!(r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[NaN]}}"#), "its answer is not JSON"),
        (json!(r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32603,"message":"Not now"}}"#), "error -32603: Not now"),
        (other, "none of its approved tools can be used"),
    ] {
        say(&stage.shell, &[("tools/list", list_answer)]);
        // The last of the good calls, which says that the list has changed.
        stage.call("t/changed", json!({})).await.unwrap();
        assert_eq!(refused(stage.call("t/good", json!({})).await).0, -32004, "{why}");
        says(&mut stage.stderr, why).await;
        becomes(&stage, 20).await;
        say(&stage.shell, &answers);
        // It is asked again after a pause; a server whose tools have all changed is told to say so.
        if why.starts_with("none") {
            break;
        }
        approved(&stage, "t/good", json!({})).await;
        becomes(&stage, 0).await;
    }
    // Approved as they are now, they can be used.
    say(&stage.shell, &[("tools/list", list("tools", &[&GOOD.replace("It is", "It was"), CHANGED], ""))]);
    stage.shell.run("tools approve --yes").ok();
    approved(&stage, "t/good", json!({})).await;
    becomes(&stage, 0).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_of_every_kind_lead_to_every_page_and_to_an_end() {
    let Some(python) = python() else { return };
    let tool = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
    let (first, second, third) = (tool("first"), tool("second"), tool("third"));
    let page = |entries: &[&str], next: &str| list("tools", entries, &format!(",\"nextCursor\":{next}"));
    let other = first.replace("object\"", "object\",\"x\":1");
    for (what, pages, found, told) in [
        (
            "texts",
            vec![
                ("", page(&[&first], "\"a\"")),
                ("\"a\"", page(&[&second], "\"b\"")),
                ("\"b\"", list("tools", &[&third], "")),
            ],
            "first second third",
            "",
        ),
        ("null", vec![("", page(&[&first, &second], "null"))], "first second", ""),
        (
            "an empty text",
            vec![("", page(&[&first, &second], "\"\"")), ("\"\"", page(&[&third], "\"\""))],
            "first second",
            "",
        ),
        (
            "a number",
            vec![("", page(&[&first], "1")), ("1", page(&[&second], "2")), ("2", list("tools", &[&third], ""))],
            "first second third",
            "",
        ),
        ("zero", vec![("", page(&[&first], "0")), ("0", list("tools", &[&second], ""))], "first second", ""),
        (
            "the same for ever",
            vec![("", page(&[&first], "\"a\"")), ("\"a\"", page(&[&second], "\"a\""))],
            "first second",
            "the same `nextCursor` again",
        ),
        (
            "the first page again and again",
            vec![("", page(&[&first, &second], "\"a\"")), ("\"a\"", page(&[&first, &second], "\"a\""))],
            "first second",
            "the same `nextCursor` again",
        ),
        ("truth", vec![("", page(&[&first], "true"))], "first", "its `nextCursor` is a truth value"),
        ("an object", vec![("", page(&[&first], "{}"))], "first", "its `nextCursor` is an object"),
        (
            "one tool on two pages in two ways",
            vec![("", page(&[&first, &second], "\"a\"")), ("\"a\"", list("tools", &[&other], ""))],
            "second",
            "first: the server lists two tools",
        ),
        ("an empty page", vec![("", page(&[], "\"a\"")), ("\"a\"", list("tools", &[&first], ""))], "first", ""),
    ] {
        let shell = folder(&said(python, ""));
        let named =
            |cursor: &str| if cursor.is_empty() { "tools/list".to_owned() } else { format!("tools/list {cursor}") };
        let pages: Vec<(String, Value)> = pages.into_iter().map(|(cursor, page)| (named(cursor), page)).collect();
        say(&shell, &pages.iter().map(|(of, page)| (of.as_str(), page.clone())).collect::<Vec<_>>());
        let listed = shell.run("tools list").ok().stdout.clone();
        let names: Vec<&str> = listed.lines().filter_map(|line| line.strip_prefix("new       said: ")).collect();
        assert_eq!(names.join(" "), found, "{what}: {listed}");
        assert!(listed.contains(told), "{what}: {listed}");
    }
}

/// A list that is handed on has text cursors, and the server gets back what it wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_of_resources_are_texts_for_callers_and_their_own_for_the_server() {
    let one =
        |name: &str, next: &str| list("resources", &[&format!(r#"{{"uri":"test://{name}","name":"{name}"}}"#)], next);
    let answers = [
        ("tools/list", list("tools", &[GOOD], "")),
        ("resources/list", one("a", ",\"nextCursor\":7")),
        ("resources/list 7", one("b", ",\"nextCursor\":\"json:x\"")),
        ("resources/list \"json:x\"", one("c", ",\"nextCursor\":\"plain\"")),
        ("resources/list \"plain\"", one("d", ",\"nextCursor\":\"\"")),
    ];
    let Some(stage) = stage("resources = true\n", &answers).await else { return };
    let (mut names, mut params) = (Vec::new(), json!({}));
    loop {
        let page = stage.call("t/resources/list", params).await.unwrap();
        names.push(page["resources"][0]["name"].as_str().unwrap().to_owned());
        let Some(next) = page.get("nextCursor") else { break };
        assert!(next.is_string(), "{page}");
        params = json!({ "cursor": next });
    }
    assert_eq!(names, ["a", "b", "c", "d"]);
    // What the configuration does not offer is no method.
    assert_eq!(refused(stage.call("t/prompts/list", json!({})).await).0, -32601);
    stage.end().await;
}
