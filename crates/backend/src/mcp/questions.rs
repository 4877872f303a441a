//! What a server may ask a caller for: an answer of people, an answer of a model, folders.
//! Never lets a server ask for what the configuration does not allow, or a caller be asked for what it has not declared.

use sealwire::Ctx;
use sealwire_mcp::{ClientCapabilities, ELICIT, ROOTS, SAMPLE};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::tables::BackendQuestion;

/// What the configuration allows a server to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Questions(ClientCapabilities);

impl Questions {
    pub(crate) fn new(allowed: &[BackendQuestion]) -> Self {
        let may = |question| allowed.contains(&question);
        let sampling = may(BackendQuestion::Sampling);
        Self(ClientCapabilities {
            elicitation: may(BackendQuestion::Elicitation),
            sampling,
            sampling_tools: sampling,
            roots: may(BackendQuestion::Roots),
            tasks: false,
        })
    }

    /// What may be asked for at all, of a caller that is not known yet.
    pub(super) fn any(self) -> ClientCapabilities {
        self.0
    }

    /// Whether a program that is no MCP server may ask this. Clients of MCP answer these three; what else it asks, only callers that know it.
    pub(crate) fn may_be(self, method: &str) -> bool {
        ![ELICIT, SAMPLE, ROOTS].contains(&method) || self.0.covers(method)
    }

    /// What this caller can be asked for. One that says nothing about itself can show forms to people.
    pub(super) fn of(self, ctx: &Ctx) -> ClientCapabilities {
        if !ctx.takes_frames() {
            return ClientCapabilities::default();
        }
        let has = |name: &str| ctx.is_capable_of(name).unwrap_or(name == ELICIT);
        self.0.and(ClientCapabilities::of_caller(has))
    }

    /// Whether an answer is one to this question, as far as everybody relies on it.
    pub(super) fn is_answer(method: &str, answer: &RawValue) -> bool {
        #[derive(Deserialize)]
        struct Answer {
            action: Option<String>,
            content: Option<IgnoredAny>,
            role: Option<String>,
            roots: Option<Vec<IgnoredAny>>,
        }
        let Ok(answer) = serde_json::from_str::<Answer>(answer.get()) else { return false };
        match method {
            ELICIT => answer.action.is_some(),
            SAMPLE => answer.role.is_some() && answer.content.is_some(),
            _ => answer.roots.is_some(),
        }
    }
}
