//! The connection that agents cannot reach: answers go out on it, and replicas and `$SRV` (ADR-32) are answered on it.
//! Never carries agents' messages in, and never waits where it is read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::agreement::Agreement;
use super::discovery::{Answer, Request, Signatures};
use super::questions::Questions;
use super::{EndedWithUs, Link, ServeError, Shared, discovery};
use crate::nats::{Connection, Event, Handler, Message, OpenError, Options, PublishError, Session, Subject};
use crate::service::replicas::{MAX_ANSWER, Mailbox};
use crate::wire::{Sealed, Unsent};

/// The control connection, and the task that answers what is asked on it.
#[derive(Debug)]
pub(super) struct Control {
    desk: Arc<Desk>,
    connection: Connection,
    #[expect(dead_code, reason = "ends with this")]
    clerk: EndedWithUs,
}

/// Where answers are handed in.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    shared: Arc<Shared>,
    sessions: Sessions,
}

/// The session that is up, and every change of it.
type Sessions = watch::Receiver<Option<Arc<Session>>>;

/// What the connection hands its messages to.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) shared: Arc<Shared>,
    /// Answers to this replica's own questions.
    pub(super) mailbox: Mailbox,
    questions: Questions,
}

/// How many questions a second the broker lets through on each subject of `$SRV`, of which there are nine.
const ASKED_A_SECOND: u64 = 256;
/// How long an answer waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the broker has to confirm the last answers.
pub(super) const CONFIRM: Duration = Duration::from_secs(4);

impl Control {
    /// Connects; replicas and `$SRV` are answered from now on.
    pub(super) async fn start(shared: Arc<Shared>) -> Result<Self, ServeError> {
        let inbox = format!("{}.*", shared.inbox());
        let of_replicas = [inbox, discovery::peers(shared.service.endpoint())].map(|subject| (subject, None));
        // What replicas say, and answers, go over this connection, too.
        let of_others = discovery::subjects(&shared).into_iter().map(|subject| (subject, Some(ASKED_A_SECOND)));
        let asked = of_replicas.into_iter().chain(of_others);
        let subjects = asked.map(|(subject, a_second)| Subject { subject, queue: None, a_second }).collect();
        let options = Options {
            // Without `$SRV` a service serves all the same, and without the others it says what is missing.
            required: false,
            max_message: MAX_ANSWER,
            ..Options::new(&format!("{} control {}", shared.service.endpoint().audience(), shared.instance), subjects)
        };
        let bus = shared.bus.clone();
        let desk = Arc::new(Desk { shared, mailbox: Mailbox::default(), questions: Questions::default() });
        let handler: Arc<dyn Handler> = desk.clone();
        let connection = Connection::open(&bus, options, handler).await.map_err(|error| match error {
            OpenError::Bus(error) => ServeError::Bus(error),
            OpenError::Forbidden(subject) => ServeError::Subscribe(subject),
        })?;
        if let Some(session) = connection.session() {
            desk.shared.service.fit(session.max_payload());
        }
        let clerk = EndedWithUs(tokio::spawn(Arc::clone(&desk).answer(connection.sessions())));
        Ok(Self { desk, connection, clerk })
    }

    pub(super) fn answers(&self) -> Answers {
        Answers { shared: Arc::clone(&self.desk.shared), sessions: self.connection.sessions() }
    }

    /// Who else serves this audience, and whether we may.
    pub(super) fn agreement(&self) -> Agreement {
        Agreement::new(Arc::clone(&self.desk), self.connection.sessions())
    }

    /// Waits until the broker has everything that was sent, and then takes no more questions, at most for [`CONFIRM`]; leaves.
    pub(super) async fn finish(self) {
        let confirmed = async {
            match self.connection.session() {
                Some(session) => session.unsubscribe().await,
                None => false,
            }
        };
        if !matches!(timeout(CONFIRM, confirmed).await, Ok(true)) {
            tracing::warn!(target: "sealwire::serve", "the broker did not confirm the last answers");
        }
        self.connection.close().await;
    }
}

impl Answers {
    /// Publishes an answer; if the connection has just ended, through the next one.
    pub(super) async fn send(&self, sealed: Sealed) {
        let mut sessions = self.sessions.clone();
        let sent = async {
            let mut answer = sealed;
            loop {
                let session = sessions.wait_for(Option::is_some).await.map_err(|_| STOPPED)?.clone();
                let Some(session) = session else { continue };
                match answer.send(&session).await {
                    Ok(()) => return Ok(()),
                    Err(Unsent { answer: back, error: PublishError::Gone }) => answer = *back,
                    Err(Unsent { error, .. }) => return Err(error.to_string()),
                }
                sessions.changed().await.map_err(|_| STOPPED)?;
            }
        };
        let failure = match timeout(PATIENCE, sent).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => "no connection, or no room in it".to_owned(),
        };
        self.shared.health.unsent.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = self.shared.lines.check(&(Link::Control, "unsent")) {
            tracing::warn!(target: "sealwire::serve", error = failure, suppressed, "an answer was not sent");
        }
    }
}

/// Why nothing is sent any more.
const STOPPED: &str = "the service has stopped";

/// Nothing in here waits: the connection's own task calls it.
impl Handler for Desk {
    fn message(&self, message: Message) {
        let inbox = message.subject.strip_prefix(&self.shared.inbox());
        if inbox.is_some_and(|rest| rest.starts_with('.')) {
            self.mailbox.offer(message);
        } else if let Some(request) = Request::read(self.shared.service.endpoint(), &message)
            && !self.questions.push(request)
        {
            self.shared.unasked();
        }
    }

    fn event(&self, event: Event) {
        self.shared.heard(Link::Control, event);
    }
}

impl Desk {
    /// Answers questions until it is aborted.
    async fn answer(self: Arc<Self>, mut sessions: Sessions) {
        let mut signatures = Signatures::new(Instant::now());
        loop {
            tokio::select! {
                biased;
                changed = sessions.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if let Some(session) = &*sessions.borrow_and_update() {
                        self.shared.service.fit(session.max_payload());
                    }
                }
                request = self.questions.next() => {
                    // Whoever asked has given up by the time there is another connection.
                    let Some(session) = sessions.borrow().clone() else { continue };
                    let Answer { to, headers, payload } = discovery::answer(&self.shared, request, &mut signatures);
                    // A question that came over a connection which has ended is not asked any more.
                    let _ = session.publish(&to, "", headers.as_bytes(), &payload).await;
                }
            }
        }
    }
}
