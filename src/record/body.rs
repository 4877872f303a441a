//! A line without its head.
//! Never longer than what it is made of.

use serde::Serialize;

/// A JSON object with at least one member: a line without its head.
#[derive(Debug)]
pub(crate) struct Body(Vec<u8>);

/// Most lines are shorter.
const ROOM: usize = 1024;

impl Body {
    /// Of a struct of strings and numbers, which can always be serialized.
    pub(crate) fn new(line: &impl Serialize) -> Self {
        let mut text = Vec::with_capacity(ROOM);
        match serde_json::to_writer(&mut text, line) {
            Ok(()) => Self(text),
            Err(_) => Self(Vec::new()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
