//! Which module may use which, read from the sources: imports and paths, without comments, string literals and tests.
//!
//! A name counts as a use of the file that defines it, whichever module re-exports it. A re-export from a module's own
//! submodule does not count as a use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Each module of the crate, and which others it may use.
const MODULES: &[(&str, &str)] = &[
    ("name", ""),
    ("clock", ""),
    ("log_limiter", ""),
    ("jose", ""),
    ("strict_json", ""),
    ("fault", ""),
    ("files", ""),
    ("tls", ""),
    ("address", "name"),
    ("nats", "files jose name tls"),
    ("wire", "jose name nats"),
    ("rpc", "strict_json"),
    ("auth", "address clock fault files jose name nats strict_json tls wire"),
    ("policy", "auth files name wire"),
    ("client", "auth clock fault files jose log_limiter name nats rpc strict_json wire"),
    ("service", "auth clock files jose log_limiter name nats policy rpc wire"),
    ("config", "auth clock fault files name nats policy rpc service wire"),
];

/// The same for the submodules of the largest modules. `.` is the module's own file.
const ROOMS: &[(&str, &[(&str, &str)])] = &[
    (
        "auth",
        &[
            (".", ""),
            ("caller", ""),
            ("keyring", ""),
            ("outcomes", ""),
            ("replay", "outcomes"),
            ("servicekey", ""),
            ("token", "caller"),
            ("verify_limiter", ""),
            ("verifier", "caller keyring replay token verify_limiter"),
        ],
    ),
    (
        "client",
        &[
            ("token", ""),
            ("credentials", "token"),
            ("error", "credentials token"),
            ("answer", "error"),
            ("places", "error"),
            ("stream_options", ""),
            ("sent", ""),
            ("trace", ""),
            ("observe", "answer error"),
            ("attachment", "stream_options"),
            ("known_service", "credentials error"),
            ("incoming", "answer error"),
            ("pending", "answer error incoming known_service sent token"),
            ("link", "credentials error pending"),
            (".", "credentials error known_service link pending places token"),
            ("control", ". link pending"),
            ("stop_signal", ". answer control error pending"),
            (
                "exchange",
                ". answer control error incoming known_service link observe pending sent stop_signal token trace",
            ),
            ("request", ". answer attachment error exchange observe sent stop_signal stream_options token trace"),
            ("batch", ". answer error request"),
            (
                "stream",
                ". answer attachment control error exchange incoming observe pending places request sent stop_signal stream_options",
            ),
            ("catalogue", ". error request stream"),
        ],
    ),
    (
        "policy",
        &[
            (".", ""),
            ("model", ""),
            ("cedar", "model"),
            ("language", "cedar model"),
            ("engine", "cedar language model"),
            ("explain", "cedar engine language model"),
            ("tools", "cedar engine explain language model"),
        ],
    ),
    (
        "service",
        &[
            ("answers", ""),
            ("shares", ""),
            ("streams", "shares"),
            ("parts", "streams"),
            ("attachment", "parts streams"),
            ("calls", "attachment streams"),
            ("description", ""),
            ("catalogue", "description"),
            ("counters", ""),
            ("fair", ""),
            ("semaphore", "fair"),
            ("idempotency", "calls"),
            ("metadata", ""),
            ("quota", "shares"),
            ("authorize", "calls"),
            ("methods", "authorize"),
            ("builtin", "authorize catalogue"),
            ("refusal", "calls idempotency quota streams"),
            ("replicas", "metadata"),
            ("topic", "streams"),
            ("router", "attachment authorize calls catalogue description idempotency methods parts streams topic"),
            (
                ".",
                "answers attachment authorize builtin calls catalogue counters description idempotency methods quota refusal shares streams",
            ),
            ("builder", ". attachment authorize builtin catalogue counters idempotency methods quota router streams"),
            ("control", ". streams"),
            ("serve", ". control counters fair metadata replicas streams"),
        ],
    ),
];

/// What only services need. A program that only calls must not have to compile it.
const NOT_FOR_CLIENTS: &[&str] = &["cedar_policy", "governor", "hyper", "jetstream", "jsonwebtoken", "moka", "tower"];

#[test]
fn modules_use_each_other_as_the_table_says() {
    let wrong = Sources::read().against(MODULES, |module| module.first().cloned());
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn rooms_use_each_other_as_the_table_says() {
    let sources = Sources::read();
    for (module, rooms) in ROOMS {
        let wrong = sources.against(rooms, |path| {
            (path.first()? == module).then(|| path.get(1).map_or_else(|| ".".to_owned(), String::clone))
        });
        assert!(wrong.is_empty(), "\n{wrong}");
    }
}

#[test]
fn files_do_not_use_each_other_in_a_circle() {
    let sources = Sources::read();
    for start in sources.uses.keys() {
        let way = sources.way(start, start);
        assert!(way.is_none(), "\n{}", way.unwrap_or_default());
    }
}

#[test]
fn clients_need_nothing_that_only_services_need() {
    let sources = Sources::read();
    let reached: BTreeSet<_> =
        sources.uses.keys().filter(|file| file[0] == "client").flat_map(|file| sources.reached(file)).collect();
    assert!(reached.len() > 20, "{reached:?}");
    for file in reached {
        for token in &sources.files[&file].tokens {
            let shown = sources.files[&file].path.display();
            assert!(!NOT_FOR_CLIENTS.contains(&token.text.as_str()), "{shown}:{}: `{}`", token.line, token.text);
        }
    }
}

#[test]
fn the_reader_finds_what_a_source_uses() {
    let text = "//! use crate::comment::No;\nuse crate::a::{self, B as C, d::{E}};\npub(in crate::x) fn f() { C::g(); super::h::i() }\n\
                const T: &str = \"crate::text::No\"; const Q: char = '\"'; fn g<'a>(_: &'a str) {}\n\
                #[cfg(test)]\nmod tests { use crate::test::No; }\nuse crate::last::One;\n";
    let tokens = without_tests(lex(text));
    let (imports, paths) = uses(&tokens);
    let imported: Vec<_> =
        imports.iter().map(|found| format!("{} {} {}", found.line, found.name, found.path.join("::"))).collect();
    assert_eq!(imported, ["2 a crate::a", "2 C crate::a::B", "2 E crate::a::d::E", "7 One crate::last::One"]);
    let named: Vec<_> = paths.iter().map(|found| format!("{} {}", found.line, found.path.join("::"))).collect();
    assert_eq!(named, ["3 C::g", "3 super::h::i"]);
}

/// The path of a module from the crate's root, which is the empty path.
type Module = Vec<String>;

struct Sources {
    files: BTreeMap<Module, File>,
    /// What each file uses, and the line.
    uses: BTreeMap<Module, BTreeMap<Module, usize>>,
}

struct File {
    path: PathBuf,
    tokens: Vec<Token>,
    imports: Vec<Found>,
    paths: Vec<Found>,
}

impl Sources {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = BTreeMap::new();
        for path in sealwire_testkit::files_below(&root) {
            let below = path.strip_prefix(&root).unwrap().with_extension("");
            let module: Module = below.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
            if module.last().is_some_and(|name| name != "tests") && module != ["lib"] {
                let tokens = without_tests(lex(&std::fs::read_to_string(&path).unwrap()));
                let (imports, paths) = uses(&tokens);
                let path = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_owned();
                files.insert(module, File { path, tokens, imports, paths });
            }
        }
        assert!(files.len() > 100, "{} files", files.len());
        let mut sources = Self { files, uses: BTreeMap::new() };
        sources.uses = sources.files.iter().map(|(module, file)| (module.clone(), sources.of(module, file))).collect();
        sources
    }

    fn of(&self, module: &Module, file: &File) -> BTreeMap<Module, usize> {
        let re_exported = |found: &&Found| {
            found.public
                && self.absolute(module, &found.path).is_some_and(|path| {
                    path.starts_with(module)
                        && !file.paths.iter().any(|used| used.path[0] == found.name)
                        && !file
                            .tokens
                            .iter()
                            .any(|token| token.lone && token.text == found.name && token.line > found.line)
                })
        };
        let imports = file.imports.iter().filter(|found| !re_exported(found));
        let mut used = BTreeMap::new();
        for found in imports.chain(&file.paths) {
            let target = self.absolute(module, &found.path).and_then(|path| self.definition(path, 0));
            if let Some(target) = target.filter(|target| target != module) {
                used.entry(target).or_insert(found.line);
            }
        }
        used
    }

    /// A path as seen from the root; `None` if it leads out of the crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let (head, rest) = path.split_first()?;
        let mut from = match head.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len() - 1].to_vec(),
            name => {
                let child = [module.as_slice(), &[name.to_owned()]].concat();
                if self.files.contains_key(&child) {
                    child
                } else {
                    let import = self.files[module].imports.iter().find(|import| import.name == name)?;
                    (import.path[0] != *name).then(|| self.absolute(module, &import.path))??
                }
            }
        };
        for name in rest {
            if name == "super" {
                from.pop();
            } else {
                from.push(name.clone());
            }
        }
        Some(from)
    }

    /// The file in which the last name of a path is defined.
    fn definition(&self, path: Module, depth: usize) -> Option<Module> {
        let file = (1..=path.len()).rev().map(|len| &path[..len]).find(|front| self.files.contains_key(*front))?;
        let rest = &path[file.len()..];
        let import = rest.first().and_then(|name| self.files[file].imports.iter().find(|import| import.name == *name));
        match import.and_then(|import| self.absolute(&file.to_vec(), &import.path)) {
            Some(further) if depth < 8 && !further.starts_with(&path) => {
                self.definition([further.as_slice(), &rest[1..]].concat(), depth + 1)
            }
            _ => Some(file.to_vec()),
        }
    }

    /// Every use that the table does not allow, and every part that the table lacks.
    fn against(&self, table: &[(&str, &str)], part: impl Fn(&Module) -> Option<String>) -> String {
        let mut wrong = String::new();
        for (module, uses) in &self.uses {
            let Some(from) = part(module) else { continue };
            let path = self.files[module].path.display();
            let Some((_, may)) = table.iter().find(|(name, _)| *name == from) else {
                writeln!(wrong, "{path}: `{from}` is not in the table").unwrap();
                continue;
            };
            for (to, line) in uses.iter().filter_map(|(used, line)| Some((part(used)?, line))) {
                if to != from && !may.split(' ').any(|may| may == to) {
                    writeln!(wrong, "{path}:{line}: `{from}` must not use `{to}`").unwrap();
                }
            }
        }
        wrong
    }

    /// All files that a file uses, directly or indirectly, including itself.
    fn reached(&self, from: &Module) -> BTreeSet<Module> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(next) = open.pop() {
            if reached.insert(next.clone()) {
                open.extend(self.uses[&next].keys().cloned());
            }
        }
        reached
    }

    /// The chain of uses that leads from one file to another, if there is one.
    fn way(&self, from: &Module, to: &Module) -> Option<String> {
        let (mut before, mut open) = (BTreeMap::new(), vec![from]);
        while let Some(next) = open.pop() {
            for (used, line) in &self.uses[next] {
                if !before.contains_key(used) {
                    before.insert(used, (next, line));
                    open.push(used);
                }
            }
        }
        let mut way = String::new();
        let mut at = to;
        while let Some((user, line)) = before.get(at) {
            writeln!(way, "{}:{line}: uses `{}`", self.files[*user].path.display(), at.join("::")).unwrap();
            at = user;
            if at == from {
                return Some(way);
            }
        }
        None
    }
}

struct Token {
    text: String,
    line: usize,
    /// Follows neither `::` nor a dot.
    lone: bool,
}

/// A path in a source. For an import, also the name it has there and whether it is re-exported.
#[derive(Clone)]
struct Found {
    path: Vec<String>,
    line: usize,
    name: String,
    public: bool,
}

/// Names, `::` and single characters; no comments and no literals.
fn lex(text: &str) -> Vec<Token> {
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
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
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
fn uses(tokens: &[Token]) -> (Vec<Found>, Vec<Found>) {
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
