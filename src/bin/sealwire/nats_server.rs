//! A real nats-server for the demo, the development set-up and the tests: found or fetched, started, and ended again.
//! Never runs a fetched binary whose hash is not the pinned one, and never listens beyond the loopback address.
//!
//! The integration tests compile this file too (through `#[path]`), so they run the server that the commands run.

#![allow(dead_code, reason = "the commands and each test file use their own part of this module")]
#![allow(unused_imports, reason = "the commands and each test file use their own part of this module")]

// The paths are spelled out because this file is reached by `mod` from the binary and by `#[path]` from the tests.
#[path = "nats_server/fetch.rs"]
mod fetch;
#[path = "nats_server/find.rs"]
mod find;
#[path = "nats_server/run.rs"]
mod run;

pub(crate) use fetch::{FetchError, Pin};
pub(crate) use find::{Environment, FindError, Found, MINIMUM, Origin, Version, find, find_in};
pub(crate) use run::{RunError, Running, ServerOptions, is_free, private, spawn};
