//! How one server is used, and what it offers as far as that is known without it.
//! Never offers what the configuration does not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sealwire_mcp::Revision;
use serde_json::value::RawValue;

use super::config::McpConfig;
use super::listing::{self, Definition};
use super::naming::Naming;
use super::plain::{PLAIN, Plain, declared};
use super::questions::Questions;
use crate::names::Names;
use crate::pins::{Kind, Lock, Pin, Pins};
use crate::tool::Tool;

/// How a server is used.
#[derive(Debug, Clone)]
pub(crate) struct ServerOptions {
    pub(crate) naming: Naming,
    pub(crate) timeout: Duration,
    pub(crate) send_caller: bool,
    /// What the server may ask callers for.
    pub(crate) questions: Questions,
    /// The approved definitions.
    pub(crate) pins: Arc<Pins>,
    /// The revision that is spoken, if the configuration says.
    pub(crate) revision: Option<Revision>,
    /// Whether resources and prompts are offered.
    pub(crate) resources: bool,
    pub(crate) prompts: bool,
}

impl ServerOptions {
    pub(crate) fn new(config: &McpConfig, pins: Arc<Pins>, names: &Arc<Names>) -> Self {
        let McpConfig { name, prefix, aliases, .. } = config;
        let (backend, prefix, aliases) = (name.clone(), prefix.clone(), aliases.clone());
        let naming = Naming { backend, prefix, aliases, names: Arc::clone(names) };
        let &McpConfig { timeout, send_caller, questions, revision, resources, prompts, .. } = config;
        Self { naming, timeout, send_caller, questions, pins, revision, resources, prompts }
    }

    /// The method of the tool with this definition.
    pub(super) fn tool(&self, definition: &Definition) -> Result<Tool, String> {
        let mut tool = Tool::new(definition.name.clone(), self.naming.claim(&definition.name)?);
        tool.description.clone_from(&definition.description);
        tool.remarks = definition.remarks();
        tool.by_name = true;
        tool.is_usable = definition.fault().is_none();
        tool.declared = definition.schemas().ok().map(|schemas| schemas.arguments.declared().to_vec());
        Ok(tool)
    }

    pub(super) fn plain(&self, plain: Plain) -> Result<Tool, String> {
        let mut tool = Tool::new(plain.name, self.naming.claim_plain(plain.name)?);
        tool.by_name = true;
        tool.declared = Some(plain.params.iter().map(|(name, required)| declared(name, *required)).collect());
        Ok(tool)
    }
}

/// What a server that is not started offers: its approved tools, and what the configuration offers besides tools.
pub(crate) fn offered(how: &ServerOptions, lock: &Lock) -> Vec<Tool> {
    let tools = known(&how.naming.backend, lock, &BTreeMap::new())
        .into_values()
        .filter_map(|definition| how.tool(&definition).ok());
    let plain = PLAIN.into_iter().filter(|plain| plain.is_offered(how.resources, how.prompts));
    tools.chain(plain.filter_map(|plain| how.plain(plain).ok())).collect()
}

/// How long a server may take to start, at least: it may have to be downloaded first.
pub(super) const START: Duration = Duration::from_secs(60);

/// All tools that are listed or approved. The approved definition has precedence, since policies were written for its parameters.
pub(super) fn known(backend: &str, lock: &Lock, listed: &BTreeMap<String, Definition>) -> BTreeMap<String, Definition> {
    let approved = lock.pins(backend, Kind::Tool).filter_map(|(name, pin)| Some((name.clone(), of_pin(pin)?)));
    let mut known: BTreeMap<String, Definition> = approved.collect();
    for (name, definition) in listed {
        known.entry(name.clone()).or_insert_with(|| definition.clone());
    }
    known
}

fn of_pin(pin: &Pin) -> Option<Definition> {
    listing::read(&RawValue::from_string(pin.definition.clone()).ok()?, Kind::Tool, false).ok()
}
