//! The README's commands and programs, run unchanged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use sealwire_testkit::page::{self, Block, section};
use sealwire_testkit::{files_below, root};

const README: &str = include_str!("../../../README.md");

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
    let blocks = blocks("Five minutes to your own service and client");
    let languages: Vec<&str> = blocks.iter().map(|block| block.info).collect();
    assert_eq!(languages, ["sh", "rust,no_run", "rust,no_run"]);
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
        let deadline = Instant::now() + Duration::from_secs(30);
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
    let log = std::fs::read_to_string(hello.join("service.log")).unwrap();
    assert!(log.contains("planner may add") && log.contains("sealwire"), "{log}");
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

/// The first policy, and the two commands that the text around it names.
#[test]
fn a_first_policy_is_one() {
    let policy = blocks("A first policy").into_iter().next().unwrap();
    assert_eq!(policy.info, "toml");
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("policies")).unwrap();
    std::fs::write(folder.path().join("policies/first.toml"), policy.text()).unwrap();
    let checked = shell("sealwire policy check --warnings-are-errors", folder.path()).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked));
    let section = section(README, "A first policy").replace('\n', " ");
    let explain = "sealwire policy explain --agent planner --method math/reset";
    assert!(section.contains(&format!("`{explain}`")));
    let explained = shell(explain, folder.path()).output().unwrap();
    assert_eq!(explained.status.code(), Some(10));
    assert!(text(&explained).contains("forbidden by `role.calculator.deny`"), "{}", text(&explained));
}

/// Checks that every test named in the README and the other pages exists.
#[test]
fn every_named_test_is_there() {
    let files = |folder: &str, ending: &str| -> Vec<PathBuf> {
        let mut found = files_below(&root().join(folder));
        found.retain(|path| path.extension().is_some_and(|extension| extension == ending));
        found
    };
    let (sources, pages) = (["tests", "src", "crates"].map(|folder| files(folder, "rs")).concat(), files("docs", "md"));
    let all: String = sources.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let section = section(README, "What it defends against");
    let rows = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| attack"));
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
    assert!(named >= 20, "{named}");
    // On the other pages, words of four parts or more are names of tests. Names of keys look alike; the page with these is
    // generated, and names no test.
    for page in pages.iter().filter(|page| !page.ends_with("configuration.md")) {
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
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/threat-model.md", "docs/start/security.md"]
    {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
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
    assert!(named >= 40, "{named}");
}

/// `sealwire dev`, and what the README says to try against it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_to_try_against_dev() {
    let folder = tempfile::tempdir().unwrap();
    // The server is found or downloaded first, with this machine's cache.
    let server = sealwire_testkit::found().path.clone();
    let dev = shell("exec sealwire dev", folder.path())
        .env("SEALWIRE_NATS_SERVER", server)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut dev = Ended(dev);
    let (tell, ready) = tokio::sync::oneshot::channel();
    let stdout = dev.0.stdout.take().unwrap();
    // Read to the end: a command ends if nobody reads its output any more.
    std::thread::spawn(move || {
        use std::io::BufRead as _;
        let mut tell = Some(tell);
        for line in std::io::BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.contains("Ctrl-C ends it") {
                tell.take().map(|tell| tell.send(()));
            }
        }
    });
    sealwire_testkit::within(Duration::from_secs(60), ready).await.expect("dev says that it is ready");

    let blocks = blocks("Try it yourself");
    let (good, denied): (Vec<&str>, Vec<&str>) = blocks[1].lines.iter().partition(|line| !line.contains("denied"));
    let done = shell(&good.join("\n"), folder.path()).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    let said = String::from_utf8_lossy(&done.stdout);
    let streamed = "\nsigned one by one, and in order\n{\"steps\":20}\n{\"tick\":1,\"at\":";
    assert!(said.starts_with("5\n5\nsent") && said.contains(streamed), "{}", text(&done));
    assert_eq!(denied.len(), 2);
    for line in denied {
        let refused = shell(&format!("{}\n{line}", good[0]), folder.path()).output().unwrap();
        assert_eq!(refused.status.code(), Some(10), "{}", text(&refused));
        assert!(text(&refused).contains("permission denied"), "{}", text(&refused));
    }
}
