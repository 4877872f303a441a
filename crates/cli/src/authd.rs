//! `sealwire authd`: tells brokers who a new connection is, by the access token that its agent uses for calls.
//! Never holds a key of an agent, and never gives a connection more than the policies of services leave.

mod backlog;
mod counts;
mod judge;
mod report;
mod request;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use nkeys::{KeyPair, XKey};
use sealwire::configure::TelemetryConfig;
use sealwire::internal::KeyedLogLimiter;
use sealwire::internal::files::read_secret;
use sealwire::internal::nats::{Connection, Event, Handler, Message, Options, Session, Subject};
use sealwire::metrics::Telemetry;
use serde_json::json;
use tokio::task::JoinSet;

use self::backlog::Backlog;
use self::counts::Counts;
use self::judge::{Admitted, Denied, Judge};
use self::report::State;
use self::request::{NoQuestion, Question};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::at;
use crate::gate::{PAYLOAD, SUBSCRIPTIONS, signed, with};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::{login, project, when};

/// Tell brokers who connects: an agent's access token opens its connection, with what the policies leave it
///
/// Answers the auth callout of NATS servers. The token that an agent uses for its calls lets it in until that token ends, and for what
/// some call of it could be allowed to do (`sealwire policy compile`). Brokers then know no agents as users. Run two or more: without any,
/// nobody new gets in. See docs/broker.md.
///
/// Runs until SIGTERM or SIGINT. One line on stdout says when it answers.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire authd --login authd.nats.json --issuer issuer.nk --xkey authd.xk \\
      --config demo/sealwire.toml --config bank/sealwire.toml
  sealwire authd --login authd/authd.nats.json --issuer authd/issuer.nk \\
      --xkey authd/authd.xk --config authd --account A…")]
pub(crate) struct Authd {
    /// The broker, and the user that answers: a JSON file with the members of `nats` in credentials
    #[arg(long, value_name = "FILE")]
    login: PathBuf,
    /// The seed of the account key that signs the answers (SA…): the brokers' `issuer`. In operator mode, a signing key without a scope of
    /// the account that agents get into
    #[arg(long, value_name = "FILE")]
    issuer: PathBuf,
    /// The seed of the curve key to which the brokers encrypt (SX…): their `xkey`
    #[arg(long, value_name = "FILE")]
    xkey: PathBuf,
    /// The configuration of a service, for its tokens, denylist and policies, or a folder with such files (*.toml); repeat for each service
    /// at the brokers
    #[arg(long, value_name = "FILE", default_value = "sealwire.toml")]
    config: Vec<PathBuf>,
    /// The account that agents get into: its name, or in operator mode its public key (A…)
    #[arg(long, value_name = "ACCOUNT", default_value = crate::gate::ACCOUNT)]
    account: String,
    /// Let agents send batches: also the plain subject of each agent at a service that it may call. The broker does not see the
    /// methods in what goes there
    #[arg(long)]
    batches: bool,
    /// How many connections a second one host may open on average
    #[arg(long, value_name = "N", default_value = "50")]
    host_per_second: NonZeroU32,
    /// How many connections one host may open at once
    #[arg(long, value_name = "N", default_value = "500")]
    host_burst: NonZeroU32,
    /// For how many seconds the brokers wait for an answer: `timeout` in their `authorization`. Older questions are dropped
    #[arg(long, value_name = "SECONDS", default_value_t = crate::users::CALLOUT_S, value_parser = clap::value_parser!(u32).range(1..=120))]
    broker_waits: u32,
    /// Where /metrics, /livez and /readyz are served
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Let other machines ask: whoever reaches the address learns the names of services and issuers
    #[arg(long, requires = "listen")]
    allow_remote: bool,
}

/// The subject on which brokers ask, and the group of those who answer: each question goes to one of them.
const ASKED: &str = "$SYS.REQ.USER.AUTH";
const GROUP: &str = "sealwire-authd";
/// The largest question, headers included: a token, and with TLS the certificates of its client.
const LARGEST: usize = 64 << 10;
/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it takes to answer, at the end, what brokers have asked already.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// How long ending may take.
const ENDING: Duration = Duration::from_secs(5);

/// The account that agents get into.
enum TargetAccount {
    /// In the configuration of the brokers.
    Named(String),
    /// Of brokers in operator mode, by its public key. Whoever asks has then shown a JWT: that of the sentinel, which proves nothing.
    OfOperator(String),
}

/// Signs and encrypts the answers.
struct Responder {
    judge: Arc<Judge>,
    counts: Arc<Counts>,
    issuer: KeyPair,
    xkey: XKey,
    account: TargetAccount,
    denials: KeyedLogLimiter<String>,
    strangers: KeyedLogLimiter<NoQuestion>,
}

/// Puts questions into the queue.
struct Inbox(Arc<Backlog>);

impl Authd {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let bus = login::read(&self.login)?;
        let issuer = seed(&self.issuer, "an account (SA…)", |seed| KeyPair::from_seed(seed).ok())?;
        if !issuer.public_key().starts_with('A') {
            return Err(Failure::input(format!("`{}` holds no seed of an account (SA…)", self.issuer.display())));
        }
        let xkey = seed(&self.xkey, "a curve key (SX…)", |seed| XKey::from_seed(seed).ok())?;
        let account = TargetAccount::new(self.account, &issuer.public_key())?;
        let files = files(&self.config)?;
        let configs = files.iter().map(|path| Ok(project::load(path)?.0)).collect::<Result<Vec<_>, Failure>>()?;
        let mut served = TelemetryConfig::default();
        (served.listen, served.allow_remote) = (self.listen, self.allow_remote);
        served.check().map_err(|_| {
            let failure = Failure::new(Exit::Usage, "other machines reach the address of --listen");
            failure.help("listen on 127.0.0.1, or add --allow-remote if everybody who reaches it may know the names of services and issuers")
        })?;
        let signals = Signals::listen(Some(ENDING))?;
        block_on(async {
            let telemetry = Telemetry::start(&served).await.or_fail(Exit::Input)?;
            let judge = Judge::open(configs, self.batches, self.host_per_second, self.host_burst).await?;
            let (judge, counts) = (Arc::new(judge), Arc::new(Counts::default()));
            let responder = Arc::new(Responder {
                judge: Arc::clone(&judge),
                counts: Arc::clone(&counts),
                issuer,
                xkey,
                account,
                denials: KeyedLogLimiter::default(),
                strangers: KeyedLogLimiter::default(),
            });
            let patience = Duration::from_secs(u64::from(self.broker_waits));
            let backlog = Arc::new(Backlog::new(patience, Arc::clone(&counts)));
            let inbox = Arc::new(Inbox(Arc::clone(&backlog)));
            let subject = Subject { subject: ASKED.to_owned(), queue: Some(GROUP.to_owned()), max_per_second: None };
            let options = Options { max_message: LARGEST, ..Options::new("sealwire authd", vec![subject]) };
            let opened = Connection::open(&bus, options, inbox);
            let Some(opened) = signals.unless_stopped(opened).await else { return Ok(Exit::Ok) };
            let connection = Arc::new(opened.or_fail(Exit::Transport)?);
            if let Some(telemetry) = &telemetry {
                let (connection, backlog) = (Arc::clone(&connection), Arc::clone(&backlog));
                let state = State { counts, judge, connection, backlog };
                telemetry.report(&state);
                telemetry.ready_when(move || state.conditions());
            }
            let mut answering = JoinSet::new();
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                answering.spawn(answer(Arc::clone(&responder), Arc::clone(&connection), Arc::clone(&backlog)));
            }
            let mut tasks = JoinSet::new();
            tasks.spawn(refresh(Arc::clone(&responder)));
            tasks.spawn(responder.judge.follow());
            let (issuer, xkey) = (responder.issuer.public_key(), responder.xkey.public_key());
            let listen = telemetry.as_ref().map(Telemetry::at);
            out.tell(&json!({ "ready": true, "issuer": issuer, "xkey": xkey, "listen": listen }), || {
                format!("authd answers brokers whose issuer is {issuer} and xkey {xkey}")
            })?;
            signals.stop().await;
            connection.end_queues().await;
            // Brokers wait for answers to what they have asked us already.
            backlog.close();
            let answered = async { while answering.join_next().await.is_some() {} };
            drop(tokio::time::timeout(ANSWERED_WITHIN, answered).await);
            connection.drain().await;
            Ok(Exit::Ok)
        })?
    }
}

impl TargetAccount {
    fn new(account: String, issuer: &str) -> Result<Self, Failure> {
        if KeyPair::from_public_key(&account).is_err() {
            return Ok(Self::Named(account));
        }
        if !account.starts_with('A') {
            return Err(Failure::input("not the public nkey of an account (it begins with A): --account"));
        }
        if account == issuer {
            let failure = Failure::input("--issuer is the account's own key");
            return Err(
                failure.help("give a signing key of the account, without a scope: keep the account's own key offline")
            );
        }
        Ok(Self::OfOperator(account))
    }
}

/// The configurations of services: these files, and those in these folders.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| at(path, &error))?;
        let entries = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut found: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
        if found.is_empty() {
            return Err(Failure::input(format!("`{}` holds no configuration (*.toml)", path.display())));
        }
        found.sort();
        all.append(&mut found);
    }
    Ok(all)
}

fn seed<T>(path: &Path, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, Failure> {
    let text = read_secret(path).or_fail(Exit::Input)?;
    read(text.trim()).ok_or_else(|| Failure::input(format!("`{}` holds no seed of {what}", path.display())))
}

/// Answers one question after the other.
async fn answer(responder: Arc<Responder>, connection: Arc<Connection>, backlog: Arc<Backlog>) {
    loop {
        // There are as many of these as threads, and a backlog never makes them wait: whoever reads from the broker needs its turn.
        tokio::task::yield_now().await;
        let Some((came, message)) = backlog.next().await else { return };
        let Some((to, answer)) = responder.answer(&message, when::now_s()) else { continue };
        let Some(session): Option<Arc<Session>> = connection.session() else { continue };
        if let Err(error) = session.publish(&to, "", &[], &answer).await {
            tracing::warn!(target: "sealwire::authd", %error, "an answer could not be sent");
            continue;
        }
        responder.counts.answered(came);
    }
}

async fn refresh(responder: Arc<Responder>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let responder = Arc::clone(&responder);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        // Reading files takes its time. A panic there must not end the looking.
        drop(tokio::task::spawn_blocking(move || responder.judge.refresh(now_ms)).await);
    }
}

impl Responder {
    /// The answer to a message, and where it goes; `None` if nobody that we would answer asked.
    fn answer(&self, message: &Message, now_s: u64) -> Option<(String, Vec<u8>)> {
        let with_jwt = matches!(self.account, TargetAccount::OfOperator(_));
        let question = match Question::open(message, &self.xkey, with_jwt, now_s) {
            Ok(question) => question,
            Err(error) => {
                self.counts.count("ignored", error.label());
                if let Some(more) = self.strangers.check(&error) {
                    tracing::warn!(target: "sealwire::authd", %error, more, "a message is no question of a broker");
                }
                return None;
            }
        };
        let judged = self.judge.judge(&question, now_s);
        let nats = match &judged {
            Ok(admitted) => {
                self.counts.count("admitted", "");
                tracing::debug!(target: "sealwire::authd", agent = %admitted.agent, host = question.host, until = admitted.until, "admitted");
                json!({ "jwt": self.user(&question, admitted, now_s).ok()? })
            }
            Err(Denied { label, why }) => {
                self.counts.count("denied", label);
                if let Some(more) = self.denials.check(&question.host) {
                    tracing::warn!(target: "sealwire::authd", host = question.host.escape_debug().to_string(), why, more, "denied");
                }
                json!({ "error": why })
            }
        };
        let nats = with(nats, json!({ "type": "authorization_response", "version": 2 }));
        let claims = json!({ "sub": question.user_nkey, "aud": question.server, "nats": nats });
        let answer = signed(&self.issuer, claims, now_s).ok()?;
        Some((question.reply, self.xkey.seal(answer.as_bytes(), &question.server_xkey).ok()?))
    }

    /// The user that the connection becomes.
    fn user(&self, question: &Question, admitted: &Admitted, now_s: u64) -> Result<String, Failure> {
        let user = json!({
            "type": "user", "version": 2, "subs": SUBSCRIPTIONS, "data": -1, "payload": PAYLOAD,
            "allowed_connection_types": ["STANDARD"], "tags": admitted.tags,
        });
        let nats = with(user, admitted.permissions.claims());
        let claims = json!({ "sub": question.user_nkey, "name": admitted.user, "exp": admitted.until });
        let claims = match &self.account {
            TargetAccount::Named(name) => with(claims, json!({ "aud": name, "nats": nats })),
            TargetAccount::OfOperator(key) => {
                with(claims, json!({ "nats": with(nats, json!({ "issuer_account": key })) }))
            }
        };
        signed(&self.issuer, claims, now_s)
    }
}

impl Handler for Inbox {
    fn message(&self, message: Message, _: &Arc<Session>) {
        self.0.push(Instant::now(), message);
    }

    fn event(&self, event: Event) {
        match event {
            Event::Connected | Event::Moved => tracing::info!(target: "sealwire::authd", "connected"),
            Event::Disconnected(why) | Event::Failed(why) | Event::Error(why) | Event::LoginEnds(why) => {
                tracing::warn!(target: "sealwire::authd", %why, "the connection to the broker");
            }
            Event::PublishForbidden(subject) | Event::SubscribeForbidden(subject) | Event::Flooded(subject) => {
                tracing::warn!(target: "sealwire::authd", subject = %subject.escape_debug(), "the broker forbids it");
            }
        }
    }
}
