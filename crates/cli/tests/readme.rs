//! The README's commands and programs, run unchanged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use sealwire_testkit::page::{self, Block, section};
use sealwire_testkit::{files_below, root};

const README: &str = include_str!("../../../README.md");
const THREATS: &str = include_str!("../../../docs/threat-model.md");

/// The blocks of code in a section.
fn blocks(heading: &str) -> Vec<Block<'static>> {
    page::blocks(section(README, heading)).collect()
}

fn bin() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_sealwire")).parent().unwrap().to_owned()
}

/// A shell in `folder`, with an empty home and the built command on PATH.
fn shell(script: &str, folder: &Path) -> Command {
    let mut command = page::shell(env!("CARGO_BIN_EXE_sealwire"), folder);
    command.args(["-euo", "pipefail", "-c", script]);
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// With stand-ins for `cargo run --bin …`: `cargo test` has already built the programs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_minutes_to_your_own_service_and_client() {
    let blocks = blocks("A service and a client");
    let languages: Vec<&str> = blocks.iter().map(|block| block.info).collect();
    assert_eq!(languages, ["sh", "rust", "rust"]);
    // The programs in the README are the examples, except for the first lines that say what they need.
    for (block, example) in [(1, "hello_service.rs"), (2, "hello_client.rs")] {
        let example = std::fs::read_to_string(root().join("examples").join(example)).unwrap();
        let code = |text: &str| -> Vec<String> {
            let mut lines: Vec<String> = text
                .lines()
                .filter(|line| !line.starts_with("//!"))
                .map(|line| line.split_whitespace().collect())
                .collect();
            lines.retain(|line| !line.is_empty());
            let mut all: Vec<String> = lines.concat().split(['{', '}', ';', ',']).map(str::to_owned).collect();
            all.retain(|part| !part.is_empty());
            all.sort();
            all
        };
        assert_eq!(code(&blocks[block].text()), code(&example), "README and examples/{block} differ");
    }
    // `cargo test` has built the examples already; with `--test readme` it has not.
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--examples"])
        .current_dir(root())
        .status()
        .unwrap();
    assert!(built.success());

    let folder = tempfile::tempdir().unwrap();
    // Port 4222 may be in use.
    let port = sealwire_testkit::free_port();
    let typed: Vec<String> = blocks[0]
        .lines
        .iter()
        .map(|line| match line.split_once("sealwire nats-server") {
            Some((_, rest)) => format!("sealwire nats-server --port {port}{rest}"),
            None => line.replace("sealwire init hello", &format!("sealwire init hello --port {port}")),
        })
        .collect();
    let [init, broker, service, client] = typed.as_slice() else { panic!("{typed:?}") };
    let cargo = format!("cargo() {{ exec {}/examples/hello_\"$3\"; }}; ", bin().display());
    let hello = folder.path().join("hello");
    let server = sealwire_testkit::found().path.clone();
    let began = Instant::now();
    let made = shell(init, folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    let running = |script: &str| {
        let mut command = shell(&format!("{cargo}{script}"), &hello);
        command.env("SEALWIRE_NATS_SERVER", &server).stdout(Stdio::null()).stderr(Stdio::null());
        Ended(command.spawn().unwrap())
    };
    let _broker = running(&format!("exec {broker}"));
    let mut first = Some(running(&format!("exec > service.log; {service}")));
    let called = |script: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let client = shell(&format!("{cargo}{script}"), &hello).output().unwrap();
            if client.status.success() {
                return String::from_utf8(client.stdout).unwrap();
            }
            // The broker or the service is not up yet.
            assert!(Instant::now() < deadline, "{script}: {}", text(&client));
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    assert_eq!(called(client), "5\n");
    let took = began.elapsed();
    println!("first call of one's own after {took:?}");
    // The answer may come before the line about the call.
    let log = || std::fs::read_to_string(hello.join("service.log")).unwrap();
    while !(log().contains("agent=planner") && log().contains("method=math/add")) {
        assert!(began.elapsed() < Duration::from_secs(120), "{}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = log();
    assert!(!log.contains('\u{1b}'), "colours are for terminals: {log:?}");
    assert!(took < Duration::from_secs(60), "{took:?}");

    // What to add next, as printed, and as in the project's own README.
    let said = text(&made);
    let more =
        |what: &str| said.lines().find_map(|line| line.trim_start().strip_prefix(what)).unwrap().trim().to_owned();
    let readme = std::fs::read_to_string(hello.join("README.md")).unwrap();
    for what in ["an agent ", "a role ", "a method ", "a replica "] {
        let line = more(what);
        assert!(readme.contains(line.split("    #").next().unwrap()), "{line}");
        if what == "a replica " {
            let _replica = running(&line);
            let call = "sealwire call --wait 10s --creds indexer.creds.json math math/add '[2, 3]'";
            assert_eq!(called(call), "5.0\n");
            drop(first.take());
            assert_eq!(called(call), "5.0\n", "the replica goes on alone");
        } else {
            called(&format!("cp policies/math.toml before && {line}"));
            called("sealwire policy check --warnings-are-errors && sealwire policy test");
            // No replica starts with a policy for a method that its code does not have.
            called(if what == "a method " { "mv before policies/math.toml" } else { "rm before" });
        }
    }
}

/// People copy these programs. Their disk may be full, or their terminal gone.
#[test]
#[cfg(target_os = "linux")]
fn programs_whose_output_nobody_takes_go_on_and_end_as_they_would() {
    let mut build = Command::new(env!("CARGO"));
    let built = build.args(["build", "--quiet", "--locked", "--examples"]).current_dir(root()).status();
    assert!(built.unwrap().success());
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str| {
        let script = format!("exec {}/examples/hello_{program} > /dev/full 2>&1", bin().display());
        Ended(shell(&script, folder.path()).spawn().unwrap())
    };
    for program in ["service", "client"] {
        assert_eq!(run(program).0.wait().unwrap().code(), Some(1), "{program}: its files are not there");
    }
    let init = format!("sealwire init . --port {}", sealwire_testkit::free_port());
    assert!(shell(&init, folder.path()).output().unwrap().status.success());
    let mut service = run("service");
    // It prints that it waits for its broker.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(service.0.try_wait().unwrap(), None);
}

/// Nobody reads more of a project that they do not know, or of its plan.
#[test]
fn readme_is_at_most_8_kib_and_architecture_12() {
    for (page, kib) in [("README.md", 8), ("ARCHITECTURE.md", 12)] {
        let bytes = std::fs::metadata(root().join(page)).unwrap().len();
        assert!(bytes <= kib * 1024, "{page}: {bytes} bytes");
    }
}

/// Whether `said` has these lines one after the other, with anything between them. A line of the page may end before its own does:
/// with the time that it took, for example. White space aligns columns.
fn shows(said: &str, lines: &[&str]) -> Result<(), String> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut said = said.lines().map(words);
    for line in lines.iter().filter(|line| **line != "…") {
        if !said.any(|said| said.starts_with(&words(line))) {
            return Err((*line).to_owned());
        }
    }
    Ok(())
}

#[test]
fn the_demo_shows_what_readme_shows_of_it() {
    let blocks = blocks("See it work");
    let [typed, shown] = blocks.as_slice() else { panic!("{blocks:?}") };
    // `.ci/run` runs the example that this stands for; it prints what the command prints.
    assert!(typed.lines[0].starts_with("cargo demo "), "{typed:?}");
    let alias = std::fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
    assert!(alias.contains("demo = \"run --locked --profile demo --package sealwire-lab --example demo\""));
    let folder = tempfile::tempdir().unwrap();
    let server = sealwire_testkit::found().path.clone();
    let demo = shell("sealwire demo", folder.path()).env("SEALWIRE_NATS_SERVER", server).output().unwrap();
    assert!(demo.status.success() && shown.lines.len() > 5, "{}", text(&demo));
    if let Err(line) = shows(&String::from_utf8_lossy(&demo.stdout), &shown.lines) {
        panic!("the demo does not show `{line}`: {}", text(&demo));
    }
}

/// The rule, and the command that shows what it denies.
#[test]
fn a_rule_denies_what_readme_says() {
    let blocks = blocks("A rule, and its denial");
    let [policy, console] = blocks.as_slice() else { panic!("{blocks:?}") };
    let folder = tempfile::tempdir().unwrap();
    let (_, file) = policy.info.split_once(' ').unwrap();
    std::fs::create_dir(folder.path().join("policies")).unwrap();
    std::fs::write(folder.path().join(file), policy.text()).unwrap();
    let checked = shell("sealwire policy check --warnings-are-errors", folder.path()).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked));
    let typed = console.typed();
    let [explain] = typed.as_slice() else { panic!("{typed:?}") };
    let explained = shell(&explain.command, folder.path()).output().unwrap();
    assert_eq!(explained.status.code(), Some(10));
    assert_eq!(shows(&text(&explained), &explain.shown), Ok(()), "{}", text(&explained));
    let within = shell(&explain.command.replace("5001", "5000"), folder.path()).output().unwrap();
    assert!(within.status.success(), "{}", text(&within));
}

/// Every attack names a test, and every test named in the README and the other pages exists.
#[test]
fn every_named_test_is_there() {
    let files = |folder: &str, ending: &str| -> Vec<PathBuf> {
        let mut found = files_below(&root().join(folder));
        found.retain(|path| path.extension().is_some_and(|extension| extension == ending));
        found
    };
    let (sources, pages) =
        (["tests", "src", "crates", "bindings"].map(|folder| files(folder, "rs")).concat(), files("docs", "md"));
    let mut all: String = sources.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let of_python = files("bindings", "py").into_iter().map(|path| std::fs::read_to_string(path).unwrap());
    all.extend(of_python.map(|text| text.replace("def test_", "fn test_")));
    let attacks = section(THREATS, "Attacks, and what answers them");
    let is_row =
        |line: &&str| line.starts_with("| ") && !line.starts_with("| attack") && !line.starts_with("| mistake");
    let rows: Vec<&str> = attacks.lines().filter(is_row).collect();
    let shown: Vec<&str> = section(README, "Attacks").lines().filter(is_row).collect();
    assert!(shown.len() == 6 && shown.iter().all(|row| rows.contains(row)), "README has six of the rows: {shown:#?}");
    let mut named = 0;
    for row in rows {
        let last = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let names: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "names no test: {row}");
        for name in names {
            assert!(all.contains(&format!("fn {name}(")), "{name}");
            named += 1;
        }
    }
    assert!(named >= 100, "{named}");
    // On the other pages, words of four parts or more are names of tests. Names of keys and of metrics look alike; the pages with these
    // name no test.
    let others = ["configuration.md", "observability.md"];
    for page in pages.iter().filter(|page| !others.iter().any(|name| page.ends_with(name))) {
        let text = std::fs::read_to_string(page).unwrap();
        let parts = |word: &str| word.split('_').filter(|part| !part.is_empty()).count();
        let words = text.split('`').skip(1).step_by(2).filter(|word| parts(word) > 3);
        // A name in capitals is a constant of some protocol.
        let of_name = |byte: u8| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_name = |word: &&str| word.bytes().all(of_name);
        for name in words.filter(is_name) {
            assert!(all.contains(&format!("fn {name}(")), "{}: {name}", page.display());
            named += 1;
        }
    }
    assert!(named >= 30, "{named}");
}

/// Checks that every file named in the pages for maintainers exists, and contains what they say.
#[test]
fn every_named_file_is_there() {
    let mut named = 0;
    let pages = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/threat-model.md", "docs/start/security.md"];
    let internals = files_below(&root().join("docs/internals"));
    for page in pages.map(|page| root().join(page)).into_iter().chain(internals) {
        let (text, page) = (std::fs::read_to_string(&page).unwrap(), page.display());
        let words: Vec<&str> = text.split('`').collect();
        for (position, path) in words.iter().enumerate().skip(1).step_by(2) {
            let below = ["src/", "crates/", "tests/", "docs/", "policies/", "fuzz/", "benches/", "deploy/"];
            if !below.iter().any(|folder| path.starts_with(folder)) || path.contains(' ') {
                continue;
            }
            assert!(root().join(path).exists(), "{page}: {path}");
            named += 1;
            // "`admit` in `src/auth/verifier.rs`"
            let is_name = |word: &str| word.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
            if words[position - 1] == " in " && is_name(words[position - 2]) {
                let (name, code) = (words[position - 2], std::fs::read_to_string(root().join(path)).unwrap());
                let is_there = ["fn ", "struct ", "enum ", "trait ", "const "].iter().any(|kind| {
                    code.split(&format!("{kind}{name}")).skip(1).any(|rest| !rest.starts_with(char::is_alphanumeric))
                });
                assert!(is_there, "{page}: {path} has no `{name}`");
            }
        }
    }
    assert!(named >= 100, "{named}");
}

/// Every example of the index, in one folder, one after the other: what it prints is what its text promises.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_of_the_index_run_and_print() {
    let index = std::fs::read_to_string(root().join("examples/README.md")).unwrap();
    let prints = [
        ("state", "2\n5\n"),
        ("layer", "math/add: ok in *\n5\n"),
        ("stream", "signed\none\nby\none\n"),
        ("subscription", "lamp costs *\nlamp costs *\nlamp costs *\n"),
        ("idempotent", "payment 1 of 500 cents\npayment 1 of 500 cents\n"),
        ("attachment", "3 lines\n"),
        ("question", "order/confirm?\nordered: lamp\n"),
        ("batch", "3\n*nothing can be divided by zero*\n"),
        ("deadline", "Err(*)\n*cancelled: one second to clean up\nErr(Remote)\n"),
        ("token_source", "fetches a token\nplanner\nplanner\n"),
        ("replicas", "replica *\nreplica *\n"),
        ("handle", "5\ntrue\n"),
    ];
    // Each row has a question, and the example begins with it.
    let rows = index.lines().filter(|line| line.contains(".rs)") && !line.contains("hello_"));
    for row in rows.clone() {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let file = cells[1].split(['[', ']']).nth(1).unwrap();
        let source = std::fs::read_to_string(root().join("examples").join(file)).unwrap();
        assert!(source.starts_with(&format!("//! {}", cells[0])), "{row}");
        assert!(prints.iter().any(|(name, _)| file == format!("{name}.rs")), "{file} is not run");
    }
    assert_eq!(rows.count(), prints.len());

    let mut build = Command::new(env!("CARGO"));
    let built = build.args(["build", "--quiet", "--locked", "--examples"]).current_dir(root()).status();
    assert!(built.unwrap().success());
    let folder = tempfile::tempdir().unwrap();
    let broker = sealwire_testkit::NatsServer::start().await;
    let init = format!("sealwire init . --language none --url {}", broker.url());
    let made = shell(&init, folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    for (name, expected) in prints {
        let mut run =
            tokio::process::Command::from(shell(&format!("exec {}/examples/{name}", bin().display()), folder.path()));
        let ran = sealwire_testkit::within(Duration::from_secs(60), run.kill_on_drop(true).output()).await;
        let ran = ran.unwrap();
        let printed = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && fits(&printed, expected), "{name}: {}", text(&ran));
    }
}

/// Whether a text is this one, in which `*` stands for anything.
fn fits(text: &str, expected: &str) -> bool {
    let mut pieces = expected.split('*');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    for (position, piece) in pieces.iter().enumerate() {
        if position == pieces.len() - 1 {
            return rest.ends_with(piece);
        }
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.is_empty()
}
