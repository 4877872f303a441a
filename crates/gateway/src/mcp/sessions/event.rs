//! What clients of sessions are told, and how its events are numbered.
//! Never takes the number of another process for one of its own.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::mcp::news::{news, updated};

/// What a client is told of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// A list, by the method of its notification.
    List(&'static str),
    /// A resource.
    Resource(String),
}

/// What a client has heard on the streams before, as far as it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard<Event> {
    /// Everything: nothing is lost on the way to it.
    All,
    /// Everything up to this event.
    UpTo(Event),
    /// Nothing is known.
    Unknown,
}

/// Numbers what clients are told.
#[derive(Debug)]
pub(super) struct EventNumbers {
    /// Other replicas number their events, too, and so did the process before this one.
    whose: u64,
    last: AtomicU64,
}

impl Subject {
    /// The notification that there was a change.
    pub(crate) fn message(&self) -> Value {
        match self {
            Self::List(method) => news(method, None, None),
            Self::Resource(uri) => updated(None, uri),
        }
    }
}

impl EventNumbers {
    pub(super) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn id(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.whose)
    }

    /// What a client has heard that names its last event.
    pub(super) fn read(&self, heard: Heard<&str>) -> Heard<u64> {
        let number = |id: &str| {
            let (whose, number) = id.split_once('-')?;
            (u64::from_str_radix(whose, 16) == Ok(self.whose)).then(|| number.parse().ok())?
        };
        match heard {
            Heard::All => Heard::All,
            Heard::UpTo(id) => number(id).map_or(Heard::Unknown, Heard::UpTo),
            Heard::Unknown => Heard::Unknown,
        }
    }
}

impl Default for EventNumbers {
    fn default() -> Self {
        Self { whose: RandomState::new().hash_one("events"), last: AtomicU64::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_event_counts_where_it_was_given_and_nowhere_else() {
        let (one, other) = (EventNumbers::default(), EventNumbers::default());
        let (first, second) = (one.next(), one.next());
        assert!(second > first);
        let id = one.id(second);
        assert_eq!(one.read(Heard::UpTo(&id)), Heard::UpTo(second));
        assert_eq!(other.read(Heard::UpTo(&id)), Heard::Unknown);
        for text in [
            "",
            "-",
            "2",
            "-2",
            &id[..17],
            &format!("{id}0000000000000000000000"),
            &format!("{id}x"),
            &format!(" {id}"),
        ] {
            assert_eq!(one.read(Heard::UpTo(text)), Heard::Unknown, "{text}");
        }
        assert_eq!((one.read(Heard::All), one.read(Heard::Unknown)), (Heard::All, Heard::Unknown));
    }
}
