//! The Model Context Protocol as both sides of it need it: revisions, capabilities, messages, lines and header fields.
//! Never holds a connection, and never decides what a peer may do.

mod capabilities;
pub mod headers;
pub mod json;
mod lines;
mod message;
mod params;
mod revision;
pub mod tasks;

pub use self::capabilities::{ClientCapabilities, ELICIT, RESULT, ROOTS, SAMPLE, SAMPLE_TOOLS};
pub use self::lines::{Lines, MAX_LINE, line};
pub use self::message::{Id, Members, Message, cancelled, insert, members, notification, raw};
pub use self::params::{
    CallerInfo, Implementation, InitializeParams, LogLevel, Meta, RequestParams, SubscriptionFilter,
};
pub use self::revision::Revision;

/// The `_meta` member of a message that says which subscription it belongs to.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The `_meta` member of a question that says which of a round it is (docs/backends.md).
pub const INPUT: &str = "dev.sealwire/input";

/// Error codes of 2026-07-28.
pub mod code {
    /// The head of a request does not match its body.
    pub const HEADER_MISMATCH: i32 = -32020;
    /// The client has not declared a capability that the request needs.
    pub const MISSING_CAPABILITY: i32 = -32021;
    /// The requested revision is not spoken.
    pub const UNSUPPORTED_VERSION: i32 = -32022;
}
