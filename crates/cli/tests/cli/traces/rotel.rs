//! Rotel, a collector of traces that others have written, and what it says that it was sent.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use sealwire_testkit::{free_port, within};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::backends::stage::LONG;
use crate::process::heard;

/// A collector that runs.
pub(super) struct Rotel {
    port: u16,
    said: watch::Receiver<String>,
    _folder: tempfile::TempDir,
    _process: Child,
}

/// A span, as it was printed.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) service: String,
    pub(super) trace: String,
    pub(super) id: String,
    pub(super) parent: String,
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) attributes: BTreeMap<String, String>,
}

impl Rotel {
    /// Starts the one in the packages of this interpreter.
    pub(super) async fn start(python: &Path) -> Self {
        let find = "import pathlib, rotel; print(pathlib.Path(rotel.__file__).with_name('rotel-agent'))";
        let found = std::process::Command::new(python).args(["-c", find]).output().unwrap();
        let program = String::from_utf8(found.stdout).unwrap();
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let mut command = Command::new(program.trim());
        command.args([
            "start",
            "--exporter",
            "blackhole",
            "--debug-log",
            "traces",
            "--debug-log-verbosity",
            "detailed",
        ]);
        command.arg("--otlp-http-endpoint").arg(format!("127.0.0.1:{port}"));
        command.arg("--otlp-grpc-endpoint").arg(format!("127.0.0.1:{}", free_port()));
        command.arg("--pid-file").arg(folder.path().join("pid")).current_dir(folder.path());
        command.stdout(std::process::Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let said = heard(process.stdout.take().unwrap());
        let listens = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(LONG, listens).await;
        Self { port, said, _folder: folder, _process: process }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Everything that it has printed.
    pub(super) fn said(&self) -> String {
        self.said.borrow().clone()
    }

    /// Waits until it was sent all spans for which this holds, and returns what it was sent.
    pub(super) async fn has_seen(&self, is_all: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let mut said = self.said.clone();
        let wait = async {
            loop {
                let spans = spans(&said.borrow_and_update());
                if is_all(&spans) {
                    return spans;
                }
                said.changed().await.unwrap();
            }
        };
        let seen = tokio::time::timeout(LONG, wait).await;
        seen.unwrap_or_else(|_| panic!("{}", self.said()))
    }
}

/// The spans in a text like this, whose attributes are those of the resource until a span begins:
///
/// ```text
/// Resource attributes:
///      -> service.name: Str(math)
/// Span #0
///     Trace ID       : 4bf92f3577b34da6a3ce929d0e0e4736
/// Attributes:
///      -> rpc.method: Str(math/add)
/// ```
fn spans(text: &str) -> Vec<Seen> {
    let (mut spans, mut service) = (Vec::<Seen>::new(), String::new());
    let mut is_span = false;
    for line in text.lines() {
        if line.starts_with("ResourceSpans ") {
            is_span = false;
        } else if line.starts_with("Span ") {
            is_span = true;
            spans.push(Seen { service: service.clone(), ..Seen::default() });
        } else if let Some((key, value)) = line.trim().strip_prefix("-> ").and_then(|pair| pair.split_once(": ")) {
            let value = value.split_once('(').map_or(value, |(_, value)| value.trim_end_matches(')')).to_owned();
            match (is_span, spans.last_mut()) {
                (true, Some(span)) => drop(span.attributes.insert(key.to_owned(), value)),
                _ if key == "service.name" => service = value,
                _ => {}
            }
        } else if let (Some((key, value)), Some(span), true) = (line.split_once(':'), spans.last_mut(), is_span) {
            let value = value.trim().to_owned();
            match key.trim() {
                "Trace ID" if span.trace.is_empty() => span.trace = value,
                "Parent ID" => span.parent = value,
                "ID" if span.id.is_empty() => span.id = value,
                "Name" => span.name = value,
                "Kind" => value.trim_start_matches("SPAN_KIND_").clone_into(&mut span.kind),
                _ => {}
            }
        }
    }
    spans
}
