//! Backends: programs that know nothing of Sealwire. Each of their tools is a method of a service.
//! Never decides who may call what: calls come from the library's router, after every check.

mod arguments;
mod backend;
mod backends;
pub mod child;
mod config;
mod exec;
mod http;
pub mod lines;
mod mcp;
mod names;
mod pins;
mod schema;
mod stdio;
mod talk;
mod tool;
pub mod web;

pub use backend::{Backend, Call, Health};
pub use backends::{Backends, catalogue, described, offered};
pub use config::BackendFault;
pub use mcp::Definition;
pub use pins::{CanonicalError, Lock, LockError, Pin, Standing, differences, is_hidden, shown};
pub use schema::{Mismatch, Schema, SchemaError};
pub use tool::Tool;
