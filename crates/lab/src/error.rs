//! Why a sandbox cannot be made, or a scenario not be played.
//! Never takes what an attacker of the scenario achieves for an error.

use std::error::Error;
use std::path::Path;

/// Why a sandbox cannot be made, or a scenario not be played.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// What is wrong, and who or what is to blame.
    #[error("{message}")]
    Failed {
        /// Who or what is to blame.
        blame: Blame,
        /// What is wrong.
        message: String,
        /// What it comes from.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// Nobody takes what the scenario says.
    #[error("the output cannot be written: {0}")]
    Output(std::io::Error),
}

/// Who or what is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// This project.
    Bug,
    /// A file or a folder.
    Input,
    /// The broker, or the way to it.
    Transport,
    /// The service's answer.
    Remote,
}

impl LabError {
    /// An error with one line that says what is wrong.
    pub(crate) fn new(blame: Blame, message: impl Into<String>) -> Self {
        Self::Failed { blame, message: message.into(), source: None }
    }
}

/// What happened to a file.
pub(crate) fn at(path: &Path, error: &std::io::Error) -> LabError {
    LabError::new(Blame::Input, format!("`{}`: {error}", path.display()))
}

/// Turns an error of the library into a [`LabError`].
pub(crate) trait OrFail<T> {
    /// Says who or what is to blame.
    fn or_fail(self, blame: Blame) -> Result<T, LabError>;
}

impl<T, E: Error + Send + Sync + 'static> OrFail<T> for Result<T, E> {
    fn or_fail(self, blame: Blame) -> Result<T, LabError> {
        self.map_err(|error| LabError::Failed { blame, message: error.to_string(), source: Some(Box::new(error)) })
    }
}
