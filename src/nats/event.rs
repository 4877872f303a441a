//! What a connection tells of: messages, and what happens to it.
//! Never makes a decision of what a broker says in words, but for the two permissions that it forbids by name.

use super::protocol::Message;
use crate::name::shown;

/// What a connection hands over. Both are called from the connection's task: they must not wait.
pub trait Handler: Send + Sync + 'static {
    /// A message on one of the subscriptions, in the order in which the broker sent them.
    fn message(&self, message: Message);

    /// Something happened to the connection.
    fn event(&self, event: Event);
}

/// What happens to a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is up again, subscriptions included. Not told for the first time.
    Connected,
    /// It is lost, and why. It is being made anew.
    Disconnected(String),
    /// A try to connect failed, and why. There will be another.
    Failed(String),
    /// The broker is about to go: another one was found, and the subscriptions are there.
    Moved,
    /// The broker forbids this user to publish on the subject.
    PublishForbidden(String),
    /// The broker forbids this user to subscribe to the subject.
    SubscribeForbidden(String),
    /// More came on this subject than is taken, and some of it was lost; see `Subject::a_second`.
    Flooded(String),
    /// Another error that the broker reports.
    Error(String),
}

impl Event {
    /// Out of the text of the broker's `-ERR`.
    pub(super) fn from_error(text: &str) -> Self {
        let quoted = |rest: &str| rest.split('"').nth(1).filter(|subject| !subject.is_empty()).map(str::to_owned);
        let violation = strip(text, "permissions violation for ").and_then(|rest| {
            if let Some(rest) = strip(rest, "publish to ") {
                quoted(rest).map(Self::PublishForbidden)
            } else {
                strip(rest, "subscription to ").and_then(quoted).map(Self::SubscribeForbidden)
            }
        });
        violation.unwrap_or_else(|| Self::Error(shown(text)))
    }
}

/// Without `prefix`, in whatever case it is written.
fn strip<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (head, rest) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_violations_are_read_from_the_broker_s_text() {
        let publish = r#"Permissions Violation for Publish to "rpc.v1.math.planner""#;
        assert_eq!(Event::from_error(publish), Event::PublishForbidden("rpc.v1.math.planner".into()));
        let subscribe = r#"Permissions Violation for Subscription to "_INBOX.a.b.*""#;
        assert_eq!(Event::from_error(subscribe), Event::SubscribeForbidden("_INBOX.a.b.*".into()));
        let queue = r#"permissions violation for subscription to "a" using queue "q""#;
        assert_eq!(Event::from_error(queue), Event::SubscribeForbidden("a".into()));
        for other in [
            "",
            "Stale Connection",
            "Permissions Violation for ",
            "Permissions Violation for Publish to x",
            "Permissions Violation for Publish to \"\"",
            "Permissions Violation für Publish to \"a\"",
            "ßßßßßßßßßßßßßßßßßßßßßßß",
        ] {
            assert!(matches!(Event::from_error(other), Event::Error(_)), "{other}");
        }
    }
}
