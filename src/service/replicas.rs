//! Who serves a service at the moment: asks on the bus, and lists who answers and whether the service signed the answer.
//! Never a basis for decisions about messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::metadata::{AUDIENCE, GUARD, GUARD_IDENTITY, GUARD_READY, POLICY, REFUSED, STARTED, STATE, SUBJECT, peers};
use crate::auth::GuardIdentity;
use crate::name::shown;
use crate::nats::{BusConfig, BusError};
use crate::nats::{Connection, Event, Handler, Message, OpenError, Options, Session, Subject};
use crate::wire::{Endpoint, HeaderBlock, Nonce, Question, ServicePublicKey, Unverifiable};

/// A replica, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replica {
    /// Its id on the bus: what [`Running::instance`](super::Running::instance) returns there.
    pub instance: String,
    /// Its state, in the words of [`State::as_str`](super::State::as_str): `ready` if it takes messages.
    pub state: String,
    /// Its replay guard.
    pub guard: String,
    /// The revision of its policy.
    pub policy: String,
    /// The kinds of files whose present state it refuses, so that their last good state is in force: `key ring`, `denylist`,
    /// `token keys`, `service key`, `policy`, or a name of the application's own.
    pub refused: Vec<String>,
    /// How long it took to answer.
    pub after: Duration,
    /// Whether the answer is signed by the service, for this question. If not, anyone who may publish where it arrived
    /// could have sent it.
    pub verified: bool,
}

impl Replica {
    /// Whether it takes messages, and judges them by the keys and revocations that its files hold now. Of a policy or a file of the
    /// application that is refused, the last good state does: it decides as before.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == READY && self.refused.iter().all(|refused| !WITHDRAWING.contains(&refused.as_str()))
    }
}

/// As [`State::as_str`](super::State::as_str) has it.
const READY: &str = "ready";

/// The files by which keys and tokens are taken back.
const WITHDRAWING: [&str; 4] = ["key ring", "denylist", "token keys", "service key"];

/// Asks all replicas of a service whether they are there, and lists those that answer, or only the one whose id is
/// `instance`.
///
/// Answers are verified with `keys`, the service's public keys. Listens for `within`, or until `enough` is true of those
/// listed so far; to at most 1,024 answers. The connection must be the service's own: nobody else may ask or listen, see
/// the table of permissions in the specification.
///
/// # Errors
/// [`BusError`]: the broker cannot be reached, does not let us in, or does not permit the question.
///
/// Cancel safe: nothing is left behind.
pub async fn replicas(
    bus: &BusConfig,
    endpoint: &Endpoint,
    keys: &[ServicePublicKey],
    instance: Option<&str>,
    within: Duration,
    enough: impl Fn(&[Replica]) -> bool,
) -> Result<Vec<Replica>, BusError> {
    let inbox = format!("{}.replica.{}", endpoint.service_inbox(), Nonce::random().to_text());
    let listener = Arc::new(Listener::default());
    let options = Options {
        max_message: MAX_ANSWER,
        ..Options::new(
            &format!("sealwire-ping {}", endpoint.audience()),
            vec![Subject { subject: format!("{inbox}.*"), queue: None, max_per_second: None }],
        )
    };
    let connection = Connection::open(bus, options, Arc::clone(&listener) as Arc<dyn Handler>).await;
    let connection = connection.map_err(|error| match error {
        OpenError::Bus(error) => error,
        OpenError::Forbidden(_) => BusError::Forbidden { action: "subscribe to", subject: format!("{inbox}.*") },
    })?;
    let mut found: Vec<Replica> = Vec::new();
    if let Some(session) = connection.session() {
        let mailbox = &listener.mailbox;
        let asking = Asking { session: &session, mailbox, endpoint, keys, inbox: &inbox };
        let asked = asking.round(within, |said| {
            if said.audience() != endpoint.audience().as_str() || instance.is_some_and(|only| said.instance != only) {
                return false;
            }
            found.push(Replica {
                instance: shown(&said.instance),
                state: shown(said.text(STATE)),
                guard: shown(said.text(GUARD)),
                policy: shown(said.text(POLICY)),
                refused: said.text(REFUSED).split(", ").filter(|kind| !kind.is_empty()).map(shown).collect(),
                after: said.after,
                verified: said.proof.is_ok(),
            });
            enough(&found)
        });
        // Nobody answers a question that could not be asked.
        let _ = asked.await;
    }
    connection.close().await;
    match listener.forbidden() {
        Some(subject) => Err(BusError::Forbidden { action: "publish to", subject }),
        None => Ok(found),
    }
}

/// The most answers that are taken for one question.
pub(super) const MOST: usize = 1_024;
/// The largest answer that is read, in bytes; a usual one has about 800.
pub(super) const MAX_ANSWER: usize = 16 * 1024;

/// Handles what a connection that only asks receives.
#[derive(Debug, Default)]
struct Listener {
    mailbox: Mailbox,
    forbidden: Mutex<Option<String>>,
}

impl Listener {
    fn forbidden(&self) -> Option<String> {
        self.forbidden.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Handler for Listener {
    fn message(&self, message: Message, _: &Arc<Session>) {
        self.mailbox.offer(message);
    }

    fn event(&self, event: Event) {
        if let Event::PublishForbidden(subject) = event {
            *self.forbidden.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown(&subject));
        }
    }
}

/// Where the answers to one question at a time arrive. Putting one in never waits: answers that are not read in time,
/// beyond 1,024 of them, are dropped.
#[derive(Debug, Default)]
pub(super) struct Mailbox(Mutex<Option<(String, mpsc::Sender<Message>)>>);

impl Mailbox {
    /// Takes the answers on this subject, and no others from now on.
    fn open(&self, subject: &str) -> mpsc::Receiver<Message> {
        let (sender, answers) = mpsc::channel(MOST);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((subject.to_owned(), sender));
        answers
    }

    /// Puts in an answer, perhaps to an earlier question.
    pub(super) fn offer(&self, message: Message) {
        if let Some((subject, answers)) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
            && *subject == message.subject
        {
            // Full, or nobody reads any more.
            drop(answers.try_send(message));
        }
    }
}

/// Who is asking, and whose signatures count.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    pub(super) session: &'a Session,
    pub(super) mailbox: &'a Mailbox,
    pub(super) endpoint: &'a Endpoint,
    pub(super) keys: &'a [ServicePublicKey],
    /// The prefix of the subjects where answers arrive.
    pub(super) inbox: &'a str,
}

/// What a replica says, and whether it is proved.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) instance: String,
    metadata: BTreeMap<String, String>,
    pub(super) proof: Result<(), Unverifiable>,
    after: Duration,
}

/// The question could not be asked.
#[derive(Debug)]
pub(super) struct NotAsked;

impl Asking<'_> {
    /// Asks all replicas once and listens for `within`, or until `each` has heard enough. Returns whether there were too few answers for
    /// any to have been missed.
    pub(super) async fn round(&self, within: Duration, mut each: impl FnMut(Said) -> bool) -> Result<bool, NotAsked> {
        #[derive(Deserialize)]
        struct Answer {
            id: String,
            metadata: BTreeMap<String, String>,
        }
        let question = Question::new(self.endpoint.audience().clone());
        // A new inbox for each question: a late answer is not taken for a wrong answer to the next one.
        let inbox = format!("{}.{}", self.inbox, Nonce::random().to_text());
        let asked = Instant::now();
        let mut answers = self.mailbox.open(&inbox);
        let (subject, payload) = (peers(self.endpoint), question.payload());
        self.session.publish(&subject, &inbox, &[], payload.as_bytes()).await.map_err(|_| NotAsked)?;
        let mut heard = 0;
        let listen = async {
            while let Some(message) = answers.recv().await {
                heard += 1;
                let headers = HeaderBlock::from(message.headers);
                // No replica listens.
                if headers.says_no_responders() {
                    return;
                }
                let Ok(Answer { id, metadata }) = serde_json::from_slice(&message.payload) else { continue };
                let proof = question.accept(&inbox, &id, &headers, &message.payload, self.keys);
                if each(Said { instance: id, metadata, proof, after: asked.elapsed() }) {
                    return;
                }
            }
        };
        // Silence is an answer, too: a replica that has not answered by then is not there.
        drop(tokio::time::timeout(within, listen).await);
        Ok(heard + answers.len() < MOST)
    }
}

impl Said {
    fn text(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }

    pub(super) fn audience(&self) -> &str {
        self.text(AUDIENCE)
    }

    pub(super) fn subject(&self) -> &str {
        self.text(SUBJECT)
    }

    pub(super) fn state(&self) -> &str {
        self.text(STATE)
    }

    /// `local` or `shared`.
    pub(super) fn guard(&self) -> &str {
        self.text(GUARD)
    }

    /// `None` if the replica does not say, being of an older version.
    pub(super) fn identity(&self) -> Option<GuardIdentity> {
        serde_json::from_str(self.text(GUARD_IDENTITY)).ok()
    }

    pub(super) fn guard_is_ready(&self) -> bool {
        self.text(GUARD_READY) == "true"
    }

    /// When it started, in milliseconds since the Unix epoch.
    pub(super) fn started_ms(&self) -> u64 {
        self.text(STARTED).parse().unwrap_or(0)
    }
}
