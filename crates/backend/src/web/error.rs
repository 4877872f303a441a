//! Why there is no answer, for the log.
//! Never holds a query, a credential, or anything of an answer's body.

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
    /// The connection has ended too early: the server may have received the request.
    #[error("the connection broke: {0}")]
    Broken(String),
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
    /// More than is allowed.
    #[error("its answer, or one event of it, has more than 1 MiB")]
    TooLarge,
    /// Compressed, or encoded in some other way.
    #[error("its answer has a content encoding, which was not asked for")]
    Encoded,
    /// Not text.
    #[error("its answer is not UTF-8")]
    NotUtf8,
    /// The path or query of the request is invalid.
    #[error("the path or query is not valid")]
    Target,
    /// There are no credentials to present.
    #[error("credentials: {0}")]
    Credentials(String),
}
