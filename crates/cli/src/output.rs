//! What the command prints, and where: results on stdout, everything else on stderr.
//! Never lets a text that came over the bus control the terminal.

use std::borrow::Cow;
use std::io::Write as _;

use anstream::stream::RawStream;
use serde::Serialize;
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::progress::{Bar, ProgressLine};
use crate::{colour, term};

/// Where a command's results and remarks go.
#[derive(Debug, Clone)]
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

    /// Like [`result`](Self::result), for commands that go on afterwards, or whose exit code also reports the outcome: they
    /// do not fail if nobody reads their output.
    pub(crate) fn tell(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        self.result(json, text).or_else(unless_unread)
    }

    /// Like [`tell`](Self::tell), for a text whose verdicts (allowed, passed, wrong) are shown in colour.
    pub(crate) fn verdict(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        let said = if self.json { self.json(json) } else { self.print(&shown(&text(), &std::io::stdout())) };
        said.or_else(unless_unread)
    }

    /// Whether the output is JSON, for scripts.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// A part of a result as it is, at once and without a trailing newline.
    pub(crate) fn part(&self, text: &str) -> Result<(), Failure> {
        self.write(text, "")
    }

    /// A result as one line of JSON.
    pub(crate) fn json(&self, json: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(json).map_err(|error| Failure::of(Exit::Bug, &error))?;
        self.print(&term::safe_json(&text))
    }

    /// A result as it is, with a newline added if it has none.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        self.write(text, if text.ends_with('\n') { "" } else { "\n" })
    }

    fn write(&self, text: &str, end: &str) -> Result<(), Failure> {
        write(text, end).map_err(|error| Failure::output(&error))
    }

    /// A part of the result as it becomes available, for people; scripts get the whole result at the end.
    pub(crate) fn progress(&self, text: &str) -> std::io::Result<()> {
        if self.json { Ok(()) } else { write(&shown(text, &std::io::stdout()), "\n") }
    }

    /// A remark for people; scripts do not get it.
    pub(crate) fn note(&self, text: &str) {
        if !self.json {
            self.stderr(text);
        }
    }

    /// Shows what is in progress, if it takes longer than a second, until the returned value is dropped.
    pub(crate) fn working(&self, what: &str) -> ProgressLine {
        if self.json { ProgressLine::silently() } else { ProgressLine::on(term::safe_text(what).into_owned()) }
    }

    /// Shows a progress bar on a terminal.
    pub(crate) fn bar(&self) -> Bar {
        if self.json { Bar::hidden() } else { Bar::on_terminal() }
    }

    /// Something that people should look at, printed with `--json` as well.
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

/// One of our own texts, for people, in colour if the stream shows colours.
fn write(text: &str, end: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    write!(stdout, "{text}{end}")?;
    stdout.flush()
}

fn shown(text: &str, stream: &impl RawStream) -> String {
    let safe = term::safe_text(text);
    if colour::shown_on(stream) { colour::painted(&safe) } else { safe.into_owned() }
}
