//! Secure JSON-RPC 2.0 over NATS.

pub mod auth;
mod clock;
mod name;
pub mod policy;
pub mod rpc;

pub use clock::{Clock, ManualClock, SystemClock};
pub use name::{MethodName, Name, NameError};
pub use rpc::RpcError;
