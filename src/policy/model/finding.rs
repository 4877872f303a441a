//! What is wrong or doubtful in a policy folder, and what to write instead.
//! Never stops at the first finding: an operator gets everything in one go.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::Serialize;

use super::location::Location;

/// How much a [`Finding`] matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The folder is not loaded.
    Error,
    /// The folder is loaded, but something in it is probably not what was meant.
    Warning,
}

/// One thing that is wrong or doubtful in a policy folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The file, relative to the policy folder; empty if the finding is about the folder.
    pub file: String,
    /// The line, counted from 1; 0 if the finding is about the whole file.
    pub line: u32,
    /// Whether it keeps the folder from being loaded.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// What to write instead, or where to look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.as_str(), self.line) {
            ("", _) => {}
            (file, 0) => write!(f, "{file}: ")?,
            (file, line) => write!(f, "{file}:{line}: ")?,
        }
        self.severity.serialize(&mut *f)?;
        write!(f, ": {}", self.message)?;
        if let Some(help) = &self.help {
            write!(f, "; {help}")?;
        }
        Ok(())
    }
}

impl Finding {
    /// Logs it at its severity. A folder that cannot be read is an error, though the service starts with it and denies everything.
    pub(crate) fn log(&self) {
        match self.severity {
            Severity::Error => tracing::error!(target: "sealwire::policy", finding = %self, "policy"),
            Severity::Warning => tracing::warn!(target: "sealwire::policy", finding = %self, "policy"),
        }
    }
}

/// A policy folder that cannot be used: everything found in it, errors first within each file and line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyErrors {
    pub(crate) findings: Vec<Finding>,
}

impl PolicyErrors {
    /// Everything found, warnings included, ordered by file and line.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// How many of the findings are errors.
    #[must_use]
    pub fn count(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error).count()
    }
}

impl fmt::Display for PolicyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.findings.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for PolicyErrors {}

/// Collects findings while a folder is read: shared by everything that reads a part of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: RefCell<Vec<Finding>>,
    errors: Cell<usize>,
}

impl Report {
    pub(crate) fn error(&self, at: &Location, message: impl Into<String>, help: impl Into<String>) {
        self.push(Severity::Error, at, message.into(), help.into());
    }

    pub(crate) fn warning(&self, at: &Location, message: impl Into<String>, help: impl Into<String>) {
        self.push(Severity::Warning, at, message.into(), help.into());
    }

    /// Reports a name that is not one of `known`: with the nearest of them, otherwise with `help`.
    pub(crate) fn unknown<'a>(
        &self,
        at: &Location,
        kind: &str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
        help: impl Into<String>,
    ) {
        let help = did_you_mean(name, known).unwrap_or_else(|| help.into());
        self.error(at, format!("unknown {kind} `{}`", shown(name)), help);
    }

    fn push(&self, severity: Severity, at: &Location, message: String, help: String) {
        let help = (!help.is_empty()).then_some(help);
        self.errors.update(|errors| errors + usize::from(severity == Severity::Error));
        let finding = Finding { file: at.file.as_ref().to_owned(), line: at.line, severity, message, help };
        self.findings.borrow_mut().push(finding);
    }

    /// How many errors there are so far.
    pub(crate) fn errors(&self) -> usize {
        self.errors.get()
    }

    /// Everything, as errors.
    pub(crate) fn into_errors(self) -> PolicyErrors {
        let mut findings = self.findings.into_inner();
        findings.sort();
        findings.dedup();
        PolicyErrors { findings }
    }

    /// The warnings, or everything if there is an error.
    pub(crate) fn finish(self) -> Result<Vec<Finding>, PolicyErrors> {
        let errors = self.errors();
        let found = self.into_errors();
        if errors > 0 { Err(found) } else { Ok(found.findings) }
    }
}

/// A text from a policy file for a message: on one line, at most 80 characters. Quotes are as they are in the file.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars().take(80) {
        match character {
            '"' | '\'' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// ``did you mean `x`?`` for the nearest of `known`, or nothing when none is near.
pub(crate) fn did_you_mean<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // A third of the letters wrong is still recognisably the same word.
    let limit = (text.chars().count() / 3).clamp(1, 4);
    known
        .into_iter()
        .filter(|candidate| candidate.len() <= 128)
        .map(|candidate| (distance(text, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| format!("did you mean `{candidate}`?"))
}

/// The edit distance of two texts (insertions, deletions, substitutions, in characters).
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, letter) in left.chars().take(128).enumerate() {
        let mut diagonal = above;
        let mut before = above + 1;
        let mut next = vec![before];
        for (other, over) in right.iter().zip(row.iter().skip(1)) {
            let cost = diagonal + usize::from(letter != *other);
            diagonal = *over;
            before = cost.min(before + 1).min(over + 1);
            next.push(before);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let known = ["bank/transfer", "bank/balance", "math/add"];
        assert_eq!(did_you_mean("bank/transfr", known), Some("did you mean `bank/transfer`?".to_owned()));
        assert_eq!(did_you_mean("log/append", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
