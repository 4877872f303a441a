//! Why there is no connection, in words for the operator.
//! Never quotes a secret, or a value that may be one in the wrong place.

use std::path::PathBuf;

use crate::files::SecretFileError;

/// Why the broker cannot be reached, or refuses us.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// No address is configured.
    #[error("no broker address: give `urls`, for example [\"nats://127.0.0.1:4222\"], or a `context`")]
    NoUrl,
    /// A member has an unusable value.
    #[error("`{member}` {reason}")]
    Member {
        /// Its name; for an array, with the position from 0.
        member: String,
        /// What is wrong with it, and what to do.
        reason: &'static str,
    },
    /// Nobody answers at the addresses.
    #[error("no broker answers at {urls} ({cause}): is it running, and is the address right?")]
    Unreachable {
        /// The addresses.
        urls: String,
        /// The underlying error.
        cause: String,
    },
    /// The broker refuses the user.
    #[error(
        "the broker at {urls} refuses our user: check `user` and its password (or nkey, token, `creds_file`, certificate)"
    )]
    Refused {
        /// The addresses.
        urls: String,
    },
    /// The TLS connection could not be established.
    #[error("TLS with {urls} failed: {cause}")]
    Tls {
        /// The addresses.
        urls: String,
        /// What is wrong, and what to do.
        cause: String,
    },
    /// The broker's permissions forbid an operation.
    #[error("the broker forbids this user to {action} `{subject}`: permit it")]
    Forbidden {
        /// `publish to` or `subscribe to`.
        action: &'static str,
        /// The subject.
        subject: String,
    },
    /// A `.creds` file cannot be used.
    #[error("`{}` (`creds_file`) {reason}", path.display())]
    Creds {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do. Nothing in the file is quoted.
        reason: String,
    },
    /// A context of the `nats` command, or what its variables say, cannot be used.
    #[error("{place}: {reason}")]
    Context {
        /// Which one.
        place: String,
        /// What is wrong with it, and what to do. No value in it is quoted.
        reason: String,
    },
    /// There is no access token to log in with.
    #[error("no access token to log in with: {reason}")]
    AccessToken {
        /// Why.
        reason: String,
    },
    /// The broker's challenge, which the login signs, is missing or no challenge.
    #[error("the broker should send a challenge to sign, and {0}")]
    Challenge(&'static str),
    /// A secret file cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretFileError),
}

/// For a missing file, omits the name: a user who mistook the member may have written the secret itself.
pub(super) fn unreadable(member: &'static str, error: SecretFileError) -> BusError {
    if error.is_missing() {
        BusError::Member { member: member.to_owned(), reason: "names a file that is not there" }
    } else {
        error.into()
    }
}
