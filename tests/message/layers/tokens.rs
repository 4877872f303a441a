//! The names, imports and paths of a source, without comments, literals and tests.

pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
    /// Follows neither `::` nor a dot.
    pub(super) lone: bool,
}

/// A path in a source. For an import, also the name it has there and whether it is re-exported.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) public: bool,
}

/// Names, `::` and single characters; no comments and no literals.
pub(super) fn lex(text: &str) -> Vec<Token> {
    let (mut tokens, mut rest, mut line) = (Vec::<Token>::new(), text, 1);
    while let Some(first) = rest.chars().next() {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let raw = rest.trim_start_matches(['b', 'c']).strip_prefix('r').map(|raw| raw.trim_start_matches('#'));
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(quoted) = raw.and_then(|raw| raw.strip_prefix('"')) {
            let hashes = rest[..rest.len() - quoted.len()].matches('#').count();
            let end = format!("\"{}", "#".repeat(hashes));
            rest.len() - quoted.len() + quoted.find(&end).unwrap() + end.len()
        } else if first == '"' {
            let mut escaped = true;
            let end = |c: char| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            };
            rest.find(end).unwrap() + 1
        } else if first == '\'' {
            let mut after = rest.char_indices().skip(1);
            match (after.next(), after.next()) {
                (Some((_, '\\')), Some((at, _))) => at + 1 + rest[at + 1..].find('\'').unwrap() + 1,
                (_, Some((at, '\''))) => at + 1,
                _ => 1,
            }
        } else {
            let len = match rest.find(|c| !is_name(c)).unwrap_or(rest.len()) {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                name => name,
            };
            if !first.is_whitespace() {
                let lone = tokens.last().is_none_or(|before| before.text != "::" && before.text != ".");
                tokens.push(Token { text: rest[..len].to_owned(), line, lone });
            }
            len
        };
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    tokens
}

/// The tokens without those that are compiled for tests or documentation only.
pub(super) fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if token.text != "#" {
            kept.push(token);
            continue;
        }
        let mut left_out = false;
        let (mut depth, mut is_cfg) = (0, false);
        for token in tokens.by_ref() {
            is_cfg |= token.text == "cfg";
            left_out |= is_cfg && (token.text == "test" || token.text == "doc");
            depth += i32::from(token.text == "[") - i32::from(token.text == "]");
            if depth == 0 && token.text == "]" {
                break;
            }
        }
        if !left_out {
            continue;
        }
        let mut depth = 0;
        for token in tokens.by_ref() {
            depth += i32::from(token.text == "{") - i32::from(token.text == "}");
            if depth == 0 && [";", "}"].contains(&token.text.as_str()) {
                break;
            }
        }
    }
    kept
}

/// The imports, and the paths elsewhere.
pub(super) fn uses(tokens: &[Token]) -> (Vec<Found>, Vec<Found>) {
    let (mut imports, mut paths, mut at) = (Vec::new(), Vec::new(), 0);
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    while at < tokens.len() {
        let before = at.checked_sub(1).map_or("", text);
        // `use<T>` lists what a future captures.
        if text(at) == "use" && text(at + 1) != "<" {
            at = tree(tokens, at + 1, &[], before == "pub" || before == ")", &mut imports);
        } else if text(at + 1) == "::" && tokens[at].lone && before != "in" {
            let line = tokens[at].line;
            let mut path = vec![text(at).to_owned()];
            while text(at + 1) == "::" && text(at + 2).starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                path.push(text(at + 2).to_owned());
                at += 2;
            }
            paths.push(Found { path, line, name: String::new(), public: false });
        }
        at += 1;
    }
    (imports, paths)
}

/// One tree of an import, from `at` to the token that ends it.
fn tree(tokens: &[Token], mut at: usize, front: &[String], public: bool, found: &mut Vec<Found>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let (line, mut path) = (tokens[at].line, front.to_vec());
    loop {
        match text(at) {
            "::" => at += 1,
            "{" => {
                at += 1;
                while text(at) != "}" {
                    at = tree(tokens, at, &path, public, found);
                    at += usize::from(text(at) == ",");
                }
                return at + 1;
            }
            "as" => {
                found.push(Found { path, line, name: text(at + 1).to_owned(), public });
                return at + 2;
            }
            "," | ";" | "}" => {
                let name = path.last().cloned().unwrap_or_default();
                found.push(Found { path, line, name, public });
                return at;
            }
            "self" if !path.is_empty() => at += 1,
            name => {
                path.push(name.to_owned());
                at += 1;
            }
        }
    }
}

/// The types that have an `impl` of their own here, not of a trait; each as its path.
pub(super) fn implemented(tokens: &[Token]) -> Vec<Vec<String>> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    // Elsewhere, `impl` is the type of an argument or a result.
    let is_item = |at: usize| at.checked_sub(1).is_none_or(|at| ["}", ";", "{", "unsafe"].contains(&text(at)));
    let mut found = Vec::new();
    for start in (0..tokens.len()).filter(|at| text(*at) == "impl" && is_item(*at)) {
        let (mut depth, mut path, mut at) = (0, Vec::new(), start + 1);
        while depth > 0 || !["{", "where", ""].contains(&text(at)) {
            match text(at) {
                "<" => depth += 1,
                ">" if text(at - 1) != "-" => depth -= 1,
                "for" if depth == 0 => {
                    path.clear();
                    break;
                }
                name if depth == 0
                    && name.starts_with(|c: char| c.is_alphabetic())
                    && !["dyn", "mut"].contains(&name) =>
                {
                    path.push(name.to_owned());
                }
                _ => {}
            }
            at += 1;
        }
        found.extend(Some(path).filter(|path| !path.is_empty()));
    }
    found
}
