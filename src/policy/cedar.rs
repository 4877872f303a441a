//! Rules in Cedar's terms: `names` of entities, `expr` to build conditions (`time` for hours of the week), `references`
//! for what conditions read, `compile` from a rule to a policy, and the `schema` that policies are checked against.
//! Never pastes text into a policy, and never evaluates one.

pub(crate) mod compile;
pub(crate) mod expr;
pub(crate) mod names;
pub(crate) mod references;
pub(crate) mod schema;
pub(crate) mod time;

pub(crate) use compile::{BuildError, Scope};
pub(crate) use names::{ACTION, ROLE, SERVICE, THIS, kind_of};
pub(crate) use references::{References, children, is_principal};
