//! A client for HTTP/1.1 that is bounded in every direction, and knows whether a request may have arrived.
//! Never follows a redirect, never repeats a request of which the server may have received something, and never decides whom to trust.

mod accept;
mod connection;
mod endpoint;
mod error;
mod idle;
mod limits;
mod pool;
mod reply;
mod sse;
mod waste;

pub use self::accept::media_ranges;
pub use self::connection::Connection;
pub use self::endpoint::{ConnectError, Endpoint};
pub use self::error::HttpError;
pub use self::limits::MAX_BODY;
pub use self::pool::Pool;
pub use self::reply::{Body, Events, Reply};
pub use self::sse::Event;
pub use self::waste::{Bucket, Waste};
