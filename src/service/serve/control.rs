//! The connection that agents cannot reach: it carries the answers, and replicas and `$SRV` (ADR-32) are answered on
//! it.
//! Never carries agents' messages in, and never blocks its reader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, timeout};

use super::agreement::Agreement;
use super::control_handler::{ControlHandler, Sessions};
use super::discovery;
use super::error::ServeError;
use super::outlet::{BusOutlet, publisher};
use super::questions::Questions;
use super::shared::{EndedWithUs, Link, Shared};
use crate::nats::{Connection, Handler, OpenError, Options, PublishError, Session, Subject};
use crate::service::replicas::{MAX_ANSWER, Mailbox};
use crate::service::{Service, metadata};
use crate::wire::{Sealed, SendFailed};

/// The control connection, and the task that answers the questions on it.
#[derive(Debug)]
pub(super) struct Control {
    handler: Arc<ControlHandler>,
    connection: Connection,
    #[expect(dead_code, reason = "they end with this")]
    tasks: [EndedWithUs; 2],
}

/// Publishes answers.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    shared: Arc<Shared>,
    sessions: Sessions,
}

/// How many questions per second the broker lets through on each of the nine subjects of `$SRV`.
const ASKED_A_SECOND: u64 = 256;
/// How long an answer waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the broker may take to confirm the last answers.
pub(super) const CONFIRM: Duration = Duration::from_secs(4);

impl Control {
    /// Connects; from now on, replicas and `$SRV` are answered.
    pub(super) async fn start(shared: Arc<Shared>) -> Result<Self, ServeError> {
        let inbox = format!("{}.*", shared.inbox());
        let of_replicas = [inbox, metadata::peers(shared.service.endpoint())].map(|subject| (subject, None));
        // This connection also carries answers, and what replicas say.
        let of_others = discovery::subjects(&shared).into_iter().map(|subject| (subject, Some(ASKED_A_SECOND)));
        let asked = of_replicas.into_iter().chain(of_others);
        let subjects =
            asked.map(|(subject, max_per_second)| Subject { subject, queue: None, max_per_second }).collect();
        let options = Options {
            // A service can serve without `$SRV`, and without the others it says what is missing.
            required: false,
            max_message: MAX_ANSWER,
            ..Options::new(&format!("{} control {}", shared.service.endpoint().audience(), shared.instance), subjects)
        };
        let bus = shared.bus.clone();
        let handler = Arc::new(ControlHandler { shared, mailbox: Mailbox::default(), questions: Questions::default() });
        let shared_handler: Arc<dyn Handler> = handler.clone();
        let connection = Connection::open(&bus, options, shared_handler).await.map_err(|error| match error {
            OpenError::Bus(error) => ServeError::Bus(error),
            OpenError::Forbidden(subject) => ServeError::Subscribe(subject),
        })?;
        if let Some(session) = connection.session() {
            handler.shared.service.fit(session.max_payload());
        }
        let service = handler.shared.service.clone();
        let sessions = connection.sessions();
        // Never waits, and never takes room that answers need: what is not told is found in lists.
        service.publish_news_by(Arc::new(move |subject, headers, payload| {
            if let Some(session) = &*sessions.borrow() {
                let _ = session.publish_now(subject, "", headers.as_bytes(), payload);
            }
        }));
        let responder = EndedWithUs(tokio::spawn(Arc::clone(&handler).answer(connection.sessions())));
        Ok(Self { handler, connection, tasks: [responder, EndedWithUs(tokio::spawn(tell_expired(service)))] })
    }

    pub(super) fn answers(&self) -> Answers {
        Answers { shared: Arc::clone(&self.handler.shared), sessions: self.connection.sessions() }
    }

    /// Where frames are published.
    pub(super) fn outlet(&self) -> BusOutlet {
        BusOutlet::new(self.handler.shared.replica.clone(), self.connection.sessions())
    }

    /// Who else serves this audience, and whether we may.
    pub(super) fn agreement(&self) -> Agreement {
        Agreement::new(Arc::clone(&self.handler), self.connection.sessions())
    }

    /// Waits until the broker has everything that was sent and delivers no more questions, at most for [`CONFIRM`]; then leaves.
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
    /// Publishes the answer to a message that arrived by this session, through the next connection if this one has just ended.
    pub(super) async fn send(&self, sealed: Sealed, arrival: &Arc<Session>) {
        // There is nearly always a connection, and it takes the answer at once.
        let session = publisher(&self.sessions, arrival);
        let left = match session {
            Some(session) => sealed.send_now(&session),
            None => Some(sealed),
        };
        if let Some(sealed) = left {
            Box::pin(self.send_later(sealed, arrival)).await;
        }
    }

    async fn send_later(&self, sealed: Sealed, arrival: &Arc<Session>) {
        let mut sessions = self.sessions.clone();
        let sent = async {
            let mut answer = sealed;
            // It may only have had no room.
            if let Some(session) = publisher(&sessions, arrival) {
                match answer.send(&session).await {
                    Ok(()) => return Ok(()),
                    Err(SendFailed { answer: back, .. }) => answer = *back,
                }
            }
            loop {
                let session = sessions.wait_for(Option::is_some).await.map_err(|_| STOPPED)?.clone();
                let Some(session) = session else { continue };
                match answer.send(&session).await {
                    Ok(()) => return Ok(()),
                    Err(SendFailed { answer: back, error: PublishError::Gone }) => answer = *back,
                    Err(SendFailed { error, .. }) => return Err(error.to_string()),
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

/// Tells of calls that have waited for approval in vain, until it is aborted.
async fn tell_expired(service: Service) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        service.tell_expired().await;
    }
}

/// How often.
const LOOK: Duration = Duration::from_secs(1);
/// Why nothing is sent any more.
const STOPPED: &str = "the service has stopped";
