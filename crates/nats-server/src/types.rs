//! What the search for a nats-server goes by, and what is known of one.
//! Never looks for one.

use std::env;
use std::ffi::OsString;
use std::fmt;

/// Where a nats-server came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The variable [`SERVER_VARIABLE`] named it.
    Named,
    /// It is installed: a folder of `PATH` has it.
    Installed,
    /// The pinned one, from the cache folder.
    Cached,
    /// The pinned one, put into the cache folder just now.
    Fetched,
}

/// A version of nats-server: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

/// What the search depends on, read from the process's environment once.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `SEALWIRE_NATS_SERVER`.
    pub named: Option<OsString>,
    /// `PATH`.
    pub path: Option<OsString>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<OsString>,
    /// `HOME`.
    pub home: Option<OsString>,
}

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Self {
        let filled = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        Self {
            named: filled(SERVER_VARIABLE),
            path: filled("PATH"),
            cache_home: filled("XDG_CACHE_HOME"),
            home: filled("HOME"),
        }
    }
}

impl Version {
    /// Reads `v2.15.1`, or `v2.12.0-RC.3` as its release.
    pub fn parse(text: &str) -> Option<Self> {
        let core = text.strip_prefix('v')?.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(|part| part.parse::<u32>().ok());
        let version = Self(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => SERVER_VARIABLE,
            Self::Installed => "installed",
            Self::Cached => "cached",
            Self::Fetched => "fetched",
        })
    }
}

/// The environment variable that names a nats-server to use instead of any other.
pub const SERVER_VARIABLE: &str = "SEALWIRE_NATS_SERVER";
