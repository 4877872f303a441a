//! Commands that run until told to stop: their output as it comes, and signals.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::shell::Shell;

/// Starts `sealwire` with these arguments. It ends with the test at the latest.
pub(crate) fn spawn(shell: &Shell, args: &[&str]) -> Child {
    let mut command = Command::from(shell.command(args));
    // The environment is otherwise empty, but the command must find a nats-server.
    command.env("SEALWIRE_NATS_SERVER", &sealwire_testkit::found().path);
    command.kill_on_drop(true).spawn().unwrap()
}

/// What a process prints, as it comes.
pub(crate) fn heard(stream: impl AsyncRead + Unpin + Send + 'static) -> watch::Receiver<String> {
    let (tell, told) = watch::channel(String::new());
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            tell.send_modify(|said| said.extend([&line, "\n"]));
        }
    });
    told
}

/// Waits until it has printed this.
pub(crate) async fn says(said: &mut watch::Receiver<String>, what: &str) {
    let wait = said.wait_for(|said| said.contains(what));
    let heard = matches!(tokio::time::timeout(Duration::from_secs(60), wait).await, Ok(Ok(_)));
    assert!(heard, "`{what}` was not said: {}", *said.borrow());
}

/// All output of a process that has ended: its last lines may still be in the pipe.
pub(crate) async fn whole(said: &mut watch::Receiver<String>) -> String {
    // Somebody else may hold the pipe open. Two seconds of silence in so many turns, and not in one: whoever reads the pipe has had a turn
    // in between, even if the machine stood still.
    let rest = async {
        let mut silent = 0;
        while silent < 40 {
            match tokio::time::timeout(Duration::from_millis(50), said.changed()).await {
                Ok(Ok(())) => silent = 0,
                Ok(Err(_)) => return,
                Err(_) => silent += 1,
            }
        }
    };
    drop(tokio::time::timeout(Duration::from_secs(60), rest).await);
    said.borrow().clone()
}

pub(crate) const SIGHUP: i32 = 1;
pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGCONT: i32 = 18;
pub(crate) const SIGSTOP: i32 = 19;

pub(crate) fn send(signal: i32, process: u32) {
    let killed = std::process::Command::new("kill").args([format!("-{signal}"), process.to_string()]).status();
    assert!(killed.unwrap().success());
}

/// Waits until the process catches this signal, or has ended. Before that, the signal would end it, or would be ignored if the shell
/// told it so, as shells do with SIGINT for background commands.
pub(crate) async fn catches(signal: i32, process: u32) {
    let catching = async {
        loop {
            let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/status")) else { return };
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
            if caught & (1 << (signal - 1)) != 0 || status.contains("\nState:\tZ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), catching).await.is_ok(), "{signal} is not caught");
}

/// The processes that `parent` started and that still run, the oldest first.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let output = std::process::Command::new("pgrep").args(["-P", &parent.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}
