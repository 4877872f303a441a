//! Characters that make a file look other than it is read: line ends that only some programs know, texts whose order is
//! turned round, and what nobody sees. A rule that an editor shows below a comment must not be a part of the comment.
//! Never looks at what a file means.

/// Every such character of a policy file: where it is, and what is wrong with it.
pub(crate) fn characters(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    // The byte order mark that some editors write.
    let start = text.len() - text.strip_prefix('\u{feff}').unwrap_or(text).len();
    let mut before = ' ';
    let mut rest = text.get(start..).unwrap_or_default().char_indices().peekable();
    std::iter::from_fn(move || {
        loop {
            let (at, character) = rest.next()?;
            let next = rest.peek().map_or(' ', |(_, next)| *next);
            let why = why(std::mem::replace(&mut before, character), character, next);
            if let Some(why) = why {
                return Some((start + at, format!("has the character U+{:04X}: {why}", u32::from(character))));
            }
        }
    })
}

/// What to do about them.
pub(crate) const HELP: &str = "take it out; in a text, write it as an escape: `\\u2028` in TOML, `\\u{2028}` in Cedar";

fn why(before: char, character: char, next: char) -> Option<&'static str> {
    Some(match character {
        '\n' | '\t' => return None,
        '\r' if next == '\n' => return None,
        '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => "it ends a line for some programs only",
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            "it changes the order in which a text is shown"
        }
        '\u{ad}'
        | '\u{34f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'
        | '\u{2060}'..='\u{2065}'
        | '\u{206a}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e00ff}'
        | '\u{e01f0}'..='\u{e0fff}' => "it cannot be seen",
        // Joiners and selectors have a meaning in other scripts, and in emoji.
        '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}'
            if before.is_ascii() && next != '\u{20e3}' =>
        {
            "it cannot be seen"
        }
        character if character.is_control() => "it is a control character",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::characters;

    #[test]
    fn what_a_reader_cannot_see_is_found_where_it_is() {
        for (text, places) in [
            ("\u{feff}plain\r\ntext\twith ä, ü, 日本, ¯\\_(ツ)_/¯\n", &[][..]),
            ("👩\u{200d}👧 می\u{200c}خواهم ⚠\u{fe0f} 1\u{fe0f}\u{20e3}", &[]),
            // A form of a character in Japanese names.
            ("葛\u{e0100}城", &[]),
            ("a\u{e0100}b 葛\u{e0041}", &[1, 10]),
            ("a\rb", &[1]),
            ("a\u{2028}b\u{85}", &[1, 5]),
            ("a\u{200d}b", &[1]),
            ("x\u{feff}", &[1]),
            ("\u{feff}\u{feff}", &[3]),
            ("\u{202e}\u{200b}\0\u{7f}", &[0, 3, 6, 7]),
        ] {
            assert_eq!(characters(text).map(|(at, _)| at).collect::<Vec<_>>(), places, "{text:?}");
        }
    }
}
