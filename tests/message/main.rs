//! One message through the whole sequence of checks, without a socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod approvals;
mod bounds;
mod budgets;
mod builtin;
mod chain;
mod citations;
mod discover;
mod face;
mod facts;
mod features;
mod idempotency;
mod jsonrpc_service;
mod jsonrpc_text;
mod layers;
#[cfg(feature = "metrics")]
mod metrics;
mod record;
mod streams;
mod tasks;
mod token_rules;
mod vectors;
