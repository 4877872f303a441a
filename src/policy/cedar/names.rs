//! What things are called in Cedar: the entity types of the schema, and the identifiers of agents, subjects, roles and methods.
//! Never parses a name that somebody else chose: it becomes an identifier as it is.

use std::sync::LazyLock;

use cedar_policy::{EntityId, EntityTypeName, EntityUid};

use crate::policy::model::PrincipalKind;

/// The entity types of the schema.
pub(crate) const AGENT: &str = "Agent";
pub(crate) const SUBJECT: &str = "Subject";
pub(crate) const ROLE: &str = "Role";
pub(crate) const ACTION: &str = "Action";
pub(crate) const SERVICE: &str = "Service";
/// The one resource: the service that is asked.
pub(crate) const THIS: &str = "this";

/// The types, parsed once.
pub(crate) static AGENTS: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(AGENT));
pub(crate) static SUBJECTS: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(SUBJECT));
pub(crate) static ROLES: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(ROLE));
pub(crate) static ACTIONS: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(ACTION));
pub(crate) static SERVICES: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(SERVICE));

#[expect(clippy::expect_used, reason = "the five constants are Cedar identifiers")]
fn parsed(name: &str) -> EntityTypeName {
    name.parse().expect("a Cedar identifier")
}

/// What principals of this kind are called in Cedar.
const fn type_of(kind: PrincipalKind) -> &'static str {
    match kind {
        PrincipalKind::Agent => AGENT,
        PrincipalKind::Subject => SUBJECT,
    }
}

/// The kind of principals that this is the type of.
pub(crate) fn kind_of(name: &str) -> Option<PrincipalKind> {
    [PrincipalKind::Agent, PrincipalKind::Subject].into_iter().find(|kind| type_of(*kind) == name)
}

/// The principal of this name in Cedar.
pub(crate) fn principal(kind: PrincipalKind, name: &str) -> EntityUid {
    match kind {
        PrincipalKind::Agent => uid(&AGENTS, name),
        PrincipalKind::Subject => uid(&SUBJECTS, name),
    }
}

pub(crate) fn uid(kind: &EntityTypeName, name: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(name))
}
