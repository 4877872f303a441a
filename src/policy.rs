//! Who may call which method with which arguments, as files say it.
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
//! All rules of all files compile into one Cedar policy set, which is cut into one slice per method when it is loaded,
//! and each slice into groups of rules about the same callers. So the cost of a decision grows neither with the rules of
//! other methods nor with those about other callers.

mod actual;
mod authorize;
mod cedar;
mod cedar_file;
mod comparable;
mod condition;
mod decision;
mod demand;
mod diff;
mod doubts;
mod expectation;
mod explain;
mod export;
mod expr;
mod finding;
mod folder;
mod format;
mod glob;
mod groups;
mod hours;
mod html;
mod json_schema;
mod lint;
mod literals;
mod load;
mod methods;
mod params;
mod project;
mod record;
mod rehearsal;
mod request;
mod review;
mod revision;
mod rule;
mod rule_table;
mod set;
mod settle;
mod slice;
mod store;
mod structure;
mod table;
mod toml_file;
mod when;

pub use authorize::{Denied, Permit, Permitted};
pub use decision::{Decision, Question, Reason, Shadow, Verdict};
pub use diff::{Change, Diff, Direction};
pub use expectation::Expectations;
pub use explain::{Explanation, Outcome, PartExplanation, PartyExplanation, RuleExplanation};
pub use finding::{Finding, PolicyErrors, Severity};
pub use format::{FormatError, format};
pub use json_schema::{json_schema, test_json_schema};
pub use methods::Methods;
pub use params::{MAX_LIST, Param, ParamType, ScalarType};
pub use record::{DecisionRecord, Replay, Replayed, ShadowRecord};
pub use rehearsal::{Failure, Rehearsal};
pub use review::{Access, Callers, Cell, CellRule, Matrix, MatrixRow};
pub use revision::Revision;
pub use rule::{Effect, Mode, RuleId};
pub use set::PolicySet;
pub use store::{PolicyStore, Reload};
pub use structure::RuleChange;
