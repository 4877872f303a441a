//! Prometheus and its tool, as Debian ships them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::process::Child;

use super::stage::Listener;
use crate::backends::stage::LONG;
use crate::process::{heard, says};
use crate::shell::Shell;

/// Prometheus and its tool, if installed. In CI they must be: `.ci/run` makes sure.
pub(super) fn is_installed() -> bool {
    let is_there =
        |program| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    let found = is_there("prometheus") && is_there("promtool");
    if !found {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no Prometheus for this test");
        eprintln!("NOT TESTED, for want of Prometheus: apt-get install prometheus");
    }
    found
}

/// Runs promtool there, which must find nothing wrong, and gives back what it says.
pub(super) fn promtool(folder: &Path, args: &[&str], input: &str) -> String {
    use std::io::Write as _;

    let mut tool = Command::new("promtool");
    tool.current_dir(folder).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().unwrap();
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

/// A Prometheus that runs.
pub(super) struct Prometheus {
    _running: Child,
    at: Listener,
}

impl Prometheus {
    /// With the configuration `prometheus.yml` in that folder, ready.
    pub(super) async fn start(shell: &Shell) -> Self {
        let at = Listener::free();
        let mut command = tokio::process::Command::new("prometheus");
        command.current_dir(shell.path("")).arg("--config.file=prometheus.yml").arg("--storage.tsdb.path=data");
        command.arg(format!("--web.listen-address={}", at.0)).arg("--enable-feature=exemplar-storage");
        command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut running = command.spawn().unwrap();
        let mut said = heard(running.stderr.take().unwrap());
        says(&mut said, "Server is ready to receive web requests").await;
        Self { _running: running, at }
    }

    /// What its API answers, which must be a success.
    pub(super) async fn ask(&self, path: &str) -> Value {
        let head = format!("GET /api/v1/{path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = self.at.send(&head).await;
        let said: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{path}: {}", answer.body));
        assert_eq!(said["status"], "success", "{path}: {said}");
        said["data"].clone()
    }

    /// How many series an expression gives now. It must be one that Prometheus accepts.
    pub(super) async fn series(&self, expression: &str) -> usize {
        let query: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.ask(&format!("query?query={query}")).await;
        data["result"].as_array().unwrap_or_else(|| panic!("{expression}: {data}")).len()
    }

    /// Waits until it has data for an expression; whether it came.
    pub(super) async fn has_data(&self, expression: &str) -> bool {
        let data = async {
            while self.series(expression).await == 0 {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        };
        tokio::time::timeout(LONG, data).await.is_ok()
    }
}
