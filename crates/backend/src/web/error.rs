//! Why there is no answer, for the log.
//! Never holds a query, a credential, or anything of an answer's body.

use sealwire_http::HttpError;

/// There is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WebError {
    /// No connection: the server has received nothing.
    #[error("{place} cannot be reached: {cause}")]
    Unreached {
        /// Where the server should be.
        place: String,
        /// What the connection said.
        cause: String,
    },
    /// The connection broke, or the answer is unusable.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The server points elsewhere.
    #[error(
        "it answers with {status} and points to `{to}`; redirects are not followed: write the address that is meant"
    )]
    Redirect {
        /// The status.
        status: u16,
        /// Where to, without the query.
        to: String,
    },
    /// The server does not speak the protocol that it was asked to change to.
    #[error("it answers with {0}, and not with 101 (switching protocols)")]
    NoUpgrade(u16),
    /// Compressed, or encoded in some other way.
    #[error("its answer has a content encoding, which was not asked for")]
    Encoded,
    /// The path or query of the request is invalid.
    #[error("the path or query is not valid")]
    Target,
    /// There are no credentials to present.
    #[error("credentials: {0}")]
    Credentials(String),
}
