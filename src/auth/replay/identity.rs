//! Which memory a guard keeps, in a form that replicas can compare. Data only.

use serde::{Deserialize, Serialize};

/// What must be the same for all replicas of a service: two replicas whose guards differ in any of it share no memory, or
/// judge by different windows, and may not serve side by side.
///
/// As JSON, an object with exactly these members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GuardIdentity {
    /// [`ReplayGuard::kind`](crate::auth::ReplayGuard::kind).
    pub kind: String,
    /// The name of the stream that was verified last, which is unique to that stream; empty for a guard without one.
    pub stream: String,
    /// When that stream was created, in milliseconds since the Unix epoch, by the broker's clock; 0 without one.
    pub created_ms: u64,
    /// [`Window::window_s`](crate::auth::Window::window_s).
    pub window_s: u64,
    /// [`Window::skew_s`](crate::auth::Window::skew_s).
    pub skew_s: u64,
}

impl GuardIdentity {
    /// The identity of a guard of this kind without a stream.
    #[must_use]
    pub fn new(kind: &str, window: super::Window) -> Self {
        let super::Window { window_s, skew_s } = window;
        Self { kind: kind.to_owned(), stream: String::new(), created_ms: 0, window_s, skew_s }
    }

    /// What differs between `self` and another replica's identity, for people; `None` if nothing does.
    ///
    /// Kind, window and skew differ permanently. Streams may differ for a moment after one was removed: one replica finds
    /// the new one before the other does.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs): (&dyn std::fmt::Display, &dyn std::fmt::Display);
        let what;
        if self.kind != other.kind {
            (what, ours, theirs) = ("kind", &self.kind, &other.kind);
        } else if self.window_s != other.window_s {
            (what, ours, theirs) = ("window_s", &self.window_s, &other.window_s);
        } else if self.skew_s != other.skew_s {
            (what, ours, theirs) = ("skew_s", &self.skew_s, &other.skew_s);
        } else if self.stream != other.stream {
            (what, ours, theirs) = ("stream", &self.stream, &other.stream);
        } else if self.created_ms != other.created_ms {
            (what, ours, theirs) = ("stream's creation", &self.created_ms, &other.created_ms);
        } else {
            return None;
        }
        let shown = |value: &dyn std::fmt::Display| crate::name::shown(&value.to_string());
        Some(format!("the guard's {what} is `{}` here and `{}` there", shown(ours), shown(theirs)))
    }

    /// Whether the difference is permanent: anything but the stream.
    #[must_use]
    pub fn differs_for_good(&self, other: &Self) -> bool {
        (&self.kind, self.window_s, self.skew_s) != (&other.kind, other.window_s, other.skew_s)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::Window;
    use super::*;

    #[test]
    fn guards_that_differ_in_anything_say_in_what() {
        let own = GuardIdentity {
            stream: "RG_prod_math_a".into(),
            created_ms: 1_790_000_000_000,
            ..GuardIdentity::new("shared", Window::default())
        };
        assert_eq!(own.difference(&own.clone()), None);
        for (other, says, for_good) in [
            (GuardIdentity { kind: "local".into(), ..own.clone() }, "kind is `shared` here and `local` there", true),
            (GuardIdentity { window_s: 31, ..own.clone() }, "window_s is `30` here and `31` there", true),
            (GuardIdentity { skew_s: 4, ..own.clone() }, "skew_s is `5` here and `4` there", true),
            (
                GuardIdentity { stream: "RG_prod_math_b".into(), ..own.clone() },
                "stream is `RG_prod_math_a` here",
                false,
            ),
            (GuardIdentity { created_ms: 1, ..own.clone() }, "stream's creation is `1790000000000` here", false),
        ] {
            let difference = own.difference(&other).unwrap();
            assert!(difference.contains(says), "{difference}");
            assert_eq!(own.differs_for_good(&other), for_good, "{difference}");
        }
    }

    #[test]
    fn an_identity_travels_as_json_and_no_member_is_made_up() {
        let text = r#"{"kind":"local","stream":"","created_ms":0,"window_s":30,"skew_s":5}"#;
        let identity = GuardIdentity::new("local", Window::default());
        assert_eq!(serde_json::to_string(&identity).unwrap(), text);
        assert_eq!(serde_json::from_str::<GuardIdentity>(text).unwrap(), identity);
        assert!(serde_json::from_str::<GuardIdentity>(&text.replace("}", ",\"x\":1}")).is_err());
        assert!(serde_json::from_str::<GuardIdentity>(r#"{"kind":"local"}"#).is_err());
    }
}
