//! A real nats-server for the demonstration, the development server and the tests: found or fetched, started, and ended again.
//! Never runs a fetched binary whose hash is not the pinned one, and never listens beyond the loopback address.

mod fetch;
mod find;
mod run;

pub use fetch::{FetchError, Pin};
pub use find::{Environment, FindError, Found, MINIMUM, Origin, SERVER_VARIABLE, Version, find, find_in};
pub use run::{RunError, Running, ServerOptions, is_free, private, spawn};
