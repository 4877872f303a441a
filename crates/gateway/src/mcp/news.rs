//! Which of the lists that clients see have changed, by what the services offer.
//! Never takes an outage for a change.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealwire_mcp::{Id, SUBSCRIPTION_ID, SubscriptionFilter};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::catalogue::{Offer, Tool};

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";

/// The lists of which a client hears when they change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) tools: bool,
    pub(crate) prompts: bool,
    pub(crate) resources: bool,
}

impl Lists {
    pub(crate) const ALL: Self = Self { tools: true, prompts: true, resources: true };

    pub(crate) fn of(wanted: &SubscriptionFilter) -> Self {
        let &SubscriptionFilter { tools, prompts, resources, .. } = wanted;
        Self { tools, prompts, resources }
    }

    /// Without those of which no server tells.
    pub(crate) fn within(self, told: Self) -> Self {
        let Self { tools, prompts, resources } = self;
        Self { tools: tools && told.tools, prompts: prompts && told.prompts, resources: resources && told.resources }
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// The notifications that they have changed.
    pub(crate) fn notifications(self) -> impl Iterator<Item = &'static str> + use<> {
        let all = [(self.tools, TOOLS), (self.prompts, PROMPTS), (self.resources, RESOURCES)];
        all.into_iter().filter_map(|(has_changed, method)| has_changed.then_some(method))
    }
}

/// A digest of each list as one caller sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digests {
    tools: String,
    prompts: String,
    resources: String,
}

impl Digests {
    pub(crate) fn of(offer: &Offer) -> Self {
        let tools = digest(offer.tools.iter().map(|(name, tool)| (name.as_str(), &**tool)));
        let of = |list| digest(offer.relayed.iter().filter(move |tool| is_of(tool, list)).map(|tool| ("", &**tool)));
        Self { tools, prompts: of("prompts/list"), resources: of("resources/list") }
    }

    /// Those of these lists that are not as they were `before`; all if nobody knows how they were when the client began to listen.
    pub(crate) fn changed(&self, before: Option<&Self>, lists: Lists) -> Lists {
        let Some(before) = before else { return lists };
        let (tools, prompts) = (self.tools != before.tools, self.prompts != before.prompts);
        lists.within(Lists { tools, prompts, resources: self.resources != before.resources })
    }

    /// The client is about to get the list of this request.
    pub(crate) fn learn(&mut self, request: &str, now: &Self) {
        match request {
            "tools/list" => self.tools.clone_from(&now.tools),
            "prompts/list" => self.prompts.clone_from(&now.prompts),
            "resources/list" | "resources/templates/list" => self.resources.clone_from(&now.resources),
            _ => {}
        }
    }
}

/// A notification, of a subscription if there is one.
pub(crate) fn news(method: &str, subscription: Option<&Id>, uri: Option<&str>) -> Value {
    let mut params = Map::new();
    params.extend(subscription.map(|id| ("_meta".to_owned(), json!({ SUBSCRIPTION_ID: id }))));
    params.extend(uri.map(|uri| ("uri".to_owned(), uri.into())));
    match params.is_empty() {
        true => json!({ "jsonrpc": "2.0", "method": method }),
        false => json!({ "jsonrpc": "2.0", "method": method, "params": params }),
    }
}

/// A resource has changed.
pub(crate) fn updated(subscription: Option<&Id>, uri: &str) -> Value {
    news("notifications/resources/updated", subscription, Some(uri))
}

/// The first message of a subscription: what it is granted.
pub(crate) fn acknowledged(subscription: &Id, lists: Lists, uris: &BTreeSet<String>) -> Value {
    let Lists { tools, prompts, resources } = lists;
    // Tasks are asked for, and not told of.
    let granted = SubscriptionFilter { tools, prompts, resources, uris: uris.clone(), tasks: BTreeSet::new() };
    let params = json!({ "_meta": { SUBSCRIPTION_ID: subscription }, "notifications": granted });
    json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params })
}

/// Of which lists changes are told: the servers say when those of resources change, or say nothing of it.
pub(crate) fn told_of(offer: &Offer) -> Lists {
    let any = |list| offer.relayed.iter().any(|tool| is_of(tool, list) && tool.mcp.digest.is_some());
    Lists { tools: true, prompts: any("prompts/list"), resources: any("resources/list") }
}

fn is_of(tool: &Tool, request: &str) -> bool {
    tool.mcp.request.as_deref() == Some(request)
}

fn digest<'a>(tools: impl Iterator<Item = (&'a str, &'a Tool)>) -> String {
    let mut digest = Sha256::new();
    for (name, tool) in tools {
        digest.update(name);
        digest.update([0]);
        digest.update(tool.method.document.as_deref().map_or("", RawValue::get));
        digest.update([0]);
    }
    URL_SAFE_NO_PAD.encode(digest.finalize())
}
