//! Why keys could not be fetched. Never holds a query string.

use std::time::Duration;

use super::super::json::JsonFault;
use super::super::keys::KeySetError;
use crate::files::TextFault;
use crate::name::shown;

/// Keys could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Keys are not fetched from such an address.
    #[error("`{url}` {why}")]
    Address {
        /// The address, without its query.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The trust anchors cannot be used.
    #[error("trust anchors (`tls_ca`): {0}")]
    Anchors(String),
    /// There was no connection, or it broke.
    #[error("`{url}`: {cause}")]
    Connection {
        /// The address, without its query.
        url: String,
        /// What the system, TLS or HTTP said.
        cause: String,
    },
    /// There was no answer in time.
    #[error("`{url}`: no whole answer within {limit:?}")]
    Slow {
        /// The address, without its query.
        url: String,
        /// The bound.
        limit: Duration,
    },
    /// The status is not 200.
    #[error("`{url}` answers with status {status}{}", if (300..400).contains(status) { ": redirects are not followed, configure the address that it leads to" } else { "" })]
    Status {
        /// The address, without its query.
        url: String,
        /// The status.
        status: u16,
    },
    /// The answer is longer than it may be.
    #[error("`{url}`: the answer is longer than {limit} bytes")]
    Long {
        /// The address, without its query.
        url: String,
        /// The bound.
        limit: usize,
    },
    /// The answer is compressed, although none of that was asked for.
    #[error(
        "`{url}`: the answer is compressed ({encoding}) although `Accept-Encoding: identity` was sent: switch that off for this address"
    )]
    Encoding {
        /// The address, without its query.
        url: String,
        /// What `Content-Encoding` says.
        encoding: String,
    },
    /// The answer is not text.
    #[error("`{url}`: the answer is {fault}")]
    Text {
        /// The address, without its query.
        url: String,
        /// What it looks like.
        fault: TextFault,
    },
    /// The answer is a page for people, such as a login or an error.
    #[error(
        "`{url}` answers with a web page, and not with a key set or another JSON document: is it the right address, and is it public?"
    )]
    Page {
        /// The address, without its query.
        url: String,
    },
    /// The discovery document is not a strict JSON object.
    #[error("`{url}`: the document {fault}")]
    Document {
        /// The address, without its query.
        url: String,
        /// What is wrong.
        fault: JsonFault,
    },
    /// The discovery document is that of another issuer.
    #[error("`{url}` is the document of the issuer `{}`: configure exactly that, or another address", shown(.found))]
    Issuer {
        /// The address, without its query.
        url: String,
        /// What the document says.
        found: String,
    },
    /// The keys were refused.
    #[error(transparent)]
    Keys(#[from] KeySetError),
}
