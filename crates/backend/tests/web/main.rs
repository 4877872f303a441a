//! The HTTP client against servers that do what they should not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod credentials;
mod hostile;
mod server;
mod tls;
