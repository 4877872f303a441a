//! The connection that agents reach: read eagerly, handed on at once.
//! Never publishes anything on that connection but answers that no other would deliver, and never blocks its reader.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, timeout, timeout_at};

use super::control::{Answers, CONFIRM};
use super::error::ServeError;
use super::outlet::BusOutlet;
use super::shared::{Link, Shared};
use super::stream_control::{ControlLine, StreamControl};
use super::work::{Intake, Work};
use crate::nats::{Connection, Event, Handler, Message, OpenError, Options, Session, Subject};
use crate::wire::Delivery;

/// The connection, and the work on the messages that it has read.
#[derive(Debug)]
pub(super) struct Ingress {
    connection: Connection,
    work: Work,
    reader: Arc<Reader>,
    /// Ends with this.
    control: StreamControl,
    /// Ends with this.
    tidy: JoinSet<()>,
}

/// The queue group of every service: ADR-32's default, so that replicas written in other languages join it.
const QUEUE_GROUP: &str = "q";
/// How often outdated state is dropped.
const TIDY: Duration = Duration::from_secs(60);
/// How often calls under way are reviewed: whether they may go on.
const LOOK: Duration = Duration::from_millis(250);

impl Ingress {
    pub(super) async fn start(shared: Arc<Shared>, answers: Answers, outlet: BusOutlet) -> Result<Self, ServeError> {
        let (work, intake) = Work::start(Arc::clone(&shared), answers, outlet);
        let control = StreamControl::start(&shared.service);
        let prefix = format!("{}.", shared.service.endpoint().control_prefix());
        let reader = Arc::new(Reader { shared: Arc::clone(&shared), intake, line: control.line(), prefix });
        let connection = connect(&shared, Arc::clone(&reader)).await?;
        let mut tidy = JoinSet::new();
        tidy.spawn(async move {
            let mut ticks = tokio::time::interval(TIDY);
            let mut looks = tokio::time::interval(LOOK);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => shared.service.tidy(),
                    _ = looks.tick() => shared.service.review(),
                }
            }
        });
        Ok(Self { connection, work, reader, control, tidy })
    }

    /// Takes no new messages, and waits until everything accepted is answered, at most for `limit`.
    pub(super) async fn drain(self, limit: Duration) -> Result<(), ServeError> {
        let Self { connection, mut work, reader, control: _control, tidy: _tidy } = self;
        let deadline = Instant::now() + limit;
        let finished = async {
            // Callers' control messages are heard until the last call has ended.
            connection.end_queues().await;
            // A caller whose subscription ends subscribes again, and would come back here as long as the broker still
            // chose us.
            reader.shared.service.end_subscriptions();
            reader.intake.close();
            work.finished().await;
            if let Some(session) = connection.session() {
                drop(timeout(CONFIRM, session.flush()).await);
            }
            connection.close().await;
        };
        if timeout_at(deadline, finished).await.is_ok() {
            return Ok(());
        }
        match work.give_up() {
            // Only the broker's confirmation was missing that nothing more is on the way.
            0 => Ok(()),
            unfinished => Err(ServeError::Drain(unfinished)),
        }
    }
}

/// Receives the messages of the agents' connection. Nothing in here waits: it runs in the connection's own task.
#[derive(Debug)]
struct Reader {
    shared: Arc<Shared>,
    intake: Intake,
    line: ControlLine,
    /// The prefix of control subjects.
    prefix: String,
}

impl Handler for Reader {
    fn message(&self, message: Message, session: &Arc<Session>) {
        let delivery = Delivery::from(message);
        if delivery.subject().starts_with(&self.prefix) {
            self.line.offer(delivery);
        } else {
            self.intake.offer(delivery, session);
        }
    }

    fn event(&self, event: Event) {
        if matches!(event, Event::Connected | Event::Moved) {
            // Frames may have been lost with the session before.
            self.shared.service.remind_callers();
        }
        self.shared.heard(Link::Agents, event);
    }
}

/// Opens the agents' connection. A message with an unreadable header block is refused like any other.
async fn connect(shared: &Arc<Shared>, reader: Arc<Reader>) -> Result<Connection, ServeError> {
    let endpoint = shared.service.endpoint();
    let requests =
        Subject { subject: endpoint.subscription(), queue: Some(QUEUE_GROUP.to_owned()), max_per_second: None };
    // Each replica subscribes for itself: only the one that runs a call can act on its control messages.
    let control = endpoint.control_subscriptions(&shared.replica);
    let control = control.into_iter().map(|subject| Subject { subject, queue: None, max_per_second: None });
    let subjects: Vec<Subject> = std::iter::once(requests).chain(control).collect();
    let names: Vec<String> = subjects.iter().map(|subject| subject.subject.clone()).collect();
    let options = Options {
        // A larger message need not be held in order to be refused.
        max_message: endpoint.max_message(),
        ..Options::new(&format!("{} {}", endpoint.audience(), shared.instance), subjects)
    };
    Connection::open(&shared.bus, options, reader).await.map_err(|error| match error {
        OpenError::Bus(error) => ServeError::Bus(error),
        OpenError::Forbidden(said) => {
            let ours = names.into_iter().find(|subject| said.contains(subject.as_str()));
            ServeError::Subscribe(ours.unwrap_or(said))
        }
    })
}
