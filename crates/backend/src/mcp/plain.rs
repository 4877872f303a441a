//! Requests of the protocol that are methods besides tools: those of resources and prompts.
//! Never decides who offers them.

use sealwire::decide::{Param, ParamType};

/// A request that is a method of the same name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain {
    pub(super) name: &'static str,
    /// Its parameters, and whether each is required.
    pub(super) params: &'static [(&'static str, bool)],
}

impl Plain {
    /// Whether it is, if resources and prompts are.
    pub(super) fn is_offered(&self, resources: bool, prompts: bool) -> bool {
        match self.name.split_once('/') {
            Some(("resources", _)) => resources,
            // It completes arguments of both.
            Some(("completion", _)) => resources || prompts,
            _ => prompts,
        }
    }
}

/// The request for one prompt.
pub(super) const GET_PROMPT: &str = "prompts/get";
/// The request for what an argument of a prompt or template may be.
pub(super) const COMPLETE: &str = "completion/complete";

/// The subscription to changes of resources.
pub(super) const SUBSCRIBE: &str = "resources/subscribe";

pub(super) const PLAIN: [Plain; 7] = [
    Plain { name: "resources/list", params: &[("cursor", false)] },
    Plain { name: "resources/templates/list", params: &[("cursor", false)] },
    Plain { name: "resources/read", params: &[("uri", true)] },
    Plain { name: SUBSCRIBE, params: &[("uris", true)] },
    Plain { name: "prompts/list", params: &[("cursor", false)] },
    Plain { name: GET_PROMPT, params: &[("name", true), ("arguments", false)] },
    Plain { name: COMPLETE, params: &[("ref", true), ("argument", true), ("context", false)] },
];

/// A parameter of such a request.
pub(super) fn declared(name: &str, required: bool) -> Param {
    let kind = if ["arguments", "ref", "argument", "context", "uris"].contains(&name) {
        ParamType::Any
    } else {
        ParamType::String
    };
    let param = Param::new(name, kind);
    if required { param } else { param.optional() }
}
