//! Where a service listens, and its identity for callers. Never changes while a service runs.

use std::fmt;
use std::sync::Arc;

use super::subject::{MAX_SUBJECT, SubjectParts};
use crate::name::{MethodName, Name};

/// The audience of a message: `<environment>/<service>`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Audience(Arc<str>);

impl Audience {
    /// The audience of `service` in `environment`.
    #[must_use]
    pub fn new(environment: &Name, service: &Name) -> Self {
        Self(format!("{environment}/{service}").into())
    }

    /// `<environment>/<service>`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses `<environment>/<service>`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (environment, service) = text.split_once('/')?;
        Some(Self::new(&Name::new(environment).ok()?, &Name::new(service).ok()?))
    }

    /// The environment's name, which comes before the slash.
    #[must_use]
    pub fn environment(&self) -> &str {
        self.0.split_once('/').map_or("", |(environment, _)| environment)
    }

    /// The service's name, which follows the slash.
    #[must_use]
    pub fn service(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, service)| service)
    }
}

impl fmt::Display for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Size limits that apply before any cryptography.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireLimits {
    /// The largest request payload in bytes; 192 KiB, so that it fits a broker limit of 256 KiB together with its headers.
    pub payload: usize,
    /// The largest `Authorization` value in bytes; 8 KiB.
    pub authorization: usize,
    /// The most headers of a message; 32. We measured that a 1 MB message with 134,000 tiny headers occupied a
    /// connection for over 100 ms, so the broker's `max_payload` should be small as well.
    pub headers: usize,
    /// The most bytes of all headers together, names and values including separators; 16 KiB.
    pub header_bytes: usize,
}

impl Default for WireLimits {
    fn default() -> Self {
        Self { payload: 192 * 1024, authorization: 8 * 1024, headers: 32, header_bytes: 16 * 1024 }
    }
}

/// A service's place on the bus: environment, service, subject prefix, inbox prefix, size limits.
#[derive(Debug, Clone)]
pub struct Endpoint {
    environment: Name,
    service: Name,
    audience: Audience,
    prefix: Arc<str>,
    inbox_prefix: Arc<str>,
    limits: WireLimits,
}

/// The prefixes cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Not 1 to 8 subject tokens of `[A-Za-z0-9_-]`, separated by dots.
    #[error("the {what} is not a subject prefix: use tokens of A-Z a-z 0-9 _ - separated by dots")]
    Prefix {
        /// Which of them. Not its value, which comes from a file that may hold secrets.
        what: &'static str,
    },
    /// One prefix begins with the other, so a right to publish under the one would include the other.
    #[error("the {what} overlaps the {other}: choose prefixes of which neither begins with the other")]
    Overlap {
        /// Which of them.
        what: &'static str,
        /// Which of the others.
        other: &'static str,
    },
}

impl Endpoint {
    /// The default subject prefix.
    pub const PREFIX: &str = "rpc.v1";
    /// The default inbox prefix.
    pub const INBOX_PREFIX: &str = "_INBOX";
    /// The prefix of services' own inboxes. It is separate from [`INBOX_PREFIX`](Self::INBOX_PREFIX), under which every
    /// service may publish, since it answers agents. Under this one, only the broker and the service itself need to
    /// publish. It cannot be configured: replicas with different prefixes would not find each other.
    pub const SERVICE_INBOX_PREFIX: &str = "_SVC";

    /// The endpoint of `service` in `environment`, with the default prefixes and limits.
    #[must_use]
    pub fn new(environment: Name, service: Name) -> Self {
        Self {
            audience: Audience::new(&environment, &service),
            environment,
            service,
            prefix: Self::PREFIX.into(),
            inbox_prefix: Self::INBOX_PREFIX.into(),
            limits: WireLimits::default(),
        }
    }

    /// Uses other prefixes.
    ///
    /// # Errors
    /// [`EndpointError`] when a prefix is not made of subject tokens, begins with `$`, or overlaps another one.
    pub fn with_prefixes(mut self, prefix: &str, inbox_prefix: &str) -> Result<Self, EndpointError> {
        self.prefix = prefix.into();
        self.inbox_prefix = inbox_prefix.into();
        self.checked()
    }

    fn checked(self) -> Result<Self, EndpointError> {
        let (control_prefix, approvals_prefix) = (self.control_prefix(), self.approvals_prefix());
        let prefixes = [
            ("RPC prefix", &*self.prefix),
            ("RPC prefix with `-ctl`", &*control_prefix),
            ("RPC prefix with `-approvals`", &*approvals_prefix),
            ("inbox prefix", &*self.inbox_prefix),
            ("service inbox prefix", Self::SERVICE_INBOX_PREFIX),
        ];
        let begins = |long: &str, short: &str| {
            long == short || long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'))
        };
        for (index, (what, value)) in prefixes.into_iter().enumerate() {
            let tokens_hold = value.split('.').all(|token| Name::new(token).is_ok());
            if !tokens_hold || value.split('.').count() > 8 {
                return Err(EndpointError::Prefix { what });
            }
            for (other, prefix) in prefixes.into_iter().take(index) {
                if begins(value, prefix) || begins(prefix, value) {
                    return Err(EndpointError::Overlap { what, other });
                }
            }
        }
        Ok(self)
    }

    /// Uses other size limits.
    #[must_use]
    pub fn with_limits(mut self, limits: WireLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The environment, such as `prod`.
    #[must_use]
    pub fn environment(&self) -> &Name {
        &self.environment
    }

    /// The service.
    #[must_use]
    pub fn service(&self) -> &Name {
        &self.service
    }

    /// `<environment>/<service>`.
    #[must_use]
    pub fn audience(&self) -> &Audience {
        &self.audience
    }

    /// The size limits.
    #[must_use]
    pub fn limits(&self) -> &WireLimits {
        &self.limits
    }

    /// The RPC prefix.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The inbox prefix.
    #[must_use]
    pub fn inbox_prefix(&self) -> &str {
        &self.inbox_prefix
    }

    /// The prefix of the service's own inboxes: `_SVC.<service>`, without a final dot.
    #[must_use]
    pub fn service_inbox(&self) -> String {
        format!("{}.{}", Self::SERVICE_INBOX_PREFIX, self.service)
    }

    /// What the service subscribes to: `<prefix>.<service>.>`.
    #[must_use]
    pub fn subscription(&self) -> String {
        format!("{}.{}.>", self.prefix, self.service)
    }

    /// Where `agent` publishes any call, notification or batch: `<prefix>.<service>.<agent>`.
    #[must_use]
    pub fn subject(&self, agent: &Name) -> String {
        format!("{}.{}.{agent}", self.prefix, self.service)
    }

    /// Where `agent` publishes a single call or notification of `method` only.
    #[must_use]
    pub fn method_subject(&self, agent: &Name, method: &MethodName) -> String {
        format!("{}.{}.{agent}.{}", self.prefix, self.service, method.in_subject())
    }

    /// The prefix of news about calls that wait for approval: the RPC prefix followed by `-approvals`. No agent publishes there.
    fn approvals_prefix(&self) -> String {
        format!("{}-approvals", self.prefix)
    }

    /// Where the service tells those with this role of calls that they may approve: `<prefix>-approvals.<service>.<role>`. `None` for a
    /// role whose name cannot be part of a subject.
    #[must_use]
    pub fn approvals_subject(&self, role: &str) -> Option<String> {
        let role = Name::new(role).ok()?;
        Some(format!("{}.{}.{role}", self.approvals_prefix(), self.service))
    }

    /// The agent that a subject names, if it follows the grammar. The claim is not proved.
    pub(crate) fn agent_of(&self, subject: &str) -> Option<Name> {
        SubjectParts::parse(subject, &self.prefix).map(|parts| parts.agent)
    }

    /// The size of the largest message within the limits, subjects included.
    pub(crate) fn max_message(&self) -> usize {
        let WireLimits { payload, header_bytes, .. } = self.limits;
        payload.saturating_add(header_bytes).saturating_add(2 * MAX_SUBJECT)
    }

    /// The prefix of the reply subjects of `agent`: `<inbox prefix>.<agent>.`, with the final dot.
    #[must_use]
    pub fn inbox(&self, agent: &Name) -> String {
        format!("{}.{agent}.", self.inbox_prefix)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint::new(Name::new("prod").unwrap(), Name::new("math").unwrap())
    }

    /// SPEC.md §3.
    #[test]
    fn subjects_follow_the_protocol() {
        let agent = Name::new("planner").unwrap();
        let endpoint = endpoint();
        assert_eq!(endpoint.subscription(), "rpc.v1.math.>");
        assert_eq!(endpoint.subject(&agent), "rpc.v1.math.planner");
        let method = MethodName::new("math/add").unwrap();
        assert_eq!(endpoint.method_subject(&agent, &method), "rpc.v1.math.planner.math.add");
        assert_eq!(endpoint.inbox(&agent), "_INBOX.planner.");
        assert_eq!(endpoint.service_inbox(), "_SVC.math");
        assert_eq!(endpoint.audience().as_str(), "prod/math");
    }

    /// SPEC.md §3.1.
    #[test]
    fn inbox_prefix_may_not_overlap_or_be_privileged() {
        assert!(endpoint().with_prefixes("rpc.v1", "in.box").is_ok());
        assert!(endpoint().with_prefixes("rpc.v1", "rpc.v1x").is_ok());
        for (prefix, inbox) in [
            ("rpc", "rpc.v1"),
            ("rpc.v1", "rpc"),
            ("a", "a"),
            ("rpc", "$JS"),
            ("rpc", "$JS.API"),
            ("", "x"),
            ("a..b", "x"),
            ("a", "*"),
            ("a", "b.>"),
        ] {
            assert!(endpoint().with_prefixes(prefix, inbox).is_err(), "{prefix} {inbox}");
        }
    }

    /// Every service may publish below the inbox prefix, and every agent below the RPC prefix: neither may reach a
    /// service's own inbox.
    /// SPEC.md §18.
    #[test]
    fn services_inboxes_lie_under_no_other_prefix() {
        for prefix in ["_SVC", "_SVC.math", "_SVC.x.y"] {
            assert!(endpoint().with_prefixes(prefix, "_INBOX").is_err(), "{prefix}");
            assert!(endpoint().with_prefixes("rpc.v1", prefix).is_err(), "{prefix}");
        }
        let overlap = endpoint().with_prefixes("rpc.v1", "_SVC.inboxes").unwrap_err();
        assert_eq!(
            overlap.to_string(),
            "the service inbox prefix overlaps the inbox prefix: choose prefixes of which neither begins with the other"
        );
    }
}
