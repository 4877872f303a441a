//! The replay guards: in one process, and shared by replicas on a real nats-server. A model of them is `crates/guard-model`.

mod cluster;
mod local;
mod model;
mod outcomes;
mod recovery;
mod shared;
