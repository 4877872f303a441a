//! What reviewers use and no decision needs: nothing else in this crate uses it, only the command does.
//!
//! - Who can call what: `caller_group` by `access`, where `partial` says what is certain when only a part of the caller is
//!   known; `html` shows the same as a page. Who decides when people are asked: `approval_review`.
//! - What an agent could call at all, for a gate that sees less than a service: `method_scope`, with what `token_roles` says.
//! - What changes: `diff` for callers, `structure` for rules as written; `replay` for recorded calls.
//! - Tests: a `test_suite` is what files expect, a `test_report` how that turned out.
//! - Files: `format` lays them out, `json_schema` is for editors, `export` writes the compiled policy as Cedar,
//!   `unknown_names` are about names in a question.
//!
//! Never decides by itself: what a call gets is `engine`'s answer.

mod access;
mod approval_review;
mod caller_group;
mod diff;
mod export;
mod format;
mod html;
mod json_schema;
mod method_scope;
mod partial;
mod replay;
mod structure;
mod test_report;
mod test_suite;
mod token_roles;
mod unknown_names;

pub use access::{Access, AccessCell, CellRule, Matrix, MatrixRow};
pub use approval_review::{ApprovalReview, Decider, LiftedRule};
pub use caller_group::CallerGroup;
pub use diff::{Change, Diff, Direction};
pub use format::{FormatError, format};
pub use json_schema::{json_schema, test_json_schema};
pub use method_scope::{MethodScope, RequestSubjects};
pub use replay::{Replay, ReplayTotals, Replayed};
pub use structure::RuleChange;
pub use test_report::{Failure, TestReport};
pub use test_suite::TestSuite;
pub use token_roles::TokenRoles;
