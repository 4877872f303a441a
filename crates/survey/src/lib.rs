//! Asks all NATS micro services (ADR-32) how they are doing, and keeps what they answer: for `sealwire exporter` and `sealwire top`.
//! Never takes an answer for a service's whose key is known unless that key has signed it, and never holds more than its bounds, whatever
//! is answered by whomever.

mod answer;
mod books;
mod bucket;
mod fault;
mod label;
mod mailbox;
mod pins;
mod reasons;
mod report;
mod survey;

pub use answer::{AgentRefusals, Endpoint, ReplicaStats, SealwireStats};
pub use books::{Key, Replica};
pub use fault::Fault;
pub use pins::{Pins, TooManyPins};
pub use reasons::meaning;
pub use survey::{NotAsked, Options, Snapshot, Survey};
