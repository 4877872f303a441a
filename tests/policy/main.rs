//! Policies: what loads, what it decides, and what the tools tell of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "../support/desk.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod desk;
mod support;

mod arguments;
mod cedar;
mod check;
mod docs;
mod explain;
mod files;
mod hostile;
mod model;
mod review;
mod rules;
mod shipped;
mod store;
mod strict;
mod tools;
