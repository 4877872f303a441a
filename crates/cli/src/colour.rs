//! Colours on a terminal, for the words that readers look for first: verdicts and errors.
//! Never uses colour in a pipe or file, with NO_COLOR, or on a terminal without it; and never passes on a colour in a text.

use std::fmt::Write as _;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};

/// Whether a stream shows colours, by the same rule as for clap's help.
pub(crate) fn shown_on(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";
const BOLD_RED: &str = "1;31";
const FAINT: &str = "2";

/// The coloured words, at the beginning of a line or after `: `.
const WORDS: [(&str, &str); 17] = [
    ("allow", GREEN),
    ("allowed", GREEN),
    ("yes", GREEN),
    ("ok", GREEN),
    ("conditional", YELLOW),
    ("if", YELLOW),
    ("warning", YELLOW),
    ("deny", RED),
    ("denied", RED),
    ("no", RED),
    ("error", BOLD_RED),
    ("fail", BOLD_RED),
    ("FAIL", BOLD_RED),
    ("skip", FAINT),
    ("help", GREEN),
    ("cause", YELLOW),
    ("?", YELLOW),
];

/// The text of a verdict or an error with these words in colour. Everything else stays as it is.
pub(crate) fn painted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        paint_line(&mut out, line);
        out.push_str(end);
    }
    out
}

fn paint_line(out: &mut String, line: &str) {
    let content = line.trim_start();
    out.push_str(line.get(..line.len() - content.len()).unwrap_or_default());
    match content.split_once(' ').map(|(sign, _)| sign) {
        Some("+") => return paint(out, GREEN, content),
        Some("-") => return paint(out, RED, content),
        _ => {}
    }
    // The last line of `policy test`.
    if let Some((cases, rest)) = content.split_once(" cases, ") {
        let colour = if rest.starts_with("0 failed") { GREEN } else { RED };
        return paint(out, colour, &format!("{cases} cases, {rest}"));
    }
    // A row of the matrix: cells separated by two or more spaces.
    if content.split("  ").skip(1).map(str::trim).all(is_cell) && content.contains("  ") {
        let mut words = content.split(' ');
        out.push_str(words.next().unwrap_or_default());
        for word in words {
            out.push(' ');
            paint_word(out, word);
        }
        return;
    }
    // `bank.toml:13: error: …`, `for planner: deny: …`, `allow: allowed by …`
    for (position, part) in content.split(": ").enumerate() {
        if position > 0 {
            out.push_str(": ");
        }
        // Later parts are quoted, and may be anything.
        match part.split_once(' ') {
            _ if position > 1 => out.push_str(part),
            Some((word, rest)) if position == 0 => {
                paint_word(out, word);
                out.push(' ');
                out.push_str(rest);
            }
            _ => paint_word(out, part),
        }
    }
}

fn is_cell(cell: &str) -> bool {
    matches!(cell, "" | "yes" | "if" | "-")
}

fn paint_word(out: &mut String, word: &str) {
    match WORDS.iter().find(|(known, _)| *known == word) {
        Some((_, colour)) => paint(out, colour, word),
        None => out.push_str(word),
    }
}

fn paint(out: &mut String, colour: &str, text: &str) {
    // Writing to a string cannot fail.
    let _ = write!(out, "\x1b[{colour}m{text}\x1b[0m");
}

#[cfg(test)]
mod tests {
    use super::painted;

    fn marked(text: &str) -> String {
        let marks =
            [("\x1b[32m", "<g "), ("\x1b[33m", "<y "), ("\x1b[31m", "<r "), ("\x1b[1;31m", "<R "), ("\x1b[0m", ">")];
        marks.iter().fold(painted(text), |text, (code, mark)| text.replace(code, mark))
    }

    #[test]
    fn verdicts_stand_out_and_what_is_quoted_does_not() {
        for (plain, colour) in [
            ("allow: allowed by `x`", "<g allow>: allowed by `x`"),
            ("for planner: deny: no rule allows it", "for planner: <r deny>: no rule allows it"),
            ("  deny rule `error: no` (a.toml:1) fails", "  <r deny> rule `error: no` (a.toml:1) fails"),
            ("    yes  `to` is `no`", "    <g yes>  `to` is `no`"),
            ("    fail `to`: parameter `to` is missing", "    <R fail> `to`: parameter `to` is missing"),
            ("bank.toml:13: error: unknown key `deny`", "bank.toml:13: <R error>: unknown key `deny`"),
            ("error: deny: yes", "<R error>: <r deny>: yes"),
            (
                "FAIL night (a.toml:3)\n- expected deny\n+ allow",
                "<R FAIL> night (a.toml:3)\n<r - expected deny>\n<g + allow>",
            ),
            ("no       yes  if  -", "no       <g yes>  <y if>  -"),
            ("math/add  -    yes", "math/add  -    <g yes>"),
            ("method    anyone  role no", "method    anyone  role no"),
            ("33 cases, 0 failed; 1 of 2 rules", "<g 33 cases, 0 failed; 1 of 2 rules>"),
            ("1 cases, 1 failed", "<r 1 cases, 1 failed>"),
            ("1 calls: 1 would", "1 calls: 1 would"),
            ("", ""),
        ] {
            assert_eq!(marked(plain), colour, "{plain}");
        }
    }
}
