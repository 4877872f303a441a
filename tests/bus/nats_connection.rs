//! Our own NATS connection against a real nats-server: log-in, TLS, limits, loss, handover, and whatever peers send.

mod creds;
mod login;
mod loss;
mod traffic;
mod websocket;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire::BusConfig;
use sealwire::internal::nats::{Connection, Event, Handler, Message, OpenError, Options, Session, Subject};
use sealwire_testkit::{SOON, within};

/// Records everything that the connection reports.
#[derive(Default)]
struct Heard {
    messages: Mutex<Vec<Message>>,
    events: Mutex<Vec<Event>>,
    /// How long each message takes, in the connection's own task.
    slow: Duration,
}

impl Handler for Heard {
    fn message(&self, message: Message, _: &Arc<Session>) {
        if !self.slow.is_zero() {
            std::thread::sleep(self.slow);
        }
        self.messages.lock().unwrap().push(message);
    }

    fn event(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

impl Heard {
    fn count(&self) -> usize {
        self.messages.lock().unwrap().len()
    }

    fn payloads(&self) -> Vec<String> {
        self.messages.lock().unwrap().iter().map(|m| String::from_utf8_lossy(&m.payload).into_owned()).collect()
    }

    fn has(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.events.lock().unwrap().iter().any(wanted)
    }

    fn disconnected(&self) -> bool {
        self.has(|event| matches!(event, Event::Disconnected(_)))
    }
}

fn subject(subject: &str) -> Subject {
    Subject { subject: subject.to_owned(), queue: None, max_per_second: None }
}

fn queue(subject: &str) -> Subject {
    Subject { subject: subject.to_owned(), queue: Some("q".to_owned()), max_per_second: None }
}

async fn open(bus: &BusConfig, subjects: Vec<Subject>) -> Result<(Connection, Arc<Heard>), OpenError> {
    open_with(bus, Options::new("test", subjects)).await
}

async fn open_with(bus: &BusConfig, options: Options) -> Result<(Connection, Arc<Heard>), OpenError> {
    let heard = Arc::new(Heard::default());
    let handler: Arc<dyn Handler> = heard.clone();
    let connection = within(SOON, Connection::open(bus, options, handler)).await?;
    Ok((connection, heard))
}

fn up(connection: &Connection) -> Arc<Session> {
    connection.session().expect("the connection is up")
}

/// Waits until `condition` holds.
async fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(SOON, what, condition).await;
}

async fn eventually_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(limit, waited).await.is_ok(), "never: {what}");
}
