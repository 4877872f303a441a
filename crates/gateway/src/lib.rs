//! Gateways: let callers that do not speak Sealwire call services, as the agent of the gateway's credentials.
//! Never makes a decision that belongs to a service, and never makes up a result.

mod agent;
mod approval;
mod bus;
mod caller;
mod catalogue;
pub mod dialect;
pub mod http;
pub mod mcp;
pub mod once;
pub mod pipe;
mod revocation;
mod seal;
mod spans;
pub mod stdio;
mod tasks;

pub use bus::Bus;
