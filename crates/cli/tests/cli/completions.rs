//! Completions, requested as a shell does, and manual pages.

use std::collections::BTreeSet;

use crate::json::leaves;
use crate::shell::Shell;

/// What bash offers at the end of each line, with the script that the command prints.
fn offered(shell: &Shell, lines: &[&str]) -> Vec<Vec<String>> {
    shell.write("script", &shell.run("completions bash").ok().stdout);
    let ask = r#"
        source ./script
        ask() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; COMPREPLY=()
            _clap_complete_sealwire sealwire "${@: -1}" "${@: -2:1}"
            echo "${COMPREPLY[*]}"
        }
    "#;
    let script = lines.iter().fold(ask.to_owned(), |script, line| format!("{script}\nask {line}"));
    let path = sealwire_testkit::page::path_with(env!("CARGO_BIN_EXE_sealwire"));
    let mut bash = std::process::Command::new("bash");
    bash.args(["-c", &script]).current_dir(shell.path("")).env_clear().env("PATH", path).env("HOME", shell.path(""));
    let output = bash.output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn completions_know_commands_and_the_names_in_the_files_around() {
    let shell = Shell::new();
    shell.run("keys new-agent planner --service dev/math=math.ring.json").ok();
    shell.run("keys new-token-key https://issuer.example").ok();
    shell.run("token issue --key token-key.json --subject planner --audience dev/bank --out planner.jwt").ok();
    shell.write(
        "sealwire-dev/sealwire.toml",
        "environment = \"dev\"\nservice = \"demo\"\n[keys]\nring = \"ring.json\"\n",
    );
    let roles = "[role.calc]\nallow = [\"math/*\"]\n[role.\"$(touch x)\"]\nallow = []\n[agent.\"nightly\"]\nroles = [\"calc\"]\n";
    shell.write("policies/p.toml", &format!("[method.\"math/add\"]\n[method.\"math/mul\"]\n{roles}"));
    shell.write("huge.json", &format!("[\"{}\"]", "x".repeat(2 << 20)));
    let lines = [
        ("sealwire cal", &["call"][..]),
        ("sealwire keys re", &["request", "retire", "revoke"]),
        ("sealwire call --wa", &["--wait", "--wait-approval"]),
        ("sealwire call --creds planner.creds.json ''", &["bank", "demo", "math"]),
        ("sealwire call math math/", &["math/add", "math/mul"]),
        ("sealwire call --creds pl", &["planner.creds.json"]),
        ("sealwire policy can --role ''", &["calc"]),
        ("sealwire policy explain --agent ''", &["nightly", "planner"]),
        ("sealwire policy explain --dir p", &["policies/"]),
        ("sealwire keys retire pl", &["planner.k1"]),
        ("sealwire keys list m", &["math.ring.json"]),
        ("sealwire keys list --ring m", &["math.ring.json"]),
        ("sealwire token issue --audience dev/m", &["dev/math"]),
        ("sealwire setup cluster --service d", &[]),
    ];
    let found = offered(&shell, &lines.map(|(line, _)| line));
    assert_eq!(found.len(), lines.len());
    for ((line, expected), found) in lines.iter().zip(found) {
        let found: BTreeSet<&str> = found.iter().map(String::as_str).filter(|word| !word.starts_with("--h")).collect();
        let found: BTreeSet<&str> =
            found.into_iter().filter(|word| line.contains("--wa") || !word.starts_with('-')).collect();
        assert_eq!(found, expected.iter().copied().collect(), "{line}");
    }
    assert!(!shell.files().contains(&"x".to_owned()), "a name was run");
}

/// Otherwise anybody who can name a file where somebody types could have that name executed.
#[test]
fn names_of_files_that_a_shell_would_take_apart_are_not_offered() {
    let shell = Shell::new();
    let evil = [
        "a;touch x;",
        "a$(touch x)",
        "a`touch x`",
        "a b",
        "a*",
        "a'",
        "a\"",
        "a&",
        "a|b",
        "a>b",
        "a{b,c}",
        "a!1",
        "~a",
        "a\nb",
    ];
    for name in evil {
        shell.write(&format!("{name}.creds.json"), "{}");
        shell.write(&format!("{name}.ring.json"), "{}");
        shell.write(&format!("{name}/file"), "");
    }
    shell.write("añ-1.creds.json", "{}");
    shell.write("a.ring.json", "{}");
    shell.write("ab/file", "");
    let lines = [
        ("sealwire call --creds ''", &[".", "ab/", "añ-1.creds.json"][..]),
        ("sealwire keys list ''", &[".", "a.ring.json", "ab/"]),
        ("sealwire policy check --dir ''", &[".", "ab/"]),
        ("sealwire keys enrol robot ''", &[".", "a.ring.json", "ab/", "añ-1.creds.json", "script"]),
        ("sealwire keys enrol robot 'a;touch x;/'", &[]),
    ];
    let found = offered(&shell, &lines.map(|(line, _)| line));
    for ((line, expected), found) in lines.iter().zip(found) {
        let found: BTreeSet<&str> = found.iter().map(String::as_str).filter(|word| !word.starts_with("--")).collect();
        assert_eq!(found, expected.iter().copied().collect(), "{line}");
    }
}

#[test]
fn every_shell_has_a_script() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = shell.run(&format!("completions {name}")).ok().stdout;
        assert!(script.contains("SEALWIRE_COMPLETE") && script.contains("sealwire"), "{name}: {script}");
    }
    shell.run("completions tcsh").fails(2, &["bash"]);
}

/// The command would do nothing, and report that it has.
#[test]
fn the_variable_of_other_programs_turns_no_command_into_completions() {
    let shell = Shell::new();
    shell.run("keys new-agent planner --service dev/math=math.ring.json").ok();
    let mut revoke = shell.command(&["keys", "revoke", "planner.k1", "--ring", "math.ring.json"]);
    let ran = revoke.env("COMPLETE", "bash").output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    shell.run("keys list math.ring.json").ok().says("revoked");
}

#[test]
fn every_command_has_a_manual_page() {
    let shell = Shell::new();
    let written = shell.run("man pages --json").ok().json();
    let pages: BTreeSet<&str> =
        written["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap()).collect();
    let mut commands = BTreeSet::new();
    leaves(&shell, "", &mut commands);
    assert!(commands.len() > 35, "{commands:?}");
    for command in commands {
        let name = format!("sealwire {command}").trim().replace(' ', "-");
        assert!(pages.contains(format!("{name}.1").as_str()), "{name}");
        let page = shell.read(&format!("pages/{name}.1"));
        assert!(page.contains(".SH NAME") && page.contains("Examples:"), "{page}");
    }
    assert!(shell.read("pages/sealwire.1").contains("Exit codes"));
    shell.write("file", "");
    shell.run("man file").fails(30, &["`file`"]);
}
