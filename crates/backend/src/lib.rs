//! Backends: programs that know nothing of Sealwire. Each of their tools is a method of a service.
//! Never decides who may call what: calls come from the library's router, after every check.

mod arguments;
mod backend;
mod backends;
mod checked;
pub mod child;
mod config;
mod exact;
mod exec;
mod file;
mod form;
mod http;
mod mcp;
mod names;
mod pace;
mod pins;
mod report;
mod schema;
mod stdio;
mod tables;
mod talk;
mod tally;
mod tool;
pub mod web;
mod ws;

pub use backend::{Backend, Call, Health};
pub use backends::{Backends, Listing, ServerListing, catalogue, described, missing, offered};
pub use config::BackendError;
pub use file::{keys, load};
pub use mcp::Definition;
pub use pins::{Approval, ApprovalState, Kind, Lock, LockError, Pin, differences, is_hidden, shown, whole};
pub use schema::{Mismatch, Schema, SchemaError};
pub use tables::{
    BackendConfig, BackendCredentialConfig, BackendHttpConfig, BackendKind, BackendMethodConfig, BackendOutput,
    BackendParamConfig, BackendParamType, BackendQuestion, BackendStdin, BackendTables, BackendVerb, CredentialOwner,
    McpRevision,
};
pub use tally::{Tallied, Tally};
pub use tool::Tool;
