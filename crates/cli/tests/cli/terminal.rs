//! What is shown on a terminal but not in a pipe.

use std::process::Command;

use crate::shell::Shell;

/// What `sealwire` shows on a terminal, which Python's standard library provides.
pub(crate) fn on_terminal(shell: &Shell, args: &[&str], environment: &[(&str, &str)]) -> String {
    let lend = "import pty, sys; pty.spawn(sys.argv[1:])";
    let words = shell.command(args);
    let mut command = Command::new("python3");
    command.args(["-c", lend]).arg(words.get_program()).args(args).current_dir(shell.path(""));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", shell.path(""));
    let output = command.env("TERM", "xterm").envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
}

#[test]
fn verdicts_and_errors_are_in_colour_on_a_terminal_and_nowhere_else() {
    let shell = Shell::new();
    let policy = "[method.\"a/b\"]\n[role.r]\nallow = [\"a/b\"]\n[rule.x]\nroles = [\"r\"]\ndeny = [\"a/b\"]\n\
        when.agent = { glob = \"x*\" }\n";
    shell.write("policies/a.toml", policy);
    shell.write("new/a.toml", &policy.replace("x*", "y*"));
    shell.write(
        "policies/a.test.toml",
        "[[case]]\nname = \"n\"\ncaller = { agent = \"a\" }\nmethod = \"a/b\"\nexpect = \"allow\"\n",
    );
    let (green, red, bold, yellow) = ("\u{1b}[32m", "\u{1b}[31m", "\u{1b}[1;31m", "\u{1b}[33m");
    for (args, shown) in [
        (
            &["policy", "explain", "--agent", "a", "--role", "r", "--method", "a/b"][..],
            vec![
                format!("{green}allow\u{1b}[0m: allowed by"),
                format!("    {red}no\u{1b}[0m   the agent"),
                format!("    {green}yes\u{1b}[0m  the caller"),
            ],
        ),
        (&["policy", "test"], vec![format!("{bold}FAIL\u{1b}[0m n"), format!("{red}- allow")]),
        (&["policy", "matrix"], vec![format!("{yellow}if\u{1b}[0m")]),
        (&["policy", "diff", "policies", "new"], vec![format!("{yellow}?\u{1b}[0m")]),
        (
            &["policy", "check", "nowhere"],
            vec![format!("{bold}error\u{1b}[0m: `nowhere`"), format!("{green}help\u{1b}[0m")],
        ),
        (&["policy", "nonsense"], vec![red.to_owned()]),
    ] {
        let terminal = on_terminal(&shell, args, &[]);
        for shown in shown {
            assert!(terminal.contains(&shown), "no {shown:?} in {terminal:?}");
        }
        let ran = shell.run_args(args);
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{ran:?}");
        for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let plain = on_terminal(&shell, args, &[(name, value)]);
            assert!(!plain.contains("\u{1b}[3") && !plain.contains("\u{1b}[1;3"), "{name}: {plain:?}");
        }
    }
    assert!(!on_terminal(&shell, &["policy", "matrix", "--json"], &[]).contains('\u{1b}'));
    // A text from elsewhere is never coloured.
    shell.write("policies/a.toml", "[role.\"\\u001b[31m\"]\nallow = []\n");
    assert!(on_terminal(&shell, &["policy", "check"], &[]).contains("\\u{1b}[31m"));
}
