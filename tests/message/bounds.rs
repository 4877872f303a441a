//! docs/bounds.md against the sources: every bound has the number and the unit that the program goes by.
//! Never counts a bound as compared unless its constant was found and evaluated.

use std::fmt::Write as _;

use sealwire_testkit::root;

/// How many bounds of the page are compared at least, and how many are no constants: none leaves the comparison unnoticed.
const COMPARED: usize = 240;
const NOT_CONSTANTS: usize = 64;

#[test]
fn bounds_on_the_page_are_those_of_the_sources() {
    let page = std::fs::read_to_string(root().join("docs/bounds.md")).unwrap();
    let (mut compared, mut not_constants, mut wrong) = (0, 0, String::new());
    for row in rows(&page) {
        let (bounds, mut file) = (parts(&row.bound), None);
        let constants = parts(&row.constant);
        if bounds.len() != constants.len() {
            writeln!(wrong, "{}: as many bounds as constants, please", row.line).unwrap();
        }
        for cell in &row.others {
            let is_status = |number: &str| number.len() == 3 && number.starts_with(['4', '5']);
            if let Some((number, _)) = numbers(cell).iter().find(|(number, _)| !is_status(number)) {
                writeln!(wrong, "{}: nothing checks the number {number} in `{cell}`", row.line).unwrap();
            }
        }
        for (bound, constant) in bounds.iter().zip(&constants) {
            if constant.starts_with("none: ") {
                not_constants += 1;
                continue;
            }
            let name = constant.trim_matches('`');
            let (path, name) = name.split_once(": ").map_or((file, name), |(path, name)| (Some(path), name));
            file = path;
            match (Bound::read(bound), path.and_then(|path| Source::read(path)?.value(name))) {
                (Some(stated), Some(found)) if found.is(&stated, name) => compared += 1,
                (stated, found) => {
                    writeln!(wrong, "{}: `{bound}` is {stated:?}, `{constant}` is {found:?}", row.line).unwrap();
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(compared >= COMPARED, "{compared}");
    assert_eq!(not_constants, NOT_CONSTANTS);
}

struct Row {
    /// On the page, from 1.
    line: usize,
    bound: String,
    constant: String,
    /// What it bounds, and what happens when it is full.
    others: Vec<String>,
}

/// The rows of all tables. Each table has the columns `bound` and `constant`.
fn rows(page: &str) -> Vec<Row> {
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let (mut heading, mut rows) = (None::<Vec<String>>, Vec::new());
    for (number, line) in page.lines().enumerate() {
        match &heading {
            _ if !line.starts_with('|') => heading = None,
            None => heading = Some(cells(line)),
            Some(_) if line.starts_with("|---") => {}
            Some(heading) => {
                let mut cells = cells(line);
                assert_eq!(cells.len(), heading.len(), "docs/bounds.md:{}", number + 1);
                assert_eq!((heading[1].as_str(), heading[3].as_str()), ("bound", "constant"));
                let (constant, bound) = (cells.remove(3), cells.remove(1));
                rows.push(Row { line: number + 1, bound, constant, others: cells });
            }
        }
    }
    rows
}

fn parts(cell: &str) -> Vec<&str> {
    cell.split("; ").collect()
}

/// The words that are numbers, each with the word after it, outside code. The number of an RFC is a name.
fn numbers(text: &str) -> Vec<(String, String)> {
    let text: String = text.split('`').step_by(2).collect::<Vec<_>>().join("` ");
    let words: Vec<_> = text.split_whitespace().map(|word| word.trim_matches([',', '.', '(', ')', ':', ';'])).collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let is_number = word.starts_with(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_digit() || c == ',' || c == '.');
        if is_number && (at == 0 || words[at - 1] != "RFC") {
            found.push((word.replace(',', ""), (*words.get(at + 1).unwrap_or(&"")).to_owned()));
        }
    }
    found
}

/// A number with its unit, in bytes or microseconds if it has one.
#[derive(Debug, PartialEq)]
enum Bound {
    Number(u128),
    Bytes(u128),
    Time(u128),
}

impl Bound {
    /// The one number of a part of a cell.
    fn read(part: &str) -> Option<Self> {
        let numbers = numbers(part);
        let [(number, unit)] = numbers.as_slice() else { return None };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let times = |factor: u128| {
            let all = digits * factor;
            let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
            all.is_multiple_of(scale).then_some(all / scale)
        };
        Some(match unit.as_str() {
            "KiB" => Self::Bytes(times(1 << 10)?),
            "MiB" => Self::Bytes(times(1 << 20)?),
            "ms" => Self::Time(times(1_000)?),
            "s" => Self::Time(times(1_000_000)?),
            "minutes" => Self::Time(times(60_000_000)?),
            "days" => Self::Time(times(86_400_000_000)?),
            _ => Self::Number(times(1)?),
        })
    }
}

/// What a constant amounts to: a time in microseconds.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Number(u128),
    Time(u128),
    Tuple(Vec<Value>),
}

impl Value {
    /// Whether it is this bound. A plain number has the unit that its name ends with.
    fn is(&self, bound: &Bound, name: &str) -> bool {
        let name = name.trim_end_matches("()").to_uppercase();
        match (self, bound) {
            (Self::Time(found), Bound::Time(stated)) => found == stated,
            (Self::Number(found), Bound::Time(stated)) => {
                let unit = if name.ends_with("_MS") { 1_000 } else { 1_000_000 };
                (name.ends_with("_MS") || name.ends_with("_S")) && found * unit == *stated
            }
            (Self::Number(found), Bound::Bytes(stated)) if name.ends_with("_MIB") => found << 20 == *stated,
            (Self::Number(found), Bound::Bytes(stated) | Bound::Number(stated)) => {
                !["_MS", "_S", "_MIB"].iter().any(|unit| name.ends_with(unit)) && found == stated
            }
            _ => false,
        }
    }
}

/// A file without its comments and tests.
struct Source {
    code: String,
}

impl Source {
    fn read(path: &str) -> Option<Self> {
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        let code = text.split("#[cfg(test)]\nmod ").next()?;
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = lines.map(|line| line.split(" // ").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
        Some(Self { code })
    }

    /// What `NAME`, `NAME.0`, `name()` or `Type.field` stands for, if exactly one place says so.
    fn value(&self, name: &str) -> Option<Value> {
        if let Some(name) = name.strip_suffix("()") {
            let body = only(self.after(&format!("fn {name}()")))?.split_once('{')?.1;
            return self.evaluate(body, &["}"]);
        }
        let Some((owner, member)) = name.split_once('.') else { return self.constant(name) };
        if let Ok(index) = member.parse::<usize>() {
            let Value::Tuple(values) = self.constant(owner)? else { return None };
            return values.get(index).cloned();
        }
        only(self.after(&format!("struct {owner}")))?;
        let usual = only(self.after(&format!("impl Default for {owner}"))).and_then(|rest| rest.split("\n}").next());
        let initialized = Self { code: usual.unwrap_or(&self.code).to_owned() };
        // The declaration of a field has a type where an initializer has a value.
        let fields = initialized.after(&format!("{member}:")).into_iter();
        only(fields.filter_map(|rest| self.evaluate(rest, &[",", "}"])).collect())
    }

    fn constant(&self, name: &str) -> Option<Value> {
        let value = only(self.after(&format!("const {name}:")))?.split_once('=')?.1;
        self.evaluate(value, &[";"])
    }

    /// What follows each place where these words stand.
    fn after(&self, words: &str) -> Vec<&str> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let found = self.code.match_indices(words).filter_map(|(at, _)| {
            let (before, rest) = (&self.code[..at], &self.code[at + words.len()..]);
            let is_whole = !before.ends_with(is_name) && (words.ends_with(':') || !rest.starts_with(is_name));
            is_whole.then_some(rest)
        });
        found.collect()
    }

    /// The value of an expression that ends with one of these.
    fn evaluate(&self, text: &str, ends: &[&str]) -> Option<Value> {
        let mut expression = Expression { source: self, tokens: tokens(text), at: 0 };
        let value = expression.shifts()?;
        ends.contains(&expression.peek()).then_some(value)
    }
}

fn only<T>(mut all: Vec<T>) -> Option<T> {
    all.pop().filter(|_| all.is_empty())
}

/// Names and numbers, `::`, `<<`, and single characters.
fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim_start());
    // The expressions that can be evaluated are short.
    while let Some(first) = rest.chars().next().filter(|_| tokens.len() < 64) {
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let pair = ["::", "<<"].iter().any(|pair| rest.starts_with(pair));
        let length = if word > 0 {
            word
        } else if pair {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// Arithmetic with Rust's precedence, on numbers, times and other constants. Anything else is no value.
struct Expression<'a> {
    source: &'a Source,
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Expression<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn take(&mut self, token: &str) -> bool {
        let is_next = self.peek() == token;
        self.at += usize::from(is_next);
        is_next
    }

    fn shifts(&mut self) -> Option<Value> {
        let mut left = self.sums()?;
        while self.take("<<") {
            left = numbers_only(left, self.sums()?, |a, b| a.checked_shl(u32::try_from(b).ok()?))?;
        }
        Some(left)
    }

    fn sums(&mut self) -> Option<Value> {
        let mut left = self.products()?;
        loop {
            left = match self.peek() {
                "+" => self.apply(left, Self::products, u128::checked_add)?,
                "-" => self.apply(left, Self::products, u128::checked_sub)?,
                _ => return Some(left),
            }
        }
    }

    fn products(&mut self) -> Option<Value> {
        let mut left = self.primary()?;
        loop {
            left = match self.peek() {
                "*" => self.apply(left, Self::primary, u128::checked_mul)?,
                "/" => self.apply(left, Self::primary, u128::checked_div)?,
                _ => return Some(left),
            }
        }
    }

    fn apply(
        &mut self,
        left: Value,
        right: fn(&mut Self) -> Option<Value>,
        operation: fn(u128, u128) -> Option<u128>,
    ) -> Option<Value> {
        self.at += 1;
        numbers_only(left, right(self)?, operation)
    }

    fn primary(&mut self) -> Option<Value> {
        if self.take("(") {
            let mut all = vec![self.shifts()?];
            while self.take(",") && self.peek() != ")" {
                all.push(self.shifts()?);
            }
            if !self.take(")") {
                return None;
            }
            return if all.len() == 1 { all.pop() } else { Some(Value::Tuple(all)) };
        }
        let token = self.peek();
        self.at += 1;
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            return number(token).map(Value::Number);
        }
        if !token.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let mut path = vec![token];
        while self.take("::") {
            path.push(self.peek());
            self.at += 1;
        }
        let name = *path.last()?;
        if self.take("(") {
            let micros = match path.as_slice() {
                [.., "Duration", "from_secs"] => 1_000_000,
                [.., "Duration", "from_millis"] => 1_000,
                [.., "Duration", "from_micros"] => 1,
                _ => return None,
            };
            let Value::Number(number) = self.shifts()? else { return None };
            return self.take(")").then_some(Value::Time(number * micros));
        }
        // Another constant of the file; a constant of another file has to be named by itself.
        matches!(path.as_slice(), [_] | ["Self", _]).then(|| self.source.constant(name))?
    }
}

fn numbers_only(left: Value, right: Value, operation: impl FnOnce(u128, u128) -> Option<u128>) -> Option<Value> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => operation(left, right).map(Value::Number),
        _ => None,
    }
}

fn number(token: &str) -> Option<u128> {
    let digits = token.replace('_', "");
    let digits = ["usize", "u128", "u64", "u32", "u16", "u8", "i64", "i32"]
        .iter()
        .find_map(|kind| digits.strip_suffix(kind))
        .unwrap_or(&digits);
    digits.strip_prefix("0x").map_or_else(|| digits.parse().ok(), |hex| u128::from_str_radix(hex, 16).ok())
}

#[test]
fn constants_are_evaluated_as_the_compiler_does() {
    let code = "const A: usize = 1_024 * 2 + 1 << 10;\n pub(super) const B: Duration = Duration::from_secs(7 * 24 * 3_600);\n\
                const C: (usize, u64) = (32, 4 << 20);\n const D: u64 = Self::E - 4;\n const E: u64 = 10_u64;\n\
                const TWICE: u8 = 1;\n fn f() { const TWICE: u8 = 2; }\n const CALL: u32 = NonZero::MIN.get();\n\
                struct Limits { queue: usize, own: u32 }\n impl Default for Limits { fn default() -> Self { Self { queue: 4_096, own: x } } }\n\
                fn drain_s() -> u64 {\n    30\n}";
    let source = Source { code: code.to_owned() };
    let value = |name: &str| source.value(name);
    assert_eq!(value("A"), Some(Value::Number((1_024 * 2 + 1) << 10)));
    assert_eq!(value("B"), Some(Value::Time(604_800_000_000)));
    assert_eq!((value("C.0"), value("C.1")), (Some(Value::Number(32)), Some(Value::Number(4 << 20))));
    assert_eq!((value("D"), value("Limits.queue")), (Some(Value::Number(6)), Some(Value::Number(4_096))));
    assert_eq!(value("drain_s()"), Some(Value::Number(30)));
    for unknown in ["TWICE", "CALL", "F", "C.2", "A.0", "Limits.own", "Limit.queue", "drain()"] {
        assert_eq!(value(unknown), None, "{unknown}");
    }
}

#[test]
fn bounds_are_read_with_their_units() {
    assert_eq!(Bound::read("1,024 frames at most"), Some(Bound::Number(1_024)));
    assert_eq!(Bound::read("64 MiB (`limits.queue_bytes`), shared"), Some(Bound::Bytes(64 << 20)));
    assert_eq!(Bound::read("doubled up to 3.2 s"), Some(Bound::Time(3_200_000)));
    assert_eq!((Bound::read("2 times 3"), Bound::read("`2`"), Bound::read("many")), (None, None, None));
    assert_eq!(numbers("closed, `23`, RFC 9113 §8.1"), []);
    let is = |value: Value, name: &str, bound: &str| value.is(&Bound::read(bound).unwrap(), name);
    assert!(is(Value::Number(16_384), "BYTES", "16 KiB") && !is(Value::Number(16_384), "BYTES", "16 MiB"));
    assert!(is(Value::Number(300), "LIFE_S", "300 s") && is(Value::Number(300), "life_s()", "5 minutes"));
    assert!(!is(Value::Number(300), "LIFE", "300 s") && !is(Value::Number(300), "LIFE_S", "300"));
    assert!(is(Value::Time(2_000_000), "X", "2 s") && !is(Value::Time(2_000_000), "X", "2 ms"));
}
