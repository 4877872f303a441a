//! What a text that is no JSON-RPC message was meant to be: whose answer, and what is wrong with it.
//! Never makes an answer of it: half an answer is useless, but whoever waits for it need not wait any longer.

use std::time::Duration;

use sealwire::RpcError;
use sealwire::internal::rpc::{Id, Limits, ResponseError, Responses};
use serde_json::json;

/// A malformed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Its id, if it has one that can be meant for a number.
    pub(crate) id: Option<u64>,
    /// What is wrong, in words of ours.
    pub(crate) why: &'static str,
    /// Nothing but the id makes it an answer: it may be a line of a log, with a number that some caller has chosen.
    pub(crate) is_doubtful: bool,
}

pub(crate) const NO_JSON: &str = "it is not JSON";
pub(crate) const NO_NUMBER: &str = "it is not JSON, which has no NaN and no Infinity";
pub(crate) const NO_UTF8: &str = "it is not UTF-8";
pub(crate) const UTF16: &str = "it is UTF-16, and not UTF-8";
pub(crate) const NOT_STRICT: &str = "a member is there twice, a string is not Unicode, or it is nested too deeply";
pub(crate) const NO_VERSION: &str = "`jsonrpc` is not \"2.0\"";
pub(crate) const NO_ID: &str = "its id is missing, or null beside a result";
pub(crate) const TEXT_ID: &str = "its id is a string, and not the number that was sent";
pub(crate) const NO_OUTCOME: &str = "it has neither `result` nor `error`, or both";
pub(crate) const NO_ERROR: &str = "its `error` has no whole number as `code`, or no string as `message`";
pub(crate) const OTHER_ID: &str = "it answers what was not asked";
pub(crate) const NO_MEDIA: &str = "its content type is neither JSON nor a stream of events";
pub(crate) const BAD_STATUS: &str = "it has a result, and a status that says that there is none";
pub(crate) const TEXT_AHEAD: &str = "other text is ahead of it on its line";
/// How long a line with text ahead of an answer may be about one that is still to come.
pub(crate) const STILL_TO_COME: Duration = Duration::from_secs(1);
pub(crate) const NO_RESPONSE: &str = "it is no JSON-RPC 2.0 response";

/// The error for a call whose answer cannot be used. The caller learns what is wrong in words of ours; the log gets the cause.
pub(crate) fn unusable(why: &'static str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> RpcError {
    RpcError::dependency(cause).with_data(&json!({ "answer": why }))
}

/// The error for output that is not text.
pub(crate) fn no_text(bytes: &[u8]) -> RpcError {
    let why = if is_utf16(bytes) { UTF16 } else { NO_UTF8 };
    unusable(why, why)
}

/// The number that an id is meant for, if it is the string of one.
pub(crate) fn number_in(id: &Id) -> Option<u64> {
    whole(id.as_json().strip_prefix('"')?.strip_suffix('"')?)
}

/// A whole number, however it is written: some languages have no integers.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let is_exact = |number: &f64| (0.0..9_007_199_254_740_992.0).contains(number) && number.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, and exact in both")]
    text.parse().ok().or_else(|| text.parse().ok().filter(is_exact).map(|number: f64| number as u64))
}

/// The id of the answer that a line ends with, behind other text. It may be an answer, or the line of a log about one that is still to come.
pub(crate) fn behind_text(line: &[u8]) -> Option<u64> {
    let at = line
        .iter()
        .position(|byte| *byte == b'{')
        .filter(|at| !line.get(..*at).unwrap_or_default().trim_ascii().is_empty())?;
    match Responses::parse(line.get(at..)?, &Limits::default()) {
        Ok(Responses::Single(response)) => whole(response.id.as_json()).or_else(|| number_in(&response.id)),
        _ => None,
    }
}

/// What is wrong with a text that [`Responses::parse`](sealwire::internal::rpc::Responses::parse) refuses.
pub(crate) fn fault(text: &[u8], error: &ResponseError) -> &'static str {
    match error {
        ResponseError::Json(_) if is_utf16(text) => UTF16,
        ResponseError::Json(_) => match std::str::from_utf8(text) {
            Err(_) => NO_UTF8,
            Ok(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => NOT_STRICT,
            Ok(_) if Members::of(text).is_some_and(|members| members.no_number) => NO_NUMBER,
            Ok(_) => NO_JSON,
        },
        ResponseError::Version => NO_VERSION,
        ResponseError::Id => NO_ID,
        ResponseError::Outcome => NO_OUTCOME,
        ResponseError::Error => NO_ERROR,
        _ => NO_RESPONSE,
    }
}

/// Reads what can be read of a text that [`Responses::parse`](sealwire::internal::rpc::Responses::parse) refuses; `None` if it is nothing like an
/// answer: a request, a notification, or something that is not for us, such as a line of a log.
pub(crate) fn malformed(text: &[u8], error: &ResponseError) -> Option<Malformed> {
    // Of UTF-16 with ASCII in it, this leaves the ASCII.
    let single: Vec<u8>;
    let readable = if is_utf16(text) {
        single = text.iter().copied().filter(|byte| !matches!(byte, 0 | 0xFE | 0xFF)).collect();
        single.as_slice()
    } else {
        text
    };
    let members = Members::of(readable)?;
    let is_answer = !members.method
        && match members.id {
            // What names a call is meant for it, whatever else it is.
            Some(IdForm::Number(_)) => true,
            Some(IdForm::Text(_)) => members.jsonrpc || members.outcome,
            None => members.outcome && (members.jsonrpc || !members.other),
        };
    if !is_answer {
        return None;
    }
    let is_doubtful = members.other && !members.jsonrpc && !members.outcome;
    Some(match members.id {
        Some(IdForm::Number(id)) => Malformed { id: Some(id), why: fault(text, error), is_doubtful },
        Some(IdForm::Text(id)) => Malformed { id: Some(id), why: TEXT_ID, is_doubtful },
        None => Malformed { id: None, why: fault(text, error), is_doubtful },
    })
}

fn is_utf16(text: &[u8]) -> bool {
    text.contains(&0)
}

/// An id that names a request of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdForm {
    Number(u64),
    Text(u64),
}

/// The members of the first object of a text, as far as they can be told apart: with any quotes, or none.
#[derive(Debug, Default)]
struct Members {
    id: Option<IdForm>,
    jsonrpc: bool,
    method: bool,
    /// `result` or `error`.
    outcome: bool,
    /// Any other member.
    other: bool,
    /// `NaN` or `Infinity`, outside of strings.
    no_number: bool,
}

impl Members {
    /// One pass over the text.
    fn of(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii_start();
        // An array may be a batch.
        let level = match text.first() {
            Some(b'{') => 1,
            Some(b'[') => 2,
            _ => return None,
        };
        let (mut members, mut depth, mut name, mut rest) = (Self::default(), 0_usize, None::<&[u8]>, text);
        while let Some((first, others)) = rest.split_first() {
            match first {
                b'"' | b'\'' => {
                    let (string, behind) = string(*first, others);
                    members.token(depth == level, &mut name, string, true, behind);
                    rest = behind;
                    continue;
                }
                b'{' | b'[' => {
                    depth += 1;
                    name = None;
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    if depth < level {
                        break;
                    }
                }
                b',' if depth == level => name = None,
                byte if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'_' | b'$') => {
                    let is_word =
                        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'_' | b'$' | b'.');
                    let end = rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len());
                    let (word, behind) = rest.split_at(end);
                    members.no_number |=
                        matches!(word.strip_prefix(b"-").unwrap_or(word), b"NaN" | b"nan" | b"Infinity" | b"inf");
                    members.token(depth == level, &mut name, word, false, behind);
                    rest = behind;
                    continue;
                }
                _ => {}
            }
            rest = others;
        }
        Some(members)
    }

    /// Takes a string or a word: the name of a member, or the value of one.
    fn token<'a>(
        &mut self,
        is_ours: bool,
        name: &mut Option<&'a [u8]>,
        token: &'a [u8],
        is_string: bool,
        behind: &[u8],
    ) {
        if !is_ours {
            return;
        }
        match name.take() {
            None if behind.trim_ascii_start().first() == Some(&b':') => {
                *name = Some(token);
                match token {
                    b"jsonrpc" => self.jsonrpc = true,
                    b"method" => self.method = true,
                    b"result" | b"error" => self.outcome = true,
                    b"id" => {}
                    _ => self.other = true,
                }
            }
            Some(b"id") => {
                let number = std::str::from_utf8(token).ok().and_then(whole);
                self.id = number.map(|id| if is_string { IdForm::Text(id) } else { IdForm::Number(id) });
            }
            _ => {}
        }
    }
}

/// A string up to its end, and what follows.
fn string(quote: u8, text: &[u8]) -> (&[u8], &[u8]) {
    let mut is_escaped = false;
    let end = text.iter().position(|byte| {
        let is_end = *byte == quote && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    match end {
        Some(end) => (text.get(..end).unwrap_or_default(), text.get(end + 1..).unwrap_or_default()),
        None => (text, &[]),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::internal::rpc::{Limits, Responses};

    use super::*;

    fn read(text: &[u8]) -> Option<Malformed> {
        malformed(text, &Responses::parse(text, &Limits::default()).unwrap_err())
    }

    fn utf16(text: &str, big: bool) -> Vec<u8> {
        text.encode_utf16().flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
    }

    #[test]
    fn an_answer_shows_whose_it_is_and_what_is_wrong_with_it_whatever_its_form() {
        let number = Some(7);
        for (text, id, why) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":NaN}"#, number, NO_NUMBER),
            (r#"{"jsonrpc":"2.0","id":7,"result":[-Infinity]}"#, number, NO_NUMBER),
            (r#"{"result":{"id":9,"x":Infinity},"jsonrpc":"2.0","id":7}"#, number, NO_NUMBER),
            (r#"{"jsonrpc":"2.0","id":7,"result":"NaN",}"#, number, NO_JSON),
            (r#"{'jsonrpc': '2.0', 'id': 7, 'result': None}"#, number, NO_JSON),
            (r#"{"jsonrpc":"2.0","id":7,"result":True}"#, number, NO_JSON),
            (r#"{jsonrpc:"2.0",id:7,result:1}"#, number, NO_JSON),
            (r#"{"jsonrpc":"2.0","id":7,"result":1} // done"#, number, NO_JSON),
            (r#"{"jsonrpc":"2.0","id":7,"result":1}}"#, number, NO_JSON),
            (r#"{"jsonrpc":"2.0","id":7,"result":"cut o"#, number, NO_JSON),
            (r#"{"jsonrpc":"2.0","id":7,"result":"\ud800"}"#, number, NOT_STRICT),
            (r#"{"jsonrpc":"2.0","id":7,"result":{"a":1,"a":2}}"#, number, NOT_STRICT),
            (r#"{"jsonrpc":"1.0","id":7,"result":1}"#, number, NO_VERSION),
            (r#"{"id":7,"result":1}"#, number, NO_VERSION),
            (r#"{"id":7,"value":1}"#, number, NO_VERSION),
            (r#"{"jsonrpc":"2.0","id":7}"#, number, NO_OUTCOME),
            (r#"{"jsonrpc":"2.0","id":7,"result":1,"error":{"code":1,"message":""}}"#, number, NO_OUTCOME),
            (r#"{"jsonrpc":"2.0","id":7,"error":"no"}"#, number, NO_ERROR),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"code":"1","message":""}}"#, number, NO_ERROR),
            (r#"{"jsonrpc":"2.0","id":"7","result":NaN}"#, number, TEXT_ID),
            (r#"{'id': '7', 'result': 1}"#, number, TEXT_ID),
            (r#"{"jsonrpc":"2.0","id":"7.0","result":NaN}"#, number, TEXT_ID),
            (r#"{"jsonrpc":"2.0","id":7.0,"result":NaN}"#, number, NO_NUMBER),
            (r#"[{"jsonrpc":"2.0","id":7,"result":NaN}]"#, number, NO_NUMBER),
            (r#"{"jsonrpc":"2.0","result":1}"#, None, NO_ID),
            (r#"{"jsonrpc":"2.0","id":[7],"result":1}"#, None, NO_ID),
            (r#"{"jsonrpc":"2.0","id":true,"result":1}"#, None, NO_ID),
            (r#"{"result":1}"#, None, NO_VERSION),
            (r#"{"error":{"code":1,"message":"id"}}"#, None, NO_VERSION),
            (r#"{'error': 'no'}"#, None, NO_JSON),
        ] {
            let is_doubtful = text == r#"{"id":7,"value":1}"#;
            assert_eq!(read(text.as_bytes()), Some(Malformed { id, why, is_doubtful }), "{text}");
        }
        assert_eq!(
            read(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"\xff\"}"),
            Some(Malformed { id: number, why: NO_UTF8, is_doubtful: false })
        );
        let good = r#"{"jsonrpc":"2.0","id":7,"result":"e"}"#;
        for text in [
            utf16(good, false),
            utf16(good, true),
            utf16(&format!("\u{feff}{good}"), false),
            utf16(&format!("\u{feff}{good}"), true),
        ] {
            assert_eq!(read(&text), Some(Malformed { id: number, why: UTF16, is_doubtful: false }), "{text:?}");
        }
    }

    #[test]
    fn an_answer_behind_other_text_is_found_and_nothing_else() {
        for (line, id) in [
            (r#"INFO {"jsonrpc":"2.0","id":7,"result":1}"#, Some(7)),
            (r#"> {"jsonrpc":"2.0","id":"7.0","error":{"code":1,"message":""}}"#, Some(7)),
            (r#"[debug] {"jsonrpc":"2.0","id":7.0,"result":{}}"#, Some(7)),
            (r#"{"jsonrpc":"2.0","id":7,"result":1}"#, None),
            (r#"  {"jsonrpc":"2.0","id":7,"result":1}"#, None),
            (r#"INFO {"jsonrpc":"2.0","id":7,"method":"x"}"#, None),
            (r#"INFO {"id":7}"#, None),
            (r#"INFO {"jsonrpc":"2.0","id":7,"result":1} sent"#, None),
            ("INFO {", None),
            ("", None),
        ] {
            assert_eq!(behind_text(line.as_bytes()), id, "{line}");
        }
        for (text, number) in [
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("7e0", Some(7)),
            ("7.5", None),
            ("-7", None),
            ("x", None),
            ("1e300", None),
        ] {
            assert_eq!(whole(text), number, "{text}");
        }
    }

    #[test]
    fn a_message_that_is_no_answer_is_nobodys() {
        for text in [
            "listening on 127.0.0.1:8000",
            "",
            "NaN",
            "7",
            "[1, 2]",
            "[]",
            "{}",
            r#"{"jsonrpc":"2.0"}"#,
            r#"{"id":"7","level":1}"#,
            r#"{"level":"error","error":"id 7 is unknown"}"#,
            r#"{"level":"info","msg":"result: 7"}"#,
            r#"{"jsonrpc":"2.0","method":"x","id":7,"params":NaN}"#,
            r#"{"jsonrpc":"2.0","method":"x","params":{"id":7,"result":NaN}}"#,
            r#"{'method': 'x', 'id': 7}"#,
        ] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    // Whatever a peer sends, it is read once, and nothing of it panics.
    #[test]
    fn any_bytes_are_read() {
        let mut state = 1_u64;
        let alphabet = b"{}[]:,\"'\\ \n\0id7result_-.\xff\xc2";
        for _ in 0..20_000 {
            let mut text = Vec::new();
            for _ in 0..16 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = usize::try_from(state >> 33).unwrap() % alphabet.len();
                text.push(*alphabet.get(at).unwrap());
            }
            if let Err(error) = Responses::parse(&text, &Limits::default()) {
                malformed(&text, &error);
            }
        }
    }
}
