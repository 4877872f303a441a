#![doc = include_str!("../README.md")]

pub mod auth;
mod bus;
pub mod client;
mod clock;
mod config;
mod fault;
mod log_limiter;
mod name;
/// Public for the fuzzer and the tests: no part of what this crate promises.
#[doc(hidden)]
pub mod nats;
pub mod policy;
pub mod rpc;
pub mod service;
pub mod wire;

pub use bus::{BusConfig, BusError};
pub use clock::{Clock, ManualClock, SystemClock};
pub use config::{
    Config, ConfigError, GuardKind, IssuerConfig, IssuerFault, KeysConfig, LimitsConfig, OutOfRange, PolicyConfig,
    ReplayConfig, TokensConfig,
};
pub use name::{MethodName, Name, NameError};
pub use rpc::RpcError;
