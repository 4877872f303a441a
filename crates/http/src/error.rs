//! Why there is no answer, for the log.
//! Never holds anything of an answer's body.

use super::endpoint::ConnectError;

/// There is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// No connection: the server has received nothing.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection has ended too early: the server may have received the request.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The server sends without use.
    #[error("{0}")]
    Useless(String),
    /// More than is allowed.
    #[error("its answer, or one event of it, has more than 1 MiB")]
    TooLarge,
    /// Not text.
    #[error("its answer is not UTF-8")]
    NotUtf8,
}

impl From<hyper::Error> for HttpError {
    fn from(error: hyper::Error) -> Self {
        Self::Broken(cause(&error))
    }
}

/// What hyper says, with the underlying cause.
pub(crate) fn cause(error: &hyper::Error) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
