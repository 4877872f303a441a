//! What the brokers' system account tells of whatever could turn a message into another: streams, mappings, imports, exports, tracing.
//! Never takes the word of some brokers for all of them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sealwire::BusConfig;
use sealwire::internal::nats::{Connection, Event, Handler, Message, Options, Session, Subject};
use sealwire::internal::wire::Nonce;
use sealwire_lab::permissions::meet;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::policy::compiled::Compiled;

/// Something that does more with messages than deliver them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Reflection {
    kind: &'static str,
    subject: String,
    message: String,
}

impl Reflection {
    pub(super) fn mapping(from: &str, to: &str) -> Self {
        let message =
            format!("a mapping makes `{to}` of `{from}`, and permissions count for what it becomes: remove it");
        Self { kind: "mapping", subject: from.to_owned(), message }
    }
}

impl fmt::Display for Reflection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

/// How long all brokers together may take for one answer each.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Accounts in one answer about streams, and in all of them.
const PAGE: usize = 64;
const MAX_ACCOUNTS: usize = 1_024;
/// The longest answer, in bytes. Brokers' own are not bound by `max_payload`.
const MAX_ANSWER: usize = 32 << 20;
/// Answers that wait: one of each broker.
const MAX_BROKERS: usize = 1_024;

/// What reflects messages on the subjects of these services in this account.
pub(super) async fn reflections(
    bus: &BusConfig,
    account: &str,
    compiled: &Compiled,
) -> Result<BTreeSet<Reflection>, Failure> {
    let system = System::open(bus).await?;
    let ours = subjects(compiled);
    let mut found = BTreeSet::new();
    let streams = system.streams().await?;
    for stream in streams.iter().filter(|stream| stream.is_in(account)) {
        found.extend(stream.reflection(&ours, "its subjects"));
    }
    let accounts = system.accounts().await?;
    if !accounts.contains(account) {
        let failure = Failure::input(format!("the brokers know no account `{account}`"));
        return Err(failure.help("name the one that agents are in: --account; in operator mode, its key (A…)"));
    }
    for detail in system.account(account).await? {
        found.extend(of_account(&detail, &ours));
    }
    for other in accounts.iter().filter(|other| *other != account) {
        for detail in system.account(other).await? {
            for (taken, local) in taken_from(&detail, account, &ours) {
                let here = streams.iter().filter(|stream| stream.is_in(other));
                found.extend(here.filter_map(|stream| {
                    stream.reflection(std::slice::from_ref(&local), &format!("`{taken}`, which it imports"))
                }));
            }
        }
    }
    Ok(found)
}

/// What agents and services publish on.
fn subjects(compiled: &Compiled) -> Vec<String> {
    let of = |service: &crate::policy::compiled::Gated| {
        let (endpoint, service) = (&service.endpoint, service.endpoint.service());
        let (prefix, inboxes) = (endpoint.prefix(), endpoint.inbox_prefix());
        [
            format!("{prefix}.{service}.>"),
            format!("{prefix}-ctl.{service}.>"),
            format!("{inboxes}.>"),
            format!("_SVC.{service}.>"),
            "$SRV.>".to_owned(),
        ]
    };
    compiled.services.iter().flat_map(of).collect()
}

fn meets(ours: &[String], subject: &str) -> bool {
    ours.iter().any(|own| meet(own, subject))
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Mappings, service imports and exports, and tracing of the agents' account.
fn of_account(detail: &Value, ours: &[String]) -> Vec<Reflection> {
    let mut found = Vec::new();
    for (from, destinations) in detail.pointer("/mappings").and_then(Value::as_object).into_iter().flatten() {
        if meets(ours, from) {
            let to: Vec<&str> = list(destinations, "").iter().map(|it| text(it, "/subject")).collect();
            found.push(Reflection::mapping(from, &to.join("`, `")));
        }
    }
    // Their answers come from the other account, under no permission of an agent's or service's.
    for (members, kind, subject, what) in [
        ("/imports", "import", "/local_subject", "takes messages into another account"),
        ("/exports", "export", "/subject", "lets other accounts answer, and hides inboxes"),
    ] {
        for member in list(detail, members).iter().filter(|member| text(member, "/type") == "service") {
            let subject = text(member, subject);
            if meets(ours, subject) {
                let message = format!("the service {kind} of `{subject}` {what}: use streams between accounts");
                found.push(Reflection { kind, subject: subject.to_owned(), message });
            }
        }
    }
    let traces = text(detail, "/decoded_jwt/nats/trace/dest");
    if !traces.is_empty() {
        let message = format!(
            "the account's messages are traced to `{traces}`, with all headers, so with access tokens, and those of agents that may not \
             publish there are dropped: remove `trace` from its JWT"
        );
        found.push(Reflection { kind: "trace", subject: traces.to_owned(), message });
    }
    found
}

/// The streams of subjects that an account imports from the agents' one: as they are there, and as they are here.
fn taken_from(detail: &Value, account: &str, ours: &[String]) -> Vec<(String, String)> {
    let imports = list(detail, "/imports").iter();
    let taken = imports.filter(|import| text(import, "/type") == "stream" && text(import, "/account") == account);
    let subjects = taken.map(|import| (text(import, "/subject"), text(import, "/local_subject")));
    let ours = subjects.filter(|(subject, _)| meets(ours, subject));
    // A local subject may have the tokens of the other one in another order.
    let wild = |token: &str| {
        if token.starts_with('$') && token.len() < 4 || token.starts_with("{{") { "*" } else { token }.to_owned()
    };
    let local = |subject: &str| subject.split('.').map(wild).collect::<Vec<_>>().join(".");
    ours.map(|(subject, at)| (subject.to_owned(), local(if at.is_empty() { subject } else { at }))).collect()
}

struct Stream {
    account: [String; 2],
    config: Value,
}

impl Stream {
    fn is_in(&self, account: &str) -> bool {
        self.account.iter().any(|name| name == account)
    }

    fn reflection(&self, ours: &[String], what: &str) -> Option<Reflection> {
        let mut subjects = list(&self.config, "/subjects").iter().filter_map(Value::as_str);
        let subject = subjects.find(|subject| meets(ours, subject))?;
        let is = |member: &str| self.config.get(member).is_some_and(|value| *value == Value::Bool(true));
        let [account, _] = &self.account;
        let stream = format!("the stream `{}` of {account} captures {what} (`{subject}`)", text(&self.config, "/name"));
        let why = if self.config.get("republish").is_some_and(|it| !it.is_null()) {
            "and publishes what it captures again: remove `republish`"
        } else if !is("no_ack") {
            "and answers to any reply subject that an agent names: remove it, or set `no_ack`"
        } else {
            return None;
        };
        Some(Reflection { kind: "stream", subject: subject.to_owned(), message: format!("{stream} {why}") })
    }
}

/// A connection to the system account.
struct System {
    connection: Connection,
    inbox: String,
    answers: Mutex<mpsc::Receiver<Message>>,
    brokers: usize,
}

struct Inbox(mpsc::Sender<Message>);

impl Handler for Inbox {
    fn message(&self, message: Message, _: &Arc<Session>) {
        // Beyond the bound, the answers are too few, which is an error.
        let _ = self.0.try_send(message);
    }

    fn event(&self, _: Event) {}
}

impl System {
    async fn open(bus: &BusConfig) -> Result<Self, Failure> {
        let (sender, answers) = mpsc::channel(MAX_BROKERS);
        let inbox = format!("_INBOX.drift.{}", Nonce::random().to_text());
        let subject = Subject { subject: format!("{inbox}.*"), queue: None, max_per_second: None };
        let options = Options { max_message: MAX_ANSWER, ..Options::new("sealwire policy drift", vec![subject]) };
        let opened = Connection::open(bus, options, Arc::new(Inbox(sender))).await;
        let connection = opened.or_fail(Exit::Transport).map_err(|failure| failure.cause("as the user of --system"))?;
        let mut system = Self { connection, inbox, answers: Mutex::new(answers), brokers: 1 };
        let first = system.ask("STATSZ", &json!({})).await?;
        let known = first.iter().filter_map(|it| it.pointer("/statsz/active_servers").and_then(Value::as_u64)).max();
        system.brokers = usize::try_from(known.unwrap_or(1)).unwrap_or(usize::MAX);
        Ok(system)
    }

    /// Asks all brokers.
    async fn ask(&self, what: &str, body: &Value) -> Result<Vec<Value>, Failure> {
        let mut answers = self.answers.lock().await;
        let reply = format!("{}.{}", self.inbox, Nonce::random().to_text());
        let lost = || Failure::new(Exit::Transport, "the connection to the system account ended");
        let session = self.connection.session().ok_or_else(lost)?;
        let asked = format!("$SYS.REQ.SERVER.PING.{what}");
        session.publish(&asked, &reply, &[], body.to_string().as_bytes()).await.map_err(|_| lost())?;
        let until = Instant::now() + ANSWERED_WITHIN;
        let mut found: Vec<Value> = Vec::new();
        while found.len() < self.brokers {
            let Ok(Some(message)) = timeout_at(until, answers.recv()).await else {
                let message = format!(
                    "{} of {} brokers answered {asked} within {} s",
                    found.len(),
                    self.brokers,
                    ANSWERED_WITHIN.as_secs()
                );
                let help = "the user of --system is one of the system account that may publish $SYS.REQ.SERVER.PING.* and read _INBOX.drift.>";
                return Err(Failure::new(Exit::Transport, message).help(help));
            };
            if message.subject != reply {
                continue;
            }
            let unreadable = || Failure::new(Exit::Transport, format!("a broker's answer to {asked} cannot be read"));
            found.push(serde_json::from_slice(&message.payload).map_err(|_| unreadable())?);
        }
        Ok(found)
    }

    async fn streams(&self) -> Result<Vec<Stream>, Failure> {
        let mut streams = Vec::new();
        for offset in (0..MAX_ACCOUNTS).step_by(PAGE) {
            let body = json!({ "accounts": true, "streams": true, "config": true, "offset": offset, "limit": PAGE });
            let answers = self.ask("JSZ", &body).await?;
            for detail in answers.iter().flat_map(|answer| list(answer, "/data/account_details")) {
                let account = [text(detail, "/name").to_owned(), text(detail, "/id").to_owned()];
                for stream in list(detail, "/stream_detail") {
                    let config = stream.get("config").cloned().unwrap_or_default();
                    streams.push(Stream { account: account.clone(), config });
                }
            }
            let total = answers.iter().filter_map(|answer| answer.pointer("/data/total").and_then(Value::as_u64)).max();
            if total.is_none_or(|total| total <= (offset + PAGE) as u64) {
                return Ok(streams);
            }
        }
        Err(too_many())
    }

    async fn accounts(&self) -> Result<BTreeSet<String>, Failure> {
        let answers = self.ask("ACCOUNTZ", &json!({})).await?;
        let names = answers.iter().flat_map(|answer| list(answer, "/data/accounts")).filter_map(Value::as_str);
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        if names.len() > MAX_ACCOUNTS { Err(too_many()) } else { Ok(names) }
    }

    /// An account, as each broker that knows it has it.
    async fn account(&self, name: &str) -> Result<Vec<Value>, Failure> {
        let answers = self.ask("ACCOUNTZ", &json!({ "account": name })).await?;
        Ok(answers.iter().filter_map(|answer| answer.pointer("/data/account_detail").cloned()).collect())
    }
}

fn too_many() -> Failure {
    Failure::input(format!("the brokers have more than {MAX_ACCOUNTS} accounts"))
}
