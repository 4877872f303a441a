//! The replay guards: one process, replicas on a real nats-server, and a model of them.

mod cluster;
mod faults;
mod guard_model;
mod local;
mod model;
mod outcomes;
mod recovery;
mod shared;
