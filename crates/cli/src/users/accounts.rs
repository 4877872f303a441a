//! The brokers' accounts: who is in each, how much of the brokers it may take, and what it shares with another.
//! Never says what a user may do: that follows from its kind.

use sealwire::Name;

use super::{Kind, Users};
use crate::gate::ACCOUNT;

/// An account.
pub(crate) struct Account<'a> {
    pub(crate) name: String,
    /// A comment for whoever reads a configuration.
    pub(crate) purpose: String,
    /// Who may be in it.
    pub(crate) kinds: &'static [Kind],
    /// The only service whose users are in it; `None` for all.
    pub(crate) service: Option<&'a Name>,
    pub(crate) limits: Option<Limits>,
    pub(crate) storage: Option<Storage>,
    pub(crate) exports: Vec<Share>,
    pub(crate) imports: Vec<Share>,
}

/// Connections of all its users on all brokers, and subscriptions of one connection.
pub(crate) struct Limits {
    pub(crate) connections: u32,
    pub(crate) subscriptions: u32,
}

/// What its streams may take, in MiB, for all copies together. It has no consumers.
pub(crate) struct Storage {
    pub(crate) memory_mib: u32,
    pub(crate) file_mib: u32,
    pub(crate) streams: u32,
}

/// A subject that one account shares with another, and with nobody else.
pub(crate) struct Share {
    pub(crate) subject: String,
    pub(crate) is_service: bool,
    pub(crate) with: &'static str,
}

impl Account<'_> {
    pub(crate) fn has(&self, kind: Kind, name: &Name) -> bool {
        self.kinds.contains(&kind) && self.service.is_none_or(|service| service == name)
    }
}

impl Users {
    /// The accounts that these users need, the system's first.
    pub(crate) fn accounts(&self, environment: &str) -> Vec<Account<'_>> {
        let account = |name: &str, purpose: &str, kinds, connections, subscriptions| Account {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            kinds,
            service: None,
            limits: Some(Limits { connections, subscriptions }),
            storage: None,
            exports: Vec::new(),
            imports: Vec::new(),
        };
        let has = |kind| self.has(kind);
        // An account of brokers in operator mode has a key for each kind.
        let of_agents: &'static [Kind] = match has(Kind::Relay) {
            false => &[Kind::Agent, Kind::Service, Kind::Tools],
            true => &[Kind::Agent, Kind::Service, Kind::Tools, Kind::Relay],
        };
        let mut all = vec![
            Account { limits: None, ..account(SYSTEM, "", &[Kind::Pusher, Kind::Closer], 0, 0) },
            account(
                ACCOUNT,
                "Agents, the services that answer them, and the operator's tools. No JetStream in this account.",
                of_agents,
                CONNECTIONS,
                SUBSCRIPTIONS,
            ),
        ];
        all.extend(self.users.iter().filter(|user| user.kind == Kind::Guard).map(|guard| Account {
            name: format!("GUARD_{}", guard.name),
            purpose: format!("Only for the replay guard of {}: nothing is imported or exported.", guard.name),
            service: Some(&guard.name),
            storage: Some(Storage { memory_mib: GUARD_MEMORY_MIB, file_mib: 0, streams: GUARD_STREAMS }),
            ..account("", "", &[Kind::Guard], STATE_CONNECTIONS, STATE_SUBSCRIPTIONS)
        }));
        if has(Kind::Revoker) || has(Kind::Follower) {
            let share = |subject: String, is_service, with| Share { subject, is_service, with };
            let shared = |with| {
                vec![
                    share(format!("$JS.API.STREAM.MSG.GET.KV_SEALWIRE_{environment}"), true, with),
                    share(format!("revocation.v1.{environment}.list"), false, with),
                    share(format!("revocation.v1.{environment}.ask"), false, with),
                    share(format!("$JS.API.STREAM.MSG.GET.KV_SEALWIREPOLICY_{environment}"), true, with),
                    share(format!("policy.v1.{environment}.package.>"), false, with),
                    share(format!("policy.v1.{environment}.ask"), false, with),
                ]
            };
            let reports = |with| {
                ["revocation", "policy"]
                    .map(|topic| share(format!("{topic}.v1.{environment}.report.>"), false, with))
                    .into_iter()
                    .collect()
            };
            all.push(Account {
                storage: Some(Storage { memory_mib: 0, file_mib: BUCKETS_MIB, streams: 2 }),
                exports: shared(FOLLOWERS),
                imports: reports(FOLLOWERS),
                ..account(
                    REVOCATION,
                    "The buckets of revocations and of policies, and the operators who write them.",
                    &[Kind::Revoker],
                    STATE_CONNECTIONS,
                    STATE_SUBSCRIPTIONS,
                )
            });
            all.push(Account {
                exports: reports(REVOCATION),
                imports: shared(REVOCATION),
                ..account(
                    FOLLOWERS,
                    "Who follows the buckets: services, a gateway, `sealwire authd`. No agent is here.",
                    &[Kind::Follower, Kind::GatewayFollower, Kind::AuthdFollower],
                    CONNECTIONS,
                    STATE_SUBSCRIPTIONS,
                )
            });
        }
        if has(Kind::Responder) {
            all.push(account(
                AUTH,
                "Only for `sealwire authd`: whoever else is here could answer for it, or read its questions.",
                &[Kind::Responder, Kind::Sentinel],
                STATE_CONNECTIONS,
                STATE_SUBSCRIPTIONS,
            ));
        }
        all
    }
}

/// The brokers' own account.
pub(crate) const SYSTEM: &str = "SYS";
/// The account of those who answer a callout.
pub(crate) const AUTH: &str = "AUTH";
const REVOCATION: &str = "REVOCATION";
const FOLLOWERS: &str = "FOLLOWERS";
/// Connections of agents, services and tools together, on all brokers. A replica has two, an agent usually one.
const CONNECTIONS: u32 = 1_024;
/// Subscriptions of one connection. An agent needs one or two, a replica about fifteen. The broker sends every matching message
/// to each of them, so more subscriptions would be a way to make it send one answer many times.
const SUBSCRIPTIONS: u32 = 32;
/// Connections of one service's guard: one for each replica, and twice as many while replicas are replaced. Of operators and of
/// `authd`, too.
const STATE_CONNECTIONS: u32 = 64;
/// Subscriptions of one such connection: its inbox, and a few to verify the stream.
const STATE_SUBSCRIPTIONS: u32 = 16;
/// The guard's stream, and those that replicas may create in its place before the surplus is removed.
const GUARD_STREAMS: u32 = 4;
/// Memory for all copies of all streams of one guard, a third of it on each broker. The three guards of the shipped setup together
/// fill a broker's memory (`max_memory_store`) exactly: otherwise one guard's login could leave nothing for the others.
const GUARD_MEMORY_MIB: u32 = 384;
/// The buckets' files: 4 MiB for lists of revocations and 16 MiB for policies, in three copies.
const BUCKETS_MIB: u32 = 64;
