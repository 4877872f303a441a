//! Doors: callers that do not speak Sealwire come in as an agent of the door's credentials.
//! Never decides what a service decides, and never makes up a result.

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
