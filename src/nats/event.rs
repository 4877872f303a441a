//! What a connection reports besides messages.
//! Never decides anything by a broker's error text, except for the two permission violations that it reports.

use crate::name::shown;

/// A change of a connection's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The connection is up again, subscriptions included. Not reported the first time.
    Connected,
    /// The connection is lost, for this reason. It is being re-established.
    Disconnected(String),
    /// An attempt to connect failed, for this reason. There will be another.
    Failed(String),
    /// The broker is in lame duck mode, or our login was about to end: a new connection is up, subscriptions included.
    Moved,
    /// The login is about to end, and with it the connection. Says what to do; repeated once a day.
    LoginEnds(String),
    /// The broker forbids this user to publish on the subject.
    PublishForbidden(String),
    /// The broker forbids this user to subscribe to the subject.
    SubscribeForbidden(String),
    /// More messages arrived on this subject than are accepted, and some were lost; see `Subject::max_per_second`.
    Flooded(String),
    /// Another error that the broker reports.
    Error(String),
}

impl Event {
    /// Parses the text of the broker's `-ERR`.
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

/// Strips `prefix`, whatever its case.
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
