//! Services, clients and whole set-ups on a real nats-server.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "../support/cli.rs"]
mod cli;
#[path = "../message/token_rules/idp.rs"]
#[allow(dead_code, reason = "of those tests, a part")]
mod idp;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/python.rs"]
mod python;
#[path = "../support/slow.rs"]
mod slow;
#[path = "../support/mod.rs"]
mod support;

mod client;
mod cluster_setup;
mod identity_providers;
mod interop;
mod nats_connection;
mod policy_reload;
mod revocation;
mod serve;
mod silent_node;
mod stopping;
