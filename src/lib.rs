#![doc = include_str!("lib.md")]
// Code shared by callers and services has parts that only one of them uses. With all features enabled, nothing is unused.
#![cfg_attr(
    not(all(
        feature = "client",
        feature = "metrics",
        feature = "otel",
        feature = "service",
        feature = "shared-guard",
        feature = "policy-tools"
    )),
    allow(dead_code, unused_imports, reason = "used by features that are switched off")
)]

// What the derive macros write names this crate, here as in any other.
extern crate self as sealwire;

#[cfg(not(any(feature = "client", feature = "service")))]
compile_error!("sealwire needs the feature `client` or `service`, or both, which is the default");

#[cfg(any(feature = "otel", feature = "service"))]
mod address;
mod auth;
#[cfg(feature = "client")]
mod client;
mod clock;
#[cfg(feature = "service")]
mod config;
mod error;
#[cfg(feature = "otel")]
mod export;
mod fault;
mod files;
#[cfg(all(feature = "client", feature = "service"))]
mod in_process;
mod jose;
mod log_limiter;
mod loopback;
mod name;
mod nats;
#[cfg(feature = "service")]
mod policy;
mod read_budget;
#[cfg(feature = "service")]
mod record;
#[cfg(feature = "metrics")]
mod registry;
mod rpc;
#[cfg(feature = "service")]
mod run;
#[cfg(feature = "service")]
mod service;
mod settings;
mod strict_json;
#[cfg(all(feature = "metrics", feature = "service"))]
mod telemetry;
mod tls;
mod trace;
mod wire;

// The names that most programs need. What stands beside them in a signature is in the module of its group below; each name has
// one path.

// Call.
#[cfg(feature = "client")]
pub use client::{Batch, CallStream, Client, ClientError, Credentials, RequestBuilder, Subscription, TokenSource};

// Serve.
#[cfg(feature = "service")]
pub use auth::Caller;
#[cfg(feature = "derive")]
pub use sealwire_macros::Params;
#[cfg(feature = "service")]
pub use service::{
    BuildError, Ctx, Idempotent, Method, Router, Running, ServeError, ServeOptions, Service, ServiceLimits, Sink,
    Topic, WhenFull, method,
};

// Decide.
#[cfg(feature = "service")]
pub use policy::{Decision, DecisionRecord, Explanation, PolicySet, Question};

// Configure.
pub use clock::{Clock, ManualClock, SystemClock};
#[cfg(feature = "service")]
pub use config::{Config, ConfigError};
pub use name::{MethodName, Name};
pub use nats::BusConfig;

// Errors beside `ClientError`, `ServeError`, `BuildError` and `ConfigError`.
pub use error::Error;
pub use rpc::RpcError;

/// What belongs to a [`Client`]: credentials and tokens, batches, attachments, what a service says of itself.
#[cfg(feature = "client")]
pub mod call {
    pub use crate::client::{
        Attachment, BatchAnswers, BatchCall, Catalogue, ClientBuilder, ClientStats, CommandToken, FetchedToken,
        FileToken, MethodInfo, MethodResult, NeededApproval, PendingApproval, StaticToken, Task, TaskMode,
        TaskProgress, TaskState, TaskStatus,
    };
    #[cfg(feature = "service")]
    pub use crate::in_process::InProcessClient;
    pub use crate::rpc::Request;
}

/// What belongs to a [`Service`]: how it is built and bounded, the layers around its methods, what it counts and reports.
#[cfg(feature = "service")]
pub mod serve {
    pub use crate::auth::TokenFacts;
    pub use crate::record::{OutcomeRecord, Recorder};
    pub use crate::rpc::Id;
    pub use crate::service::{
        Attachment, AttachmentLimits, BudgetCounters, Builder, Call, Condition, Counters, Denied, Description, Ending,
        Health, Message, MethodCounters, MethodService, Outlet, ParamList, ParamValue, Permit, Permitted, QuotaLimits,
        QuotaScope, Ready, RefusedReload, ShadowCounters, State, StreamLimits, TaskLimits, WantsMethods, WantsPolicy,
        WantsVerifier, Watched,
    };
    pub use crate::wire::{Delivery, Sealed};
}

/// What belongs to a [`PolicySet`]: questions and verdicts, findings, explanations, the records of decisions.
#[cfg(feature = "service")]
pub mod decide {
    pub use crate::policy::{
        Approval, Budget, ConditionExplanation, Effect, Finding, Involved, Methods, Mode, NotApprover, Outcome, Param,
        ParamType, Per, PolicyStore, PrincipalExplanation, PrincipalKind, Reach, Reason, Reload, Requester, Revision,
        RuleExplanation, RuleId, ScalarType, Severity, Shadow, ShadowRecord, Verdict,
    };
}

/// The sections of a [`Config`], and keys.
pub mod configure {
    #[cfg(feature = "service")]
    pub use crate::auth::{OperatorConfig, RevocationConfig};
    #[cfg(feature = "service")]
    pub use crate::config::{
        DiscoveryConfig, GuardKind, IssuerConfig, KeysConfig, LimitsConfig, PolicyConfig, PolicySource, ReloadConfig,
        ReplayConfig, TelemetryConfig, TokensConfig,
    };
    pub use crate::files::FileTrust;
    #[cfg(feature = "service")]
    pub use crate::record::RecordConfig;
    pub use crate::wire::{AgentKey, ProofAlgorithm, ServicePublicKey};
}

/// What is reported to a registry of Prometheus metrics. docs/observability.md has the families.
#[cfg(feature = "metrics")]
pub mod metrics {
    pub use crate::registry::{Registry, Report};
    #[cfg(feature = "service")]
    pub use crate::telemetry::{Telemetry, TelemetryError};
}

/// The trace that a call belongs to, and where traces are sent. docs/observability.md says what is in a span.
pub mod traces {
    #[cfg(feature = "otel")]
    pub use crate::export::{TraceOptions, TraceOptionsError, Traces};
    pub use crate::trace::{Trace, Tracer};
}

/// What the errors above are made of, and the codes of [`RpcError`].
pub mod errors {
    #[cfg(feature = "service")]
    pub use crate::auth::{
        DenylistError, KeyFault, KeyRingError, KeySetError, NonceLimitsError, OpenError, OperatorsError,
        RevocationError, ServiceKeyError, ServiceKeyMissing, SharedOpenError, TimeFloorError, WindowError,
    };
    #[cfg(feature = "client")]
    pub use crate::client::{
        CredentialsError, ErrorKind, HintKind, InvalidRequest, MemberFault, ProtocolError, StreamLoss, TokenFault,
    };
    #[cfg(feature = "service")]
    pub use crate::config::{IssuerFault, OutOfRange};
    pub use crate::files::{SecretFileError, TextFault};
    pub use crate::name::NameError;
    pub use crate::nats::BusError;
    #[cfg(feature = "service")]
    pub use crate::policy::PolicyErrors;
    #[cfg(feature = "service")]
    pub use crate::record::RecordError;
    pub use crate::rpc::code;
    #[cfg(feature = "service")]
    pub use crate::service::{AskError, AttachmentError, FrameError, RouterError};
    pub use crate::wire::{EndpointError, KeyError};
}

/// What only this project's other crates and tests use. **Outside semantic versioning:** anything in it may change or go with any
/// release.
#[doc(hidden)]
pub mod internal {
    pub use crate::log_limiter::{KeyedLogLimiter, LogLimiter};
    pub use crate::read_budget::{BudgetedStream, ReadBudget};

    #[cfg(any(feature = "otel", feature = "service"))]
    pub mod address {
        pub use crate::address::*;
    }
    pub mod auth {
        pub use crate::auth::*;
    }
    #[cfg(feature = "client")]
    pub mod client {
        pub use crate::client::*;
    }
    #[cfg(feature = "service")]
    pub mod config {
        pub use crate::config::*;
    }
    pub mod files {
        pub use crate::files::*;
    }
    pub mod nats {
        pub use crate::nats::*;
    }
    #[cfg(feature = "metrics")]
    pub mod registry {
        pub use crate::registry::*;
    }
    #[cfg(feature = "service")]
    pub mod policy {
        pub use crate::policy::*;
    }
    #[cfg(feature = "service")]
    pub mod record {
        pub use crate::record::*;
    }
    pub mod rpc {
        pub use crate::rpc::*;
    }
    #[cfg(feature = "service")]
    pub mod service {
        pub use crate::service::*;
    }
    pub mod settings {
        pub use crate::settings::*;
    }
    pub mod tls {
        pub use crate::tls::*;
    }
    pub mod trace {
        pub use crate::trace::*;
    }
    #[cfg(feature = "otel")]
    pub mod export {
        pub use crate::export::*;
    }
    pub mod wire {
        pub use crate::wire::*;
    }
}
