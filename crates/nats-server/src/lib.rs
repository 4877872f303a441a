//! A real nats-server for the demonstration, the development server and the tests: found or fetched, started, and ended again.
//! Never runs a fetched binary whose hash is not the pinned one, and never listens beyond the loopback address.

mod fetch;
mod find;
mod run;
mod scratch;
mod types;

pub use fetch::{FetchError, Pin};
pub use find::{FindError, Found, MINIMUM, find, find_in};
pub use run::{RunError, Running, ServerOptions, is_free, spawn};
pub use scratch::private;
pub use types::{Environment, Origin, SERVER_VARIABLE, Version};
