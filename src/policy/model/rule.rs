//! A rule as the files state it, whatever language it was written in.
//! Never evaluates anything: Cedar does.

use std::fmt;
use std::sync::Arc;

use cedar_policy::pst::Expr;
use serde::Serialize;

use super::location::{Located, Location};
use super::pattern::{Pattern, matches_glob};
use super::principal::PrincipalKind;

/// The name of a rule and where it is.
///
/// Cloning is cheap: the texts are shared.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
pub struct RuleId {
    name: Arc<str>,
    #[serde(flatten)]
    pub(crate) at: Location,
}

impl RuleId {
    pub(crate) fn new(name: &str, at: &Location) -> Self {
        Self { name: name.into(), at: at.clone() }
    }

    /// The rule's name, unique in its policy set. The lists of a role are named `role.<role>.allow` and
    /// `role.<role>.deny`, those of an agent `agent.<agent>.allow` and `agent.<agent>.deny`, and those of a subject
    /// `subject.<subject>.allow` and `subject.<subject>.deny`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file, relative to the policy folder.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.at.file
    }

    /// The line in the file, counted from 1.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.at.line
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({})", self.name, self.at)
    }
}

impl fmt::Debug for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a matching rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// It allows the call, unless another rule denies it.
    Allow,
    /// It denies the call, whatever other rules say.
    Deny,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Whether a rule takes part in verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It is only evaluated and reported: to try a rule out on real calls.
    Shadow,
}

/// A rule. It matches a call if it is about the caller and the method, and all of its parts hold.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) id: RuleId,
    pub(crate) description: Option<String>,
    pub(crate) effect: Effect,
    pub(crate) mode: Mode,
    /// Callers; any of them.
    pub(crate) callers: Vec<CallerMatch>,
    /// Methods; any of them.
    pub(crate) methods: Vec<Located<Pattern>>,
    /// Whether it applies to calls on behalf of others.
    pub(crate) delegation: Delegation,
    /// The conditions besides who calls what and for whom; all of them, evaluated in this order.
    pub(crate) conditions: Vec<Condition>,
    /// The approval that lifts it, if it denies.
    pub(crate) unless_approved: Option<Located<String>>,
    /// The policy as written in a Cedar file, so that Cedar's own complaints refer to that text.
    pub(crate) written: Option<cedar_policy::Policy>,
}

impl Rule {
    /// The name of the approval that lifts it.
    pub(crate) fn approval(&self) -> Option<&str> {
        self.unless_approved.as_ref().map(|name| name.value.as_str())
    }
}

/// One of the callers that a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum CallerMatch {
    Everyone,
    Role(String),
    /// The agent or the subject of this name.
    Named(PrincipalKind, String),
    /// Agents or subjects whose name matches a pattern with `*`.
    Like(PrincipalKind, String),
}

impl CallerMatch {
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Everyone, _) => true,
            (Self::Like(kind, glob), Self::Named(other, name)) => kind == other && matches_glob(glob, name),
            _ => self == other,
        }
    }
}

impl fmt::Display for CallerMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("anyone calls"),
            Self::Role(name) => write!(f, "the caller has the role `{}`", name.escape_debug()),
            Self::Named(kind, name) => write!(f, "the caller is the {kind} `{}`", name.escape_debug()),
            Self::Like(PrincipalKind::Agent, glob) if is_any(glob) => f.write_str("the caller is an agent"),
            Self::Like(PrincipalKind::Subject, glob) if is_any(glob) => f.write_str("the caller is a subject"),
            Self::Like(kind, glob) => write!(f, "the {kind}'s name matches `{}`", glob.escape_debug()),
        }
    }
}

/// Whether a pattern stands for any name.
pub(crate) fn is_any(glob: &str) -> bool {
    !glob.is_empty() && glob.bytes().all(|byte| byte == b'*')
}

/// How a rule applies to calls that an agent makes on behalf of another subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delegation {
    /// Only to calls in the agent's own name: the default of an allow rule.
    Never,
    /// To both: the default of a deny rule.
    Also,
    /// Only to calls on behalf of another.
    Only,
}

/// A condition in Cedar's terms.
pub(crate) type ExprRef = Arc<Expr>;

/// One condition of a rule.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    /// What has to hold, as a sentence.
    pub(crate) text: String,
    pub(crate) expr: ExprRef,
    pub(crate) at: Location,
}

impl Condition {
    pub(crate) fn new(text: impl Into<String>, expr: ExprRef, at: &Location) -> Self {
        Self { text: text.into(), expr, at: at.clone() }
    }
}
