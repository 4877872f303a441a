//! The connection that agents reach: read eagerly, handed on at once.
//! Never publishes anything on that connection, and never waits where it is read.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::control::Answers;
use super::work::{Intake, Work};
use super::{Link, ServeError, Shared};
use crate::nats::{Connection, Event, Handler, Message, OpenError, Options, Subject};
use crate::wire::Delivery;

/// The connection, and the work on what it has read.
#[derive(Debug)]
pub(super) struct Ingress {
    connection: Connection,
    work: Work,
    /// Ends with this.
    tidy: JoinSet<()>,
}

/// The queue group of every service: ADR-32's default, so that replicas written in another language join it.
const QUEUE_GROUP: &str = "q";
/// How often what is no longer needed is let go of.
const TIDY: Duration = Duration::from_secs(60);

impl Ingress {
    pub(super) async fn start(shared: Arc<Shared>, answers: Answers) -> Result<Self, ServeError> {
        let (work, intake) = Work::start(Arc::clone(&shared), answers);
        let reader = Reader { shared: Arc::clone(&shared), intake };
        let connection = connect(&shared, Arc::new(reader)).await?;
        let mut tidy = JoinSet::new();
        tidy.spawn(async move {
            let mut ticks = tokio::time::interval(TIDY);
            loop {
                ticks.tick().await;
                shared.service.tidy();
            }
        });
        Ok(Self { connection, work, tidy })
    }

    /// Takes no new messages, and waits until everything accepted is answered, at most for `limit`.
    pub(super) async fn drain(self, limit: Duration) -> Result<(), ServeError> {
        let Self { connection, mut work, tidy } = self;
        let deadline = Instant::now() + limit;
        drop(tidy);
        let finished = async {
            // The intake goes with it.
            connection.drain().await;
            work.finished().await;
        };
        if tokio::time::timeout_at(deadline, finished).await.is_ok() {
            return Ok(());
        }
        match work.give_up() {
            // Only the broker was waited for, which did not say that nothing more is on the way.
            0 => Ok(()),
            unfinished => Err(ServeError::Drain(unfinished)),
        }
    }
}

/// What the agents' connection hands its messages to. Nothing in here waits: the connection's own task calls it.
#[derive(Debug)]
struct Reader {
    shared: Arc<Shared>,
    intake: Intake,
}

impl Handler for Reader {
    fn message(&self, message: Message) {
        self.intake.offer(Delivery::from(message));
    }

    fn event(&self, event: Event) {
        self.shared.heard(Link::Agents, event);
    }
}

/// The agents' connection. A header block that nobody can read is a message that is refused like any other.
async fn connect(shared: &Arc<Shared>, reader: Arc<Reader>) -> Result<Connection, ServeError> {
    let endpoint = shared.service.endpoint();
    let subject = endpoint.subscription();
    let options = Options {
        // What is larger need not be held to be refused.
        max_message: endpoint.max_message(),
        ..Options::new(
            &format!("{} {}", endpoint.audience(), shared.instance),
            vec![Subject { subject: subject.clone(), queue: Some(QUEUE_GROUP.to_owned()), a_second: None }],
        )
    };
    Connection::open(&shared.bus, options, reader).await.map_err(|error| match error {
        OpenError::Bus(error) => ServeError::Bus(error),
        OpenError::Forbidden(_) => ServeError::Subscribe(subject),
    })
}
