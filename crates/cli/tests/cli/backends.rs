//! Programs behind the bus: `sealwire serve` with backends, called by an agent. docs/backends.md.

mod exec;
pub(crate) mod http;
mod mcp;
pub(crate) mod stage;
mod stdio;
mod ws;
