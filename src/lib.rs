#![doc = include_str!("../README.md")]
// Code shared by callers and services has parts that only one of them uses. With all features enabled, nothing is unused.
#![cfg_attr(
    not(all(feature = "client", feature = "service", feature = "shared-guard", feature = "policy-tools")),
    allow(dead_code, unused_imports, reason = "used by features that are switched off")
)]

#[cfg(not(any(feature = "client", feature = "service")))]
compile_error!("sealwire needs the feature `client` or `service`, or both, which is the default");

/// Public for the other crates of this workspace; not part of this crate's public API.
#[cfg(feature = "service")]
#[doc(hidden)]
pub mod address;
pub mod auth;
#[cfg(feature = "client")]
pub mod client;
mod clock;
#[cfg(feature = "service")]
mod config;
mod fault;
mod files;
mod jose;
mod log_limiter;
mod name;
/// Public for the fuzzer and the tests; not part of this crate's public API.
#[doc(hidden)]
pub mod nats;
#[cfg(feature = "service")]
pub mod policy;
pub mod rpc;
#[cfg(feature = "service")]
pub mod service;
mod strict_json;
/// Public for the other crates of this workspace; not part of this crate's public API.
#[doc(hidden)]
pub mod tls;
pub mod wire;

pub use clock::{Clock, ManualClock, SystemClock};
#[cfg(feature = "service")]
pub use config::{
    BackendConfig, BackendCredentialConfig, BackendHttpConfig, BackendKind, BackendMethodConfig, BackendOutput,
    BackendParamConfig, BackendParamType, BackendVerb, Config, ConfigError, CredentialOwner, GuardKind, IssuerConfig,
    IssuerFault, KeysConfig, LimitsConfig, OutOfRange, PolicyConfig, ReplayConfig, TokensConfig,
};
pub use log_limiter::LogLimiter;
pub use name::{MethodName, Name, NameError};
pub use nats::{BusConfig, BusError};
pub use rpc::RpcError;
