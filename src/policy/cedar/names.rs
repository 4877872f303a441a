//! What things are called in Cedar: the entity types of the schema, and the identifiers of agents, roles and methods.
//! Never parses a name that somebody else chose: it becomes an identifier as it is.

use std::sync::LazyLock;

use cedar_policy::{EntityId, EntityTypeName, EntityUid};

/// The entity types of the schema.
pub(crate) const AGENT: &str = "Agent";
pub(crate) const ROLE: &str = "Role";
pub(crate) const ACTION: &str = "Action";
pub(crate) const SERVICE: &str = "Service";
/// The one resource: the service that is asked.
pub(crate) const THIS: &str = "this";

/// The types, parsed once.
pub(crate) static AGENTS: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(AGENT));
pub(crate) static ROLES: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(ROLE));
pub(crate) static ACTIONS: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(ACTION));
pub(crate) static SERVICES: LazyLock<EntityTypeName> = LazyLock::new(|| parsed(SERVICE));

#[expect(clippy::expect_used, reason = "the four constants are Cedar identifiers")]
fn parsed(name: &str) -> EntityTypeName {
    name.parse().expect("a Cedar identifier")
}

pub(crate) fn uid(kind: &EntityTypeName, name: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(name))
}
