//! A program that tells how it is doing, and who asks it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use sealwire_testkit::{free_port, within};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::backends::stage::LONG;
use crate::process::{heard, says};
use crate::shell::Shell;

/// An answer of the listener.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Where a program tells how it is doing.
#[derive(Clone, Copy)]
pub(crate) struct Listener(pub(crate) SocketAddr);

impl Listener {
    pub(crate) fn free() -> Self {
        Self(SocketAddr::from(([127, 0, 0, 1], free_port())))
    }

    pub(crate) fn section(self) -> String {
        format!("[telemetry]\nlisten = \"{}\"\n", self.0)
    }

    pub(crate) async fn send(self, head: &str) -> Answer {
        let asked = async {
            let mut socket = TcpStream::connect(self.0).await.unwrap();
            socket.write_all(head.as_bytes()).await.unwrap();
            let mut read = Vec::new();
            // The listener closes the connection after its answer.
            socket.read_to_end(&mut read).await.unwrap();
            String::from_utf8(read).unwrap()
        };
        let text = within(LONG, asked).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) async fn get(self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await
    }

    /// The samples by name and labels.
    pub(crate) async fn samples(self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics").await;
        assert!(answer.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", answer.head);
        let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap())).unwrap())
            .collect()
    }

    /// Waits until somebody listens.
    pub(crate) async fn is_listening(self) {
        let listening = async {
            while TcpStream::connect(self.0).await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(2 * LONG, listening).await;
    }

    /// Waits until `/readyz` says this.
    pub(crate) async fn is_ready(self, status: u16) -> Answer {
        let ready = async {
            loop {
                let answer = self.get("/readyz?verbose").await;
                if answer.status == status {
                    break answer;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(2 * LONG, ready).await
    }
}

/// A command for each call.
pub(crate) const BACKEND: &str = "[[backend]]\nname = \"words\"\nkind = \"exec\"\ncommand = [\"echo\"]\n\
    [[backend.method]]\nname = \"words/say\"\nargs = [\"hello\"]\noutput = \"text\"\n";

/// A gateway to the service `tools`, ready: the program, and where it takes requests. It tells at `at` how it is doing.
pub(crate) async fn gateway(shell: &Shell, at: Listener) -> (Child, Listener) {
    gateway_as(shell, at, "planner", "tools", "").await
}

/// The same for this agent and this service, with more keys in `[telemetry]`.
pub(crate) async fn gateway_as(
    shell: &Shell,
    at: Listener,
    agent: &str,
    service: &str,
    more: &str,
) -> (Child, Listener) {
    let config = format!(
        "{}{more}[gateway]\nlisten = \"127.0.0.1:0\"\ncredentials = \"{agent}.creds.json\"\nrefresh_s = 1\n\
         [[gateway.expose]]\nservice = \"{service}\"\n",
        at.section()
    );
    shell.write("gateway.toml", &config);
    let mut command = tokio::process::Command::from(shell.command(&["gateway", "--json"]));
    // A pipe that nobody reads would stop it once its log has filled it.
    command.stderr(Stdio::null());
    let mut gateway = command.kill_on_drop(true).spawn().unwrap();
    let mut stdout = heard(gateway.stdout.take().unwrap());
    says(&mut stdout, "\"ready\":true").await;
    let said: Value = serde_json::from_str(stdout.borrow().lines().next().unwrap()).unwrap();
    at.is_ready(200).await;
    (gateway, Listener(said["listen"].as_str().unwrap().parse().unwrap()))
}

/// A request to it, with this body.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
