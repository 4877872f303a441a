//! Translates patterns for the engine here: those of a JSON Schema are regular expressions of ECMAScript with the flag `u`, and many are
//! written as ECMAScript takes them without it, or in Python's or Rust's spelling.
//! Never changes what a pattern matches: what has no exact translation, or means different things to those who write it, is not guessed.

/// A pattern for the engine here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Translation {
    pub(super) text: String,
    /// How many assertions about what is around it has: matching them may have to go back and try again.
    pub(super) assertions: usize,
}

/// Why there is no translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TranslationError {
    /// In no spelling is it a regular expression.
    Invalid(&'static str),
    /// It may be one, and is not checked here.
    Unclear(&'static str),
}

use TranslationError::{Invalid, Unclear};

type Ranges = &'static [(u32, u32)];

const LAST: u32 = 0x10_FFFF;
const ANY: Ranges = &[(0, LAST)];
const DIGIT: Ranges = &[(0x30, 0x39)];
const WORD: Ranges = &[(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)];
/// ECMA-262 §12.2 and §12.3: white space and line terminators.
const SPACE: Ranges = &[
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
];
/// What `.` does not match.
const LINE_END: Ranges = &[(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)];

const BACK: TranslationError = Unclear("a back-reference");
const ESCAPE: TranslationError = Unclear("an escape that ECMAScript does not have");

/// One part of a class, or what an escape stands for.
enum Part {
    One(char),
    Many(Vec<(u32, u32)>),
    /// A Unicode property, as the engine writes it.
    Property(String),
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    out: String,
    assertions: usize,
    /// For each open group: whether `.` matches line ends in it, and whether it is an assertion.
    groups: Vec<(bool, bool)>,
    /// Whether what was written last may be repeated.
    repeatable: Repeatable,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeatable {
    No,
    Yes,
    Repeated,
    Assertion,
}

/// Translates a pattern.
pub(super) fn translated(pattern: &str) -> Result<Translation, TranslationError> {
    let mut reader = Reader {
        rest: pattern.chars().peekable(),
        out: String::with_capacity(2 * pattern.len()),
        assertions: 0,
        groups: vec![(false, false)],
        repeatable: Repeatable::No,
    };
    while let Some(c) = reader.rest.next() {
        reader.item(c)?;
    }
    if reader.groups.len() > 1 {
        return Err(Invalid("a group has no end"));
    }
    Ok(Translation { text: reader.out, assertions: reader.assertions })
}

impl Reader<'_> {
    fn item(&mut self, c: char) -> Result<(), TranslationError> {
        match c {
            '\\' => self.escape(),
            '[' => self.class(),
            '(' => self.group(),
            ')' => {
                let Some((_, is_assertion)) = self.groups.pop().filter(|_| !self.groups.is_empty()) else {
                    return Err(Invalid("`)` ends no group"));
                };
                self.out.push(')');
                self.repeatable = if is_assertion { Repeatable::Assertion } else { Repeatable::Yes };
                Ok(())
            }
            '|' => {
                self.out.push('|');
                self.repeatable = Repeatable::No;
                Ok(())
            }
            '*' | '+' | '?' => self.repeated(&c.to_string()),
            '{' => self.counted(),
            '.' => {
                let is_any = self.groups.last().is_some_and(|(dot, _)| *dot);
                self.push(if is_any { ANY.to_vec() } else { complement(LINE_END) });
                Ok(())
            }
            '^' => {
                self.assert(r"\A");
                Ok(())
            }
            '$' => {
                self.assert(r"\z");
                Ok(())
            }
            c => {
                self.literal(c);
                Ok(())
            }
        }
    }

    fn literal(&mut self, c: char) {
        self.out.push_str(&spelled(u32::from(c)));
        self.repeatable = Repeatable::Yes;
    }

    fn push(&mut self, ranges: impl IntoIterator<Item = (u32, u32)>) {
        self.out.push('[');
        for range in ranges {
            self.out.push_str(&between(range));
        }
        self.out.push(']');
        self.repeatable = Repeatable::Yes;
    }

    fn assert(&mut self, text: &str) {
        self.out.push_str(text);
        self.repeatable = Repeatable::Assertion;
    }

    /// A quantifier, and the `?` that makes it lazy.
    fn repeated(&mut self, quantifier: &str) -> Result<(), TranslationError> {
        match self.repeatable {
            Repeatable::Yes => {}
            Repeatable::No => return Err(Invalid("there is nothing to repeat")),
            Repeatable::Repeated => return Err(Unclear("a quantifier of a quantifier")),
            Repeatable::Assertion => return Err(Unclear("a quantifier of an assertion")),
        }
        self.out.push_str(quantifier);
        if self.rest.next_if_eq(&'?').is_some() {
            self.out.push('?');
        }
        self.repeatable = Repeatable::Repeated;
        Ok(())
    }

    /// `{2}`, `{2,}` or `{2,3}`. ECMA-262 §B.1.2: any other `{` is a character.
    fn counted(&mut self) -> Result<(), TranslationError> {
        let mut ahead = self.rest.clone();
        let inside: String = std::iter::from_fn(|| ahead.next_if(|c| c.is_ascii_digit() || *c == ',')).collect();
        let is_closed = ahead.next_if_eq(&'}').is_some();
        let (least, most) = match inside.split_once(',') {
            None => (inside.as_str(), None),
            Some((least, most)) => (least, Some(most)),
        };
        let is_count = is_closed && !least.is_empty() && most.is_none_or(|most| !most.contains(','));
        if !is_count {
            if is_closed && inside.len() > 1 && inside.matches(',').count() == 1 {
                return Err(Unclear("`{,n}`, which not everybody takes for a quantifier"));
            }
            self.literal('{');
            return Ok(());
        }
        let order = |most: &str| least.parse::<u64>().ok().zip(most.parse::<u64>().ok()).is_some_and(|(a, b)| a > b);
        if most.is_some_and(order) {
            return Err(Invalid("a quantifier ends below its beginning"));
        }
        self.rest = ahead;
        self.repeated(&format!("{{{inside}}}"))
    }

    fn group(&mut self) -> Result<(), TranslationError> {
        let dot = self.groups.last().is_some_and(|(dot, _)| *dot);
        let is_first = self.out.is_empty();
        if self.rest.next_if_eq(&'?').is_none() {
            return self.open("(?:", dot, false);
        }
        match self.rest.next() {
            Some(':') => self.open("(?:", dot, false),
            Some('=') => self.open("(?=", dot, true),
            Some('!') => self.open("(?!", dot, true),
            Some('<') if self.rest.next_if_eq(&'=').is_some() => self.open("(?<=", dot, true),
            Some('<') if self.rest.next_if_eq(&'!').is_some() => self.open("(?<!", dot, true),
            // Nothing refers to it.
            Some('<') => self.name().and_then(|()| self.open("(?:", dot, false)),
            Some('P') => match self.rest.next() {
                Some('<') => self.name().and_then(|()| self.open("(?:", dot, false)),
                Some('=') => Err(BACK),
                _ => Err(Unclear("a group that ECMAScript does not have")),
            },
            Some(flag) => self.flags(flag, dot, is_first),
            None => Err(Invalid("a group has no end")),
        }
    }

    fn open(&mut self, text: &str, dot: bool, is_assertion: bool) -> Result<(), TranslationError> {
        self.assertions += usize::from(is_assertion);
        self.out.push_str(text);
        self.groups.push((dot, is_assertion));
        self.repeatable = Repeatable::No;
        Ok(())
    }

    fn name(&mut self) -> Result<(), TranslationError> {
        let mut length = 0;
        for c in self.rest.by_ref() {
            match c {
                '>' if length > 0 => return Ok(()),
                c if c == '$' || c == '_' || c.is_alphanumeric() || c == '.' => length += 1,
                _ => break,
            }
        }
        Err(Unclear("a group with an unusual name"))
    }

    /// `(?i:…)` (ECMAScript 2025), and `(?i)` at the beginning, as Python and Rust write it.
    fn flags(&mut self, first: char, dot: bool, is_first: bool) -> Result<(), TranslationError> {
        let (mut dot, mut on, mut case) = (dot, true, None);
        let mut flag = Some(first);
        loop {
            match flag {
                Some('i') => case = Some(on),
                Some('s') => dot = on,
                Some('u') if on => {}
                Some('-') if on => on = false,
                Some(':') => break,
                Some(')') if is_first && self.groups.len() == 1 => {
                    if let Some(outermost) = self.groups.last_mut() {
                        outermost.0 = dot;
                    }
                    self.out.push_str(if case == Some(true) { "(?i)" } else { "" });
                    self.repeatable = Repeatable::No;
                    return Ok(());
                }
                _ => return Err(Unclear("a group that ECMAScript does not have")),
            }
            flag = self.rest.next();
        }
        let text = match case {
            None => "(?:",
            Some(true) => "(?i:",
            Some(false) => "(?-i:",
        };
        self.open(text, dot, false)
    }

    fn escape(&mut self) -> Result<(), TranslationError> {
        let Some(c) = self.rest.next() else { return Err(Invalid("it ends with a backslash")) };
        if c == 'b' || c == 'B' {
            // Without the flag `i`, a word has ASCII letters only; that of the engine has all.
            let word = class_text(WORD);
            let edge = format!("(?:(?<={word})(?!{word})|(?<!{word})(?={word}))");
            let inner = format!("(?:(?<={word})(?={word})|(?<!{word})(?!{word}))");
            self.assertions += 4;
            self.assert(if c == 'b' { &edge } else { &inner });
            return Ok(());
        }
        if c == 'W' {
            // Not as its complement, which regardless of case has letters of it: U+017F is a kind of s, U+212A of k.
            self.out.push_str(&class_text(WORD).replacen('[', "[^", 1));
            self.repeatable = Repeatable::Yes;
            return Ok(());
        }
        match self.part(c)? {
            Part::One(c) => self.literal(c),
            Part::Many(ranges) => self.push(ranges),
            Part::Property(text) => {
                self.out.push_str(&text);
                self.repeatable = Repeatable::Yes;
            }
        }
        Ok(())
    }

    /// What stands after a backslash, inside of a class or not.
    fn part(&mut self, c: char) -> Result<Part, TranslationError> {
        let one = |code: u32| char::from_u32(code).map(Part::One).ok_or(Unclear("half of a surrogate pair"));
        Ok(match c {
            'd' => Part::Many(DIGIT.to_vec()),
            'D' => Part::Many(complement(DIGIT)),
            'w' => Part::Many(WORD.to_vec()),
            'W' => Part::Many(complement(WORD)),
            's' => Part::Many(SPACE.to_vec()),
            'S' => Part::Many(complement(SPACE)),
            't' => Part::One('\t'),
            'n' => Part::One('\n'),
            'v' => Part::One('\u{b}'),
            'f' => Part::One('\u{c}'),
            'r' => Part::One('\r'),
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => Part::One('\0'),
            '0'..='9' | 'k' => return Err(BACK),
            'c' => match self.rest.next_if(char::is_ascii_alphabetic) {
                Some(letter) => one(u32::from(letter) % 32)?,
                None => return Err(ESCAPE),
            },
            'x' => one(self.hex(2).ok_or(ESCAPE)?)?,
            'u' if self.rest.peek() == Some(&'{') => {
                self.rest.next();
                let digits: String = std::iter::from_fn(|| self.rest.next_if(char::is_ascii_hexdigit)).collect();
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| self.rest.next_if_eq(&'}').is_some());
                one(code.filter(|code| *code <= LAST).ok_or(ESCAPE)?)?
            }
            'u' => match self.hex(4).ok_or(ESCAPE)? {
                high @ 0xD800..=0xDBFF => {
                    let mut ahead = self.rest.clone();
                    let is_pair = ahead.next() == Some('\\') && ahead.next() == Some('u');
                    let low = if is_pair { hex(&mut ahead, 4) } else { None };
                    let low =
                        low.filter(|low| (0xDC00..=0xDFFF).contains(low)).ok_or(Unclear("half of a surrogate pair"))?;
                    self.rest = ahead;
                    one(0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00))?
                }
                code => one(code)?,
            },
            'p' | 'P' => self.property(c)?,
            'A'..='Z' | 'a'..='z' => return Err(ESCAPE),
            // ECMA-262 §22.2.1: a character that means something, and §B.1.2: any other.
            c => Part::One(c),
        })
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let mut ahead = self.rest.clone();
        let code = hex(&mut ahead, digits)?;
        self.rest = ahead;
        Some(code)
    }

    fn property(&mut self, p: char) -> Result<Part, TranslationError> {
        let name: String = match self.rest.next() {
            Some('{') => {
                let name = std::iter::from_fn(|| self.rest.next_if(|c| *c != '}')).collect();
                self.rest.next().ok_or(ESCAPE)?;
                name
            }
            Some(category @ 'A'..='Z') => category.to_string(),
            _ => return Err(ESCAPE),
        };
        let is_plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '=');
        // .NET has blocks under such names.
        if !is_plain || name.starts_with("Is") || name.starts_with("In") {
            return Err(Unclear("a Unicode property that ECMAScript does not have"));
        }
        Ok(Part::Property(format!("\\{p}{{{name}}}")))
    }

    fn class(&mut self) -> Result<(), TranslationError> {
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        if self.rest.peek() == Some(&':') && self.rest.clone().collect::<String>().contains(":]") {
            return Err(Unclear("a class of characters by name"));
        }
        let mut text = String::new();
        loop {
            match self.rest.next() {
                None => return Err(Invalid("a class has no end")),
                Some(']') => break,
                Some(c) => {
                    let first = self.class_part(c)?;
                    let mut ahead = self.rest.clone();
                    let is_range = ahead.next() == Some('-') && ahead.next().is_some_and(|next| next != ']');
                    if !is_range {
                        text.push_str(&first.written());
                        continue;
                    }
                    self.rest.next();
                    let next = self.rest.next().ok_or(Invalid("a class has no end"))?;
                    match (first, self.class_part(next)?) {
                        (Part::One(from), Part::One(to)) if from <= to => {
                            text.push_str(&between((u32::from(from), u32::from(to))));
                        }
                        (Part::One(_), Part::One(_)) => return Err(Invalid("a range ends before its beginning")),
                        // ECMA-262 §B.1.2.2: then `-` is a character.
                        (first, second) => {
                            text.push_str(&first.written());
                            text.push_str(&spelled(u32::from('-')));
                            text.push_str(&second.written());
                        }
                    }
                }
            }
        }
        match (text.is_empty(), is_negated) {
            (true, true) => self.push(ANY.iter().copied()),
            (true, false) => {
                self.out.push_str(&format!("[^{}]", between((0, LAST))));
                self.repeatable = Repeatable::Yes;
            }
            (false, _) => {
                self.out.push_str(&format!("[{}{text}]", if is_negated { "^" } else { "" }));
                self.repeatable = Repeatable::Yes;
            }
        }
        Ok(())
    }

    fn class_part(&mut self, c: char) -> Result<Part, TranslationError> {
        match c {
            '\\' => match self.rest.next() {
                Some('b') => Ok(Part::One('\u{8}')),
                Some('B') => Err(ESCAPE),
                // See `escape`; the engine for names has no class in a class.
                Some('W') if self.out.contains("(?i") => Err(Unclear("`\\W` in a class, regardless of case")),
                Some(c) => self.part(c),
                None => Err(Invalid("a class has no end")),
            },
            '[' if self.rest.peek() == Some(&':') && self.rest.clone().collect::<String>().contains(":]") => {
                Err(Unclear("a class of characters by name"))
            }
            c => Ok(Part::One(c)),
        }
    }
}

impl Part {
    fn written(&self) -> String {
        match self {
            Self::One(c) => spelled(u32::from(*c)),
            Self::Many(ranges) => ranges.iter().copied().map(between).collect(),
            Self::Property(text) => text.clone(),
        }
    }
}

fn hex(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0, |code, _| Some(code * 16 + rest.next()?.to_digit(16)?))
}

/// A character that nothing takes for anything else.
fn spelled(code: u32) -> String {
    match char::from_u32(code).filter(char::is_ascii_alphanumeric) {
        Some(c) => c.to_string(),
        None => format!("\\x{{{code:x}}}"),
    }
}

fn between((from, to): (u32, u32)) -> String {
    if from == to { spelled(from) } else { format!("\\x{{{from:x}}}-\\x{{{to:x}}}") }
}

fn class_text(ranges: Ranges) -> String {
    format!("[{}]", ranges.iter().copied().map(between).collect::<String>())
}

fn complement(ranges: Ranges) -> Vec<(u32, u32)> {
    let (mut all, mut next) = (Vec::new(), 0);
    for (from, to) in ranges {
        if next < *from {
            all.push((next, from - 1));
        }
        next = to + 1;
    }
    all.push((next, LAST));
    all
}
