//! Assembles the answers to the entries of a batch.
//! Never holds more than one answer may have: if they do not fit together, they are dropped, and the message gets one
//! error.

/// The answers so far.
#[derive(Debug)]
pub(super) struct Answers {
    limit: usize,
    /// Bytes of the whole, once it is assembled.
    total: usize,
    /// Each with its entry's position in the message. Empty once the total is above the limit.
    texts: Vec<(usize, Vec<u8>)>,
}

/// The answers together are above the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLarge;

impl Answers {
    /// For an answer of up to `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        // For the opening bracket; each entry adds the comma or bracket behind it.
        Self { limit, total: 1, texts: Vec::new() }
    }

    /// Adds the answer to the entry at `position`.
    pub(super) fn add(&mut self, position: usize, text: Vec<u8>) {
        self.total = self.total.saturating_add(text.len() + 1);
        if self.total <= self.limit {
            self.texts.push((position, text));
        } else {
            self.texts = Vec::new();
        }
    }

    /// The text to send; `None` if there is none.
    // JSON-RPC 2.0 §6: "If there are no Response objects contained within the Response array as it is to be sent to the client,
    // the server MUST NOT return an empty Array and should return nothing at all."
    pub(super) fn text(mut self) -> Option<Result<Vec<u8>, TooLarge>> {
        if self.total > self.limit {
            return Some(Err(TooLarge));
        }
        // JSON-RPC 2.0 §6 allows any order; that of the requests is the easiest to read.
        self.texts.sort_by_key(|(position, _)| *position);
        if self.texts.is_empty() {
            return None;
        }
        let mut whole = Vec::with_capacity(self.total);
        for (index, (_, text)) in self.texts.iter().enumerate() {
            whole.push(if index == 0 { b'[' } else { b',' });
            whole.extend_from_slice(text);
        }
        whole.push(b']');
        Some(Ok(whole))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::value::to_raw_value;

    use super::*;
    use crate::rpc::{Id, Response};

    fn answer(id: u64, size: usize) -> Response {
        Response::new(Id::from(id), Ok(to_raw_value(&"x".repeat(size)).unwrap()))
    }

    fn batch(answers: &[Response], limit: usize) -> Answers {
        let mut whole = Answers::new(limit);
        // In order of completion, which may be any.
        for (position, answer) in answers.iter().enumerate().rev() {
            whole.add(position, answer.to_bytes());
        }
        whole
    }

    #[test]
    fn what_is_held_at_a_time_is_bounded_by_the_limit_of_one_answer() {
        let limit = 192 * 1024;
        let mut whole = Answers::new(limit);
        for id in 0..50_u64 {
            whole.add(0, answer(id, 60_000).to_bytes());
            let held: usize = whole.texts.iter().map(|(_, text)| text.capacity()).sum();
            assert!(held <= 2 * limit && (id < 3) == (held > 0), "{id}: {held}");
        }
        assert_eq!(whole.text(), Some(Err(TooLarge)));
    }

    #[test]
    fn a_batch_is_what_the_specifications_writer_makes_of_it_and_counted_to_the_byte() {
        for count in 1..4_u64 {
            let answers: Vec<Response> = (0..count).map(|id| answer(id, 5)).collect();
            let text = Response::batch_to_bytes(&answers).unwrap();
            assert_eq!(batch(&answers, text.len()).text(), Some(Ok(text.clone())), "in the order of the requests");
            assert_eq!(batch(&answers, text.len() - 1).text(), Some(Err(TooLarge)));
        }
        assert_eq!(batch(&[], 100).text(), None);
    }
}
