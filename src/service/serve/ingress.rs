//! The connection that agents reach: read eagerly, handed on at once.
//! Never publishes anything on that connection, and never waits where it is read.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::control::Answers;
use super::error::ServeError;
use super::shared::{Link, Shared};
use super::stream_control::{ControlLine, StreamControl};
use super::work::{Intake, Work};
use crate::nats::{Connection, Event, Handler, Message, OpenError, Options, Subject};
use crate::service::Outlet;
use crate::wire::Delivery;

/// The connection, and the work on what it has read.
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

/// The queue group of every service: ADR-32's default, so that replicas written in another language join it.
const QUEUE_GROUP: &str = "q";
/// How often what is no longer needed is let go of.
const TIDY: Duration = Duration::from_secs(60);
/// How often calls under way are looked at: whether they may go on.
const LOOK: Duration = Duration::from_millis(250);

impl Ingress {
    pub(super) async fn start(
        shared: Arc<Shared>,
        answers: Answers,
        outlet: Arc<dyn Outlet>,
    ) -> Result<Self, ServeError> {
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
            // What callers say of their calls is heard until the last one has ended.
            connection.end_queues().await;
            // Whoever hears of it subscribes again, and would come back here as long as the broker still chooses us.
            reader.shared.service.end_subscriptions();
            reader.intake.close();
            work.finished().await;
            connection.close().await;
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
    line: ControlLine,
    /// Below which control lies.
    prefix: String,
}

impl Handler for Reader {
    fn message(&self, message: Message) {
        let delivery = Delivery::from(message);
        if delivery.subject().starts_with(&self.prefix) {
            self.line.offer(delivery);
        } else {
            self.intake.offer(delivery);
        }
    }

    fn event(&self, event: Event) {
        self.shared.heard(Link::Agents, event);
    }
}

/// The agents' connection. A header block that nobody can read is a message that is refused like any other.
async fn connect(shared: &Arc<Shared>, reader: Arc<Reader>) -> Result<Connection, ServeError> {
    let endpoint = shared.service.endpoint();
    let requests = Subject { subject: endpoint.subscription(), queue: Some(QUEUE_GROUP.to_owned()), a_second: None };
    // Each replica for itself: only the one that runs a call can do what its caller says.
    let control = endpoint.control_subscriptions(&shared.replica);
    let control = control.into_iter().map(|subject| Subject { subject, queue: None, a_second: None });
    let subjects: Vec<Subject> = std::iter::once(requests).chain(control).collect();
    let names: Vec<String> = subjects.iter().map(|subject| subject.subject.clone()).collect();
    let options = Options {
        // What is larger need not be held to be refused.
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
