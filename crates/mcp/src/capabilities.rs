//! What a client can be asked for, by people's answers, a model's, or folders; and whether it asks for results later.
//! Never takes a capability for granted that was not declared.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::tasks::EXTENSION;

/// The question to people.
pub const ELICIT: &str = "elicitation/create";
/// The question to a model.
pub const SAMPLE: &str = "sampling/createMessage";
/// The question about folders.
pub const ROOTS: &str = "roots/list";
/// The capability of a caller (SPEC.md §6.2) that says that the answer to [`SAMPLE`] may use tools.
pub const SAMPLE_TOOLS: &str = "sampling/tools";
/// The capability of a caller that asks a tool of an MCP server for its whole result.
pub const RESULT: &str = "mcp/result";

/// What a client can do beyond receiving a result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Declaration", into = "Declaration")]
pub struct ClientCapabilities {
    /// Its people, with a form.
    pub elicitation: bool,
    /// Its model.
    pub sampling: bool,
    /// Its model, with tools.
    pub sampling_tools: bool,
    /// Its folders.
    pub roots: bool,
    /// It takes a task for the result of a call (2026-07-28), which is not something to be asked for.
    pub tasks: bool,
}

/// The same, as clients declare it.
#[derive(Clone, Serialize, Deserialize)]
struct Declaration {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    elicitation: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sampling: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    roots: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    extensions: Option<Map<String, Value>>,
}

impl From<Declaration> for ClientCapabilities {
    fn from(Declaration { elicitation, sampling, roots, extensions }: Declaration) -> Self {
        Self {
            // An empty `elicitation` means that it can show forms.
            elicitation: elicitation.is_some_and(|modes| modes.is_empty() || modes.contains_key("form")),
            sampling: sampling.is_some(),
            sampling_tools: sampling.is_some_and(|modes| modes.contains_key("tools")),
            roots: roots.is_some(),
            tasks: extensions.is_some_and(|extensions| extensions.get(EXTENSION).is_some_and(Value::is_object)),
        }
    }
}

impl From<ClientCapabilities> for Declaration {
    fn from(ClientCapabilities { elicitation, sampling, sampling_tools, roots, tasks }: ClientCapabilities) -> Self {
        let with = |mode: Option<&str>| mode.map(|mode| (mode.to_owned(), json!({}))).into_iter().collect();
        Self {
            elicitation: elicitation.then(|| with(Some("form"))),
            sampling: sampling.then(|| with(sampling_tools.then_some("tools"))),
            roots: roots.then(|| with(None)),
            extensions: tasks.then(|| with(Some(EXTENSION))),
        }
    }
}

impl ClientCapabilities {
    /// What a caller can be asked for that has these capabilities.
    #[must_use]
    pub fn of_caller(has: impl Fn(&str) -> bool) -> Self {
        let (elicitation, sampling, roots) = (has(ELICIT), has(SAMPLE), has(ROOTS));
        Self { elicitation, sampling, sampling_tools: has(SAMPLE_TOOLS), roots, tasks: false }
    }

    /// The capabilities of a caller that can be asked for this, as a service is told.
    pub fn of_callers(self) -> impl Iterator<Item = &'static str> {
        let Self { elicitation, sampling, sampling_tools, roots, .. } = self;
        let all =
            [(true, RESULT), (elicitation, ELICIT), (sampling, SAMPLE), (sampling_tools, SAMPLE_TOOLS), (roots, ROOTS)];
        all.into_iter().filter_map(|(is_there, name)| is_there.then_some(name))
    }

    /// What is in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            elicitation: self.elicitation && other.elicitation,
            sampling: self.sampling && other.sampling,
            sampling_tools: self.sampling_tools && other.sampling_tools,
            roots: self.roots && other.roots,
            tasks: self.tasks && other.tasks,
        }
    }

    /// Whether the client can be asked this.
    #[must_use]
    pub fn covers(self, method: &str) -> bool {
        match method {
            ELICIT => self.elicitation,
            SAMPLE => self.sampling,
            ROOTS => self.roots,
            _ => false,
        }
    }

    /// Whether it can be asked for nothing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        Self { tasks: false, ..self } == Self::default()
    }

    /// What `other` can be asked for and this cannot, if there is anything, by its name in the protocol.
    #[must_use]
    pub fn lacks(self, other: Self) -> Option<&'static str> {
        let pairs = [
            (self.elicitation, other.elicitation, "elicitation"),
            (self.sampling, other.sampling, "sampling"),
            (self.sampling_tools, other.sampling_tools, "sampling.tools"),
            (self.roots, other.roots, "roots"),
        ];
        pairs.into_iter().find_map(|(has, had, name)| (had && !has).then_some(name))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn capabilities_are_those_that_were_declared() {
        let read = |declared: Value| serde_json::from_value::<ClientCapabilities>(declared).unwrap();
        let all = read(json!({ "elicitation": {}, "sampling": { "tools": {} }, "roots": { "listChanged": true } }));
        assert_eq!(all.of_callers().collect::<Vec<_>>(), [RESULT, ELICIT, SAMPLE, SAMPLE_TOOLS, ROOTS]);
        let tasks = read(json!({ "extensions": { EXTENSION: {}, "com.example/else": {} } }));
        assert!(tasks.tasks && tasks.is_empty() && ClientCapabilities::default().lacks(tasks).is_none());
        assert!(!read(json!({ "extensions": { EXTENSION: null } })).tasks && !all.tasks);
        let (sampling, none) = (read(json!({ "sampling": {} })), read(json!({ "elicitation": { "url": {} } })));
        assert_eq!((none.of_callers().collect::<Vec<_>>(), none.is_empty()), (vec![RESULT], true));
        assert_eq!((sampling.lacks(all), all.lacks(sampling)), (Some("elicitation"), None));
        for some in [all, sampling, none, tasks] {
            assert_eq!(read(serde_json::to_value(some).unwrap()), some);
        }
        assert_eq!(
            serde_json::to_value(all).unwrap(),
            json!({ "elicitation": { "form": {} }, "sampling": { "tools": {} }, "roots": {} })
        );
    }
}
