//! What each connection may do at the broker: the table of SPEC.md §19.
//! Never grants `allow_responses`: callers choose reply subjects, and it would let a service publish to any of them.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::bench::BARE_SUBJECTS;

/// The subjects that a user may publish and subscribe to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    publish: Vec<String>,
    /// Exceptions from `publish`.
    deny: Vec<String>,
    subscribe: Vec<String>,
}

impl Permissions {
    /// An agent to which policies leave only these requests, with the subjects of its inbox, and those of news for its roles.
    pub fn narrow_agent(
        publish: impl IntoIterator<Item = String>,
        deny: impl IntoIterator<Item = String>,
        heard: impl IntoIterator<Item = String>,
    ) -> Self {
        Self { deny: deny.into_iter().collect(), ..Self::new(publish, heard) }
    }

    /// A responder of `sealwire authd`: it takes the brokers' questions and answers them, alone with its like in an account.
    pub fn responder() -> Self {
        Self::new(["$SYS._INBOX.>".to_owned()], ["$SYS.REQ.USER.AUTH".to_owned()])
    }

    /// An agent: its own request subjects at any service, control of its own calls, and its own inbox.
    pub fn agent(agent: &str) -> Self {
        // `>` does not match the subject without a further token.
        let publish = [format!("rpc.v1.*.{agent}"), format!("rpc.v1.*.{agent}.>"), format!("rpc.v1-ctl.*.{agent}.>")];
        Self::new(publish, [format!("_INBOX.{agent}.>")])
    }

    /// A service: answers to any inbox, and to `$SRV`, and news of calls that wait for approval. Its replicas talk to each other on subjects where no other user may publish,
    /// separate from its guard's inbox, which it must not hear.
    pub fn service(service: &str) -> Self {
        let own = format!("_SVC.{service}.replica.>");
        let asked = ["PING", "INFO", "STATS"].into_iter().flat_map(|verb| {
            [format!("$SRV.{verb}"), format!("$SRV.{verb}.{service}"), format!("$SRV.{verb}.{service}.*")]
        });
        let heard = [format!("rpc.v1.{service}.>"), format!("rpc.v1-ctl.{service}.>"), own.clone()];
        let news = format!("rpc.v1-approvals.{service}.*");
        Self::new(["_INBOX.>".to_owned(), own, news], heard.into_iter().chain(asked))
    }

    /// The shared replay guard of a service: its nonces, and what it needs to find, create, verify and remove their streams. A user
    /// who may create a stream can have it collect any subject and republish to any other, whatever else is denied. So this user is
    /// alone in its own account, where there is nothing but these streams.
    pub fn guard(environment: &str, service: &str) -> Self {
        let api = ["NAMES", "INFO.*", "MSG.GET.*", "CREATE.*", "DELETE.*"]
            .into_iter()
            .map(|verb| format!("$JS.API.STREAM.{verb}"));
        Self::new(
            std::iter::once(format!("rg.{environment}.{service}.>")).chain(api),
            [format!("_SVC.{service}.guard.>")],
        )
    }

    /// An operator's tools: they ask which services are there.
    pub fn tools(tool: &str) -> Self {
        Self::new(["$SRV.>".to_owned()], [format!("_INBOX.{tool}.>")])
    }

    /// An operator who revokes and distributes policies: the keys of the buckets, their streams, and the reports of those who follow them.
    pub fn revoker(environment: &str, operator: &str) -> Self {
        let api = ["", "POLICY"].into_iter().flat_map(|of| {
            ["CREATE", "MSG.GET"].map(|verb| format!("$JS.API.STREAM.{verb}.KV_SEALWIRE{of}_{environment}"))
        });
        let own = [
            format!("$KV.SEALWIRE_{environment}.list"),
            format!("$KV.SEALWIREPOLICY_{environment}.*.*"),
            format!("revocation.v1.{environment}.ask"),
            format!("policy.v1.{environment}.ask"),
        ];
        let reports = ["revocation", "policy"].map(|topic| format!("{topic}.v1.{environment}.report.>"));
        Self::new(own.into_iter().chain(api), reports.into_iter().chain([format!("_SVC.{operator}.revocation.>")]))
    }

    /// A service that follows what operators revoke and distribute, in an account that imports what it reads; and `authd`, which does so
    /// for it.
    pub fn follower(environment: &str, service: &str) -> Self {
        Self::following(environment, &["service", "authd"], service).with_policies(
            environment,
            &["service", "authd"],
            service,
        )
    }

    /// A gateway that follows it, by the name of its agent.
    pub fn gateway_follower(environment: &str, gateway: &str) -> Self {
        Self::following(environment, &["gateway"], gateway)
    }

    /// An `authd` that follows it with a login of its own, for whichever services it judges.
    pub fn authd_follower(environment: &str) -> Self {
        Self::following(environment, &["authd"], "*").with_policies(environment, &["authd"], "*")
    }

    /// Also the policies of this service.
    fn with_policies(mut self, environment: &str, roles: &[&str], name: &str) -> Self {
        self.publish.push(format!("$JS.API.STREAM.MSG.GET.KV_SEALWIREPOLICY_{environment}"));
        self.publish.extend(roles.iter().map(|role| format!("policy.v1.{environment}.report.{role}.{name}.*")));
        self.subscribe.push(format!("policy.v1.{environment}.package.{name}.*"));
        self.subscribe.push(format!("policy.v1.{environment}.ask"));
        self
    }

    fn following(environment: &str, roles: &[&str], name: &str) -> Self {
        let read = format!("$JS.API.STREAM.MSG.GET.KV_SEALWIRE_{environment}");
        let heard = ["list", "ask"].map(|what| format!("revocation.v1.{environment}.{what}"));
        let reports = roles.iter().map(|role| format!("revocation.v1.{environment}.report.{role}.{name}.*"));
        Self::new(std::iter::once(read).chain(reports), heard.into_iter().chain([format!("_SVC.{name}.revocation.>")]))
    }

    /// An operator who closes connections, in the system's account.
    pub fn closer(operator: &str) -> Self {
        let asked = ["PING.CONNZ", "*.CONNZ", "*.KICK"].map(|what| format!("$SYS.REQ.SERVER.{what}"));
        Self::new(asked, [format!("_SVC.{operator}.revocation.>")])
    }

    /// A gateway's relay of what approvers have signed: the methods with which requests are looked at and decided, of any service and agent,
    /// and the answers to what is relayed. A service compares the method of a message with that of its subject.
    pub fn relay() -> Self {
        let methods = ["rpc.approvals", "rpc.approval", "rpc.approve"].map(|method| format!("rpc.v1.*.*.{method}"));
        Self::new(methods, ["_INBOX.*.relay.*".to_owned()])
    }

    /// Nothing.
    pub fn nothing() -> Self {
        Self::new([], [])
    }

    /// Who gives brokers in operator mode new versions of accounts, which count only if the operator has signed them.
    pub fn pusher(name: &str) -> Self {
        Self::new(["$SYS.REQ.CLAIMS.UPDATE".to_owned()], [format!("_INBOX.{name}.>")])
    }

    /// The bare requests of `sealwire bench`, on subjects that no calls or answers use.
    pub fn bench() -> Self {
        Self::new([BARE_SUBJECTS.to_owned()], [BARE_SUBJECTS.to_owned()])
    }

    /// Everything.
    pub fn all() -> Self {
        Self::new([">".to_owned()], [">".to_owned()])
    }

    fn new(publish: impl IntoIterator<Item = String>, subscribe: impl IntoIterator<Item = String>) -> Self {
        Self { publish: publish.into_iter().collect(), deny: Vec::new(), subscribe: subscribe.into_iter().collect() }
    }

    /// What may be published, and what not. To a broker, an empty list of what is allowed means everything.
    fn publishing(&self) -> (&[String], Vec<String>) {
        let all = self.publish.is_empty().then(|| ">".to_owned());
        (&self.publish, all.into_iter().chain(self.deny.iter().cloned()).collect())
    }

    /// The same of what may be subscribed to.
    fn subscribing(&self) -> (&[String], Vec<String>) {
        (&self.subscribe, self.subscribe.is_empty().then(|| ">".to_owned()).into_iter().collect())
    }

    /// Whether these let the user publish on a subject, which has no wildcards.
    pub fn may_publish(&self, subject: &str) -> bool {
        let (allow, deny) = self.publishing();
        covers(allow, subject) && !covers(&deny, subject)
    }

    /// Whether these let the user subscribe to a subject, which has no wildcards.
    pub fn may_subscribe(&self, subject: &str) -> bool {
        covers(&self.subscribe, subject)
    }

    /// What may be published, exceptions apart, as subjects or patterns.
    pub fn published(&self) -> impl Iterator<Item = &str> {
        self.publish.iter().map(String::as_str)
    }

    /// The exceptions from what may be published.
    pub fn denied(&self) -> impl Iterator<Item = &str> {
        self.deny.iter().map(String::as_str)
    }

    /// What may be subscribed to, as subjects or patterns.
    pub fn subscribed(&self) -> impl Iterator<Item = &str> {
        self.subscribe.iter().map(String::as_str)
    }

    /// As in the JWT of a user, or in the template of a scoped signing key.
    pub fn claims(&self) -> Value {
        let lists = |(allow, deny): (&[String], Vec<String>)| -> Map<String, Value> {
            let both = [("allow", allow), ("deny", deny.as_slice())];
            let given = both.into_iter().filter(|(_, subjects)| !subjects.is_empty());
            given.map(|(member, subjects)| (member.to_owned(), subjects.into())).collect()
        };
        json!({ "pub": lists(self.publishing()), "sub": lists(self.subscribing()) })
    }
}

fn covers(patterns: &[String], subject: &str) -> bool {
    patterns.iter().any(|pattern| meet(pattern, subject))
}

/// Whether there is a subject that both patterns match.
pub fn meet(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

/// As written in nats-server's configuration.
impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |subjects: &[String]| subjects.iter().map(|s| format!("\"{s}\"")).collect::<Vec<_>>().join(", ");
        let lists = |(allow, deny): (&[String], Vec<String>)| match (allow, deny.as_slice()) {
            (allow, []) => format!("[{}]", list(allow)),
            ([], deny) => format!("{{ deny: [{}] }}", list(deny)),
            (allow, deny) => format!("{{ allow: [{}], deny: [{}] }}", list(allow), list(deny)),
        };
        write!(f, "{{ publish: {}, subscribe: {} }}", lists(self.publishing()), lists(self.subscribing()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_match_as_in_a_broker() {
        for (one, other) in
            [("a.b", "a.b"), ("a.*", "a.b"), (">", "a"), ("a.>", "a.b.c"), ("*.b", "a.*"), ("a.>", "*.b")]
        {
            assert!(meet(one, other) && meet(other, one), "{one} {other}");
        }
        for (one, other) in [("a.b", "a"), ("a.>", "a"), ("a.*", "a.b.c"), ("a.*.c", "a.b.d"), ("a.b.>", "a.c.>")] {
            assert!(!meet(one, other) && !meet(other, one), "{one} {other}");
        }
        let except = Permissions { deny: vec!["a.c".to_owned()], ..Permissions::new(["a.*".to_owned()], []) };
        assert!(except.may_publish("a.b") && !except.may_publish("a.c") && !except.may_subscribe("a.b"));
        // To a broker, an empty list would mean everything.
        let nothing = Permissions::nothing();
        assert!(!nothing.may_publish("a") && !nothing.may_subscribe("a"));
        assert_eq!(nothing.to_string(), r#"{ publish: { deny: [">"] }, subscribe: { deny: [">"] } }"#);
        assert_eq!(nothing.claims(), json!({ "pub": { "deny": [">"] }, "sub": { "deny": [">"] } }));
    }
}
