//! What rules may name besides methods and parameters: claims, attributes of agents and subjects, and roles.
//! Never holds a word that no file declares.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Report, shown};
use super::location::Location;
use super::params::ParamType;
use super::principal::ByPrincipal;
use super::value::TypedValue;

/// The words that rules may use besides methods and parameters.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    pub(crate) claims: Types,
    pub(crate) attributes: Types,
    pub(crate) roles: Roles,
}

/// Names and their types.
pub(crate) type Types = BTreeMap<String, ParamType>;

/// Roles by name.
pub(crate) type Roles = BTreeMap<String, Role>;

/// A role that a file describes.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) source: RoleSource,
    /// The roles that include it, directly or not.
    pub(crate) included_in: BTreeSet<String>,
    /// The roles that it includes, directly or not.
    pub(crate) includes: BTreeSet<String>,
    pub(crate) at: Location,
}

/// Where a role may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RoleSource {
    #[default]
    Anywhere,
    /// Only policy files grant it; a token that claims it is not believed.
    Files,
    /// Only tokens carry it.
    Token,
}

/// The attributes that files state, by principal.
pub(crate) type Attributes = ByPrincipal<Vec<(String, TypedValue)>>;

/// The role that files describe by this name. A rule about a role that nobody described contains a typing mistake.
pub(crate) fn described<'a>(roles: &'a Roles, at: &Location, name: &str, report: &Report) -> Option<&'a Role> {
    let found = roles.get(name);
    if found.is_none() {
        let help = format!("describe it: `[role.\"{}\"]`", shown(name));
        report.unknown(at, "role", name, roles.keys().map(String::as_str), help);
    }
    found
}
