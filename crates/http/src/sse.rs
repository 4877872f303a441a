//! Server-sent events, as the HTML standard parses them (§9.2.6, "Interpreting an event stream").
//! Never keeps more than one event, and never makes text of what is not UTF-8.

use std::time::Duration;

use bytes::{Buf as _, Bytes};

use super::error::HttpError;
use super::limits::MAX_BODY;
use super::waste::Waste;

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The type of the event; usually empty.
    pub kind: String,
    /// Its lines of data, joined with `\n`.
    pub data: String,
    /// The last event id that the server has sent; it holds until the server sends another.
    pub id: String,
    /// How long to wait before reconnecting after the end of the stream, if this event said so.
    pub retry: Option<Duration>,
}

/// The state of the parser between two pieces of input.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The incomplete line.
    line: Vec<u8>,
    /// The data so far, with a line feed after each line.
    data: Vec<u8>,
    kind: Vec<u8>,
    id: Vec<u8>,
    retry: Option<Duration>,
    /// The last line ended with CR: a LF that follows belongs to that end.
    after_cr: bool,
    /// At least one line was read.
    begun: bool,
    /// What was of no use: comments, blank lines, and fields of events without data.
    waste: Waste,
    /// The fields of the event so far, besides its data: lines and bytes.
    fields: (u64, u64),
}

impl Reader {
    /// Reads up to the end of the next event. `None` when the input is used up.
    pub(crate) fn read(&mut self, input: &mut Bytes) -> Result<Option<Event>, HttpError> {
        while let Some(first) = input.first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                input.advance(1);
                continue;
            }
            let end = input.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let piece = input.split_to(end.unwrap_or(input.len()));
            if self.line.len() + self.data.len() + self.kind.len() + self.id.len() + piece.len() > MAX_BODY {
                return Err(HttpError::TooLarge);
            }
            self.line.extend_from_slice(&piece);
            if end.is_none() {
                break;
            }
            self.after_cr = input.first() == Some(&b'\r');
            input.advance(1);
            if let Some(event) = self.line()? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Whether an event has begun and not ended.
    pub(crate) fn is_within_event(&self) -> bool {
        !self.line.is_empty() || !self.data.is_empty()
    }

    /// Handles the end of a line.
    fn line(&mut self) -> Result<Option<Event>, HttpError> {
        let whole = std::mem::take(&mut self.line);
        let mut line = whole.as_slice();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        if line.is_empty() {
            return self.event();
        }
        let at = line.iter().position(|byte| *byte == b':');
        let size = u64::try_from(whole.len()).unwrap_or(u64::MAX);
        if !line.starts_with(b"data") {
            self.waste.add(1, size).map_err(HttpError::Useless)?;
        }
        // A comment has an empty name.
        let (name, value) = line.split_at(at.unwrap_or(line.len()));
        let value = value.get(1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if !matches!(name, b"" | b"data") {
            self.fields = (self.fields.0 + 1, self.fields.1.saturating_add(size));
        }
        match name {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.kind = value.to_vec(),
            b"id" if !value.contains(&0) => self.id = value.to_vec(),
            b"retry" if value.iter().all(u8::is_ascii_digit) => {
                let millis = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
        Ok(None)
    }

    /// Handles an empty line, which ends an event if there is one.
    fn event(&mut self) -> Result<Option<Event>, HttpError> {
        let (kind, mut data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
        let (lines, bytes) = std::mem::take(&mut self.fields);
        if data.pop().is_none() {
            self.waste.add_blank().map_err(HttpError::Useless)?;
            return Ok(None);
        }
        // They belong to something of use.
        self.waste.refund(lines, bytes);
        self.waste.forgive();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|_| HttpError::NotUtf8);
        Ok(Some(Event { kind: text(kind)?, data: text(data)?, id: text(self.id.clone())?, retry: self.retry.take() }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// All events of a text that arrives in pieces of this length.
    fn events(text: &[u8], piece: usize) -> Result<Vec<Event>, HttpError> {
        let (mut reader, mut events) = (Reader::default(), Vec::new());
        for chunk in text.chunks(piece) {
            let mut chunk = Bytes::copy_from_slice(chunk);
            while let Some(event) = reader.read(&mut chunk)? {
                events.push(event);
            }
            assert!(chunk.is_empty());
        }
        Ok(events)
    }

    fn data(text: &str) -> Vec<String> {
        let whole = events(text.as_bytes(), text.len().max(1)).unwrap();
        for piece in 1..text.len() {
            assert_eq!(events(text.as_bytes(), piece).unwrap(), whole, "{text:?} in pieces of {piece}");
        }
        whole.into_iter().map(|event| event.data).collect()
    }

    // HTML §9.2.6, including the examples of the standard.
    #[test]
    fn events_are_read_as_the_standard_says_however_they_are_cut() {
        assert_eq!(data("data: YHOO\ndata: +2\ndata: 10\n\n"), ["YHOO\n+2\n10"]);
        assert_eq!(
            data(": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n"),
            ["first event", "second event"]
        );
        assert_eq!(data("data\n\ndata\ndata\n\ndata:"), ["", "\n"]);
        assert_eq!(data("data:test\n\ndata: test\n\n"), ["test", "test"]);
        for end in ["\n", "\r", "\r\n"] {
            let text =
                ["\u{feff}data: {\"a\":1}", "", "data: \u{feff}b", ":", "more: c", "data:é", "", "", ""].join(end);
            assert_eq!(data(&text), ["{\"a\":1}", "\u{feff}b\né"]);
        }
        assert_eq!(data("data: a\r\r\ndata: b\n\r"), ["a", "b"]);
        assert!(data("data: no end").is_empty() && data("").is_empty() && data("event: x\n\n").is_empty());
    }

    #[test]
    fn kind_id_and_time_belong_to_their_events() {
        let text = b"event: add\nid: 7\nretry: 250\ndata: x\n\ndata: y\nretry: 1x\nid: a\0b\n\nid\ndata: z\n\n";
        let found = events(text, 3).unwrap();
        let seen = found.iter().map(|event| (event.kind.as_str(), event.id.as_str(), event.retry));
        let quarter = Some(Duration::from_millis(250));
        assert_eq!(seen.collect::<Vec<_>>(), [("add", "7", quarter), ("", "7", None), ("", "", None)]);
    }

    #[test]
    fn an_event_has_a_bound_whatever_it_is_made_of() {
        let most = "x".repeat(MAX_BODY - 7);
        assert_eq!(events(format!("data: {most}\n\n").as_bytes(), 9000).unwrap().len(), 1);
        for long in [
            format!("data: {most}xx"),
            format!(":{most}{most}"),
            "data:xx\n".repeat(MAX_BODY / 3),
            format!("id:{most}\ndata: {most}"),
        ] {
            assert_eq!(events(long.as_bytes(), 9000), Err(HttpError::TooLarge));
        }
        // Many events are not one long event.
        assert_eq!(events("data: x\n\n".repeat(100_000).as_bytes(), 9000).unwrap().len(), 100_000);
        assert_eq!(events(b"data: \xff\n\n", 1), Err(HttpError::NotUtf8));
    }

    #[test]
    fn a_stream_without_events_is_not_read_for_ever() {
        for useless in [
            ": x\n",
            "\n",
            "\n\n",
            "id: 1\n",
            "id: 1\n\n",
            "event: ping\n\n",
            "retry: 1\n",
            "x\n",
            "datum: 1\n\n",
            ":\r",
        ] {
            let text = useless.repeat(3_000);
            assert!(matches!(events(text.as_bytes(), 9000), Err(HttpError::Useless(_))), "{useless:?}");
            // Nor with an event now and then; blank lines between events do no harm.
            let mixed = format!("{}data: x\n\n", useless.repeat(100)).repeat(30);
            let is_ended = matches!(events(mixed.as_bytes(), 9000), Err(HttpError::Useless(_)));
            assert_eq!(
                is_ended,
                useless.starts_with(':') || useless.len() > 6 && useless.ends_with("\n\n"),
                "{useless:?}"
            );
        }
        let long = format!(": {}\n", "x".repeat(MAX_BODY / 2)).repeat(20);
        assert!(matches!(events(long.as_bytes(), 9000), Err(HttpError::Useless(_))));
        // Whole events are of use, whatever fields they have.
        let whole = "id: 1\nevent: x\nretry: 5\ndata: x\n\n".repeat(50_000);
        assert_eq!(events(whole.as_bytes(), 9000).unwrap().len(), 50_000);
    }

    // Any bytes, in any pieces: no panic, the same events, and never more than the bound.
    #[test]
    fn any_bytes_are_read_alike_however_they_are_cut() {
        let alphabet =
            [b"data".as_slice(), b"event", b"id", b":", b" ", b"\r", b"\n", b"\xef\xbb\xbf", b"\0", b"x", b"retry: 1"];
        let mut state = 1_u64;
        for _ in 0..2_000 {
            let mut text = Vec::new();
            for _ in 0..24 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = usize::try_from(state >> 33).unwrap() % alphabet.len();
                text.extend_from_slice(alphabet.get(at).unwrap());
            }
            let whole = events(&text, text.len());
            for piece in [1, 2, 5] {
                assert_eq!(events(&text, piece), whole, "{text:?}");
            }
        }
    }
}
