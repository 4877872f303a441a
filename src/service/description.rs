//! What a method's author tells those who may call it.
//! Never decides anything: that is up to the policy, whatever is said here.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

/// What `rpc.discover` tells callers about a method: what it does, its parameters and result as JSON Schemas (2020-12), examples.
///
/// ```
/// use sealwire::RpcError;
/// use sealwire::serve::Description;
/// use sealwire::{Ctx, Router};
/// use serde_json::json;
///
/// # async fn add(_: Ctx, (a, b): (f64, f64)) -> Result<f64, RpcError> { Ok(a + b) }
/// let about = Description::new("Adds two numbers.")
///     .result(json!({ "type": "number" }))
///     .example(json!({ "a": 2, "b": 3 }), json!(5));
/// let methods = Router::new(()).method("math/add", add).describe("math/add", about);
/// ```
///
/// A schema from the crate `schemars` can be passed as it is:
/// `Description::default().result(schemars::schema_for!(Sum))`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Description {
    pub(super) text: Option<String>,
    pub(super) params: Option<Value>,
    pub(super) result: Option<Value>,
    pub(super) examples: Vec<(Value, Value)>,
    pub(super) extensions: Map<String, Value>,
}

impl Description {
    /// The largest description with everything in it, in bytes of JSON: 256 KiB.
    pub const MAX_BYTES: usize = 256 * 1024;

    /// What the method does, in a sentence or a few.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// The parameters by name, as the JSON Schema of an object. Without it, declared parameters say the same in less detail.
    #[must_use]
    pub fn params(mut self, schema: impl Into<Value>) -> Self {
        self.params = Some(schema.into());
        self
    }

    /// The result.
    #[must_use]
    pub fn result(mut self, schema: impl Into<Value>) -> Self {
        self.result = Some(schema.into());
        self
    }

    /// An example call, with its parameters by name and its result.
    #[must_use]
    pub fn example(mut self, params: impl Into<Value>, result: impl Into<Value>) -> Self {
        self.examples.push((params.into(), result.into()));
        self
    }

    /// A member of your own; its name must begin with `x-`.
    #[must_use]
    pub fn extension(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extensions.insert(name.into(), value.into());
        self
    }

    /// What is wrong with it, if anything is.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let is_object = |schema: &Value| {
            let kind = schema.get("type");
            schema.is_object() && kind.is_none_or(|kind| kind == "object")
        };
        let is_schema = |schema: &Value| schema.is_object() || schema.is_boolean();
        if self.params.as_ref().is_some_and(|schema| !is_object(schema)) {
            return Some("the schema of its parameters is not that of an object");
        }
        if self.result.as_ref().is_some_and(|schema| !is_schema(schema)) {
            return Some("the schema of its result is none");
        }
        if self.examples.iter().any(|(params, _)| !params.is_object()) {
            return Some("the parameters of an example are not given by name");
        }
        if self.extensions.keys().any(|name| !name.starts_with("x-") || OWN.contains(&name.as_str())) {
            return Some("names of extensions begin with `x-`, and are not those of Sealwire");
        }
        let schemas = [&self.params, &self.result].into_iter().flatten();
        let others = self.examples.iter().flat_map(|(params, result)| [params, result]).chain(self.extensions.values());
        let length: usize = schemas.chain(others).map(length).sum();
        let is_long = length.saturating_add(self.text.as_ref().map_or(0, String::len)) > Self::MAX_BYTES;
        is_long.then_some("it has more than 256 KiB")
    }
}

/// The members that Sealwire adds to those of OpenRPC.
pub(super) const PARAMS: &str = "x-params";
pub(super) const STREAM: &str = "x-stream";
pub(super) const SUBSCRIPTION: &str = "x-subscription";
pub(super) const IDEMPOTENT: &str = "x-idempotent";
/// Whether it may, or must, be called as a task: `optional` or `required`.
pub(super) const TASK: &str = "x-task";
pub(super) const SHORTENED: &str = "x-shortened";
const OWN: [&str; 6] = [PARAMS, STREAM, SUBSCRIPTION, IDEMPOTENT, TASK, SHORTENED];

fn length(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}

/// Where a description comes from.
#[derive(Clone)]
pub(super) enum Described {
    Once(Arc<Description>),
    /// Requested each time; `None` while the method must not be listed.
    Now(Arc<dyn Fn() -> Option<Arc<Description>> + Send + Sync>),
}

impl fmt::Debug for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Described")
    }
}
