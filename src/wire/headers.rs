//! A header block as bytes, and the lines in it.
//! Never repairs a block: any deviation from the form makes all of it malformed.

use bytes::Bytes;

/// The header block of one message, as on the wire: `NATS/1.0`, lines `Name: value`, an empty line. Empty if the
/// message has no headers. Nothing in it has been checked.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HeaderBlock(Bytes);

/// The error for a block that does not have the form of a [`HeaderBlock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed header block")]
pub(crate) struct Malformed;

/// One line: the name, the value after the colon and at most one space, and the length of the line on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line<'b> {
    pub(crate) name: &'b str,
    pub(crate) value: &'b str,
    /// Including the line end.
    pub(crate) bytes: usize,
}

/// What the version line contains besides the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    None,
    /// A status such as 503, from the broker itself.
    Code(u16),
}

const VERSION: &[u8] = b"NATS/1.0";
const END: &[u8] = b"\r\n";

impl HeaderBlock {
    /// A block of these lines. A line that contains a line break is left out: the rest of it would be another header.
    #[must_use]
    pub fn of(lines: &[(&str, &str)]) -> Self {
        let bytes: usize = lines.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let mut block = Vec::with_capacity(VERSION.len() + 2 * END.len() + bytes);
        block.extend_from_slice(VERSION);
        block.extend_from_slice(END);
        // Scans to the end even if one is found, so that the compiler can vectorize the loop.
        let is_one_line = |text: &str| !text.bytes().fold(false, |any, byte| any | matches!(byte, b'\r' | b'\n'));
        for (name, value) in lines.iter().filter(|(name, value)| is_one_line(name) && is_one_line(value)) {
            for part in [name.as_bytes(), b": ", value.as_bytes(), END] {
                block.extend_from_slice(part);
            }
        }
        block.extend_from_slice(END);
        Self(block.into())
    }

    /// The bytes of the block.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns a part of the block that shares its bytes.
    pub(crate) fn part(&self, of_it: &str) -> Bytes {
        self.0.slice_ref(of_it.as_bytes())
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the message has no headers at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the version line, and returns an iterator over the lines after it. One malformed line makes the whole
    /// block malformed: read all lines before relying on any.
    pub(crate) fn read(&self) -> Result<(Status, Lines<'_>), Malformed> {
        if self.0.is_empty() {
            return Ok((Status::None, Lines { rest: END }));
        }
        let (first, rest) = cut(&self.0).ok_or(Malformed)?;
        let status = match first.strip_prefix(VERSION).ok_or(Malformed)? {
            [] => Status::None,
            [b' ', code @ ..] => {
                // A description may follow the code.
                let (code, description) = code.split_at_checked(3).ok_or(Malformed)?;
                if !matches!(description, [] | [b' ', ..]) || !description.iter().all(|byte| is_text(*byte)) {
                    return Err(Malformed);
                }
                let code = std::str::from_utf8(code).map_err(|_| Malformed)?;
                if !code.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(Malformed);
                }
                Status::Code(code.parse().map_err(|_| Malformed)?)
            }
            _ => return Err(Malformed),
        };
        // At least the empty line must follow.
        if rest.is_empty() { Err(Malformed) } else { Ok((status, Lines { rest })) }
    }

    /// Whether the block has the broker's status for "no responders". Anybody can write it.
    pub(crate) fn says_no_responders(&self) -> bool {
        matches!(self.read(), Ok((Status::Code(503), _)))
    }
}

/// The lines of a block, up to its end.
#[derive(Debug)]
pub(crate) struct Lines<'b> {
    rest: &'b [u8],
}

impl<'b> Iterator for Lines<'b> {
    type Item = Result<Line<'b>, Malformed>;

    /// Returns `None` after the empty line, if nothing follows it.
    fn next(&mut self) -> Option<Self::Item> {
        let Some((line, rest)) = cut(self.rest) else {
            // After an error nothing is left, and after the end everything has been read.
            return (!std::mem::take(&mut self.rest).is_empty()).then_some(Err(Malformed));
        };
        if line.is_empty() {
            self.rest = &[];
            return (!rest.is_empty()).then_some(Err(Malformed));
        }
        let parsed = parse(line);
        self.rest = if parsed.is_some() { rest } else { &[] };
        if parsed.is_some() && rest.is_empty() {
            // The empty line at the end is missing.
            return Some(Err(Malformed));
        }
        Some(parsed.ok_or(Malformed))
    }
}

/// Splits off the first line, without its line end. A line feed alone does not end a line.
fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    // In chunks of sixteen, which the compiler compares at once: most of a block is one long value.
    let returns = |chunk: &&[u8]| !chunk.iter().fold(false, |any, byte| any | (*byte == b'\r'));
    let before = 16 * bytes.chunks_exact(16).take_while(returns).count();
    let rest = bytes.get(before..)?;
    let end = before + rest.windows(END.len()).position(|window| window == END)?;
    let (line, rest) = bytes.split_at_checked(end)?;
    Some((line, rest.get(END.len()..)?))
}

/// Parses `name:value` or `name: value`. A name is printable ASCII without blanks, so a folded line is malformed; nothing is trimmed.
fn parse(line: &[u8]) -> Option<Line<'_>> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (line.get(..colon)?, line.get(colon + 1..)?);
    let value = value.strip_prefix(b" ").unwrap_or(value);
    if name.is_empty()
        || !name.iter().all(|byte| (0x21..=0x7e).contains(byte))
        || value.iter().fold(false, |any, byte| any | !is_text(*byte))
    {
        return None;
    }
    let text = |bytes| std::str::from_utf8(bytes).ok();
    Some(Line { name: text(name)?, value: text(value)?, bytes: line.len() + END.len() })
}

/// Allows no control characters except the tab, so no carriage return within a value.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

impl From<Bytes> for HeaderBlock {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<&HeaderBlock> for HeaderBlock {
    fn from(block: &HeaderBlock) -> Self {
        block.clone()
    }
}

/// The block that async-nats would put on the wire.
impl From<&async_nats::HeaderMap> for HeaderBlock {
    fn from(headers: &async_nats::HeaderMap) -> Self {
        if headers.is_empty() {
            return Self::default();
        }
        let lines = headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
        let lines: Vec<(&str, &str)> = lines.map(|(name, value)| (name.as_ref(), value.as_str())).collect();
        Self::of(&lines)
    }
}

impl From<async_nats::HeaderMap> for HeaderBlock {
    fn from(headers: async_nats::HeaderMap) -> Self {
        Self::from(&headers)
    }
}

/// Omits the content: tokens and signatures.
impl std::fmt::Debug for HeaderBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeaderBlock({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use proptest::prelude::*;

    use super::*;

    fn read(block: &[u8]) -> Result<(Status, Vec<(String, String)>), Malformed> {
        let block = HeaderBlock::from(Bytes::copy_from_slice(block));
        let (status, lines) = block.read()?;
        let lines: Result<Vec<_>, _> =
            lines.map(|line| line.map(|l| (l.name.to_owned(), l.value.to_owned()))).collect();
        lines.map(|lines| (status, lines))
    }

    fn pairs(lines: &[(&str, &str)]) -> Vec<(String, String)> {
        lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// SPEC.md §6.
    #[test]
    fn lines_are_read_and_nothing_is_trimmed() {
        assert_eq!(read(b""), Ok((Status::None, vec![])));
        assert_eq!(read(b"NATS/1.0\r\n\r\n"), Ok((Status::None, vec![])));
        assert_eq!(read(b"NATS/1.0 503\r\n\r\n"), Ok((Status::Code(503), vec![])));
        assert_eq!(read(b"NATS/1.0 404 No Messages\r\nA: b\r\n\r\n"), Ok((Status::Code(404), pairs(&[("A", "b")]))));
        let block = b"NATS/1.0\r\nA: b\r\na:c\r\nX:  two \t\r\nY:\r\nZ: \xc3\xa4:\r\n\r\n";
        let lines = [("A", "b"), ("a", "c"), ("X", " two \t"), ("Y", ""), ("Z", "ä:")];
        assert_eq!(read(block), Ok((Status::None, pairs(&lines))));
        let of = HeaderBlock::of(&[("A", "b"), ("X", "1\r\nY: 2"), ("Z\n", ""), ("C", "d")]);
        assert_eq!(of.as_bytes(), b"NATS/1.0\r\nA: b\r\nC: d\r\n\r\n");
        let bytes: usize = of.read().unwrap().1.map(|line| line.unwrap().bytes).sum();
        assert_eq!(bytes, "A: b\r\nC: d\r\n".len());
    }

    /// SPEC.md §6, SPEC.md §4.1.
    #[test]
    fn every_other_form_makes_the_whole_block_malformed() {
        for block in [
            &b"\r\n"[..],
            b"NATS/1.0",
            b"NATS/1.0\r\n",
            b"NATS/1.0\n\n",
            b"NATS/1.0 \r\n\r\n",
            b"NATS/1.0 50\r\n\r\n",
            b"NATS/1.0 abc\r\n\r\n",
            b"NATS/1.0 50333\r\n\r\n",
            b"NATS/1.0  503\r\n\r\n",
            b"NATS/1.0 503 \x01\r\n\r\n",
            b"NATS/1.1\r\n\r\n",
            b"nats/1.0\r\n\r\n",
            b"NATS/9.9\r\nA: b\r\n\r\n",
            b"A: b\r\n\r\n",
            b" NATS/1.0\r\n\r\n",
            b"NATS/1.0\r\nA: b\r\n",
            b"NATS/1.0\r\nA: b\r\n\r\nx",
            b"NATS/1.0\r\nA: b\r\n\r\nB: c\r\n\r\n",
            b"NATS/1.0\r\nA: b\n\r\n",
            b"NATS/1.0\r\nA: b\nB: c\r\n\r\n",
            b"NATS/1.0\r\nA: b\rc\r\n\r\n",
            b"NATS/1.0\r\nA: b\r\r\n\r\n",
            b"NATS/1.0\r\nA: b\r\n folded\r\n\r\n",
            b"NATS/1.0\r\nA: b\r\n\tfolded: x\r\n\r\n",
            b"NATS/1.0\r\nA : b\r\n\r\n",
            b"NATS/1.0\r\nA b: c\r\n\r\n",
            b"NATS/1.0\r\n: c\r\n\r\n",
            b"NATS/1.0\r\nabc\r\n\r\n",
            b"NATS/1.0\r\nA: \xff\r\n\r\n",
            b"NATS/1.0\r\n\xc3\xa4: b\r\n\r\n",
            b"NATS/1.0\r\nA: \0\r\n\r\n",
            b"NATS/1.0\r\nA: \x7f\r\n\r\n",
        ] {
            assert_eq!(read(block), Err(Malformed), "{}", String::from_utf8_lossy(block).escape_debug());
        }
    }

    proptest! {
        #[test]
        fn a_block_that_is_read_is_written_with_the_same_bytes_but_for_the_optional_space(
            tail in prop::collection::vec(prop::sample::select(&b"Aa: \r\n\t5\x7f\xff"[..]), 0..40),
        ) {
            let block = [b"NATS/1.0\r\n", &tail[..]].concat();
            if let Ok((Status::None, lines)) = read(&block) {
                let mut with = VERSION.to_vec();
                with.extend_from_slice(END);
                let mut rest = &block[VERSION.len() + END.len()..];
                for (name, value) in &lines {
                    let line = [format!("{name}: {value}\r\n"), format!("{name}:{value}\r\n")];
                    let line = line.iter().find(|line| rest.starts_with(line.as_bytes()));
                    prop_assert!(line.is_some());
                    rest = &rest[line.unwrap().len()..];
                }
                prop_assert_eq!(rest, END);
            }
        }

        #[test]
        fn arbitrary_bytes_are_lines_or_malformed(block in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&block);
        }
    }
}
