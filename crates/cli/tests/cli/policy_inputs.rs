//! Files and arguments that nobody should write, put to every policy command that reads them: an error in words, or an answer,
//! within seconds; never an abort.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::shell::{Ran, Shell};

const METHOD: &str = "[method.m]\nparams = [{ name = \"x\", type = \"any\" }]\n";
const RECORD: &str = r#"{"v": 1, "session": "s1", "seq": 2, "prev": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "kind": "decision", "at_ms": 1790000000000, "revision": "5b1c", "agent": "till", "algorithm": "EdDSA", "key": "till.k1", "issued_at": 1789999900, "expires_at": 1790000800, "method": "m", "declared": ["x: any"], "params": PARAMS, "verdict": "deny", "reason": "no_rule"}"#;
/// Deeper than any stack is high, and short enough for a file.
const DEEP: usize = 100_000;

/// A Cedar policy with this condition.
fn policy(condition: &str) -> Vec<u8> {
    format!("permit(principal, action, resource) when {{ {condition} }};\n").into_bytes()
}

fn around(open: &str, inner: &str, close: &str, times: usize) -> String {
    format!("{}{inner}{}", open.repeat(times), close.repeat(times))
}

fn cedar() -> Vec<(&'static str, Vec<u8>)> {
    let head = "permit(principal, action, resource)";
    let mut many = String::new();
    for number in 0..300 {
        writeln!(many, "@id(\"p{number}\") permit(principal, action, resource) when {{ context.hour < 0 }};").unwrap();
    }
    vec![
        ("parentheses", policy(&around("(", "true", ")", DEEP))),
        ("parentheses without an end", policy(&"(".repeat(DEEP))),
        ("closing parentheses", policy(&")".repeat(DEEP))),
        ("sets", policy(&around("[", "1", "]", DEEP))),
        ("records", policy(&around("{a:", "1", "}", DEEP))),
        ("sets in records", policy(&around("{\"a\":[", "1", "]}", DEEP))),
        ("ifs", policy(&format!("{}true", "if true then true else ".repeat(30_000)))),
        ("ifs within", policy(&format!("{}true{}", "if ".repeat(30_000), " then true else true".repeat(30_000)))),
        ("exclamation marks", policy(&format!("{}true", "!".repeat(DEEP)))),
        ("exclamation marks apart", policy(&format!("{}true", "! ".repeat(DEEP)))),
        ("minus signs", policy(&format!("{}1 == 1", "-".repeat(DEEP)))),
        ("minus signs apart", policy(&format!("{}1 == 1", "- ".repeat(DEEP)))),
        ("attributes", policy(&format!("context{} == 1", ".a".repeat(DEEP)))),
        ("indexes of a text", policy(&format!("\"a\"{} == 1", "[\"a\"]".repeat(DEEP)))),
        ("arguments", policy(&format!("a{}", "(1)".repeat(DEEP)))),
        ("colons", policy(&format!("a{}", ":".repeat(DEEP)))),
        ("question marks", policy(&"?principal".repeat(DEEP))),
        ("indexes", policy(&format!("context{} == 1", "[\"a\"]".repeat(DEEP)))),
        ("calls", policy(&format!("context{}", ".a()".repeat(DEEP)))),
        ("calls within", policy(&around("[1].contains(", "1", ")", DEEP / 2))),
        ("has", policy(&format!("context has a{}", ".a".repeat(DEEP)))),
        ("ands", policy(&vec!["true"; DEEP].join(" && "))),
        ("ors", policy(&vec!["true"; DEEP].join("||"))),
        ("sums", policy(&format!("{} == 1", vec!["1"; DEEP].join("+")))),
        ("likes", policy(&vec!["context.agent like \"*\""; 10_000].join(" && "))),
        ("stars", policy(&format!("context.agent like \"{}\"", "*a".repeat(DEEP)))),
        ("name spaces", policy(&format!("principal == {}A::\"x\"", "A::".repeat(DEEP)))),
        ("entities", policy(&format!("principal in [{}]", vec!["Agent::\"x\""; 3_000].join(",")))),
        ("clauses", format!("{head}{};", " when { true }".repeat(2_000)).into_bytes()),
        ("annotations", format!("{}{head};", "@a(\"x\") ".repeat(DEEP / 2)).into_bytes()),
        (
            "annotations of other names",
            format!("{}{head};", (0..2_000).map(|n| format!("@a{n}(\"x\")")).collect::<String>()).into_bytes(),
        ),
        ("semicolons", ";".repeat(DEEP).into_bytes()),
        ("a long line", policy(&format!("context.agent == \"{}\"", "x".repeat(1_000_000)))),
        ("a long comment", format!("// {}\n{head};", "x".repeat(1_000_000)).into_bytes()),
        ("a text without an end", format!("{head} when {{ \"{}", "x".repeat(500_000)).into_bytes()),
        ("many policies", many.into_bytes()),
        ("more than 1 MiB", vec![b' '; (1 << 20) + 1]),
        ("NUL", policy("true\0")),
        ("not UTF-8", policy("true").into_iter().chain([b'/', b'/', 0xff]).collect()),
        ("UTF-16", "permit(principal, action, resource);".encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("words", "permit ".repeat(DEEP).into_bytes()),
        ("nothing", Vec::new()),
    ]
}

/// What could stand in a policy, a table of expected decisions or a configuration.
fn toml() -> Vec<(&'static str, Vec<u8>)> {
    let bytes = String::into_bytes;
    let dotted = |times: usize| vec!["a"; times].join(".");
    // Each bound alone is kept, so the depth is the product of both.
    let both = format!("{}1{}", format!("{{ {} = ", dotted(79)).repeat(70), " }".repeat(70));
    vec![
        ("lists", bytes(format!("a = {}\n", around("[", "1", "]", DEEP)))),
        ("lists without an end", bytes(format!("a = {}\n", "[".repeat(DEEP)))),
        ("tables", bytes(format!("a = {}\n", around("{a=", "1", "}", DEEP)))),
        ("lists in tables", bytes(format!("a = {}\n", around("{a=[", "1", "]}", DEEP)))),
        ("dots", bytes(format!("{} = 1\n", dotted(DEEP)))),
        ("dots in a heading", bytes(format!("[{}]\n", dotted(DEEP)))),
        ("dots in a list's heading", bytes(format!("[[{}]]\n", dotted(DEEP)))),
        ("dots in a rule", bytes(format!("[rule.x]\nwhen.params.{} = 1\n", dotted(DEEP)))),
        ("dots in tables", bytes(format!("a = {both}\n"))),
        ("headings below each other", bytes((1..79).map(|depth| format!("[{}]\n", dotted(depth))).collect())),
        (
            "fields in fields",
            bytes(format!(
                "[method.n]\nparams = {}",
                around("[{ name = \"a\", type = \"object\", fields = ", "[]", "}]", 39)
            )),
        ),
        ("brackets", bytes("[".repeat(DEEP))),
        ("tables of a list", bytes("[[a]]\n".repeat(DEEP))),
        ("keys", bytes((0..5_000).map(|key| format!("k{key} = 1\n")).collect())),
        ("a key twice", bytes("a = 1\n".repeat(DEEP))),
        ("quotes", bytes(format!("a = \"{}", "\"".repeat(DEEP)))),
        ("a text without an end", bytes(format!("a = \"\"\"{}", "x\n".repeat(DEEP)))),
        ("a long line", bytes(format!("a = \"{}\"\n", "x".repeat(1_000_000)))),
        ("a long comment", bytes(format!("# {}\n", "x".repeat(1_000_000)))),
        ("a long number", bytes(format!("a = {}\n", "9".repeat(DEEP)))),
        ("a long fraction", bytes(format!("a = 0.{}\n", "9".repeat(DEEP)))),
        ("more than 1 MiB", vec![b'\n'; (1 << 20) + 1]),
        ("NUL", b"a = \"\0\"\n".to_vec()),
        ("not UTF-8", b"a = \"\xff\"\n".to_vec()),
        ("UTF-16", "a = 1\n".encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("nothing", Vec::new()),
    ]
}

fn recordings() -> Vec<(&'static str, Vec<u8>)> {
    let with = |params: &str| RECORD.replace("PARAMS", params).into_bytes();
    vec![
        ("lists", with(&format!("{{\"x\":{}}}", around("[", "1", "]", DEEP)))),
        ("objects", with(&format!("{{\"x\":{}}}", around("{\"a\":", "1", "}", DEEP)))),
        ("objects at the bound", with(&format!("{{\"x\":{}}}", around("{\"a\":", "1", "}", 120)))),
        ("unknown members", format!("{{\"y\":{}}}", around("[", "1", "]", DEEP)).into_bytes()),
        ("brackets", "[".repeat(DEEP).into_bytes()),
        ("a long number", with(&format!("{{\"x\":{}}}", "9".repeat(DEEP)))),
        ("a long text", with(&format!("{{\"x\":\"{}\"}}", "9".repeat(1_000_000)))),
        ("longer than a record", with(&format!("{{\"x\":\"{}\"}}", "9".repeat(2 << 20)))),
        ("many lines", "{}\n".repeat(5_000).into_bytes()),
        ("NUL", with("{\"x\":\"\0\"}")),
        ("not UTF-8", b"{\"agent\":\"\xff\"}".to_vec()),
        ("nothing", Vec::new()),
    ]
}

/// Runs a command, which must end by itself, in time, and say what is wrong if it fails.
#[track_caller]
fn put(shell: &Shell, what: &str, line: &str) -> Ran {
    let began = Instant::now();
    let ran = shell.run(line);
    let took = began.elapsed();
    let shown = |text: &str| text.chars().take(300).collect::<String>();
    assert!(
        [0, 2, 10, 11, 12, 13, 30].contains(&ran.code),
        "{what}: `{line}` ended with {}: {} {}",
        ran.code,
        shown(&ran.stdout),
        shown(&ran.stderr)
    );
    assert!(took < Duration::from_secs(60), "{what}: `{line}` took {took:?}");
    assert!(ran.code == 0 || ran.stdout.len() + ran.stderr.len() > 10, "{what}: `{line}` says nothing");
    ran
}

/// Every command that reads a folder of policies.
const COMMANDS: [&str; 10] = [
    "policy check",
    "policy test",
    "policy explain --agent a --method m --params [1]",
    "policy matrix",
    "policy who-can m",
    "policy can a",
    "policy diff policies good",
    "policy diff good policies --replay good.jsonl",
    "policy learn good.jsonl",
    "policy fmt --check",
];

fn folder() -> Shell {
    let shell = Shell::new();
    shell.write("good/a.toml", METHOD);
    shell.write("policies/a.toml", METHOD);
    shell.write("good.jsonl", &format!("{}\n", RECORD.replace("PARAMS", "{\"x\":1}")));
    shell
}

/// Each input for the commands with a reader of their own, and every sixth for all.
fn try_all(name: &str, inputs: &[(&'static str, Vec<u8>)], commands: &[&str]) -> usize {
    let shell = folder();
    let mut rows = 0;
    for (number, (what, input)) in inputs.iter().enumerate() {
        std::fs::write(shell.path("policies").join(name), input).unwrap();
        let few = if number % 6 == 0 { commands } else { &commands[..1] };
        for command in few {
            put(&shell, what, command);
            rows += 1;
        }
        let before = std::fs::read(shell.path("policies").join(name)).unwrap();
        if put(&shell, what, "policy fmt").code != 0 {
            assert_eq!(std::fs::read(shell.path("policies").join(name)).unwrap(), before, "{what}: it is left alone");
        }
        rows += 1;
    }
    rows
}

#[test]
fn no_cedar_file_brings_a_command_down() {
    let rows = try_all("b.cedar", &cedar(), &COMMANDS);
    println!("{rows} rows");
}

#[test]
fn no_toml_file_brings_a_command_down() {
    let rows =
        try_all("b.toml", &toml(), &COMMANDS) + try_all("b.test.toml", &toml(), &["policy test", "policy check"]);
    println!("{rows} rows");
}

#[test]
fn no_recording_brings_a_command_down() {
    let shell = folder();
    let mut rows = 0;
    for (what, input) in recordings() {
        std::fs::write(shell.path("bad.jsonl"), input).unwrap();
        for command in ["policy diff good policies --replay bad.jsonl", "policy learn bad.jsonl"] {
            put(&shell, what, command);
            rows += 1;
        }
    }
    println!("{rows} rows");
}

#[test]
fn no_configuration_credentials_or_token_brings_a_command_down() {
    let shell = folder();
    for (what, input) in toml() {
        std::fs::write(shell.path("sealwire.toml"), input).unwrap();
        for command in ["policy skeleton", "serve demo --check"] {
            put(&shell, what, command);
        }
    }
    for (what, input) in recordings() {
        std::fs::write(shell.path("bad.json"), input).unwrap();
        for command in ["--creds bad.json", "--token bad.json"] {
            put(&shell, what, &format!("policy explain {command} --method m --params [1]"));
        }
    }
    let deep = around("[", "1", "]", 60_000);
    for params in [deep.clone(), format!("{{\"x\":{deep}}}"), format!("[{deep}]")] {
        put(&shell, "deep parameters", &format!("policy explain --agent a --method m --params {params}"));
        put(&shell, "deep claim", &format!("policy explain --agent a --method m --claim x={params}"));
    }
}

/// Every argument of every policy command, empty or of another kind.
#[test]
fn arguments_that_can_mean_nothing_are_errors() {
    let shell = folder();
    shell.write("policies/b.toml", "[role.r]\nallow = [\"m\"]\n");
    let explain = ["policy", "explain", "--agent", "a", "--method", "m"];
    let with = |more: &[&'static str]| [&explain[..], more].concat();
    let rows: Vec<(Vec<&str>, &str)> = vec![
        (with(&["--params", "5"]), "neither an object nor an array"),
        (with(&["--params", "\"x\""]), "neither an object nor an array"),
        (with(&["--params", "null"]), "neither an object nor an array"),
        (with(&["--params", "true"]), "neither an object nor an array"),
        (with(&["--params", ""]), "not JSON"),
        (with(&["--params", "{x: 1}"]), "not JSON"),
        (with(&["--params", "[1] [2]"]), "not JSON"),
        (with(&["--subject", ""]), "--subject"),
        (with(&["--subject", "a b"]), "--subject"),
        (with(&["--subject", "a"]), "acts on behalf of a namesake"),
        (with(&["--role", ""]), "--role"),
        (with(&["--claim", ""]), "--claim"),
        (with(&["--claim", "x"]), "--claim"),
        (with(&["--claim", "=5"]), "--claim"),
        (with(&["--token-age", ""]), "--token-age"),
        (with(&["--token-age=-5m"]), "--token-age"),
        (with(&["--token-age=0.5"]), "--token-age"),
        (with(&["--at", ""]), "--at"),
        (with(&["--at", "yesterday"]), "--at"),
        (with(&["--alg", ""]), "--alg"),
        (with(&["--dir", ""]), "dir"),
        (with(&["--dir", "nowhere"]), "not a folder"),
        (vec!["policy", "explain", "--agent", "", "--method", "m"], "--agent"),
        (vec!["policy", "explain", "--agent", "a@b", "--method", "m"], "--agent"),
        (vec!["policy", "explain", "--agent", "a", "--method", ""], "--method"),
        (vec!["policy", "explain", "--agent", "a", "--method", "a b"], "--method"),
        (vec!["policy", "explain", "--creds", "", "--method", "m"], "creds"),
        (vec!["policy", "explain", "--token", "", "--method", "m"], ""),
        (vec!["policy", "can", ""], "AGENT"),
        (vec!["policy", "can", "a@b"], "AGENT"),
        (vec!["policy", "can", "--subject", ""], "--subject"),
        (vec!["policy", "can", "--subject", "a b"], "--subject"),
        (vec!["policy", "can", "--role", ""], "--role"),
        (vec!["policy", "can", "--role", "nobody"], "role nobody"),
        (vec!["policy", "can", "a", "--subject", "b"], "--subject"),
        (vec!["policy", "can"], "AGENT"),
        (vec!["policy", "can", "a", "--dir", ""], "dir"),
        (vec!["policy", "who-can", ""], "declare no method"),
        (vec!["policy", "who-can", "m", "--dir", ""], "dir"),
        (vec!["policy", "check", ""], "a value is required"),
        (vec!["policy", "test", ""], "a value is required"),
        (vec!["policy", "fmt", ""], "a value is required"),
        (vec!["policy", "matrix", ""], "a value is required"),
        (vec!["policy", "matrix", "--by", ""], "--by"),
        (vec!["policy", "matrix", "--html", ""], ""),
        (vec!["policy", "diff", "", "policies"], "a value is required"),
        (vec!["policy", "diff", "policies", ""], "a value is required"),
        (vec!["policy", "diff", "good", "policies", "--replay", ""], ""),
        (vec!["policy", "learn", ""], ""),
        (vec!["policy", "learn", "good.jsonl", "--agent", ""], "--agent"),
        (vec!["policy", "learn", "good.jsonl", "--agent", "a@b"], "--agent"),
        (vec!["policy", "learn", "good.jsonl", "--method", ""], "--method"),
        (vec!["policy", "learn", "good.jsonl", "--method", "m*"], "--method"),
        (vec!["policy", "learn", "good.jsonl", "--policies", ""], "a value is required"),
        (vec!["policy", "learn", "good.jsonl", "--out", ""], ""),
        (vec!["policy", "learn", "good.jsonl", "--only", ""], "--only"),
        (vec!["policy", "learn", "good.jsonl", "--by", ""], "--by"),
    ];
    for (args, says) in &rows {
        let ran = shell.run_args(args);
        assert!([2, 30].contains(&ran.code), "{args:?} {ran:?}");
        assert!(ran.stdout.is_empty() && ran.stderr.contains(says), "{args:?} {ran:?}");
    }
    println!("{} rows", rows.len());
}
