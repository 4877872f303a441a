//! What checking a value may cost, from the schema alone: how often its deepest member could be looked at.
//! Never looks at a value.
//!
//! Two references to one subschema double the work, and a chain of n such pairs makes 2^n of it; two references back to the whole schema,
//! each below a member, make it 2^depth. So the subschemas are treated as a graph, with edges to those that look at the same value and
//! edges to those that look one level below, and the paths through it are counted by depth.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::error::{SchemaError, shortened};
use super::limits::{FARTHEST, MAX_SUBSCHEMAS};

/// The subschemas of a schema, and which of them look at a value because of which.
pub(super) struct Plan {
    graph: Graph,
    order: Vec<usize>,
}

/// Bounds for values, so that checking them ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The deepest nesting at which no more than [`MOST_WORK`] subschemas look at any path through the value, and no more than [`FARTHEST`]
    /// in a chain.
    pub(super) depth: usize,
    /// What each of its bytes may cost, in subschemas that look at it.
    pub(super) cost: u64,
    /// How many subschemas may look at something because of each other: that many calls deep is the check.
    pub(super) reach: u64,
}

impl Plan {
    /// # Errors
    /// [`SchemaError`]: faults that show without compiling anything.
    pub(super) fn of(schema: &Value) -> Result<Self, SchemaError> {
        let graph = Graph::of(schema)?;
        let order = graph.in_order()?;
        Ok(Self { graph, order })
    }

    /// All patterns, each once.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &str> {
        let nodes = self.graph.nodes.iter();
        let patterns = nodes.flat_map(|node| node.pattern.iter().chain(&node.names).map(String::as_str));
        patterns.collect::<BTreeSet<_>>().into_iter()
    }

    /// Where names are matched with patterns (JSON Pointers), the innermost first. Nowhere if a reference leads to such a place.
    pub(super) fn places_of_names(&self) -> Vec<String> {
        let nodes = &self.graph.nodes;
        if nodes.iter().any(|node| node.reference.as_ref().is_some_and(|to| to.contains("patternProperties"))) {
            return Vec::new();
        }
        let places =
            self.graph.places.iter().filter(|(_, node)| nodes.get(**node).is_some_and(|node| !node.names.is_empty()));
        let mut places: Vec<String> = places.map(|(place, _)| format!("{place}/patternProperties")).collect();
        places.sort_by_key(|place| std::cmp::Reverse(place.len()));
        places
    }

    /// How many bytes the compiled schema takes, without its patterns.
    pub(super) fn size(&self) -> usize {
        self.graph.nodes.len() * NODE_BYTES + 2 * self.graph.paths
    }

    /// `name` returns the cost per byte of matching a name with a pattern of `patternProperties`.
    ///
    /// # Errors
    /// Not even an empty value could be checked.
    pub(super) fn bounds(&self, name: impl Fn(&str) -> u64) -> Result<Bounds, SchemaError> {
        let nodes = &self.graph.nodes;
        let own = nodes.iter().map(|node| {
            // Names are matched for `additionalProperties` and `unevaluatedProperties`, too.
            let names = node.names.iter().fold(0_u64, |sum, pattern| sum.saturating_add(name(pattern)));
            node.own.saturating_add(names.saturating_mul(3))
        });
        let own: Vec<u64> = own.collect();
        let (mut below, mut found) = (PathCounts::of(nodes.len()), None);
        for depth in 0..=DEEPEST {
            let mut ways = PathCounts::of(nodes.len());
            for &index in &self.order {
                let (Some(node), Some(own)) = (nodes.get(index), own.get(index)) else { continue };
                let sum = |kind: fn(&PathCounts) -> &Vec<u64>, first: u64| {
                    let same = node.same.iter().map(|to| kind(&ways).get(*to));
                    let all = same.chain(node.below.iter().map(|to| kind(&below).get(*to)));
                    all.fold(first, |sum, cost| sum.saturating_add(cost.copied().unwrap_or(u64::MAX)))
                };
                let (work, cost) = (sum(|ways| &ways.work, 1), sum(|ways| &ways.cost, *own));
                let same = node.same.iter().filter_map(|to| ways.reach.get(*to));
                let reach = same.chain(node.below.iter().filter_map(|to| below.reach.get(*to))).max();
                let reach = reach.map_or(1, |reach| reach.saturating_add(1));
                ways.set(index, work, cost, reach);
            }
            let (work, cost, reach) = ways.first();
            if work > MOST_WORK {
                return found.ok_or(SchemaError::Cost);
            }
            if reach > FARTHEST {
                return found.ok_or(SchemaError::TooFar);
            }
            found = Some(Bounds { depth, cost, reach });
            below = ways;
        }
        found.ok_or(SchemaError::Cost)
    }
}

/// Work, cost and reach for values of one depth, by the subschema that looks at them first.
struct PathCounts {
    work: Vec<u64>,
    cost: Vec<u64>,
    reach: Vec<u64>,
}

impl PathCounts {
    fn of(nodes: usize) -> Self {
        Self { work: vec![0; nodes], cost: vec![0; nodes], reach: vec![0; nodes] }
    }

    fn set(&mut self, index: usize, work: u64, cost: u64, reach: u64) {
        let slots = [(&mut self.work, work), (&mut self.cost, cost), (&mut self.reach, reach)];
        for (costs, cost) in slots {
            if let Some(slot) = costs.get_mut(index) {
                *slot = cost;
            }
        }
    }

    /// Those of the whole schema.
    fn first(&self) -> (u64, u64, u64) {
        let of = |costs: &[u64]| costs.first().copied().unwrap_or(u64::MAX);
        (of(&self.work), of(&self.cost), of(&self.reach))
    }
}

/// Ordinary schemas without recursion have as much work as subschemas.
const MOST_WORK: u64 = 10_000;
/// Values sent to a service have no more levels (`sealwire::internal::rpc::MAX_DEPTH`).
const DEEPEST: usize = sealwire::internal::rpc::MAX_DEPTH;
/// A compiled schema holds the place of each keyword as text: the most bytes of these.
const MOST_PATHS: usize = 1 << 20;
/// About how many bytes a compiled subschema takes.
const NODE_BYTES: usize = 2 * 1024;

#[derive(Default)]
struct Node {
    /// Subschemas that look at the same value.
    same: Vec<usize>,
    /// Subschemas that look at a member or an item of it.
    below: Vec<usize>,
    reference: Option<String>,
    /// The cost of looking at a value here, without patterns; a keyword or two cost 1.
    own: u64,
    pattern: Option<String>,
    /// The patterns of `patternProperties`.
    names: Vec<String>,
}

struct Graph {
    /// The first node is the whole schema.
    nodes: Vec<Node>,
    /// The place of each node, as a JSON Pointer (RFC 6901).
    places: BTreeMap<String, usize>,
    /// The total bytes of the places of all keywords.
    paths: usize,
}

impl Graph {
    fn of(schema: &Value) -> Result<Self, SchemaError> {
        let mut graph = Self { nodes: Vec::new(), places: BTreeMap::new(), paths: 0 };
        graph.add(schema, String::new())?;
        for index in 0..graph.nodes.len() {
            let Some(reference) = graph.nodes.get(index).and_then(|node| node.reference.clone()) else { continue };
            let place = reference.strip_prefix('#').and_then(percent_decoded);
            let to = place.and_then(|place| graph.places.get(&place).copied());
            let to = to.ok_or_else(|| SchemaError::Reference(shortened(&reference)))?;
            if let Some(node) = graph.nodes.get_mut(index) {
                node.same.push(to);
            }
        }
        Ok(graph)
    }

    fn add(&mut self, schema: &Value, place: String) -> Result<usize, SchemaError> {
        let index = self.nodes.len();
        if index == MAX_SUBSCHEMAS {
            return Err(SchemaError::TooMany);
        }
        let keywords = schema.as_object().map_or(0, serde_json::Map::len);
        self.paths = self.paths.saturating_add(place.len().saturating_mul(keywords + 1));
        if self.paths > MOST_PATHS {
            return Err(SchemaError::TooLarge);
        }
        self.nodes.push(Node { own: 1, ..Node::default() });
        self.places.insert(place.clone(), index);
        let mut node = Node { own: 1, ..Node::default() };
        let mut unevaluated = None;
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
                "unevaluatedItems" | "unevaluatedProperties" => {
                    unevaluated =
                        Some(if keyword == "unevaluatedItems" { "unevaluatedItems" } else { "unevaluatedProperties" });
                    node.below.push(self.add(value, at)?);
                }
                "items" | "additionalItems" | "contains" | "additionalProperties" | "propertyNames" => {
                    node.below.push(self.add(value, at)?);
                }
                "properties" => node.below.extend(self.add_named(value, &at)?),
                "patternProperties" => {
                    node.names.extend(value.as_object().into_iter().flatten().map(|(pattern, _)| pattern.clone()));
                    node.below.extend(self.add_named(value, &at)?);
                }
                "pattern" => node.pattern = value.as_str().map(str::to_owned),
                "enum" => node.own = node.own.saturating_add(compared(value)),
                "uniqueItems" => node.own = node.own.saturating_add(UNIQUE),
                // Without effect where they stand.
                "$defs" | "definitions" => drop(self.add_named(value, &at)?),
                _ => {}
            }
        }
        // To find what it applies to, all of these are gone through once more, which doubles with each level of them.
        if let Some(keyword) = unevaluated
            && (node.reference.is_some() || !node.same.is_empty())
        {
            return Err(SchemaError::Unevaluated(keyword));
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

    /// All nodes, each after those that look at the same value because of it. An error if a node leads to itself.
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

/// How many values of an `enum` are compared one by one; strings are looked up.
fn compared(values: &Value) -> u64 {
    let values = values.as_array().map_or(&[][..], Vec::as_slice);
    let are_texts = values.iter().all(|value| value.is_string() || value.is_null());
    if are_texts { 0 } else { u64::try_from(values.len()).unwrap_or(u64::MAX) }
}

/// Up to this many items are compared with each other; more are looked up.
const UNIQUE: u64 = 16;

fn check_version(version: &Value) -> Result<(), SchemaError> {
    let text = version.as_str().unwrap_or_default();
    let known = text.trim_end_matches('#').split_once("://json-schema.org/").map_or("", |(_, version)| version);
    match known {
        "draft/2020-12/schema" | "draft/2019-09/schema" | "draft-07/schema" | "draft-06/schema" | "draft-04/schema" => {
            Ok(())
        }
        _ => Err(SchemaError::Version(shortened(&version.to_string()))),
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
