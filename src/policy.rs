//! Who may call which method with which arguments, as declared in files.
//! Never guesses: what no rule allows, what cannot be read and what cannot be evaluated is denied.
//!
//! A [`PolicySet`] is one revision of a folder of policy files, checked as a whole when it is loaded and immutable
//! afterwards. Its answer to a [`Question`] is a pure function of caller, method, arguments and time:
//!
//! - nothing is allowed that no rule allows;
//! - a matching deny rule wins over every allow rule;
//! - an error while evaluating any rule of the method denies;
//! - an empty, missing or unreadable folder denies everything and says so.
//!
//! The way from a file to a decision goes through five modules, each of which uses only those before it:
//!
//! | module | holds |
//! |---|---|
//! | `model` | rules, methods, parameters, findings: the vocabulary of the others |
//! | `cedar` | a rule as a Cedar policy, and the schema |
//! | `language` | from the bytes of TOML and Cedar files to checked rules |
//! | `engine` | from checked rules to a [`PolicySet`], and from a call to its [`Decision`] |
//! | `explain` | why a decision came out as it did |
//!
//! and `tools` stands beside them, for reviewers; `distribution` brings sets from operators to replicas; `stack` gives the parsers room. Nothing here knows about services: they turn decisions into permits.
//!
//! All rules of all files compile into one Cedar policy set, which is split by method when it is loaded, and then into
//! groups of rules about the same callers. So the cost of a decision grows neither with the rules of other methods nor
//! with those about other callers.

mod cedar;
mod distribution;
mod engine;
mod explain;
mod language;
mod model;
mod stack;
#[cfg(feature = "policy-tools")]
mod tools;

pub(crate) use distribution::Ruling;
pub use distribution::{
    ALL_DIFFERENCES, Comparison, Counted, Difference, Fate, Package, PackageChange, PackageError, PackageEvent,
    PackageFollower, PackageId, PackageReport, PackageStanding, Packages, PackagesError, RefusedPackage, ShadowPolicy,
    ShadowReport, ShadowStanding, SignedPackage, Total,
};
pub use engine::{
    ApprovalRecord, Decision, DecisionRecord, GivenRecord, PolicySet, PolicyStore, Question, Reach, Reason, Reload,
    Shadow, ShadowRecord, Verdict,
};
pub(crate) use engine::{Charge, narrow};
pub use explain::{ConditionExplanation, Explanation, Outcome, PrincipalExplanation, RuleExplanation};
pub(crate) use model::OPEN_TO_ALL;
pub use model::{
    Approval, Budget, Effect, Finding, Involved, MAX_LIST, Methods, Mode, NotApprover, Param, ParamType, Per,
    PolicyErrors, PrincipalKind, Requester, Revision, RuleId, ScalarType, Severity,
};
#[cfg(feature = "policy-tools")]
pub use tools::{
    Access, AccessCell, ApprovalReview, CallerGroup, CellRule, Change, Decider, Diff, Direction, Failure, FormatError,
    LiftedRule, Matrix, MatrixRow, MethodScope, Replay, ReplayTotals, Replayed, RequestSubjects, RuleChange,
    TestReport, TestSuite, TokenRoles, format, json_schema, test_json_schema,
};
