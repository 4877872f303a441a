//! What checking a value may cost, from the schema alone: how often its deepest member could be looked at.
//! Never looks at a value.
//!
//! Two references to one subschema double the work, and a chain of n such pairs makes 2^n of it; two references back to
//! the whole, each below a member, make it 2^depth. So the subschemas are taken as a graph, with edges to those that
//! look at the same value and edges to those that look one level below, and the ways through it are counted by depth.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Schema, SchemaError};

/// How deep a value may be so that no more than [`MOST_WORK`] subschemas look at any way through it.
///
/// With it comes how many subschemas that may be.
pub(super) fn depth_within_bounds(schema: &Value) -> Result<(usize, u64), SchemaError> {
    let graph = Graph::of(schema)?;
    let order = graph.in_order()?;
    let mut below = vec![0_u64; graph.nodes.len()];
    let mut deepest = None;
    for depth in 0..=DEEPEST {
        let mut work = vec![0_u64; graph.nodes.len()];
        for &node in &order {
            let Some(edges) = graph.nodes.get(node) else { continue };
            let of = |nodes: &[usize], costs: &[u64]| {
                nodes.iter().fold(0_u64, |sum, &to| sum.saturating_add(costs.get(to).copied().unwrap_or(u64::MAX)))
            };
            let total = 1_u64.saturating_add(of(&edges.same, &work)).saturating_add(of(&edges.below, &below));
            if let Some(slot) = work.get_mut(node) {
                *slot = total;
            }
        }
        let Some(&total) = work.first().filter(|total| **total <= MOST_WORK) else { break };
        deepest = Some((depth, total));
        below = work;
    }
    deepest.ok_or(SchemaError::Cost)
}

/// Ordinary schemas without recursion come to as many as they have subschemas.
const MOST_WORK: u64 = 10_000;
/// What is sent to a service has no more levels (`sealwire::rpc::MAX_DEPTH`).
const DEEPEST: usize = sealwire::rpc::MAX_DEPTH;

#[derive(Default)]
struct Node {
    /// Subschemas that look at the same value.
    same: Vec<usize>,
    /// Subschemas that look at a member or an item of it.
    below: Vec<usize>,
    reference: Option<String>,
}

struct Graph {
    /// The first one is the whole.
    nodes: Vec<Node>,
    /// Where each stands, as a JSON Pointer (RFC 6901).
    places: BTreeMap<String, usize>,
}

impl Graph {
    fn of(schema: &Value) -> Result<Self, SchemaError> {
        let mut graph = Self { nodes: Vec::new(), places: BTreeMap::new() };
        graph.add(schema, String::new())?;
        for index in 0..graph.nodes.len() {
            let Some(reference) = graph.nodes.get(index).and_then(|node| node.reference.clone()) else { continue };
            let place = reference.strip_prefix('#').and_then(percent_decoded);
            let to = place.and_then(|place| graph.places.get(&place).copied());
            let to = to.ok_or_else(|| SchemaError::Reference(super::shortened(&reference)))?;
            if let Some(node) = graph.nodes.get_mut(index) {
                node.same.push(to);
            }
        }
        Ok(graph)
    }

    fn add(&mut self, schema: &Value, place: String) -> Result<usize, SchemaError> {
        let index = self.nodes.len();
        if index == Schema::MAX_SUBSCHEMAS {
            return Err(SchemaError::TooMany);
        }
        self.nodes.push(Node::default());
        self.places.insert(place.clone(), index);
        let mut node = Node::default();
        let Value::Object(keywords) = schema else { return Ok(index) };
        for (keyword, value) in keywords {
            let at = format!("{place}/{}", escaped(keyword));
            match keyword.as_str() {
                "$ref" => node.reference = value.as_str().map(str::to_owned),
                "$schema" => check_version(value)?,
                "$id" | "id" if index > 0 && value.is_string() => return Err(SchemaError::Keyword("$id")),
                "$dynamicRef" => return Err(SchemaError::Keyword("$dynamicRef")),
                "$recursiveRef" => return Err(SchemaError::Keyword("$recursiveRef")),
                "not" | "if" | "then" | "else" => node.same.push(self.add(value, at)?),
                "allOf" | "anyOf" | "oneOf" => node.same.extend(self.add_each(value, &at)?),
                "dependentSchemas" | "dependencies" => node.same.extend(self.add_named(value, &at)?),
                "prefixItems" => node.below.extend(self.add_each(value, &at)?),
                "items" if value.is_array() => node.below.extend(self.add_each(value, &at)?),
                "items"
                | "additionalItems"
                | "contains"
                | "unevaluatedItems"
                | "additionalProperties"
                | "unevaluatedProperties"
                | "propertyNames" => node.below.push(self.add(value, at)?),
                "properties" | "patternProperties" => node.below.extend(self.add_named(value, &at)?),
                // Of no effect where they stand.
                "$defs" | "definitions" => drop(self.add_named(value, &at)?),
                _ => {}
            }
        }
        if let Some(slot) = self.nodes.get_mut(index) {
            *slot = node;
        }
        Ok(index)
    }

    fn add_each(&mut self, schemas: &Value, place: &str) -> Result<Vec<usize>, SchemaError> {
        let schemas = schemas.as_array().into_iter().flatten().enumerate();
        schemas.map(|(position, schema)| self.add(schema, format!("{place}/{position}"))).collect()
    }

    fn add_named(&mut self, schemas: &Value, place: &str) -> Result<Vec<usize>, SchemaError> {
        let schemas = schemas.as_object().into_iter().flatten();
        schemas.map(|(name, schema)| self.add(schema, format!("{place}/{}", escaped(name)))).collect()
    }

    /// All nodes, each after those that look at the same value because of it. There are none if one leads to itself.
    fn in_order(&self) -> Result<Vec<usize>, SchemaError> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut waiting: Vec<usize> = self.nodes.iter().map(|node| node.same.len()).collect();
        let mut because_of: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for &to in &node.same {
                if let Some(users) = because_of.get_mut(to) {
                    users.push(index);
                }
            }
        }
        let mut ready: Vec<usize> =
            waiting.iter().enumerate().filter(|(_, count)| **count == 0).map(|(index, _)| index).collect();
        while let Some(node) = ready.pop() {
            order.push(node);
            for &user in because_of.get(node).into_iter().flatten() {
                if let Some(count) = waiting.get_mut(user) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(user);
                    }
                }
            }
        }
        if order.len() == self.nodes.len() { Ok(order) } else { Err(SchemaError::Cost) }
    }
}

fn check_version(version: &Value) -> Result<(), SchemaError> {
    let text = version.as_str().unwrap_or_default();
    let known = text.trim_end_matches('#').split_once("://json-schema.org/").map_or("", |(_, version)| version);
    match known {
        "draft/2020-12/schema" | "draft/2019-09/schema" | "draft-07/schema" | "draft-06/schema" => Ok(()),
        _ => Err(SchemaError::Version(super::shortened(&version.to_string()))),
    }
}

/// RFC 6901 §3.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// RFC 6901 §6: the pointer of a reference is percent-encoded.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
            let (high, low) = (digit()?, digit()?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
