//! Who may call which method with which arguments, according to policy files.
//! Never guesses: whatever no rule allows, and whatever cannot be read or evaluated, is denied.
//!
//! A [`PolicySet`] is one revision of a folder of policy files, checked as a whole when it is loaded and immutable
//! afterwards. Its answer to a [`Question`] is a pure function of caller, method, arguments and time:
//!
//! - nothing is allowed unless a rule allows it;
//! - a matching deny rule wins over every allow rule;
//! - an error while evaluating any rule of the method denies the call;
//! - an empty, missing or unreadable folder denies everything and reports it.
//!
//! From file to decision there are five modules, each of which uses only those before it:
//!
//! | module | holds |
//! |---|---|
//! | `model` | rules, methods, parameters, findings: the vocabulary of the others |
//! | `cedar` | a rule as a Cedar policy, and the schema |
//! | `language` | from the bytes of TOML and Cedar files to checked rules |
//! | `engine` | from checked rules to a [`PolicySet`], and from a call to its [`Decision`] |
//! | `explain` | why a decision came out as it did |
//!
//! `tools` is separate, for reviewers. Nothing here knows of services, which turn decisions into permits.
//!
//! All rules of all files compile into one Cedar policy set. When it is loaded, it is split by method, and then into
//! groups of rules about the same callers. So the cost of a decision grows neither with the rules of other methods nor
//! with those about other callers.

mod cedar;
mod engine;
mod explain;
mod language;
mod model;
#[cfg(feature = "policy-tools")]
mod tools;

pub(crate) use engine::narrow;
pub use engine::{
    Decision, DecisionRecord, PolicySet, PolicyStore, Question, Reach, Reason, Reload, Shadow, ShadowRecord,
    StreamRecord, Verdict,
};
pub use explain::{ConditionExplanation, Explanation, Outcome, PartyExplanation, RuleExplanation};
pub(crate) use model::OPEN_TO_ALL;
pub use model::{
    Effect, Finding, MAX_LIST, Methods, Mode, Param, ParamType, PolicyErrors, Revision, RuleId, ScalarType, Severity,
};
#[cfg(feature = "policy-tools")]
pub use tools::{
    Access, AccessCell, CallerGroup, CellRule, Change, Diff, Direction, Failure, FormatError, Matrix, MatrixRow,
    Replay, ReplayTotals, Replayed, RuleChange, TestReport, TestSuite, format, json_schema, test_json_schema,
};
