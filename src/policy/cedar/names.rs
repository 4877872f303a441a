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
static TYPES: LazyLock<[EntityTypeName; 4]> = LazyLock::new(|| [AGENT, ROLE, ACTION, SERVICE].map(parsed));

#[expect(clippy::expect_used, reason = "the four constants are Cedar identifiers")]
fn parsed(name: &str) -> EntityTypeName {
    name.parse().expect("a Cedar identifier")
}

fn uid(kind: &EntityTypeName, name: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(name))
}

pub(crate) fn agent(name: &str) -> EntityUid {
    let [agent, ..] = &*TYPES;
    uid(agent, name)
}

pub(crate) fn role(name: &str) -> EntityUid {
    let [_, role, ..] = &*TYPES;
    uid(role, name)
}

pub(crate) fn action(name: &str) -> EntityUid {
    let [_, _, action, _] = &*TYPES;
    uid(action, name)
}

/// The resource.
pub(crate) fn this_service() -> EntityUid {
    let [.., service] = &*TYPES;
    uid(service, THIS)
}
