//! Keys that are fetched from identity providers, and tokens as these write them: real messages to a real service, HTTPS to
//! a server of this machine that can be slow, dead or wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "support/desk.rs"]
#[allow(dead_code, reason = "each test file uses its own part")]
mod desk;
#[path = "token_rules/idp.rs"]
#[allow(dead_code, reason = "each test file uses its own part")]
mod idp;

#[path = "identity_providers/fetching.rs"]
mod fetching;
#[path = "identity_providers/pages.rs"]
mod pages;
#[path = "identity_providers/provider.rs"]
mod provider;
