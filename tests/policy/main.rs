//! Policies: what loads, what it decides, and what the tools say about it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod approvals;
mod arguments;
mod budgets;
mod cedar;
mod check;
mod explain;
mod files;
mod hostile;
mod model;
mod numbers;
mod principals;
mod reach;
mod readable;
mod review;
mod rules;
mod shipped;
mod store;
mod strict;
mod tools;
