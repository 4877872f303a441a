//! The vocabulary of the rest of `policy`. A `rule` is the one form that both languages are reduced to; it is about
//! `pattern`s of `methods`, and its conditions are about declared `params` and the claims, attributes and roles of the
//! `declarations`; an `approval` lifts rules that deny, and a `budget` takes from what rules allow; a `principal` is an agent or a subject. A `value` has a declared type, wherever it came from; `hours` are minutes of the week. A `finding`
//! says what is wrong at a `location`, and a `revision` says which files decided.
//! Never reads a file, and never evaluates anything.

mod approval;
mod budget;
mod declarations;
mod finding;
pub(crate) mod hours;
mod location;
mod methods;
mod number;
pub(crate) mod params;
pub(crate) mod pattern;
mod principal;
mod revision;
mod rule;
mod value;

pub(crate) use approval::{APPROVALS, APPROVE, spelled};
pub use approval::{Approval, Involved, NotApprover, Requester};
pub use budget::{Budget, Per};
pub(crate) use declarations::{Attributes, Declarations, Role, RoleSource, Roles, Types, described};
pub use finding::{Finding, PolicyErrors, Severity};
pub(crate) use finding::{Report, did_you_mean, shown};
pub(crate) use hours::{DAY, WEEK};
pub(crate) use location::{Located, Location};
pub use methods::Methods;
pub(crate) use methods::{Method, OPEN_TO_ALL};
pub(crate) use number::{Decimal, is_same_number};
pub(crate) use params::Audit;
pub use params::{MAX_LIST, Param, ParamType, ScalarType};
pub(crate) use pattern::{Pattern, groups_of, matches_glob};
pub(crate) use principal::ByPrincipal;
pub use principal::PrincipalKind;
pub use revision::Revision;
pub(crate) use rule::{CallerMatch, Condition, Delegation, ExprRef, Rule, is_any};
pub use rule::{Effect, Mode, RuleId};
pub(crate) use value::{Params, TypedValue, to_json};
