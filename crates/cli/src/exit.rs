//! How the process ends: one exit code for each kind of outcome, and the message for people.
//! Never uses more than one line to say what went wrong; help and causes follow below it.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use sealwire::RpcError;
use sealwire::decide::Finding;
use sealwire::errors::PolicyErrors;
use sealwire_lab::{Blame, LabError};
use serde::Serialize;

/// How a command ended: each has an exit code, and a name for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Ok,
    /// A bug in sealwire.
    Bug,
    /// The command line is wrong: an unknown option, a missing argument. The same code as clap's.
    Usage,
    /// The policy denies the call.
    Denied,
    /// Policy files with errors.
    PolicyInvalid,
    /// A policy does not decide as its tests expect.
    PolicyTestFailed,
    /// Something differs, and the command line asked for an exit code in that case, or the command is there to tell.
    Different,
    /// A record with lines that are missing or changed.
    RecordBroken,
    /// The broker enforces something else than the policies compile to.
    Drift,
    /// The call runs once people have approved it.
    Pending,
    /// The broker cannot be reached or refuses us, or no service is listening.
    Transport,
    /// The service answered with an error, or with a result that is not accepted.
    Remote,
    /// No answer that can be trusted: an unsigned refusal, or an invalid signature.
    Unverified,
    /// No answer before the deadline.
    Timeout,
    /// The service signed something that is no answer to this call, so its outcome is unknown. The code is that of [`Exit::Timeout`].
    Protocol,
    /// A file, a key, a token or another input cannot be used.
    Input,
    /// A signal came before the end. The code that shells report for a process that Ctrl-C ended.
    Interrupted,
    /// Nobody reads the output: the other end of the pipe is closed. The code that shells report for a process which that ended.
    Unread,
    /// A second signal came before the end, and was SIGTERM. The code that shells report for a process that SIGTERM ended.
    Terminated,
}

impl Exit {
    /// Every one with its code, its name for scripts, and what it means.
    const ALL: [(Self, u8, &str, &str); 19] = [
        (Self::Ok, 0, "ok", "success"),
        (Self::Bug, 1, "bug", "a bug in sealwire: please report it"),
        (Self::Usage, 2, "usage", "the command line is wrong"),
        (Self::Denied, 10, "denied", "the policy denies the call"),
        (Self::PolicyInvalid, 11, "policy_invalid", "the policy files have errors"),
        (Self::PolicyTestFailed, 12, "policy_test_failed", "a policy does not decide as its tests expect"),
        (Self::Different, 13, "different", "policies differ (`--exit-code`), or files are not formatted (`--check`)"),
        (Self::RecordBroken, 14, "record_broken", "lines of a record are missing or changed"),
        (Self::Drift, 15, "drift", "the broker enforces something else than the policies compile to"),
        (Self::Pending, 16, "approval_required", "the call runs once people have approved it"),
        (Self::Transport, 20, "transport", "the broker cannot be reached or refuses us, or no service is listening"),
        (Self::Remote, 21, "remote_error", "the service answered with an error, or a result that is not accepted"),
        (Self::Unverified, 22, "unverified", "an unsigned refusal, or an answer whose signature is not valid"),
        (Self::Timeout, 23, "timeout", "no answer before the deadline: the call may or may not have run"),
        (Self::Protocol, 23, "protocol", "the service's answer or stream is not valid: it may or may not have run"),
        (Self::Input, 30, "input", "a file, a key, a token or another input or output cannot be used"),
        (Self::Interrupted, 130, "interrupted", "a signal came before the end"),
        (Self::Unread, 141, "unread", "nobody reads the output: the pipe is closed"),
        (Self::Terminated, 143, "terminated", "a second signal came before the end, and was SIGTERM"),
    ];

    /// The exit code of the process.
    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().find(|(exit, ..)| *exit == self).map_or(1, |(_, code, ..)| *code)
    }

    /// A name for scripts.
    fn label(self) -> &'static str {
        Self::ALL.iter().find(|(exit, ..)| *exit == self).map_or("bug", |(_, _, label, _)| label)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// `before`, followed by the list of exit codes, for `--help`.
pub(crate) fn table(before: &str) -> String {
    let mut text = format!("{before}\n\nExit codes:\n");
    for (_, code, _, meaning) in Exit::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, " {code:>3}  {meaning}");
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
    /// The error of the response, unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    rpc: Option<Box<RpcError>>,
    /// Whether the application chose the code of `rpc`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    application_error: bool,
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
        Self {
            exit,
            message: message.into(),
            help: None,
            causes: Vec::new(),
            findings: Vec::new(),
            rpc: None,
            application_error: false,
        }
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

    /// The output cannot be written. If nobody reads it any more, that is not worth a message.
    pub(crate) fn output(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::new(Exit::Unread, ""),
            _ => Self::input(format!("cannot write to stdout: {error}")),
        }
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
        self.application_error = error.is_application();
        self.rpc = Some(Box::new(error));
        self
    }

    /// The code of the error that the service answered with, unless the application chose it.
    pub(crate) fn profile_code(&self) -> Option<i32> {
        self.rpc.as_ref().and_then(|rpc| rpc.profile_code())
    }

    /// A text member of the `data` of the error that the service answered with, unless the application chose its code.
    pub(crate) fn data_text(&self, member: &str) -> Option<String> {
        let rpc = self.rpc.as_ref().filter(|rpc| rpc.profile_code().is_some())?;
        let data: serde_json::Value = serde_json::from_str(rpc.data()?.get()).ok()?;
        Some(data.get(member)?.as_str()?.to_owned())
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
        ErrorObject { exit: self.exit.code(), kind: self.exit.label(), failure: self }
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

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        let exit = match &error {
            LabError::Output(error) => return Self::output(error),
            LabError::Failed { blame: Blame::Bug, .. } => Exit::Bug,
            LabError::Failed { blame: Blame::Input, .. } => Exit::Input,
            LabError::Failed { blame: Blame::Transport, .. } => Exit::Transport,
            LabError::Failed { blame: Blame::Remote, .. } => Exit::Remote,
        };
        Self::of(exit, &error)
    }
}
