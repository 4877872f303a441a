//! From checked rules to decisions.
//!
//! When it is loaded, a `set` compiles its rules into the policies of each `method`, which groups them by their callers
//! (`caller_index`); all of them rest on the checked policy itself. The `store` replaces whole sets. For each call,
//! `arguments` reads the declared parameters from its bytes, `context` puts what the rules read into Cedar's context,
//! the method asks Cedar for each principal, and the answers become one `decision`. A `record` is that decision with its
//! question, for a log.
//!
//! Never uses `explain` or `tools`: a decision needs neither.

mod arguments;
mod bounds;
mod caller_index;
mod charges;
mod context;
mod decision;
mod entity_cache;
mod method;
mod principal;
mod reach;
mod record;
mod set;
mod store;

pub(crate) use bounds::narrow;
pub(crate) use charges::Charge;
pub(crate) use context::{ContextShape, datetime};
pub use decision::{Decision, Question, Reason, Shadow, Verdict};
pub(crate) use method::{CallFacts, MethodPolicies};
pub(crate) use principal::{Principal, principals};
pub use reach::Reach;
pub use record::{ApprovalRecord, DecisionRecord, GivenRecord, ShadowRecord};
pub(crate) use set::Loaded;
pub use set::PolicySet;
pub use store::{PolicyStore, Reload};
