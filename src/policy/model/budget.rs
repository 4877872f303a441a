//! How often a method may be called, or how much of it, within any window of some length.
//! Never allows anything: it only takes from what rules allow.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::location::{Located, Location};
use super::pattern::Pattern;
use super::rule::CallerMatch;

/// A budget that a policy file describes: an upper limit on permitted calls, or on the sum of one of their parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Budget {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) at: Location,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    #[serde(skip)]
    pub(crate) methods: Vec<Located<Pattern>>,
    #[serde(skip)]
    pub(crate) callers: Vec<CallerMatch>,
    pub(crate) per: Per,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sum: Option<String>,
    pub(crate) at_most: u64,
    pub(crate) window_s: u64,
    pub(crate) shared: bool,
}

/// For whom a budget is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// One for each agent, whomever it acts for.
    Agent,
    /// One for each subject, whichever agents act for it; a call in an agent's own name counts for that agent.
    Subject,
}

impl Budget {
    /// Its name: 1 to 64 of `A-Z a-z 0-9 _ -`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is for, if the file says so.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// For whom it is kept.
    #[must_use]
    pub fn per(&self) -> Per {
        self.per
    }

    /// The parameter that is added up; `None` if calls are counted.
    #[must_use]
    pub fn sum(&self) -> Option<&str> {
        self.sum.as_deref()
    }

    /// The most calls, or the highest sum, within any window.
    #[must_use]
    pub fn at_most(&self) -> u64 {
        self.at_most
    }

    /// The length of the window: 1 minute to 7 days.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_secs(self.window_s)
    }

    /// Whether all replicas count together. Otherwise each counts for itself.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// What it limits, in words.
    pub(crate) fn terms(&self) -> String {
        let what = match &self.sum {
            Some(param) => format!("a sum of `{}` of at most {}", param.escape_debug(), self.at_most),
            None => format!("at most {} calls", self.at_most),
        };
        let who = match self.per {
            Per::Agent => "agent",
            Per::Subject => "subject",
        };
        let scope = if self.shared { "at all replicas together" } else { "at each replica" };
        let callers: Vec<String> = match self.callers.as_slice() {
            [CallerMatch::Everyone] => Vec::new(),
            callers => callers.iter().map(ToString::to_string).collect(),
        };
        let only = if callers.is_empty() { String::new() } else { format!(", if {}", callers.join(" or ")) };
        format!("{what} in any {} for each {who}, {scope}{only}", length(self.window_s))
    }
}

/// `1h`, in the largest unit that fits.
fn length(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{seconds}s"), |(unit, name)| format!("{}{name}", seconds / unit))
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({}): {}", self.name, self.at, self.terms())
    }
}
