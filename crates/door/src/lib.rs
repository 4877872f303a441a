//! Doors: let callers that do not speak Sealwire call services, as the agent of the door's credentials.
//! Never makes a decision that belongs to a service, and never makes up a result.

mod bus;
mod caller;
mod catalogue;
pub mod http;
mod json;
pub mod mcp;
pub mod once;
mod seal;
pub mod stdio;

pub use bus::Bus;
