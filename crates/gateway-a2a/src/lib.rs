//! A2A 1.0 over its JSON-RPC binding, as a dialect of a gateway: a service's methods as an agent that takes messages, or a service that is
//! an agent itself.
//! Never keeps a task beyond its time, and never reaches a service but with what the gateway has admitted.

mod agents;
mod card;
mod dialect;
mod fault;
mod follow;
mod forms;
mod message;
mod raw;
mod run;
mod service_task;
mod task;
mod tasks;

pub use self::agents::A2a;
