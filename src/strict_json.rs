//! The strict check of a whole JSON text: it must be valid, shallow and unambiguous before anything is taken from it.
//! Never keeps a value, never recurses, and never interprets a number.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::value::RawValue;

/// How deep objects and arrays may be nested; the outermost one is the first level.
///
/// Half of the 128 levels at which `serde_json` stops, so no later step can reach that limit.
pub const MAX_DEPTH: usize = 64;
/// The same for a value that becomes a result, a part or the data of an error. In the deepest message it is surrounded
/// by four levels: the array of a batch, a response, its error and an object of data.
pub const MAX_VALUE_DEPTH: usize = MAX_DEPTH - 4;

/// Why a text is refused. Each message continues "the text …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The bytes are not UTF-8 (RFC 8259 §8.1).
    #[error("is not UTF-8")]
    NotUtf8,
    /// The text begins with a byte-order mark, which RFC 8259 §8.1 forbids sending.
    #[error("begins with a byte-order mark")]
    ByteOrderMark,
    /// The text is not JSON (RFC 8259 §2), or a string in it has an unpaired surrogate and so is not Unicode text.
    #[error("is not valid JSON")]
    Syntax,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Two members of one object have the same name once escapes are resolved. RFC 8259 §4 leaves open which of them
    /// counts, so two readers could see two different messages.
    #[error("has an object in which a member name occurs twice")]
    DuplicateMember,
}

/// Checks the whole text in one pass and returns it as `str`.
///
/// A duplicate name is reported only if nothing else is wrong anywhere in the text. Numbers of any size pass: the
/// grammar of RFC 8259 §6 sets no bound, and the code that decodes a number decides what fits.
pub(crate) fn check(payload: &[u8]) -> Result<&str, Flaw> {
    check_to(MAX_DEPTH, payload)
}

/// Reads text written by somebody else that becomes a result, a part or the data of an error. It is as strict as the
/// receiver, which would refuse a whole batch because of one bad value.
///
/// # Errors
/// [`Flaw`]; [`Flaw::TooDeep`] above [`MAX_VALUE_DEPTH`].
pub fn strict_value(text: &str) -> Result<&RawValue, Flaw> {
    serde_json::from_str(strict_text(text.as_bytes())?).map_err(|_| Flaw::Syntax)
}

/// Like [`strict_value`], for callers that parse the text by other means.
///
/// # Errors
/// As for [`strict_value`], and [`Flaw::NotUtf8`].
pub fn strict_text(text: &[u8]) -> Result<&str, Flaw> {
    check_to(MAX_VALUE_DEPTH, text)
}

fn check_to(levels: usize, payload: &[u8]) -> Result<&str, Flaw> {
    if payload.starts_with(b"\xEF\xBB\xBF") {
        return Err(Flaw::ByteOrderMark);
    }
    let text = std::str::from_utf8(payload).map_err(|_| Flaw::NotUtf8)?;
    let mut scanner = Scanner { text, at: 0, levels, open: Vec::new(), names: Vec::with_capacity(8), repeated: false };
    scanner.document()?;
    if scanner.repeated { Err(Flaw::DuplicateMember) } else { Ok(text) }
}

/// A cursor over the text. Written by hand because `serde_json` either interprets numbers (and refuses `1e999`, which is
/// JSON) or skips values without looking at their member names.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    levels: usize,
    /// The objects and arrays around the cursor. INVARIANT: never more than `levels`.
    open: Vec<Scope<'a>>,
    /// The member names of the objects around the cursor, those of inner objects last.
    names: Vec<Cow<'a, str>>,
    repeated: bool,
}

enum Scope<'a> {
    Array,
    /// An object. Its names begin at this index of `names`.
    Object(usize),
    /// An object with more names. The hashes are randomly keyed, so that nobody can choose names that collide.
    Large(HashSet<Cow<'a, str>>),
}

impl<'a> Scanner<'a> {
    fn document(&mut self) -> Result<(), Flaw> {
        loop {
            self.begin_value()?;
            if self.end_values()? {
                return Ok(());
            }
        }
    }

    /// Descends to the next value that has nothing below it, and moves past it: a scalar or an empty object or array.
    fn begin_value(&mut self) -> Result<(), Flaw> {
        loop {
            self.skip_space();
            match self.peek() {
                Some(b'{') => {
                    self.enter(Scope::Object(self.names.len()))?;
                    if self.peek() == Some(b'}') {
                        return Ok(());
                    }
                    self.member_name()?;
                }
                Some(b'[') => {
                    self.enter(Scope::Array)?;
                    if self.peek() == Some(b']') {
                        return Ok(());
                    }
                }
                Some(b'"') => return self.string().map(drop),
                Some(b't') => return self.literal("true"),
                Some(b'f') => return self.literal("false"),
                Some(b'n') => return self.literal("null"),
                _ => return self.number(),
            }
        }
    }

    /// Leaves the objects and arrays that close here. True at the end of the text, false before the next value.
    fn end_values(&mut self) -> Result<bool, Flaw> {
        loop {
            self.skip_space();
            let byte = self.next();
            match (self.open.last(), byte) {
                (None, None) => return Ok(true),
                (Some(Scope::Array), Some(b',')) => return Ok(false),
                (Some(Scope::Object(_) | Scope::Large(_)), Some(b',')) => return self.member_name().map(|()| false),
                (Some(Scope::Object(first)), Some(b'}')) => {
                    self.names.truncate(*first);
                    self.open.pop();
                }
                (Some(Scope::Array), Some(b']')) | (Some(Scope::Large(_)), Some(b'}')) => drop(self.open.pop()),
                _ => return Err(Flaw::Syntax),
            }
        }
    }

    fn enter(&mut self, scope: Scope<'a>) -> Result<(), Flaw> {
        if self.open.len() == self.levels {
            return Err(Flaw::TooDeep);
        }
        self.open.push(scope);
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    fn member_name(&mut self) -> Result<(), Flaw> {
        self.skip_space();
        let quoted = self.string()?;
        self.skip_space();
        self.expect(b':')?;
        let name = if quoted.contains('\\') {
            Cow::Owned(serde_json::from_str(quoted).map_err(|_| Flaw::Syntax)?)
        } else {
            Cow::Borrowed(quoted)
        };
        let is_new = match self.open.last_mut() {
            Some(Scope::Large(names)) => names.insert(name),
            Some(Scope::Object(first)) => {
                let few = self.names.get(*first..).unwrap_or_default();
                let is_new = !few.contains(&name);
                if few.len() < FEW {
                    self.names.push(name);
                } else {
                    let mut names: HashSet<_> = self.names.drain(*first..).collect();
                    names.insert(name);
                    self.open.pop();
                    self.open.push(Scope::Large(names));
                }
                is_new
            }
            Some(Scope::Array) | None => true,
        };
        self.repeated |= !is_new;
        Ok(())
    }

    /// RFC 8259 §7. Returns the string with its quotes if it has escapes, otherwise without them: see `member_name`.
    fn string(&mut self) -> Result<&'a str, Flaw> {
        let start = self.at;
        self.expect(b'"')?;
        let mut escaped = false;
        loop {
            self.at += plain(self.text.as_bytes().get(self.at..).unwrap_or_default());
            match self.next().ok_or(Flaw::Syntax)? {
                b'"' if escaped => return self.text.get(start..self.at).ok_or(Flaw::Syntax),
                b'"' => return self.text.get(start + 1..self.at - 1).ok_or(Flaw::Syntax),
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                0x00..=0x1F => return Err(Flaw::Syntax),
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Result<(), Flaw> {
        match self.next() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
            Some(b'u') => match self.code_unit()? {
                0xD800..=0xDBFF => {
                    self.expect(b'\\')?;
                    self.expect(b'u')?;
                    if matches!(self.code_unit()?, 0xDC00..=0xDFFF) { Ok(()) } else { Err(Flaw::Syntax) }
                }
                0xDC00..=0xDFFF => Err(Flaw::Syntax),
                _ => Ok(()),
            },
            _ => Err(Flaw::Syntax),
        }
    }

    fn code_unit(&mut self) -> Result<u32, Flaw> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or(Flaw::Syntax)?;
            unit = unit * 16 + digit;
        }
        Ok(unit)
    }

    /// RFC 8259 §6: `[ minus ] int [ frac ] [ exp ]`, with no leading zeros.
    fn number(&mut self) -> Result<(), Flaw> {
        self.skip(b"-");
        if !self.skip(b"0") {
            self.digits()?;
        }
        if self.skip(b".") {
            self.digits()?;
        }
        if self.skip(b"eE") {
            self.skip(b"+-");
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Flaw> {
        let start = self.at;
        while self.skip(b"0123456789") {}
        if self.at == start { Err(Flaw::Syntax) } else { Ok(()) }
    }

    fn literal(&mut self, literal: &str) -> Result<(), Flaw> {
        literal.bytes().try_for_each(|byte| self.expect(byte))
    }

    fn skip_space(&mut self) {
        while self.skip(b" \t\n\r") {}
    }

    fn expect(&mut self, byte: u8) -> Result<(), Flaw> {
        if self.next() == Some(byte) { Ok(()) } else { Err(Flaw::Syntax) }
    }

    /// Moves past one byte if it is one of these.
    fn skip(&mut self, bytes: &[u8]) -> bool {
        let found = self.peek().is_some_and(|byte| bytes.contains(&byte));
        self.at += usize::from(found);
        found
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

/// Up to this many names, comparing one by one is cheaper than hashing; nearly every object of a request is smaller.
const FEW: usize = 16;

/// How many bytes of a string precede one that is not plain text. In chunks of sixteen, which the compiler compares at once.
fn plain(bytes: &[u8]) -> usize {
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0x00..=0x1F);
    let chunks = bytes.chunks_exact(16);
    let whole = 16 * chunks.take_while(|chunk| !chunk.iter().fold(false, |any, byte| any | special(byte))).count();
    let rest = bytes.get(whole..).unwrap_or_default();
    whole + rest.iter().position(special).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests;
