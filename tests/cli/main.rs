//! The command `sealwire`, run as a program.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "../support/cli.rs"]
mod cli;
#[path = "../../src/bin/sealwire/demo_methods.rs"]
mod demo_methods;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/python.rs"]
mod python;
#[path = "../support/mod.rs"]
mod support;

mod call;
mod completions;
mod configuration;
mod dev;
mod enrol;
mod examples;
mod files;
mod init;
mod json;
mod keys;
mod nats_server;
mod policy;
mod policy_tools;
mod secrets;
mod terminal;
mod token;
