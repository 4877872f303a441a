//! What each connection may do at the broker: the table of SPEC.md §19.
//! Never grants `allow_responses`: callers choose reply subjects, and it would let a service publish to any of them.

use std::fmt;

use sealwire_bench::BARE_SUBJECTS;

/// The subjects that a user may publish and subscribe to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Permissions {
    publish: Vec<String>,
    subscribe: Vec<String>,
}

impl Permissions {
    /// An agent: its own request subjects at any service, control of its own calls, and its own inbox.
    pub(crate) fn agent(agent: &str) -> Self {
        // `>` does not match the subject without a further token.
        let publish = [format!("rpc.v1.*.{agent}"), format!("rpc.v1.*.{agent}.>"), format!("rpc.v1-ctl.*.{agent}.>")];
        Self::new(publish, [format!("_INBOX.{agent}.>")])
    }

    /// A service: answers to any inbox, and to `$SRV`. Its replicas talk to each other on subjects where no other user may publish,
    /// separate from its guard's inbox, which it must not hear.
    pub(crate) fn service(service: &str) -> Self {
        let own = format!("_SVC.{service}.replica.>");
        let asked = ["PING", "INFO", "STATS"].into_iter().flat_map(|verb| {
            [format!("$SRV.{verb}"), format!("$SRV.{verb}.{service}"), format!("$SRV.{verb}.{service}.*")]
        });
        let heard = [format!("rpc.v1.{service}.>"), format!("rpc.v1-ctl.{service}.>"), own.clone()];
        Self::new(["_INBOX.>".to_owned(), own], heard.into_iter().chain(asked))
    }

    /// The shared replay guard of a service: its nonces, and what it needs to find, create, verify and remove their streams. A user
    /// who may create a stream can have it collect any subject and republish to any other, whatever else is denied. So this user is
    /// alone in its own account, where there is nothing but these streams.
    pub(crate) fn guard(environment: &str, service: &str) -> Self {
        let api = ["NAMES", "INFO.*", "MSG.GET.*", "CREATE.*", "DELETE.*"]
            .into_iter()
            .map(|verb| format!("$JS.API.STREAM.{verb}"));
        Self::new(
            std::iter::once(format!("rg.{environment}.{service}.>")).chain(api),
            [format!("_SVC.{service}.guard.>")],
        )
    }

    /// An operator's tools: they ask which services are there.
    pub(crate) fn tools(tool: &str) -> Self {
        Self::new(["$SRV.>".to_owned()], [format!("_INBOX.{tool}.>")])
    }

    /// The bare requests of `sealwire bench`, on subjects that no calls or answers use.
    pub(crate) fn bench() -> Self {
        Self::new([BARE_SUBJECTS.to_owned()], [BARE_SUBJECTS.to_owned()])
    }

    /// Everything.
    pub(crate) fn all() -> Self {
        Self::new([">".to_owned()], [">".to_owned()])
    }

    fn new(publish: impl IntoIterator<Item = String>, subscribe: impl IntoIterator<Item = String>) -> Self {
        Self { publish: publish.into_iter().collect(), subscribe: subscribe.into_iter().collect() }
    }
}

/// As written in nats-server's configuration.
impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |subjects: &[String]| subjects.iter().map(|s| format!("\"{s}\"")).collect::<Vec<_>>().join(", ");
        write!(f, "{{ publish: [{}], subscribe: [{}] }}", list(&self.publish), list(&self.subscribe))
    }
}
