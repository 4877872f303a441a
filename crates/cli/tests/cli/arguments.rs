//! Arguments and outputs as shells make them: words that are not UTF-8, a full device, a closed pipe. For every command, taken from the help.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::json::leaves;
use crate::shell::Shell;

/// A byte that is not UTF-8 wherever it stands.
const ODD: &[u8] = b"\xff";

fn odd() -> &'static OsStr {
    OsStr::from_bytes(ODD)
}

/// How a command ended, and what it said; it is ended after a while, since some run until they are told to stop.
fn ended(command: &mut Command) -> (Option<i32>, String) {
    let server = &sealwire_testkit::found().path;
    let mut child = command.env("SEALWIRE_NATS_SERVER", server).stdin(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code().or(Some(-1));
        }
        if began.elapsed() > Duration::from_secs(10) {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = Vec::new();
    for stream in [
        child.stdout.take().map(|mut it| it.read_to_end(&mut said)),
        child.stderr.take().map(|mut it| it.read_to_end(&mut said)),
    ] {
        stream.transpose().unwrap();
    }
    (status, String::from_utf8_lossy(&said).into_owned())
}

#[track_caller]
fn is_no_panic(words: &[OsString], (status, said): &(Option<i32>, String)) {
    let died = matches!(status, Some(1 | 101 | -1)) || said.contains("panicked");
    assert!(!died, "{words:?}: {status:?}\n{said}");
}

/// What a command takes: the words that it needs, and one set of words for each value, in which the value is odd.
fn lines(shell: &Shell, leaf: &str) -> Vec<Vec<OsString>> {
    let help = shell.run(&format!("{leaf} -h")).ok().stdout;
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: sealwire ")).unwrap();
    let usage = usage.strip_prefix(leaf).unwrap();
    let plain = |name: &str| {
        OsString::from(match name {
            "ENV/SVC=RING" | "SVC=RING" | "SERVICE=RING" => "dev/math=ring.json",
            "ENV/SVC" | "AUDIENCE" => "dev/math",
            "METHOD" => "math/add",
            "PARAMS" | "ENTRIES" | "PAYLOAD" => "[]",
            "URL" => "nats://127.0.0.1:1",
            "TIME" => "1s",
            "N" | "PORT" | "BYTES" => "1",
            "SHELL" => "bash",
            _ => "x",
        })
    };
    // `--key <FILE>` and `<NAME>` without brackets around them are needed.
    let mut needed: Vec<(Option<String>, String)> = Vec::new();
    let mut words = usage.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let value =
            |word: &str| word.strip_prefix('<').map(|name| name.trim_end_matches('.').trim_end_matches('>').to_owned());
        if let Some(name) = value(word) {
            needed.push((None, name));
        } else if word.starts_with("--") && words.peek().is_some_and(|next| next.starts_with('<')) {
            needed.push((Some(word.to_owned()), value(words.next().unwrap()).unwrap()));
        }
    }
    let mut slots: Vec<(Option<String>, String)> = Vec::new();
    for line in help.lines() {
        let trimmed = line.trim_start();
        let is_positional = line.starts_with("  [") || line.starts_with("  <");
        if let Some(at) = trimmed.find("--").filter(|at| *at < 5 && line.starts_with("  ")) {
            let (option, rest) = trimmed[at..].split_once(' ').unwrap_or((&trimmed[at..], ""));
            if let Some(name) = rest.trim_start().strip_prefix('<') {
                slots.push((Some(option.to_owned()), name.split('>').next().unwrap().to_owned()));
            }
        } else if is_positional {
            slots.push((None, trimmed[1..].split([']', '>']).next().unwrap().to_owned()));
        }
    }
    let command: Vec<OsString> = leaf.split(' ').map(OsString::from).collect();
    let line = |odd_slot: &(Option<String>, String)| {
        let mut line = command.clone();
        let mut put = |slot: &(Option<String>, String), value: OsString| {
            line.extend(slot.0.clone().map(OsString::from));
            line.push(value);
        };
        let mut found = false;
        for slot in &needed {
            let is_it = slot == odd_slot;
            found |= is_it;
            put(slot, if is_it { odd().to_owned() } else { plain(&slot.1) });
        }
        if !found {
            put(odd_slot, odd().to_owned());
        }
        line
    };
    slots.iter().map(line).collect()
}

#[test]
fn no_word_that_is_not_utf_8_panics_any_command() {
    let shell = Shell::new();
    let mut all = BTreeSet::new();
    leaves(&shell, "", &mut all);
    all.remove("");
    let mut count = 0;
    for leaf in &all {
        let lines = lines(&shell, leaf);
        count += lines.len();
        for words in lines {
            let place = Shell::new();
            is_no_panic(&words, &ended(place.command(&[]).args(&words)));
        }
    }
    assert!(count > 200, "only {count} arguments were found");
    println!("{count} arguments of {} commands", all.len());
}

/// Where the file or folder is there, or is made, the command gets as far as telling its name.
#[test]
fn a_path_that_is_not_utf_8_is_used_and_told_like_any_other() {
    let lines: [&[&str]; 25] = [
        &["init", "DIR/new", "--url", "nats://127.0.0.1:4222"],
        &["init", "DIR/python", "--url", "nats://127.0.0.1:4222", "--language", "python"],
        &["init", "DIR/none", "--url", "nats://127.0.0.1:4222", "--language", "none"],
        &["man", "DIR/man"],
        &["keys", "new-token-key", "https://issuer.example", "--out", "DIR/t.json", "--jwks", "DIR/jwks.json"],
        &["keys", "new-service", "dev/math", "--out", "DIR/s.json"],
        &["keys", "new-agent", "planner", "--service", "dev/math=ring.json", "--out", "DIR/p.creds.json"],
        &["keys", "request", "robot", "--environment", "dev", "--out", "DIR/r.creds.json"],
        &["keys", "pin", "DIR/p.creds.json", "--service", "math", "--kid", "svc:dev/math:1", "--x", "X"],
        &["keys", "grant", "DIR/p.creds.json", "--service", "dev/bank=bank.json"],
        &["keys", "rotate", "DIR/p.creds.json", "--ring", "ring.json", "--ring", "bank.json"],
        &["keys", "list", "DIR/ring.json"],
        &["keys", "retire", "planner.k9", "--ring", "DIR/ring.json"],
        &["keys", "revoke", "planner.k1", "--ring", "ring.json", "--denylist", "DIR/deny.json"],
        &["token", "issue", "--key", "DIR/t.json", "--subject", "p", "--audience", "dev/math", "--out", "DIR/p.jwt"],
        &["token", "revoke", "--denylist", "DIR/deny.json", "--sub", "p"],
        &["policy", "check", "DIR/new/policies"],
        &["policy", "test", "DIR/new/policies"],
        &["policy", "matrix", "DIR/new/policies", "--html", "DIR/page.html"],
        &["policy", "fmt", "DIR/new/policies"],
        &["policy", "diff", "DIR/new/policies", "DIR/new/policies"],
        &["policy", "who-can", "math/add", "--dir", "DIR/new/policies"],
        &["serve", "--check", "--config", "DIR/python/sealwire.toml"],
        &["setup", "cluster", "--out", "DIR/cluster"],
        &["dev", "--folder", "DIR/dev", "--port", "0"],
    ];
    for json in [false, true] {
        let shell = Shell::new();
        let folder = shell.path("").join(odd());
        std::fs::create_dir(&folder).unwrap();
        let mut fine = 0;
        for line in lines {
            let words = line.iter().map(|word| match word.strip_prefix("DIR/") {
                Some(rest) => [odd(), OsStr::new("/"), OsStr::new(rest)].iter().copied().collect::<OsString>(),
                None => OsString::from(word),
            });
            let words: Vec<OsString> = words.chain(json.then(|| "--json".into())).collect();
            let ended = ended(shell.command(&[]).args(&words));
            is_no_panic(&words, &ended);
            fine += usize::from(matches!(ended.0, Some(0) | None));
            if json && ended.0 == Some(0) {
                let first = ended.1.lines().next().unwrap_or_default();
                assert!(serde_json::from_str::<serde_json::Value>(first).is_ok(), "{words:?}: {}", ended.1);
            }
        }
        assert!(fine >= 15, "only {fine} of {} went well", lines.len());
    }
}

/// Help, versions and generated texts for every command: somebody asked for them, and must learn that they are not there.
#[test]
fn a_result_that_could_not_be_written_is_never_a_success() {
    let shell = Shell::new();
    let mut all = BTreeSet::new();
    leaves(&shell, "", &mut all);
    all.remove("");
    let mut lines: Vec<String> = ["--version", "-V", "--help", "-h", "help"].map(str::to_owned).into();
    for leaf in &all {
        lines.extend([format!("{leaf} --help"), format!("{leaf} -h"), format!("help {leaf}")]);
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        lines.push(format!("completions {shell}"));
    }
    lines.extend(
        ["config schema", "config reference", "policy schema", "man pages", "man pages --json"].map(str::to_owned),
    );
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        let into = |stdout: Stdio| {
            let output = shell.command(&words).stdin(Stdio::null()).stdout(stdout).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, said) = into(full.into());
        assert!(code == Some(30) && said.contains("cannot write to stdout"), "{line}: {code:?} {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(into(writer.into()), (Some(141), String::new()), "{line}");
    }
    // What a shell asks for.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = shell.command(&["--", "sealwire", "keys", ""]);
    command.env("SEALWIRE_COMPLETE", "fish").stdin(Stdio::null()).stdout(full);
    let (code, said) = ended(&mut command);
    assert!(!matches!(code, Some(0 | 101) | None), "{code:?} {said}");
    println!("{} command lines", lines.len());
}
