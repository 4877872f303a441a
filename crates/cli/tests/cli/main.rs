//! The command `sealwire`, run as a program.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod process;
mod shell;

mod approvals;
mod arguments;
mod backends;
mod bench;
mod broker_gate;
mod call;
mod cluster_setup;
mod completions;
mod compose;
mod configuration;
mod contexts;
mod dev;
mod encodings;
mod enrol;
mod examples;
mod files;
mod gateway;
mod gateway_http;
mod image;
mod init;
mod interrupted;
mod json;
mod keys;
mod operator_mode;
mod ping;
mod pipe;
mod policies_page;
mod policy;
mod policy_inputs;
mod policy_learn;
mod policy_push;
mod policy_shadow;
mod policy_tools;
mod records;
mod revocation;
mod secrets;
mod stopping;
mod streams;
mod tasks;
mod telemetry;
mod terminal;
mod token;
mod traces;
