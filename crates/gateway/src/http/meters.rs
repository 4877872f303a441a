//! How long requests take, by dialect and status: nothing until somebody asks for it.
//! Never takes a label from a request: dialects are a closed set, and statuses are our own.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use sealwire::internal::registry::{Exemplars, Labelled};

/// Measures, once it is switched on.
#[derive(Debug, Default)]
pub(super) struct Meters(OnceLock<Labelled<Exemplars>>);

/// The most pairs of a status and a dialect; there are fewer.
const MAX_PAIRS: usize = 500;

impl Meters {
    /// Measures from now on.
    pub(super) fn switch_on(&self) {
        self.0.get_or_init(|| Labelled::new(MAX_PAIRS));
    }

    /// When a request has begun; `None` if nothing is measured.
    pub(super) fn begin(&self) -> Option<Instant> {
        self.0.get().map(|_| Instant::now())
    }

    /// A response begins.
    pub(super) fn responded(&self, begun: Option<Instant>, dialect: &'static str, status: StatusCode) {
        if let (Some(requests), Some(begun)) = (self.0.get(), begun) {
            let took: Duration = begun.elapsed();
            requests.change(Some(status.as_str()), dialect, |requests| requests.record(took, None));
        }
    }

    /// The durations by status and dialect.
    pub(super) fn read(&self) -> Vec<(String, &'static str, Exemplars)> {
        self.0.get().map(|requests| requests.read(Clone::clone)).unwrap_or_default()
    }
}

/// The dialect of a path, whether the gateway speaks it there or not.
pub(super) fn dialect(path: &str) -> &'static str {
    let mut steps = path.split('/').skip(1);
    match (steps.next(), steps.nth(1)) {
        (Some("rpc"), Some("stream")) => "events",
        (Some("rpc"), Some("ws")) => "ws",
        (Some("rpc"), _) => "rpc",
        (Some("mcp"), _) => "mcp",
        (Some("a2a"), _) => "a2a",
        (Some("approvals"), _) => "approvals",
        (Some(".well-known"), _) => "metadata",
        (Some("livez" | "readyz"), _) => "health",
        _ => "other",
    }
}

/// The template of a path, for those that callers call services at.
pub(super) fn route(path: &str) -> Option<&'static str> {
    match dialect(path) {
        "rpc" => Some("/rpc/{service}"),
        "events" => Some("/rpc/{service}/stream"),
        "ws" => Some("/rpc/{service}/ws"),
        "mcp" => Some("/mcp/{service}"),
        "a2a" => Some("/a2a/{service}"),
        "approvals" => Some("/approvals/{service}"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_are_few_whatever_is_asked_for() {
        for (path, expected) in [
            ("/rpc/math", "rpc"),
            ("/rpc/math/stream", "events"),
            ("/rpc/math/ws", "ws"),
            ("/rpc/math/ws/ticket", "ws"),
            ("/rpc/math/openrpc.json", "rpc"),
            ("/mcp", "mcp"),
            ("/mcp/math", "mcp"),
            ("/a2a/math", "a2a"),
            ("/approvals/math", "approvals"),
            ("/approvals.js", "other"),
            ("/.well-known/agent-card.json", "metadata"),
            ("/readyz", "health"),
            ("/", "other"),
            ("/page.js", "other"),
            ("/x/y/z", "other"),
            ("*", "other"),
        ] {
            assert_eq!(dialect(path), expected, "{path}");
        }
    }
}
