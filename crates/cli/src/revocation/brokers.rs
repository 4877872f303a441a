//! Closes, at the brokers, the connections of what is revoked: after the list, so that `authd` lets nobody in again.
//! Never believes what a client says of itself: only the user that the broker has authorized says whose a connection is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sealwire::BusConfig;
use sealwire::internal::auth::{RevocationKind, RevocationList};
use sealwire::internal::nats::{Connection, Event, Handler, Message, Options, Session, Subject};
use sealwire::internal::wire::{Endpoint, Nonce};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::gate::{ACCOUNT, mark, unmarked};
use crate::users::{Kind, Users};
use crate::when;

/// `[system]` of the operator's file: how connections are closed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SystemConfig {
    /// How many brokers there are; 0: as many as answer.
    #[serde(default)]
    brokers: usize,
    /// The account that agents get into.
    #[serde(default = "usual_account")]
    account: String,
    /// The list of `sealwire setup`, which says whose the public keys are.
    users: Option<PathBuf>,
    /// The login in the system account.
    pub(super) nats: BusConfig,
}

fn usual_account() -> String {
    ACCOUNT.to_owned()
}

/// The brokers, by way of their system account.
pub(super) struct Brokers {
    connection: Connection,
    messages: mpsc::Receiver<Message>,
    inbox: String,
    account: String,
    /// The names of agents, by the public keys of their users.
    keys: BTreeMap<String, String>,
    /// Those that have answered, and how many there should be.
    known: BTreeMap<String, BrokerReport>,
    expected: usize,
    asked: u64,
}

/// What was done at one broker.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct BrokerReport {
    name: String,
    /// Whether it has answered everything that it was asked.
    answered: bool,
    /// How many connections it has closed.
    closed: usize,
    /// After how many milliseconds, by the operator's clock, the last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
    /// How many were there again afterwards, and were closed again.
    back: usize,
}

/// What became of the brokers.
#[derive(Debug, Serialize)]
pub(super) struct Closed {
    brokers: Vec<BrokerReport>,
    /// How many are not known by name, and have not answered.
    missing: usize,
    /// Why none could be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// Whose connections are closed.
struct Targets {
    agents: BTreeSet<String>,
    marks: BTreeSet<String>,
    everything: bool,
}

/// An answer of a broker's own services.
#[derive(Deserialize)]
struct Answer {
    server: Server,
    data: Option<Page>,
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Server {
    id: String,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    offset: usize,
    #[serde(default)]
    connections: Option<Vec<Listed>>,
}

#[derive(Deserialize)]
struct Listed {
    cid: u64,
    #[serde(default)]
    authorized_user: String,
}

/// How many connections a broker lists at a time, and how many such pages are read of one broker.
const PAGE: usize = 256;
const PAGES: usize = 256;
/// The largest page. A connection takes about 1 KiB.
const PAGE_BYTES: usize = 2 << 20;
/// The most brokers.
const MOST: usize = 1_024;
/// Answers that wait to be looked at. Further ones are lost, and their broker counts as silent.
const WAITING: usize = 4_096;
/// How long brokers have to say that they are there, unless it is known how many there are.
const ROLL_CALL: Duration = Duration::from_secs(1);
/// When to look who has come back: a client's first attempts come at once.
const LOOK_AGAIN: Duration = Duration::from_millis(750);

struct Incoming(mpsc::Sender<Message>);

impl Handler for Incoming {
    fn message(&self, message: Message, _: &Arc<Session>) {
        drop(self.0.try_send(message));
    }

    fn event(&self, event: Event) {
        tracing::debug!(target: "sealwire::revocation", ?event, "the connection in the brokers' system account");
    }
}

impl SystemConfig {
    pub(super) fn relative_to(mut self, folder: &Path) -> Self {
        self.nats = self.nats.relative_to(folder);
        self.users = self.users.map(|users| folder.join(users));
        self
    }

    /// Logs in, and learns which brokers are there.
    pub(super) async fn call(&self, within: Duration) -> Result<Brokers, Failure> {
        let users = self.users.as_deref().map(Users::load).transpose()?;
        let users = users.iter().flat_map(Users::iter).filter(|(kind, ..)| *kind == Kind::Agent);
        let keys = users.map(|(_, name, nkey)| (nkey.to_owned(), name.to_string())).collect();
        let inbox = format!("{}.operator.revocation.{}", Endpoint::SERVICE_INBOX_PREFIX, Nonce::random().to_text());
        let (sender, messages) = mpsc::channel(WAITING);
        let subject = Subject { subject: format!("{inbox}.*"), queue: None, max_per_second: None };
        let options = Options { max_message: PAGE_BYTES, ..Options::new("sealwire-revocation system", vec![subject]) };
        let opened = timeout(within, Connection::open(&self.nats, options, Arc::new(Incoming(sender)))).await;
        let late = |_| Failure::new(Exit::Transport, "the brokers' system account cannot be reached in time");
        let connection = opened.map_err(late)?.or_fail(Exit::Transport)?;
        let (account, known) = (self.account.clone(), BTreeMap::new());
        let mut brokers =
            Brokers { connection, messages, inbox, account, keys, known, expected: self.brokers, asked: 0 };
        brokers.roll_call(within).await?;
        Ok(brokers)
    }
}

impl Brokers {
    async fn roll_call(&mut self, within: Duration) -> Result<(), Failure> {
        let until = Instant::now() + if self.expected > 0 { within } else { ROLL_CALL };
        self.ask("$SYS.REQ.SERVER.PING.CONNZ", "0", &json!({ "limit": 1 })).await?;
        while self.expected == 0 || self.known.len() < self.expected {
            let Ok(Some(message)) = timeout_at(until, self.messages.recv()).await else { break };
            self.heard(&message);
        }
        Ok(())
    }

    /// Closes the connections of everything that the list revokes, and looks whether they come back.
    pub(super) async fn close(
        mut self,
        list: &RevocationList,
        began: Instant,
        within: Duration,
    ) -> Result<Closed, Failure> {
        let targets = Targets::of(list, when::now_s());
        for broker in self.known.values_mut() {
            broker.answered = true;
        }
        self.round(&targets, (began, within), false).await?;
        sleep(LOOK_AGAIN).await;
        self.round(&targets, (began, within), true).await?;
        let missing = self.expected.saturating_sub(self.known.len());
        Ok(Closed { brokers: self.known.into_values().collect(), missing, problem: None })
    }

    /// Asks each broker for its connections, page by page, and closes those that are to be closed.
    async fn round(
        &mut self,
        targets: &Targets,
        (began, within): (Instant, Duration),
        is_again: bool,
    ) -> Result<(), Failure> {
        /// What an answer is about.
        enum About {
            Page(String, usize),
            Connection(String),
        }
        let mut open: HashMap<String, About> = HashMap::new();
        let ids: Vec<String> = self.known.keys().cloned().collect();
        let mut todo: Vec<(String, About, serde_json::Value)> = ids
            .into_iter()
            .map(|id| self.page(id, 0, 0))
            .map(|(id, page, body)| (format!("$SYS.REQ.SERVER.{id}.CONNZ"), About::Page(id, page), body))
            .collect();
        let until = Instant::now() + within;
        loop {
            for (subject, about, body) in std::mem::take(&mut todo) {
                // Never one of a round before, whose answers may be late.
                self.asked += 1;
                let reply = self.asked.to_string();
                self.ask(&subject, &reply, &body).await?;
                open.insert(reply, about);
            }
            if open.is_empty() {
                return Ok(());
            }
            let Ok(Some(message)) = timeout_at(until, self.messages.recv()).await else { break };
            let Some(answer) = self.heard(&message) else { continue };
            let reply = message.subject.rsplit('.').next().unwrap_or_default();
            let is_of = |about: &About| match about {
                About::Page(id, _) | About::Connection(id) => *id == answer.server.id,
            };
            if !open.get(reply).is_some_and(is_of) {
                continue;
            }
            let Some(about) = open.remove(reply) else { continue };
            let Some(broker) = self.known.get_mut(&answer.server.id) else { continue };
            match about {
                // It may have gone by itself meanwhile, which is told as an error.
                About::Connection(_) if answer.error.is_none() => {
                    broker.closed += 1;
                    broker.after_ms = u64::try_from(began.elapsed().as_millis()).ok();
                }
                About::Connection(_) => {}
                About::Page(id, page) => {
                    let Some(Page { offset, connections }) = answer.data.filter(|_| answer.error.is_none()) else {
                        broker.answered = false;
                        continue;
                    };
                    let connections = connections.unwrap_or_default();
                    let hits = connections.iter().filter(|one| targets.hit(&one.authorized_user, &self.keys));
                    let hits: Vec<u64> = hits.map(|one| one.cid).collect();
                    if is_again {
                        broker.back += hits.len();
                    }
                    let kick = |cid: u64| {
                        (format!("$SYS.REQ.SERVER.{id}.KICK"), About::Connection(id.clone()), json!({ "cid": cid }))
                    };
                    todo.extend(hits.iter().copied().map(kick));
                    if connections.len() >= PAGE {
                        if page + 1 < PAGES {
                            // The list gets shorter by what is closed.
                            let (id, page, body) = self.page(id, page + 1, offset + PAGE - hits.len());
                            todo.push((format!("$SYS.REQ.SERVER.{id}.CONNZ"), About::Page(id, page), body));
                        } else {
                            broker.answered = false;
                        }
                    }
                }
            }
        }
        for about in open.into_values() {
            let (About::Page(id, _) | About::Connection(id)) = about;
            if let Some(broker) = self.known.get_mut(&id) {
                broker.answered = false;
            }
        }
        Ok(())
    }

    fn page(&self, id: String, page: usize, offset: usize) -> (String, usize, serde_json::Value) {
        (id, page, json!({ "auth": true, "acc": self.account, "limit": PAGE, "offset": offset }))
    }

    async fn ask(&self, subject: &str, reply: &str, body: &serde_json::Value) -> Result<(), Failure> {
        let gone = || Failure::new(Exit::Transport, "the connection in the brokers' system account is lost");
        let session = self.connection.session().ok_or_else(gone)?;
        let reply = format!("{}.{reply}", self.inbox);
        session.publish(subject, &reply, &[], body.to_string().as_bytes()).await.or_fail(Exit::Transport)
    }

    /// An answer, whose broker is known from now on.
    fn heard(&mut self, message: &Message) -> Option<Answer> {
        let answer: Answer = serde_json::from_slice(&message.payload).ok()?;
        let Server { id, name } = &answer.server;
        // It becomes a part of subjects.
        let is_id = !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id || (self.known.len() >= MOST && !self.known.contains_key(id)) {
            return None;
        }
        self.known.entry(id.clone()).or_insert_with(|| {
            let name: String = name.chars().flat_map(char::escape_debug).take(64).collect();
            BrokerReport { name: if name.is_empty() { id.clone() } else { name }, ..BrokerReport::default() }
        });
        Some(answer)
    }
}

impl Targets {
    fn of(list: &RevocationList, now_s: u64) -> Self {
        let live = || list.revoked.iter().filter(|entry| !entry.has_ended(now_s));
        let of = |kind: RevocationKind| live().filter(move |entry| entry.kind == kind);
        // The callers of a method or service may do other things.
        let marked = [RevocationKind::Key, RevocationKind::Token, RevocationKind::Subject];
        let agents = of(RevocationKind::Agent).map(|entry| entry.name.clone()).collect();
        let marks = marked.into_iter().flat_map(of).map(|entry| mark(entry.kind, &entry.name)).collect();
        let everything = of(RevocationKind::Everything).next().is_some();
        Self { agents, marks, everything }
    }

    /// Whether a connection of this user is closed. That of a login which the broker itself knows is the agent's of this name.
    fn hit(&self, user: &str, keys: &BTreeMap<String, String>) -> bool {
        match unmarked(user) {
            Some((agent, mut marks)) => {
                self.everything || self.agents.contains(agent) || marks.any(|mark| self.marks.contains(mark))
            }
            None => self.agents.contains(keys.get(user).map_or(user, String::as_str)),
        }
    }
}

impl Closed {
    /// None could be asked.
    pub(super) fn none(problem: &Failure) -> Self {
        Self { brokers: Vec::new(), missing: 0, problem: Some(problem.object().message().to_owned()) }
    }

    /// Whether every broker has closed everything.
    pub(super) fn is_complete(&self) -> bool {
        self.problem.is_none()
            && self.missing == 0
            && self.brokers.iter().all(|broker| broker.answered && broker.back == 0)
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let line = |broker: &BrokerReport| {
            let BrokerReport { name, answered, closed, after_ms, back, .. } = broker;
            let after = after_ms.map(|ms| format!(" after {ms} ms")).unwrap_or_default();
            let silent = if *answered { "" } else { ", DID NOT ANSWER everything" };
            let back = match back {
                0 => String::new(),
                back => format!(
                    ", {back} CAME BACK: the broker itself knows that login. Take it out there, and let the broker reload"
                ),
            };
            format!("broker {name}  {closed} connections closed{after}{silent}{back}")
        };
        let mut lines: Vec<String> = self.brokers.iter().map(line).collect();
        if self.missing > 0 {
            lines.push(format!("MISSING  {} brokers have not answered", self.missing));
        }
        lines.extend(self.problem.iter().map(|problem| format!("NO CONNECTION CLOSED  {problem}")));
        lines
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::Name;
    use sealwire::internal::auth::Revocation;

    use super::*;
    use crate::gate::marked;

    #[test]
    fn only_the_users_of_what_is_revoked_are_hit() {
        let name = |text: &str| Name::new(text).unwrap();
        let of = |kind, name: &str| {
            let entry = Revocation { kind, name: name.into(), until: None, at_ms: 0, reason: String::new() };
            Targets::of(&RevocationList::first(Name::new("prod").unwrap(), 0).revoke(entry).unwrap(), 0)
        };
        let token = [(RevocationKind::Subject, "alice"), (RevocationKind::Token, "t1"), (RevocationKind::Key, "k1")];
        let user = marked(&name("ann"), token);
        let keys = BTreeMap::from([("UANN".to_owned(), "ann".to_owned())]);
        for (kind, what, admitted, login, nkey) in [
            (RevocationKind::Agent, "ann", true, true, true),
            (RevocationKind::Agent, "an", false, false, false),
            (RevocationKind::Subject, "alice", true, false, false),
            (RevocationKind::Subject, "t1", false, false, false),
            (RevocationKind::Token, "t1", true, false, false),
            (RevocationKind::Key, "k1", true, false, false),
            (RevocationKind::Service, "ann", false, false, false),
            (RevocationKind::Method, "ann", false, false, false),
            (RevocationKind::Everything, "*", true, false, false),
        ] {
            let targets = of(kind, what);
            let hits = [user.as_str(), "ann", "UANN"].map(|user| targets.hit(user, &keys));
            assert_eq!(hits, [admitted, login, nkey], "{kind} {what}");
        }
        assert!(!of(RevocationKind::Agent, "ann").hit("", &keys));
    }
}
