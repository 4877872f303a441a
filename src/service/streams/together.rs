//! Results or notifications that leave in one frame, so that a writer under pressure signs fewer of them.
//! Never puts more together than a receiver accepts, and never waits for more.

/// One JSON text, or an array of several.
#[derive(Debug)]
pub(in crate::service) struct Together {
    /// Begins with the bracket, in case there is more than one.
    text: Vec<u8>,
    count: usize,
}

/// How many texts one frame may hold.
pub(super) const MAX_PARTS: usize = 50;
/// A frame with several has about this many bytes at most.
pub(super) const FULL_FRAME: usize = 32 * 1024;

impl Together {
    pub(in crate::service) fn new(first: &[u8]) -> Self {
        let mut together = Self { text: Vec::new(), count: 0 };
        together.push(first);
        together
    }

    pub(in crate::service) fn is_full(&self) -> bool {
        self.count >= MAX_PARTS || self.text.len() >= FULL_FRAME
    }

    /// Whether this text may be added.
    pub(in crate::service) fn has_room_for(&self, text: &[u8]) -> bool {
        !self.is_full() && self.text.len() + text.len() <= FULL_FRAME
    }

    pub(in crate::service) fn push(&mut self, text: &[u8]) {
        self.text.push(if self.count == 0 { b'[' } else { b',' });
        self.text.extend_from_slice(text);
        self.count += 1;
    }

    /// The payload of the frame.
    pub(in crate::service) fn into_payload(mut self) -> Vec<u8> {
        if self.count == 1 {
            self.text.remove(0);
        } else {
            self.text.push(b']');
        }
        self.text
    }
}
