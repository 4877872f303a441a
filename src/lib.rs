//! Secure JSON-RPC 2.0 over NATS.

pub mod auth;
mod bus;
mod clock;
mod name;
pub mod policy;
pub mod rpc;
pub mod service;
pub mod wire;

pub use bus::{BusConfig, BusError};
pub use clock::{Clock, ManualClock, SystemClock};
pub use name::{MethodName, Name, NameError};
pub use rpc::RpcError;
