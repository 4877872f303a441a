//! Methods as Python declares them, as the library takes them.
//! Never guesses a type: Python has read the hints.

use std::time::Duration;

use sealwire::Idempotent;
use sealwire::decide::{Param, ParamType, ScalarType};
use sealwire::serve::Description;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A method.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) answers: Answers,
    /// `None` if it takes whatever comes.
    pub(crate) params: Option<Vec<DeclaredParam>>,
    pub(crate) by_name: bool,
    description: Option<String>,
    params_schema: Option<Value>,
    result_schema: Option<Value>,
    examples: Vec<(Value, Value)>,
    extensions: Map<String, Value>,
    idempotent: Option<DeclaredIdempotent>,
    /// Callers that ask what there is are not told of it.
    pub(crate) hidden: bool,
}

/// Of a method that runs once for each idempotency key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeclaredIdempotent {
    /// For how many seconds outcomes are kept.
    keep_s: f64,
    rerun_if_lost: bool,
    /// For how many seconds it may run as a task, if it may.
    task_s: Option<f64>,
    only_as_task: bool,
}

/// How it answers.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answers {
    Result,
    Stream,
    Subscription,
}

/// A parameter, or a member of one that is an object.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeclaredParam {
    name: String,
    optional: bool,
    description: Option<String>,
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(default)]
    members: Vec<DeclaredParam>,
}

#[derive(Clone, Copy, Deserialize)]
enum Kind {
    #[serde(rename = "string")]
    String,
    #[serde(rename = "integer")]
    Integer,
    #[serde(rename = "boolean")]
    Boolean,
    #[serde(rename = "number")]
    Number,
    #[serde(rename = "any")]
    Any,
    #[serde(rename = "string list")]
    Strings,
    #[serde(rename = "integer list")]
    Integers,
    #[serde(rename = "boolean list")]
    Booleans,
    #[serde(rename = "object")]
    Object,
}

impl Declared {
    pub(crate) fn description(&self) -> Description {
        let mut about = match &self.description {
            Some(text) => Description::new(text),
            None => Description::default(),
        };
        if let Some(schema) = &self.params_schema {
            about = about.params(schema.clone());
        }
        if let Some(schema) = &self.result_schema {
            about = about.result(schema.clone());
        }
        for (params, result) in &self.examples {
            about = about.example(params.clone(), result.clone());
        }
        for (name, value) in &self.extensions {
            about = about.extension(name, value.clone());
        }
        about
    }

    pub(crate) fn idempotent(&self) -> Option<Idempotent> {
        // What is no length of time is out of range, which is reported when the service is built.
        let length = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let DeclaredIdempotent { keep_s, rerun_if_lost, task_s, only_as_task } = self.idempotent.as_ref()?;
        let declared = Idempotent::keep(length(*keep_s));
        let declared = if *rerun_if_lost { declared.rerun_if_lost() } else { declared };
        Some(match task_s {
            None => declared,
            Some(limit) if *only_as_task => declared.only_as_task(length(*limit)),
            Some(limit) => declared.as_task(length(*limit)),
        })
    }
}

impl DeclaredParam {
    pub(crate) fn param(&self) -> Param {
        let kind = match self.kind {
            Kind::String => ParamType::String,
            Kind::Integer => ParamType::Integer,
            Kind::Boolean => ParamType::Boolean,
            Kind::Number => ParamType::Number,
            Kind::Any => ParamType::Any,
            Kind::Strings => ParamType::List(ScalarType::String),
            Kind::Integers => ParamType::List(ScalarType::Integer),
            Kind::Booleans => ParamType::List(ScalarType::Boolean),
            Kind::Object => ParamType::Object(self.members.iter().map(Self::param).collect()),
        };
        let param = Param::new(&self.name, kind).optional_if(self.optional);
        match &self.description {
            Some(text) => param.describe(text),
            None => param,
        }
    }
}
