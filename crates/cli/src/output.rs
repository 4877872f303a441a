//! What is printed where: results on stdout, everything else on stderr.
//! Never lets a text that came over the bus control the terminal.

use std::borrow::Cow;
use std::io::{ErrorKind, Write as _};

use anstream::stream::RawStream;
use serde::Serialize;
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::progress::{Bar, Working};
use crate::{colour, term};

/// Where a command's results and remarks go.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// The result: `json` for scripts, or `text` for people.
    pub(crate) fn result(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { self.json(json) } else { self.print(&term::safe_text(&text())) }
    }

    /// As [`result`](Self::result), of a command that goes on, or ends with a code that says as much: so it does whether anybody reads
    /// the rest or not.
    pub(crate) fn tell(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        self.result(json, text).or_else(unless_unread)
    }

    /// As [`tell`](Self::tell), where the text is about what is allowed, passed or wrong.
    pub(crate) fn verdict(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        let said = if self.json { self.json(json) } else { self.print(&shown(&text(), &std::io::stdout())) };
        said.or_else(unless_unread)
    }

    /// Whether scripts read it.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// A part of a result as it is, at once and without a line end.
    pub(crate) fn part(&self, text: &str) -> Result<(), Failure> {
        self.write(text, "")
    }

    /// A result as one line of JSON.
    pub(crate) fn json(&self, json: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(json).map_err(|error| Failure::of(Exit::Bug, &error))?;
        self.print(&term::safe_json(&text))
    }

    /// A result as it is, with a line end if it has none.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        self.write(text, if text.ends_with('\n') { "" } else { "\n" })
    }

    fn write(&self, text: &str, end: &str) -> Result<(), Failure> {
        let mut stdout = std::io::stdout().lock();
        match write!(stdout, "{text}{end}").and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::nobody_reads()),
            Err(error) => Err(Failure::input(format!("cannot write to stdout: {error}"))),
        }
    }

    /// A part of the result while it comes about, for people; scripts get the whole result at the end.
    pub(crate) fn progress(&self, text: &str) -> Result<(), Failure> {
        if self.json { Ok(()) } else { self.print(&shown(text, &std::io::stdout())) }
    }

    /// A remark for people; scripts do not get it.
    pub(crate) fn note(&self, text: &str) {
        if !self.json {
            self.stderr(text);
        }
    }

    /// Says what is under way, if it takes longer than a second, until the result is dropped.
    pub(crate) fn working(&self, what: &str) -> Working {
        if self.json { Working::silently() } else { Working::on(term::safe_text(what).into_owned()) }
    }

    /// Shows how far something is, where people see it.
    pub(crate) fn bar(&self) -> Bar {
        if self.json { Bar::hidden() } else { Bar::on_terminal() }
    }

    /// Something that people should look at, whoever reads the result.
    pub(crate) fn warning(&self, text: &str) {
        if self.json {
            self.stderr(&json!({ "warning": { "message": text } }).to_string());
        } else {
            self.stderr(&format!("warning: {text}"));
        }
    }

    /// Why the command failed.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.is_silent() {
        } else if self.json {
            self.stderr(&json!({ "error": failure.object() }).to_string());
        } else {
            self.stderr(&failure.to_text());
        }
    }

    fn stderr(&self, text: &str) {
        let stderr = std::io::stderr();
        let safe = if self.json { term::safe_json(text) } else { Cow::Owned(shown(text, &stderr)) };
        // There is nowhere left to say that stderr cannot be written to.
        let _ = writeln!(stderr.lock(), "{safe}");
    }
}

fn unless_unread(failure: Failure) -> Result<(), Failure> {
    if failure.is_silent() { Ok(()) } else { Err(failure) }
}

/// A text of ours for people, in colour where that stream shows colours.
fn shown(text: &str, stream: &impl RawStream) -> String {
    let safe = term::safe_text(text);
    if colour::shown_on(stream) { colour::painted(&safe) } else { safe.into_owned() }
}
