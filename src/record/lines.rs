//! Lines on their way to the writer.
//! Never in more pieces than two, so that a line costs no memory of its own that another thread gives back.

use serde::Serialize;
use tokio::sync::oneshot;

use super::body::Body;
use super::chain::Chain;
use super::line::Kind;

/// Lines without their heads, one after the other.
#[derive(Debug, Default)]
pub(super) struct Lines {
    text: Vec<u8>,
    list: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    kind: Kind,
    from: usize,
    to: usize,
    /// Told whether the line is on disk.
    waits: Option<oneshot::Sender<bool>>,
}

/// What is kept of the memory of earlier lines, in bytes and in lines.
const KEPT: (usize, usize) = (128 * 1024, 512);

impl Lines {
    pub(super) fn one(kind: Kind, line: &impl Serialize) -> Self {
        let mut lines = Self::default();
        lines.push(kind, &Body::new(line), None);
        lines
    }

    pub(super) fn push(&mut self, kind: Kind, body: &Body, waits: Option<oneshot::Sender<bool>>) {
        let from = self.text.len();
        self.text.extend_from_slice(body.as_bytes());
        self.list.push(Line { kind, from, to: self.text.len(), waits });
    }

    /// More than a line of this body takes, in bytes.
    pub(super) fn size(body: &Body) -> usize {
        body.len().saturating_add(Chain::HEAD)
    }

    /// More than all lines take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.list.len() * Chain::HEAD
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Kind and body of each line, and who waits for it.
    pub(super) fn drain(
        &mut self,
    ) -> impl ExactSizeIterator<Item = (Kind, &[u8], Option<oneshot::Sender<bool>>)> + use<'_> {
        let Self { text, list } = self;
        list.drain(..).map(|Line { kind, from, to, waits }| (kind, text.get(from..to).unwrap_or_default(), waits))
    }

    /// Without lines, and with no more memory than usual ones need.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.list.clear();
        self.text.shrink_to(KEPT.0);
        self.list.shrink_to(KEPT.1);
    }
}
