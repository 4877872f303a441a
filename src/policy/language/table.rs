//! Typed access to TOML tables that keeps line numbers and reports every mistake.
//! Never ignores a key: one that nobody asked for is an error.

use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::unreadable;
use crate::policy::model::{Decimal, Located, Location, Report, did_you_mean, shown};

/// A TOML file being read.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    file: Arc<str>,
    line_ends: Vec<usize>,
    text: &'a str,
    report: &'a Report,
}

impl<'a> Source<'a> {
    pub(crate) fn new(file: &str, text: &'a str, report: &'a Report) -> Self {
        Self { file: file.into(), line_ends: text.match_indices('\n').map(|(at, _)| at).collect(), text, report }
    }

    /// The line of a byte offset.
    pub(crate) fn line(&self, offset: usize) -> Location {
        let line = self.line_ends.partition_point(|end| *end < offset);
        Location { file: self.file.clone(), line: u32::try_from(line).unwrap_or(u32::MAX).saturating_add(1) }
    }

    /// The whole file.
    pub(crate) fn whole(&self) -> Location {
        Location { file: self.file.clone(), line: 0 }
    }

    /// Says that a file with a text in it states nothing; one without any text is reported when it is read.
    pub(crate) fn warn_if_silent(&self) {
        if !self.text.trim_start_matches('\u{feff}').trim().is_empty() {
            let help = "if a rule is missing, look at the ends of the lines above it; otherwise remove the file";
            self.report.warning(&self.whole(), "has comments and nothing else", help);
        }
    }

    /// Reports what a reader of the file cannot see. There may be thousands, and a few show what is wrong.
    pub(crate) fn check_characters(&self) {
        for (at, what) in unreadable::characters(self.text).take(10) {
            self.report.error(&self.line(at), what, unreadable::HELP);
        }
    }

    /// Parses the text, and reports every syntax error.
    pub(crate) fn parse(&self) -> Option<Spanned<DeTable<'a>>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in errors.iter().take(100) {
            let at = error.span().map_or_else(|| self.whole(), |span| self.line(span.start));
            self.report.error(&at, error.message().trim().replace('\n', " "), "");
        }
        errors.is_empty().then_some(table)
    }
}

/// A table. Every key of it must be asked for before [`Table::finish`].
#[derive(Debug)]
pub(crate) struct Table<'a> {
    source: &'a Source<'a>,
    entries: &'a DeTable<'a>,
    /// Where the table begins.
    pub(crate) at: Location,
    /// What messages call it: `` `[role.calc]` ``.
    name: String,
    asked: Vec<&'static str>,
    /// Keys that have their own message where they occur, and are never suggested.
    refused: Vec<&'static str>,
}

impl<'a> Table<'a> {
    pub(crate) fn root(source: &'a Source<'a>, entries: &'a DeTable<'a>) -> Self {
        Self::new(source, entries, source.whole(), "a policy file".to_owned())
    }

    fn new(source: &'a Source<'a>, entries: &'a DeTable<'a>, at: Location, name: String) -> Self {
        Self { source, entries, at, name, asked: Vec::new(), refused: Vec::new() }
    }

    pub(crate) fn report(&self) -> &'a Report {
        self.source.report
    }

    /// A value of any type.
    pub(crate) fn raw(&mut self, key: &'static str) -> Option<Raw<'a>> {
        self.asked.push(key);
        self.entries.get(key).map(|value| Raw { source: self.source, value })
    }

    /// A value of one type. A value of another type is an error, with what to write instead.
    pub(crate) fn typed<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Raw<'a>) -> Option<T>,
        help: impl Into<String>,
    ) -> Option<Located<T>> {
        let raw = self.raw(key)?;
        let value = read(&raw);
        if value.is_none() {
            raw.error(format!("`{key}` is {}", raw.kind()), help);
        }
        value.map(|value| Located { value, at: raw.at() })
    }

    /// The value of a key that does not belong here although it does elsewhere: the caller reports it.
    pub(crate) fn refused(&mut self, key: &'static str) -> Option<Raw<'a>> {
        self.refused.push(key);
        self.entries.get(key).map(|value| Raw { source: self.source, value })
    }

    /// Every entry, in the order of the file. A caller that takes them all need not call [`Table::finish`].
    pub(crate) fn entries(&self) -> Vec<(Located<String>, Raw<'a>)> {
        let mut entries: Vec<_> = self
            .entries
            .iter()
            .map(|(name, value)| {
                let at = self.source.line(name.span().start);
                let key = Located { value: name.get_ref().clone().into_owned(), at };
                (name.span().start, key, Raw { source: self.source, value })
            })
            .collect();
        entries.sort_by_key(|(start, _, _)| *start);
        entries.into_iter().map(|(_, key, value)| (key, value)).collect()
    }

    /// The table that is the value of a key.
    pub(crate) fn table(&mut self, key: &'static str) -> Option<Table<'a>> {
        let read = |raw: &Raw<'a>| raw.table(format!("`{key}`"));
        Some(self.typed(key, read, format!("write `{key} = {{ … }}`"))?.value)
    }

    pub(crate) fn flag(&mut self, key: &'static str) -> Option<Located<bool>> {
        self.typed(key, Raw::boolean, format!("write `{key} = true` or leave it out"))
    }

    /// Where a key is; the table's own location if the key is absent.
    pub(crate) fn line_of(&self, key: &str) -> Location {
        self.entries
            .iter()
            .find(|(name, _)| name.get_ref() == key)
            .map_or_else(|| self.at.clone(), |(name, _)| self.source.line(name.span().start))
    }

    pub(crate) fn string(&mut self, key: &'static str) -> Option<Located<String>> {
        let read = |raw: &Raw<'a>| raw.text().map(ToOwned::to_owned);
        self.typed(key, read, format!("write `{key} = \"…\"`"))
    }

    /// A string that must be one of these; nothing if the key is absent or the value is another.
    pub(crate) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let help = format!("write {}", listed(&names, "or"));
        let Located { value: text, at } = self.typed(key, Raw::text, format!("{help} as a text"))?;
        let found = choices.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let help = did_you_mean(text, names).unwrap_or(help);
            self.report().error(&at, format!("`{key} = \"{}\"` is not known", shown(text)), help);
        }
        found.map(|(_, value)| *value)
    }

    /// A list of strings; empty if the key is absent.
    pub(crate) fn strings(&mut self, key: &'static str) -> Vec<Located<String>> {
        let help = format!("write `{key} = [\"…\"]`");
        let items = self.typed(key, Raw::list, help.clone()).map(|items| items.value).unwrap_or_default();
        let mut texts = Vec::new();
        for item in items {
            match item.text() {
                Some(text) => texts.push(Located { value: text.to_owned(), at: item.at() }),
                None => item.error(format!("`{key}` holds {}", item.kind()), help.clone()),
            }
        }
        texts
    }

    /// The tables of a table of tables, by name and in the order of the file: `[role.calc]`, `[role.auditor]`.
    pub(crate) fn tables(&mut self, key: &'static str) -> Vec<(Located<String>, Table<'a>)> {
        let help = format!("write `[{key}.NAME]` and the keys below it");
        let read = |raw: &Raw<'a>| raw.table(String::new());
        let Some(outer) = self.typed(key, read, help.clone()) else { return Vec::new() };
        let mut tables = Vec::new();
        for (name, raw) in outer.value.entries() {
            let title = format!("`[{key}.{}]`", shown(&name.value));
            match raw.table(title.clone()) {
                Some(table) => tables.push((name.clone(), Table { at: name.at, ..table })),
                None => {
                    let message = format!("{title} is {}, not a table", raw.kind());
                    self.report().error(&name.at, message, help.clone());
                }
            }
        }
        tables
    }

    /// Reports every key that was not asked for.
    pub(crate) fn finish(self) {
        let mut known = self.asked.clone();
        known.sort_unstable();
        known.dedup();
        let unknown = |name: &str| !self.asked.contains(&name) && !self.refused.contains(&name);
        for (name, _) in self.entries.iter().filter(|(name, _)| unknown(name.get_ref())) {
            let condition = matches!(&**name.get_ref(), "when" | "unless" | "unless_approved").then(|| {
                "conditions belong into a rule with a name: `[rule.NAME]` with `roles` or `agents`, `allow` and `when`".to_owned()
            });
            let help = condition
                .or_else(|| did_you_mean(name.get_ref(), self.asked.iter().copied()))
                .unwrap_or_else(|| format!("the keys of {} are {}", self.name, listed(&known, "and")));
            let message = format!("unknown key `{}` in {}", shown(name.get_ref()), self.name);
            self.report().error(&self.source.line(name.span().start), message, help);
        }
    }
}

/// A value somewhere in a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw<'a> {
    source: &'a Source<'a>,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Raw<'a> {
    pub(crate) fn at(&self) -> Location {
        self.source.line(self.value.span().start)
    }

    pub(crate) fn report(&self) -> &'a Report {
        self.source.report
    }

    /// Reports what is wrong with it.
    pub(crate) fn error(&self, message: impl Into<String>, help: impl Into<String>) {
        self.report().error(&self.at(), message, help);
    }

    /// What it is, in words.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        }
    }

    pub(crate) fn text(&self) -> Option<&'a str> {
        self.value.get_ref().as_str()
    }

    pub(crate) fn boolean(&self) -> Option<bool> {
        self.value.get_ref().as_bool()
    }

    pub(crate) fn integer(&self) -> Option<i64> {
        let integer = self.value.get_ref().as_integer()?;
        i64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    /// A number with or without a fraction, as a bound for others.
    pub(crate) fn decimal(&self) -> Option<Decimal> {
        match self.value.get_ref() {
            DeValue::Float(number) => Decimal::bound(number.as_str()),
            _ => self.integer().map(Decimal::from).filter(|bound| !bound.beyond),
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        self.value.get_ref().is_integer() || self.value.get_ref().is_float()
    }

    pub(crate) fn list(&self) -> Option<Vec<Raw<'a>>> {
        let source = self.source;
        Some(self.value.get_ref().as_array()?.iter().map(|value| Raw { source, value }).collect())
    }

    /// As a table; `name` is what messages call it.
    pub(crate) fn table(&self, name: String) -> Option<Table<'a>> {
        let entries = self.value.get_ref().as_table()?;
        Some(Table::new(self.source, entries, self.at(), name))
    }

    pub(crate) fn value(&self) -> &'a DeValue<'a> {
        self.value.get_ref()
    }

    /// As written in the file, for a message.
    pub(crate) fn shown(&self) -> String {
        shown(self.source.text.get(self.value.span()).unwrap_or_default())
    }
}

/// `` `a`, `b` and `c` ``, with this word before the last.
pub(crate) fn listed(names: &[&str], word: &str) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        None => "none".to_owned(),
        Some((only, [])) => only.clone(),
        Some((last, others)) => format!("{} {word} {last}", others.join(", ")),
    }
}
