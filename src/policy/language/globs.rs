//! Texts in which an author probably meant more, or less, than `*` means here.
//! Never changes what a pattern matches.

/// What is doubtful about a pattern in which only `*` has a meaning, and what to write instead.
pub(crate) fn doubt(glob: &str) -> Option<(String, &'static str)> {
    let enclosed = |open: char, close: char| {
        let inner = glob.split_once(open).and_then(|(_, rest)| rest.split_once(close));
        inner.map(|(inner, _)| inner).filter(|inner| !inner.is_empty())
    };
    let list = enclosed('{', '}').is_some_and(|inner| inner.contains(',') || inner.contains(".."));
    let (sign, help) = if glob.contains("**") {
        return Some(("`**` means no more than `*`: any text, `/` included".to_owned(), "write one `*`"));
    } else if enclosed('[', ']').is_some() {
        ("[…]", "write the texts out, with `in`, or a rule for each")
    } else if list {
        ("{…}", "write the texts out, with `in`, or a rule for each")
    } else if glob.starts_with('!') {
        ("!", "to match everything else, write `not_glob`")
    } else if glob.contains('\\') {
        ("\\", "a `*` cannot be escaped: to match the character itself, write `is` or `in`")
    } else if wildcard(glob) {
        ("?", "if it is to stand for one character, write a rule for each, or `*`")
    } else {
        return None;
    };
    Some((format!("`{sign}` stands for itself in a pattern: only `*` has a meaning"), help))
}

/// Whether a `?` could be meant for one character: not where a query begins, as in `/search?q=*`.
fn wildcard(glob: &str) -> bool {
    glob.match_indices('?').any(|(at, _)| {
        let rest = glob.get(at + 1..).unwrap_or_default();
        let name = rest.split_once('=').map(|(name, _)| name).unwrap_or_default();
        name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::doubt;

    #[test]
    fn characters_of_other_glob_languages_are_doubtful() {
        for glob in [
            "a?c",
            "?",
            "acct-[0-9]",
            "[!a]*",
            "{a,b}*",
            "x{1..3}",
            "**",
            "a/**/b",
            "!a*",
            "a\\*",
            "C:\\*",
            "*.t?t",
            "a??",
        ] {
            assert!(doubt(glob).is_some(), "{glob}");
        }
        for glob in
            ["*", "a*b*c", "blocked-*", "", "/search?q=*", "https://x.example/a?id=1&b=*", "a!b", "{id}*", "[]", "a]b["]
        {
            assert!(doubt(glob).is_none(), "{glob}");
        }
    }
}
