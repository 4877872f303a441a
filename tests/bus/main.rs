//! Services, clients and complete set-ups on a real nats-server.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod at_most_once;
mod attachments;
mod bucket_accounts;
mod client;
mod guard;
mod idempotency;
mod identity_providers;
mod interop;
mod leaf_nodes;
mod nats_connection;
mod operator_mode;
mod outages;
mod policy_packages;
mod policy_reload;
mod revocation;
mod revocation_list;
mod runs;
mod serve;
mod silent_node;
mod streams;
mod tasks;
#[cfg(all(feature = "metrics", feature = "otel"))]
mod traces;
mod two_brokers;
