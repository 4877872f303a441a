//! The command `sealwire`, run as a program.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "../../src/demo_methods.rs"]
mod demo_methods;
mod process;
mod shell;

mod backends;
mod bench;
mod call;
mod cluster_setup;
mod completions;
mod compose;
mod configuration;
mod dev;
mod door;
mod door_http;
mod enrol;
mod examples;
mod files;
mod init;
mod json;
mod keys;
mod policies_page;
mod policy;
mod policy_learn;
mod policy_tools;
mod secrets;
mod stopping;
mod streams;
mod terminal;
mod token;
