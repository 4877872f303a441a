//! Which methods the tools of one server become.
//! Never gives a tool a method that belongs to somebody else: such a tool is unusable, and the others go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use sealwire::MethodName;
use sealwire::errors::NameError;

use super::listing::Definition;
use super::plain::{GET_PROMPT, PLAIN};
use crate::names::Names;
use crate::pins::{Kind, Lock};

/// How the tools of a server are named.
#[derive(Debug, Clone)]
pub(crate) struct Naming {
    pub(crate) backend: String,
    /// What all its method names begin with, before a `/`.
    pub(crate) prefix: Option<String>,
    /// Method names by tool name.
    pub(crate) aliases: BTreeMap<String, String>,
    /// The methods of all backends.
    pub(crate) names: Arc<Names>,
}

/// The owner of a tool's method.
pub(crate) fn owner(backend: &str, tool: &str) -> String {
    format!("the tool `{}` of backend `{backend}`", tool.escape_debug())
}

impl Naming {
    /// Claims the names of approved tools, before anything that is only listed.
    pub(crate) fn claim_approved(&self, lock: &Lock) {
        for (tool, _) in lock.pins(&self.backend, Kind::Tool) {
            // The tool is unusable, and reported when it is listed.
            drop(self.claim(tool));
        }
    }

    /// Claims the method of a tool.
    pub(super) fn claim(&self, tool: &str) -> Result<MethodName, String> {
        let method = self.judged(tool)?;
        self.names.claim(&method, &owner(&self.backend, tool)).map_err(renamed)?;
        Ok(method)
    }

    /// Claims the method of something that the protocol has besides tools.
    pub(super) fn claim_plain(&self, name: &str) -> Result<MethodName, String> {
        let method = self.method(name).map_err(|error| error.to_string())?;
        self.names.claim(&method, &format!("`{name}` of backend `{}`", self.backend))?;
        Ok(method)
    }

    /// Makes listed tools unusable that cannot be methods.
    pub(super) fn judge(&self, listed: &mut BTreeMap<String, Definition>) {
        let mut methods = BTreeMap::new();
        for (tool, definition) in listed {
            let fault = match self.judged(tool) {
                Err(fault) => Some(fault),
                Ok(method) => match methods.get(&method.in_subject()) {
                    Some(other) => Some(renamed(format!("`{method}` is taken by {other}"))),
                    None => {
                        let owner = owner(&self.backend, tool);
                        let fault = self.names.fault(&method, &owner).map(renamed);
                        if fault.is_none() {
                            methods.insert(method.in_subject(), owner);
                        }
                        fault
                    }
                },
            };
            if let Some(fault) = fault {
                definition.usable = Err(fault);
            }
        }
    }

    /// The method that gets a prompt.
    pub(super) fn get_prompt(&self) -> Option<String> {
        self.method(GET_PROMPT).ok().map(|method| method.to_string())
    }

    /// The method that reads a resource.
    pub(super) fn read_resource(&self) -> Option<String> {
        self.method("resources/read").ok().map(|method| method.to_string())
    }

    fn judged(&self, tool: &str) -> Result<MethodName, String> {
        let method = self.method(self.aliases.get(tool).map_or(tool, String::as_str));
        let method = method.map_err(|error| renamed(error.to_string()))?;
        if PLAIN
            .iter()
            .any(|plain| self.method(plain.name).is_ok_and(|plain| plain.in_subject() == method.in_subject()))
        {
            return Err(renamed(format!("`{method}` is a method of the protocol")));
        }
        Ok(method)
    }

    fn method(&self, name: &str) -> Result<MethodName, NameError> {
        match &self.prefix {
            Some(prefix) => MethodName::new(&format!("{prefix}/{name}")),
            None => MethodName::new(name),
        }
    }
}

fn renamed(fault: String) -> String {
    format!("{fault}; give it another name in a `[[backend.method]]`")
}
