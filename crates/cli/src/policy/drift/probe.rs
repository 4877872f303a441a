//! What is tried as one user, and what the broker says to it.
//! Never sends what could be delivered, and never joins a queue group, which would take messages from others.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sealwire::decide::Approval;
use sealwire::errors::BusError;
use sealwire::internal::nats::{Connection, Event, Handler, Message, OpenError, Options, Session, Subject};
use sealwire::internal::wire::Nonce;
use sealwire::{BusConfig, Name};
use sealwire_lab::permissions::Permissions;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::exit::{Exit, Failure};
use crate::policy::compiled::{Compiled, Gated};

/// What a probe is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Direction {
    Connect,
    Publish,
    Subscribe,
}

impl Direction {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Probe {
    pub(super) direction: Direction,
    pub(super) subject: String,
}

impl Probe {
    pub(super) fn is_compiled(&self, permissions: &Permissions) -> bool {
        match self.direction {
            Direction::Connect => true,
            Direction::Publish => permissions.may_publish(&self.subject),
            Direction::Subscribe => permissions.may_subscribe(&self.subject),
        }
    }
}

/// Who and what is there to be tried.
pub(super) struct Field<'f> {
    services: &'f [Gated],
    /// Callers of services: a part of them, drawn by lot, if there are many.
    pairs: Vec<(&'f Gated, Name)>,
    methods: Vec<(&'f Gated, String)>,
    /// The random token.
    mark: String,
}

/// What belongs to brokers, and what a user who may do everything may do, too. `#` is the random token. Nothing here would do
/// anything if it were delivered.
const PUBLISHED: [&str; 24] = [
    "#",
    "#.#",
    "rpc.v1.#.#",
    "rpc.v1.#.#.#",
    "_INBOX.#",
    "_INBOX.#.#",
    "_R_.#",
    "$SRV.PING",
    "$SRV.#",
    "$SYS.#",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.SERVER.#.KICK",
    "$SYS.REQ.USER.AUTH",
    "$SYS.REQ.USER.INFO",
    "$JS.#",
    "$JS.API.INFO",
    "$JS.API.STREAM.CREATE.#",
    "$JS.API.STREAM.INFO.#",
    "$JS.API.STREAM.MSG.GET.#",
    "$JS.API.DIRECT.GET.#",
    "$JS.API.CONSUMER.CREATE.#.#",
    "$JS.ACK.#.#",
    "$KV.#.#",
    "$O.#.C.#",
];
const SUBSCRIBED: [&str; 13] = [
    "#",
    "#.#",
    "rpc.v1.#.#",
    "rpc.v1.#.#.#",
    "_INBOX.#",
    "_INBOX.#.#",
    "_R_.#",
    "$SRV.#",
    "$SYS.#",
    "$SYS.ACCOUNT.#.#",
    "$JS.#.#",
    "$KV.#.#",
    "$O.#.C.#",
];

impl<'f> Field<'f> {
    pub(super) fn new(compiled: &'f Compiled, agents: impl Iterator<Item = &'f Name>) -> Self {
        let mark = Nonce::random().to_text();
        let services = &compiled.services;
        let agents: BTreeSet<&Name> = agents.chain(services.iter().flat_map(|service| &service.owners)).collect();
        let by_lot = |text: &str| -> [u8; 32] { Sha256::digest(format!("{mark} {text}")).into() };
        let pairs = services.iter().flat_map(|service| agents.iter().map(move |agent| (service, (*agent).clone())));
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_by_cached_key(|(service, agent)| by_lot(&format!("{} {agent}", service.endpoint.service())));
        // One more, since one of an agent's own is left out.
        pairs.truncate(MAX_PAIRS + 1);
        let named =
            |service: &'f Gated| service.policy.methods().names().map(move |name| (service, name.as_str().to_owned()));
        let mut methods: Vec<_> = services.iter().flat_map(named).collect();
        methods.sort_by_cached_key(|(service, method)| by_lot(&format!("{} {method}", service.endpoint.service())));
        methods.truncate(MAX_METHODS);
        Self { services, pairs, methods, mark }
    }

    /// What is tried as a user: what it was given, what it lacks of its own, what others have, and what is nobody's.
    pub(super) fn probes(&self, name: &Name, compiled: &Permissions) -> Vec<Probe> {
        let mark = &self.mark;
        let mut publish: BTreeSet<String> =
            compiled.published().chain(compiled.denied()).flat_map(|it| self.samples(it)).collect();
        let mut subscribe: BTreeSet<String> = compiled.subscribed().flat_map(|it| self.samples(it)).collect();
        publish.extend(PUBLISHED.iter().map(|text| text.replace('#', mark)));
        subscribe.extend(SUBSCRIBED.iter().map(|text| text.replace('#', mark)));
        for (service, method) in &self.methods {
            publish.insert(format!("{}.{}", service.endpoint.subject(name), method.replace('/', ".")));
        }
        for service in self.services {
            let Gated { endpoint, policy, .. } = service;
            let (environment, service) = (endpoint.environment(), endpoint.service());
            let roles = policy.approvals().flat_map(Approval::roles).chain([mark]);
            let news: BTreeSet<String> = roles.filter_map(|role| endpoint.approvals_subject(role)).collect();
            publish.extend(news.iter().cloned());
            subscribe.extend(news);
            publish.extend([format!("_SVC.{service}.replica.{mark}"), format!("rg.{environment}.{service}.{mark}")]);
            subscribe.extend([format!("_SVC.{service}.replica.{mark}"), format!("_SVC.{service}.guard.{mark}")]);
        }
        let own = self.services.iter().map(|service| (service, name));
        for (service, agent) in own.chain(self.pairs.iter().map(|(service, agent)| (*service, agent))) {
            let (endpoint, plain) = (&service.endpoint, service.endpoint.subject(agent));
            let control = format!("{}-ctl.{}.{agent}.{mark}", endpoint.prefix(), endpoint.service());
            let inbox = format!("{}{mark}", endpoint.inbox(agent));
            let methods =
                self.methods.iter().filter(|(of, name)| std::ptr::eq(*of, service) && !name.starts_with("rpc."));
            publish.extend(methods.take(4).map(|(_, method)| format!("{plain}.{}", method.replace('/', "."))));
            subscribe.extend([format!("{plain}.{mark}"), control.clone(), format!("{inbox}.{mark}"), inbox.clone()]);
            publish.extend([format!("{plain}.{mark}"), plain, control, inbox]);
        }
        let published = publish.into_iter().map(|subject| Probe { direction: Direction::Publish, subject });
        let subscribed = subscribe.into_iter().map(|subject| Probe { direction: Direction::Subscribe, subject });
        published.chain(subscribed).collect()
    }

    /// Subjects that a pattern matches.
    fn samples(&self, pattern: &str) -> Vec<String> {
        let mark = &self.mark;
        let tokens: Vec<&str> = pattern.split('.').map(|token| if token == "*" { mark } else { token }).collect();
        let subject = tokens.join(".");
        match subject.strip_suffix('>') {
            Some(prefix) => vec![format!("{prefix}{mark}"), format!("{prefix}{mark}.{mark}")],
            None => vec![subject],
        }
    }

    /// The subject as people see it.
    pub(super) fn shown(&self, subject: &str) -> String {
        subject.replace(&self.mark, "*")
    }
}

/// What a broker did with a user's probes.
pub(super) enum Outcome {
    /// It did not let the user in.
    Refused,
    Enforced {
        /// For each probe, whether it was allowed.
        allowed: Vec<bool>,
        /// Subjects that became others before their permission was checked.
        mapped: Vec<(String, String)>,
    },
}

/// With how many callers of services, and with how many methods of its own, each user is tried; of more, with some drawn by lot.
const MAX_PAIRS: usize = 64;
const MAX_METHODS: usize = 256;

/// Brokers check the permission for a message's subject, then refuse it for its reply subject, which is reserved for their own use.
/// So it goes nowhere, and the error tells which of the two it was.
const RESERVED: &str = "_R_.drift";
const REFUSED_REPLY: &str = "Publish with Reply of";
/// Probes that wait for their answers together.
const TOGETHER: usize = 64;

/// What the broker says.
#[derive(Default)]
struct Heard {
    subscriptions: Mutex<BTreeSet<String>>,
    /// In the order of what was published: the subject that is forbidden, or `None` if only the reply subject was.
    publications: Mutex<Vec<Option<String>>>,
}

impl Handler for Heard {
    fn message(&self, _: Message, _: &Arc<Session>) {}

    fn event(&self, event: Event) {
        match event {
            Event::SubscribeForbidden(subject) => drop(lock(&self.subscriptions).insert(subject)),
            Event::PublishForbidden(subject) => lock(&self.publications).push(Some(subject)),
            Event::Error(text) if text.contains(REFUSED_REPLY) => lock(&self.publications).push(None),
            _ => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tries everything as one user, over one connection.
pub(super) async fn probe(bus: &BusConfig, probes: &[Probe]) -> Result<Outcome, Failure> {
    let heard = Arc::new(Heard::default());
    let subscribed = probes.iter().filter(|probe| probe.direction == Direction::Subscribe);
    let subjects =
        subscribed.map(|probe| Subject { subject: probe.subject.clone(), queue: None, max_per_second: Some(2) });
    // Brokers check permissions before they count subscriptions, so those beyond a limit count as allowed.
    let options = Options { required: false, ..Options::new("sealwire policy drift", subjects.collect()) };
    let connection = match Connection::open(bus, options, heard.clone()).await {
        Ok(connection) => connection,
        Err(OpenError::Bus(BusError::Refused { .. })) => return Ok(Outcome::Refused),
        Err(error) => return Err(Failure::of(Exit::Transport, &error)),
    };
    let lost = || Failure::new(Exit::Transport, "the connection to the broker ended between two probes");
    let session = connection.session().ok_or_else(lost)?;
    let published: Vec<&Probe> = probes.iter().filter(|probe| probe.direction == Direction::Publish).collect();
    let mut told = 0;
    while told < published.len() {
        // One at a time until one was refused for its reply subject alone: other brokers than nats-server might deliver it.
        let is_safe = lock(&heard.publications).contains(&None);
        let batch = published.iter().skip(told).take(if is_safe { TOGETHER } else { 1 });
        for probe in batch.clone() {
            session.publish(&probe.subject, RESERVED, &[], &[]).await.map_err(|_| lost())?;
        }
        told += batch.count();
        if !session.flush().await {
            return Err(lost());
        }
        if lock(&heard.publications).len() != told {
            let failure = Failure::new(
                Exit::Transport,
                "the broker refuses no reserved reply subjects, so nothing more was tried",
            );
            return Err(failure.help("probes need nats-server 2.12 or newer, and none of its imports in between"));
        }
    }
    connection.close().await;
    let mut answers = std::mem::take(&mut *lock(&heard.publications)).into_iter();
    let (mut allowed, mut mapped) = (Vec::new(), Vec::new());
    for probe in probes {
        allowed.push(match probe.direction {
            Direction::Connect => true,
            Direction::Subscribe => !lock(&heard.subscriptions).contains(&probe.subject),
            Direction::Publish => {
                let forbidden = answers.next().flatten();
                if let Some(other) = forbidden.as_ref().filter(|subject| **subject != probe.subject) {
                    mapped.push((probe.subject.clone(), other.clone()));
                }
                forbidden.is_none()
            }
        });
    }
    Ok(Outcome::Enforced { allowed, mapped })
}
