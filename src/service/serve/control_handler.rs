//! The questions on the control connection, from replicas and on `$SRV`, and the answers to them.
//! Never blocks the reader of that connection.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::discovery::{self, Answer, Request, Signatures};
use super::questions::Questions;
use super::shared::{Link, Shared};
use crate::nats::{Event, Handler, Message, Session};
use crate::service::replicas::Mailbox;

/// The current session, and every change of it.
pub(super) type Sessions = watch::Receiver<Option<Arc<Session>>>;

/// Receives the connection's messages.
#[derive(Debug)]
pub(super) struct ControlHandler {
    pub(super) shared: Arc<Shared>,
    /// Answers to this replica's own questions.
    pub(super) mailbox: Mailbox,
    pub(super) questions: Questions,
}

/// Nothing in here waits: it runs in the connection's own task.
impl Handler for ControlHandler {
    fn message(&self, message: Message, _: &Arc<Session>) {
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

impl ControlHandler {
    /// Answers questions until it is aborted.
    pub(super) async fn answer(self: Arc<Self>, mut sessions: Sessions) {
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
                        self.shared.service.remind_callers();
                    }
                }
                request = self.questions.next() => {
                    // The asker will have given up by the time there is another connection.
                    let Some(session) = sessions.borrow().clone() else { continue };
                    let Answer { to, headers, payload } = discovery::answer(&self.shared, request, &mut signatures);
                    // Nobody waits for the answer to a question from a connection that has ended.
                    let _ = session.publish(&to, "", headers.as_bytes(), &payload).await;
                }
            }
        }
    }
}
