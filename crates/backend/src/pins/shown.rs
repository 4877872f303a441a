//! Shows definitions to people: what one says, and what differs between two.
//! Never leaves an invisible character invisible: such characters hide instructions from reviewers.

use crate::exact;

/// A text in which everything that is invisible, or that moves visible text, is an escape. Line breaks stay.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// Whether a character is a control character, or a Unicode character that is default-ignorable or changes the direction of the text around
/// it.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A definition for people, on lines of its own.
#[must_use]
pub fn whole(definition: &str) -> String {
    shown(&exact::lines(definition).unwrap_or_default())
}

/// What differs between two definitions, one line each: the place (a JSON Pointer), and the value before or after. Numbers that are written
/// in two ways differ.
#[must_use]
pub fn differences(before: &str, after: &str) -> Vec<String> {
    let differing = exact::differences(before, after).unwrap_or_default();
    differing.into_iter().map(|(sign, place, value)| format!("{sign} {}: {}", shown(&place), shown(&value))).collect()
}
