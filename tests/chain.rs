//! The chain of checks as an attacker meets it, through `Service::handle`, without a socket. One file per question.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "support/desk.rs"]
#[allow(dead_code, reason = "each test file uses its own part")]
mod desk;

#[path = "chain/keys.rs"]
mod keys;
#[path = "chain/leaks.rs"]
mod leaks;
#[path = "chain/limits.rs"]
mod limits;
#[path = "chain/order.rs"]
mod order;
#[path = "chain/policy.rs"]
mod policy;
#[path = "chain/properties.rs"]
mod properties;
#[path = "chain/replies.rs"]
mod replies;
#[path = "chain/tamper.rs"]
mod tamper;
