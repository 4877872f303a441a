//! How the process ends: one exit code for each kind of outcome, and the message for people.
//! Never uses more than one line to say what went wrong; help and causes follow below it.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use sealwire::RpcError;
use sealwire::policy::{Finding, PolicyErrors};
use serde::Serialize;

/// The exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Ok = 0,
    /// A bug in sealwire.
    Bug = 1,
    /// The command line is wrong: an unknown option, a missing argument. The same code as clap's.
    Usage = 2,
    /// The policy denies the call.
    Denied = 10,
    /// Policy files with errors.
    PolicyInvalid = 11,
    /// A policy does not decide as its tests expect.
    PolicyTestFailed = 12,
    /// Something differs, and the command line asked for an exit code in that case.
    Different = 13,
    /// The broker cannot be reached or refuses us, or no service is listening.
    Transport = 20,
    /// The service answered with an error.
    Remote = 21,
    /// No answer that can be trusted: an unsigned refusal, or an invalid signature.
    Unverified = 22,
    /// No answer before the deadline.
    Timeout = 23,
    /// A file, a key, a token or another input cannot be used.
    Input = 30,
    /// A signal came before the end. The code that shells report for a process that Ctrl-C ended.
    Interrupted = 130,
    /// A second signal came before the end, and was SIGTERM. The code that shells report for a process that SIGTERM ended.
    Terminated = 143,
}

impl Exit {
    const ALL: [(Self, &str, &str); 14] = [
        (Self::Ok, "ok", "success"),
        (Self::Bug, "bug", "a bug in sealwire: please report it"),
        (Self::Usage, "usage", "the command line is wrong"),
        (Self::Denied, "denied", "the policy denies the call"),
        (Self::PolicyInvalid, "policy_invalid", "the policy files have errors"),
        (Self::PolicyTestFailed, "policy_test_failed", "a policy does not decide as its tests expect"),
        (Self::Different, "different", "policies differ (`--exit-code`), or files are not formatted (`--check`)"),
        (Self::Transport, "transport", "the broker cannot be reached or refuses us, or no service is listening"),
        (Self::Remote, "remote_error", "the service answered with an error"),
        (Self::Unverified, "unverified", "an unsigned refusal, or an answer whose signature is not valid"),
        (Self::Timeout, "timeout", "no answer before the deadline: the call may or may not have run"),
        (Self::Input, "input", "a file, a key, a token or another input cannot be used"),
        (Self::Interrupted, "interrupted", "a signal came before the end"),
        (Self::Terminated, "terminated", "a second signal came before the end, and was SIGTERM"),
    ];

    /// A name for scripts.
    fn label(self) -> &'static str {
        Self::ALL.iter().find(|(exit, ..)| *exit == self).map_or("bug", |(_, label, _)| label)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// `before`, followed by the list of exit codes, for `--help`.
pub(crate) fn table(before: &str) -> String {
    let mut text = format!("{before}\n\nExit codes:\n");
    for (exit, _, meaning) in Exit::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, " {:>3}  {meaning}", exit as u8);
    }
    text.truncate(text.trim_end().len());
    text
}

/// Why a command could not do what it was asked for.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    #[serde(skip)]
    exit: Exit,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    findings: Vec<Finding>,
    /// The service's own error, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    rpc: Option<Box<RpcError>>,
}

/// A failure for scripts: every error that this command prints as JSON has this shape.
#[derive(Serialize)]
pub(crate) struct ErrorObject<'a> {
    exit: u8,
    kind: &'static str,
    #[serde(flatten)]
    failure: &'a Failure,
}

impl Failure {
    /// A failure with one line that says what is wrong.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), help: None, causes: Vec::new(), findings: Vec::new(), rpc: None }
    }

    /// An input that cannot be used.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(Exit::Input, message)
    }

    /// An error of the library, with its causes.
    pub(crate) fn of(exit: Exit, error: &dyn Error) -> Self {
        let mut failure = Self::new(exit, error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some errors already include the text of their cause.
            if !failure.message.contains(&text) && !failure.causes.contains(&text) {
                failure.causes.push(text);
            }
            source = cause.source();
        }
        failure
    }

    /// A panic. Its own message is on stderr already.
    pub(crate) fn bug() -> Self {
        Self::new(Exit::Bug, "this is a bug in sealwire: please report it with the lines above")
    }

    /// Nobody reads the output any more, which is not worth a message.
    pub(crate) fn nobody_reads() -> Self {
        Self::new(Exit::Ok, "")
    }

    /// Adds a cause.
    #[must_use]
    pub(crate) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    /// Adds what to do about it.
    #[must_use]
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds what is wrong in policy files: a line each for people, and in the form of `policy check` for scripts.
    #[must_use]
    pub(crate) fn findings(mut self, errors: &PolicyErrors) -> Self {
        self.findings = errors.findings().to_vec();
        self
    }

    /// Adds the error that the service answered with.
    #[must_use]
    pub(crate) fn rpc(mut self, error: RpcError) -> Self {
        self.rpc = Some(Box::new(error));
        self
    }

    /// The code of the error that the service answered with.
    pub(crate) fn rpc_code(&self) -> Option<i32> {
        self.rpc.as_ref().map(|rpc| rpc.code())
    }

    /// Whether the message contains these words.
    pub(crate) fn says(&self, words: &str) -> bool {
        self.message.contains(words)
    }

    /// The causes.
    pub(crate) fn causes(&self) -> &[String] {
        &self.causes
    }

    /// What to do about it.
    pub(crate) fn help_text(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The exit code of the process.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether there is nothing to report.
    pub(crate) fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    /// The text for people.
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("error: {}", self.message);
        for finding in &self.findings {
            let _ = write!(text, "\n{finding}");
        }
        for (label, line) in self.help.iter().map(|help| ("help", help)).chain(self.causes.iter().map(|c| ("cause", c)))
        {
            let _ = write!(text, "\n  {label}: {line}");
        }
        text
    }

    /// The object for scripts.
    pub(crate) fn object(&self) -> ErrorObject<'_> {
        ErrorObject { exit: self.exit as u8, kind: self.exit.label(), failure: self }
    }
}

impl ErrorObject<'_> {
    /// What went wrong, in one line.
    pub(crate) fn message(&self) -> &str {
        &self.failure.message
    }
}

/// Turns an error of the library into a [`Failure`].
pub(crate) trait OrFail<T> {
    /// Fails with this exit code.
    fn or_fail(self, exit: Exit) -> Result<T, Failure>;
}

impl<T, E: Error> OrFail<T> for Result<T, E> {
    fn or_fail(self, exit: Exit) -> Result<T, Failure> {
        self.map_err(|error| Failure::of(exit, &error))
    }
}
