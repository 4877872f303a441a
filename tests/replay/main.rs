//! The replay guards: one process, replicas on a real nats-server, and a model of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod cluster;
mod faults;
mod guard_model;
mod local;
mod model;
mod outcomes;
mod recovery;
mod shared;
