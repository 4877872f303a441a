//! One message through the whole row of checks, without a socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "../support/desk.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod desk;
#[path = "../support/jsonrpc_examples.rs"]
mod jsonrpc_examples;

mod builtin;
mod chain;
mod jsonrpc_service;
mod jsonrpc_text;
mod token_rules;
mod vectors;
