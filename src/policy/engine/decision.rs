//! The question that is put to a policy, and its answer.
//! Never carries a parameter's value: an answer is logged.

use std::fmt;

use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::auth::Caller;
use crate::policy::model::RuleId;

/// Everything a policy may look at: caller, method, arguments and time.
///
/// The same question put to the same [`PolicySet`](crate::policy::PolicySet) always gets the same answer.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Who calls.
    pub caller: &'a Caller,
    /// The method's name as in the call. It need not exist, nor even be a well-formed name.
    pub method: &'a str,
    /// The `params` member of the call as received, if it has one.
    pub params: Option<&'a RawValue>,
    /// Milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// Whether the call may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It may.
    Allow,
    /// It may not.
    Deny,
}

impl Verdict {
    /// Whether the call may run.
    #[must_use]
    pub fn is_allow(self) -> bool {
        self == Self::Allow
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Why the verdict is what it is. In JSON, `reason` is the [`Reason::label`], as in records, and `about` is the name of the parameter or
/// claim, if it is about one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The rule in [`Decision::rule`] allows it and no rule forbids it.
    AllowedBy,
    /// The method is open to every caller, and no rule forbids it: `rpc.discover`, `rpc.task` and `rpc.task.cancel`.
    Open,
    /// The rule in [`Decision::rule`] forbids it.
    ForbiddenBy,
    /// Rules allow it, and all rules that forbid it, of which the first is in [`Decision::rule`], would be lifted by the approvals in
    /// [`Decision::approvals`].
    ApprovalRequired,
    /// No rule allows it.
    NoRule,
    /// A rule of the method (named in [`Decision::rule`]) could not be evaluated, so nothing is allowed.
    EvaluationError,
    /// The method has conditions on its arguments, and the call has a parameter that is not declared: a member of that
    /// name, or a value at that position (counted from 1).
    ParamUndeclared(String),
    /// The method has conditions on its arguments, and this parameter is missing.
    ParamMissing(String),
    /// The method has conditions on its arguments, and this parameter is not of its declared type.
    ParamType(String),
    /// The method has conditions on its arguments, and this parameter occurs twice.
    ParamRepeated(String),
    /// A rule requires this claim of the token, and its value there is not of the declared type.
    ClaimType(String),
    /// There is no such method.
    UnknownMethod {
        /// Whether the rules would have allowed that name, so that its absence may be revealed.
        would_allow: bool,
    },
    /// There is no usable policy: see [`Revision::why`](crate::policy::Revision::why).
    DenyAll,
}

impl Reason {
    /// Whether the parameters are at fault: the caller may call the method, but not with parameters like these.
    #[must_use]
    pub fn is_about_params(&self) -> bool {
        matches!(self, Self::ParamUndeclared(_) | Self::ParamMissing(_) | Self::ParamType(_) | Self::ParamRepeated(_))
    }

    /// All that [`Reason::label`] can return.
    pub(crate) const LABELS: [&'static str; 13] = [
        "allowed_by",
        "open",
        "forbidden_by",
        "approval_required",
        "no_rule",
        "evaluation_error",
        "param_undeclared",
        "param_missing",
        "param_type",
        "param_repeated",
        "claim_type",
        "unknown_method",
        "deny_all",
    ];

    /// Those of [`Reason::LABELS`] that come with a permission.
    #[cfg(feature = "metrics")]
    pub(crate) const ALLOWING: [&'static str; 2] = ["allowed_by", "open"];

    /// A name from a closed set, for metrics and records.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::AllowedBy => "allowed_by",
            Self::Open => "open",
            Self::ForbiddenBy => "forbidden_by",
            Self::ApprovalRequired => "approval_required",
            Self::NoRule => "no_rule",
            Self::EvaluationError => "evaluation_error",
            Self::ParamUndeclared(_) => "param_undeclared",
            Self::ParamMissing(_) => "param_missing",
            Self::ParamType(_) => "param_type",
            Self::ParamRepeated(_) => "param_repeated",
            Self::ClaimType(_) => "claim_type",
            Self::UnknownMethod { .. } => "unknown_method",
            Self::DenyAll => "deny_all",
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let about = match self {
            Self::ParamUndeclared(name)
            | Self::ParamMissing(name)
            | Self::ParamType(name)
            | Self::ParamRepeated(name)
            | Self::ClaimType(name) => Some(name),
            _ => None,
        };
        let mut members = serializer.serialize_map(None)?;
        members.serialize_entry("reason", self.label())?;
        if let Some(name) = about {
            members.serialize_entry("about", name)?;
        }
        members.end()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllowedBy => f.write_str("allowed by"),
            Self::Open => f.write_str("open to every caller"),
            Self::ForbiddenBy => f.write_str("forbidden by"),
            Self::ApprovalRequired => f.write_str("approval required by"),
            Self::NoRule => f.write_str("no rule allows it"),
            Self::EvaluationError => f.write_str("a rule could not be evaluated"),
            Self::ParamUndeclared(name) => write!(f, "parameter `{}` is not declared", name.escape_debug()),
            Self::ParamMissing(name) => write!(f, "parameter `{name}` is missing"),
            Self::ParamType(name) => write!(f, "parameter `{name}` is not of its declared type"),
            Self::ParamRepeated(name) => write!(f, "parameter `{}` occurs twice", name.escape_debug()),
            Self::ClaimType(name) => write!(f, "the token's claim `{name}` is not of its declared type"),
            Self::UnknownMethod { .. } => f.write_str("there is no such method"),
            Self::DenyAll => f.write_str("there is no usable policy"),
        }
    }
}

/// The answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Whether the call may run.
    pub verdict: Verdict,
    /// The rule that decided, if one did. If several did, the first by file and line.
    pub rule: Option<RuleId>,
    /// Why.
    #[serde(flatten)]
    pub reason: Reason,
    /// The approvals that the call needs, whether they were given or not: those of all rules that forbid it. Empty if it is denied even
    /// with them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<String>,
    /// The rules in shadow mode that would have changed the verdict. They never do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shadow: Vec<Shadow>,
}

impl Decision {
    pub(crate) fn deny(reason: Reason) -> Self {
        Self { verdict: Verdict::Deny, rule: None, reason, approvals: Vec::new(), shadow: Vec::new() }
    }

    /// Whether the call may run.
    #[must_use]
    pub fn is_allow(&self) -> bool {
        self.verdict.is_allow()
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict, self.reason)?;
        if let Some(rule) = &self.rule {
            write!(f, " {rule}")?;
        }
        if !self.approvals.is_empty() {
            let word = if self.is_allow() { "approved" } else { "needs" };
            write!(f, "; {word}: `{}`", self.approvals.join("`, `"))?;
        }
        for shadow in &self.shadow {
            write!(f, "; shadow rule {} would {}", shadow.rule, shadow.would)?;
        }
        Ok(())
    }
}

/// What a rule in shadow mode would have done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shadow {
    /// The rule.
    pub rule: RuleId,
    /// The verdict if this rule alone had been enforced besides the others.
    pub would: Verdict,
}
