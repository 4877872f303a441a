//! Definitions for people: what one says, and what two of them say differently.
//! Never shows a character that cannot be seen as nothing: it is what hides instructions from those who review them.

use serde_json::Value;

/// A text with everything in it that is not seen, or that moves what is seen, as an escape. Ends of lines stay.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// Control characters, and those of Unicode that are default-ignorable or change the direction of what stands around them.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// What two definitions say differently, a line each: the place (a JSON Pointer), and what stood and stands there.
#[must_use]
pub fn differences(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", Some(before), Some(after), &mut lines);
    lines
}

fn compare(place: &str, before: Option<&Value>, after: Option<&Value>, lines: &mut Vec<String>) {
    let below = |name: &str| format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
    match (before, after) {
        (Some(before), Some(after)) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            for (name, value) in before {
                compare(&below(name), Some(value), after.get(name), lines);
            }
            for (name, value) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
                compare(&below(name), None, Some(value), lines);
            }
        }
        _ => {
            let place = shown(place);
            lines.extend(before.map(|value| format!("- {place}: {}", shown(&value.to_string()))));
            lines.extend(after.map(|value| format!("+ {place}: {}", shown(&value.to_string()))));
        }
    }
}
