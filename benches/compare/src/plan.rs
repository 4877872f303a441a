//! What is measured, and how often.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What is measured.
pub struct Plan {
    pub rounds: usize,
    pub slice: Duration,
    pub in_flight: Vec<usize>,
    pub works: Vec<Work>,
    pub sides: Option<Vec<String>>,
    pub threads: usize,
    pub python: PathBuf,
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    Add,
    /// A text of this many bytes, there and back.
    Echo(usize),
}

impl Work {
    pub fn method(self) -> &'static str {
        match self {
            Self::Add => "site/add",
            Self::Echo(_) => "site/echo",
        }
    }

    /// As `--work` names it.
    pub fn name(self) -> String {
        match self {
            Self::Add => "add".to_owned(),
            Self::Echo(bytes) => format!("echo-{bytes}"),
        }
    }

    pub fn describe(self) -> String {
        match self {
            Self::Add => "`add`: two numbers, and their sum".to_owned(),
            Self::Echo(bytes) => format!("`echo`: a text of {bytes} bytes, and the same again"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.strip_prefix("echo-").map(str::parse) {
            Some(Ok(bytes)) => Ok(Self::Echo(bytes)),
            _ if name == "add" => Ok(Self::Add),
            _ => Err(format!("`{name}` is no work: add, echo-256, echo-4096")),
        }
    }
}
