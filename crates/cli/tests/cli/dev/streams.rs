//! Streams and long calls of `sealwire dev`, and how an edited policy ends them.

use tokio::sync::watch;

use super::Dev;
use crate::process::{heard, says, spawn, whole};
use crate::shell::Shell;
use crate::terminal::on_terminal;
use sealwire_testkit::{SOON, within};

/// A command that keeps running, and its output.
struct Going {
    child: tokio::process::Child,
    stdout: watch::Receiver<String>,
    stderr: watch::Receiver<String>,
}

impl Going {
    fn start(shell: &Shell, command: &str, method: &[&str]) -> Self {
        let words = [&[command, "--json", "--creds", "sealwire-dev/planner.creds.json", "demo"], method].concat();
        let mut child = spawn(shell, &words);
        let (stdout, stderr) = (heard(child.stdout.take().unwrap()), heard(child.stderr.take().unwrap()));
        Self { child, stdout, stderr }
    }

    /// Its exit code and its stderr, once it has ended by itself.
    async fn ended(mut self) -> (Option<i32>, String) {
        let code = within(SOON, self.child.wait()).await.unwrap().code();
        (code, whole(&mut self.stderr).await)
    }
}

/// SPEC.md §25.5: open calls are authorized again whenever the policy changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_policy_ends_the_open_calls_that_it_forbids() {
    let (shell, file) = (Shell::new(), "sealwire-dev/policies/streams.toml");
    let dev = Dev::start(&shell, &[]).await;
    let policy = shell.read(file);
    let mut job = Going::start(&shell, "call", &["job/run", "[599]", "--stream"]);
    let mut ticks = Going::start(&shell, "watch", &["clock/ticks", "[50]"]);
    says(&mut job.stdout, "rpc.progress").await;
    says(&mut ticks.stdout, r#"{"item":{"tick":2,"#).await;

    // Depending on the job's parameters. Calls that are still allowed go on.
    shell.write(file, &policy.replace("max = 600", "max = 598"));
    let (code, said) = job.ended().await;
    // Not 10, which would mean that it has not run.
    assert_eq!(code, Some(21), "{said}");
    assert!(said.contains(r#"{"code":-32002,"#) && said.contains(r#"{"outcome":"unknown"}"#), "{said}");
    let so_far = ticks.stdout.borrow().lines().count();
    says(&mut ticks.stdout, &format!(r#"{{"item":{{"tick":{},"#, so_far + 2)).await;

    shell.write(file, &policy.replace(r#", "clock/ticks""#, ""));
    let (code, said) = ticks.ended().await;
    assert_eq!(code, Some(21), "{said}");
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_a_bar_on_a_terminal_and_a_text_its_words() {
    let shell = Shell::new();
    let dev = Dev::start(&shell, &[]).await;
    let call = ["call", "--creds", "sealwire-dev/planner.creds.json", "demo"];
    let shown = on_terminal(&shell, &[&call[..], &["job/run", "[2]", "--stream"]].concat(), &[]);
    assert!(shown.contains("[###############---------------]  50 % working"), "{shown:?}");
    assert!(shown.ends_with("\r\u{1b}[K{\"steps\":2}\n"), "the bar goes: {shown:?}");
    let shown = on_terminal(&shell, &[&call[..], &["text/echo", r#"["one by one"]"#, "--stream"]].concat(), &[]);
    assert_eq!(shown, "one by one\n");
    // A caller that accepts no frames gets everything at once.
    let plain = shell.run_args(&[&call[..], &["text/echo", r#"["one by one"]"#]].concat()).ok();
    assert_eq!(plain.stdout, "\"one by one\"\n");
    shell.run_args(&[&call[..], &["clock/ticks"]].concat()).fails(21, &["-32600", "subscription"]);
    shell.run_args(&[&call[..], &["job/run", "[601]", "--stream"]].concat()).fails(10, &["-32002"]);
    dev.stop().await;
}
