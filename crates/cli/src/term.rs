//! Makes texts safe for a terminal: a text from elsewhere may contain sequences that move the cursor, rename the window or reverse
//! the reading direction.
//! Never changes what JSON means.

use std::borrow::Cow;
use std::fmt::Write as _;

use sealwire_backend::is_hidden;

/// JSON text with such characters written as `\uXXXX` escapes. They can only occur inside strings, where the escape means the same.
pub(crate) fn safe_json(text: &str) -> Cow<'_, str> {
    replace(text, |out, units| {
        for unit in units {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

/// Plain text with such characters written as `\u{…}`.
pub(crate) fn safe_text(text: &str) -> Cow<'_, str> {
    replace(text, |out, units| {
        for c in char::decode_utf16(units.iter().copied()).flatten() {
            let _ = write!(out, "{}", c.escape_unicode());
        }
    })
}

/// JSON text, spread over several lines if it does not fit one line of a terminal. Numbers and strings stay exactly as written.
pub(crate) fn indented(text: &str) -> Cow<'_, str> {
    if text.chars().count() <= LINE {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() * 2);
    let mut depth = 0_usize;
    let (mut in_string, mut escaped) = (false, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if in_string {
            out.push(c);
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '{' | '[' => {
                out.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                // Keep empty objects and arrays on one line.
                match chars.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => out.push(end),
                    None => {
                        depth += 1;
                        new_line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => {
                in_string = c == '"';
                out.push(c);
            }
        }
    }
    Cow::Owned(out)
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

/// The width of a terminal, in characters.
const LINE: usize = 80;

fn replace(text: &str, escape: impl Fn(&mut String, &[u16])) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            escape(&mut out, c.encode_utf16(&mut [0; 2]));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Whether it is shown as an escape: what nobody sees or moves other characters, but no tab.
fn is_unsafe(c: char) -> bool {
    c != '\t' && is_hidden(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_escaped_and_json_keeps_its_meaning() {
        let hostile = "{\"a\":\"\u{9b}2J\u{7f}\u{202e}\u{e0041}ok\"}";
        let safe = safe_json(hostile);
        for hidden in
            ['\u{ad}', '\u{115f}', '\u{180b}', '\u{180e}', '\u{180f}', '\u{3164}', '\u{fe01}', '\u{ffa0}', '\u{e0100}']
        {
            assert_eq!(safe_text(&format!("tool{hidden}")), format!("tool{}", hidden.escape_unicode()));
        }
        assert!(safe.is_ascii(), "{safe}");
        let before: Result<serde_json::Value, _> = serde_json::from_str(hostile);
        let after: Result<serde_json::Value, _> = serde_json::from_str(&safe);
        assert_eq!(before.ok(), after.ok());
    }

    #[test]
    fn long_json_is_indented_and_keeps_its_numbers() {
        let short = r#"{"a":[1,2.50]}"#;
        assert_eq!(indented(short), short);
        let long = format!(r#"{{"a" : [1e2, {{}}, [ ] ], "s":"{{,:\\\"[", "x":"{}"}}"#, "x".repeat(LINE));
        let text = indented(&long).into_owned();
        assert!(
            text.starts_with("{\n  \"a\": [\n    1e2,\n    {},\n    []\n  ],\n  \"s\": \"{,:\\\\\\\"[\",\n"),
            "{text}"
        );
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        assert_eq!(value(&text), value(&long));
    }

    #[test]
    fn plain_text_shows_control_characters() {
        assert_eq!(safe_text("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb\nc");
        assert_eq!(safe_text("grüße, 世界"), "grüße, 世界");
    }
}
