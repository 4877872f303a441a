//! The revisions of the protocol, and how they differ.
//! Never takes a revision that is not known for one that is.

use serde::{Deserialize, Serialize};

/// A revision, the newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Revision {
    /// 2026-07-28, in which every request describes itself.
    #[serde(rename = "2026-07-28")]
    V2026_07_28,
    /// 2025-11-25, the newest that begins with a handshake.
    #[serde(rename = "2025-11-25")]
    V2025_11_25,
    /// 2025-06-18.
    #[serde(rename = "2025-06-18")]
    V2025_06_18,
    /// 2025-03-26.
    #[serde(rename = "2025-03-26")]
    V2025_03_26,
    /// 2024-11-05.
    #[serde(rename = "2024-11-05")]
    V2024_11_05,
}

impl Revision {
    /// All of them, the newest first.
    pub const ALL: [Self; 5] =
        [Self::V2026_07_28, Self::V2025_11_25, Self::V2025_06_18, Self::V2025_03_26, Self::V2024_11_05];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 5] = {
        let [a, b, c, d, e] = Self::ALL;
        [a.as_str(), b.as_str(), c.as_str(), d.as_str(), e.as_str()]
    };
    /// The newest that begins with a handshake.
    pub const NEWEST_WITH_HANDSHAKE: Self = Self::V2025_11_25;

    /// The revision of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Its name in the protocol.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2026_07_28 => "2026-07-28",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2024_11_05 => "2024-11-05",
        }
    }

    /// Whether it begins with `initialize`.
    #[must_use]
    pub fn has_handshake(self) -> bool {
        self != Self::V2026_07_28
    }

    /// Whether a call can be a task: always as an extension in 2026-07-28, and in 2025-11-25 if it says so.
    #[must_use]
    pub fn has_tasks(self) -> bool {
        matches!(self, Self::V2026_07_28 | Self::V2025_11_25)
    }

    /// Whether `structuredContent` must be an object.
    #[must_use]
    pub fn wants_objects(self) -> bool {
        self.has_handshake()
    }

    /// Whether tools have an `outputSchema`, and results a `structuredContent`.
    #[must_use]
    pub fn has_structured_content(self) -> bool {
        !matches!(self, Self::V2025_03_26 | Self::V2024_11_05)
    }
}
