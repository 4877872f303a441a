//! Strings, keys and declarations as TOML, for people to review.
//! Never writes an invisible character: in names and values it becomes an escape.

use std::fmt::Write as _;

use sealwire::decide::{Param, ParamType};
use sealwire_backend::is_hidden;

/// A basic string.
pub(crate) fn text(value: &str) -> String {
    let mut written = String::with_capacity(value.len() + 2);
    written.push('"');
    for c in value.chars() {
        // Writing to a string cannot fail.
        let _ = match (c, u32::from(c)) {
            ('"' | '\\', _) => write!(written, "\\{c}"),
            ('\n', _) => write!(written, "\\n"),
            (c, code @ ..=0xffff) if is_hidden(c) => write!(written, "\\u{code:04X}"),
            (c, code) if is_hidden(c) => write!(written, "\\U{code:08X}"),
            (c, _) => write!(written, "{c}"),
        };
    }
    written.push('"');
    written
}

/// A key, bare if possible.
pub(crate) fn key(name: &str) -> String {
    let is_bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if is_bare { name.to_owned() } else { text(name) }
}

/// The declaration of a method and its parameters in a policy file.
pub(crate) fn method(name: &str, params: Option<&[Param]>) -> String {
    let mut written = format!("[method.{}]\n", text(name));
    match params {
        None => {}
        Some([]) => written.push_str("params = []\n"),
        Some(params) => {
            written.push_str("params = [\n");
            for declared in params {
                let _ = writeln!(written, "  {},", param(declared));
            }
            written.push_str("]\n");
        }
    }
    written
}

fn param(declared: &Param) -> String {
    let kind = match declared.kind() {
        ParamType::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(param).collect();
            format!("\"object\", fields = [{}]", fields.join(", "))
        }
        kind => format!("\"{kind}\""),
    };
    let optional = if declared.is_optional() { ", optional = true" } else { "" };
    format!("{{ name = {}, type = {kind}{optional} }}", text(declared.name()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;

    #[test]
    fn every_text_is_read_as_it_was_and_nothing_in_it_is_hidden() {
        let all: Vec<char> =
            ('\0'..='\u{33ff}').chain('\u{e000}'..='\u{ffff}').chain('\u{e0000}'..='\u{e0fff}').collect();
        for value in all.chunks(512).map(|chunk| chunk.iter().collect::<String>()) {
            let written = format!("a = {}\n{} = 1\n", text(&value), key(&value));
            assert!(!written.chars().any(is_hidden), "{written}");
            assert_eq!(written.lines().count(), 2, "{written}");
            let read: toml::Table = toml::from_str(&written).unwrap();
            assert_eq!(read["a"].as_str(), Some(value.as_str()));
            assert!(read.contains_key(&value));
        }
    }
}
