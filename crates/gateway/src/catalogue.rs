//! What the agent may call at its services, under names that callers of a gateway can use.
//! Never gives two methods the same name, and never a name that depends on the order of services.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sealwire::ClientError;
use sealwire::call::MethodInfo;
use sealwire::errors::TokenFault;
use sealwire_mcp::headers::{self, MirrorError, MirroredArgument};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::bus::Bus;
use crate::caller::Caller;

/// The services that a gateway exposes.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) bus: Arc<Bus>,
    exposed: Vec<Exposed>,
}

/// One exposed service.
pub(crate) struct Exposed {
    pub(crate) service: String,
    /// How long a call may take.
    pub(crate) deadline: Duration,
    /// Whether callers may know of a method. This is a ceiling: the policy decides below it.
    pub(crate) allows: Allows,
}

/// A ceiling on methods, by name.
pub(crate) type Allows = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// What the services offered when they were last asked.
#[derive(Debug, Default, Clone)]
pub(crate) struct Offer {
    pub(crate) tools: BTreeMap<String, Arc<Tool>>,
    /// Methods that are MCP requests themselves, in the order of services and names.
    pub(crate) relayed: Vec<Arc<Tool>>,
    /// The services that did not answer, and why.
    pub(crate) missing: Vec<String>,
    /// Roughly how many bytes it occupies.
    pub(crate) bytes: usize,
    /// Whether tool names begin with the name of the service.
    pub(crate) many: bool,
}

/// How long a service may take to list its methods, all pages together.
const ASKED: Duration = Duration::from_secs(10);

/// Why there is no offer.
#[derive(Debug)]
pub(crate) enum OfferError {
    /// There is no token to ask the services with.
    Token(Arc<TokenFault>),
    /// No service has answered.
    Silent(String),
}

impl Offer {
    /// The tools and requests of one service.
    fn of_service(&self, service: &str) -> impl Iterator<Item = Arc<Tool>> {
        self.tools.values().chain(&self.relayed).filter(move |tool| tool.service == service).cloned()
    }

    /// The tool of this name: the name in the list, or the method's own, with `/` or with dots.
    pub(crate) fn tool(&self, name: &str) -> Option<&Arc<Tool>> {
        if let Some(tool) = self.tools.get(name) {
            return Some(tool);
        }
        if !name.contains(['/', '.']) {
            return None;
        }
        let own = |tool: &Tool| match self.many {
            true => format!("{}__{}", tool.service, tool.method.name),
            false => tool.method.name.clone(),
        };
        let dotted = name.replace('/', ".");
        let spelt = self.tools.values().filter(|tool| own(tool).replace('/', ".") == dotted).collect::<Vec<_>>();
        match spelt.as_slice() {
            [tool] => Some(tool),
            // They differ only in `/` and dots.
            several => several.iter().find(|tool| own(tool) == name).copied(),
        }
    }
}

/// One method.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) service: String,
    /// How long a call may take.
    pub(crate) deadline: Duration,
    pub(crate) method: MethodInfo,
    pub(crate) mcp: Extension,
    /// The arguments that the head of a call repeats, over HTTP at `/mcp`.
    pub(crate) mirrored: Result<Vec<MirroredArgument>, MirrorError>,
}

/// What a backend that is an MCP server adds to OpenRPC.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Extension {
    #[serde(default)]
    pub(crate) title: Option<String>,
    #[serde(default)]
    pub(crate) annotations: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default)]
    pub(crate) icons: Option<Vec<serde_json::Value>>,
    /// The MCP request that this method is.
    #[serde(default)]
    pub(crate) request: Option<String>,
    /// A digest of what that request lists, if its server says when that changes.
    #[serde(default)]
    pub(crate) digest: Option<String>,
    /// Whether its server says that it has it, too.
    #[serde(default)]
    pub(crate) announced: bool,
    /// Set if it is a tool of an MCP server, which gives its whole result to callers that are capable of `mcp/result`.
    #[serde(default)]
    pub(crate) result: Option<ToolResult>,
}

/// The result of a tool of an MCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToolResult {
    /// Its content.
    Content,
    /// Its content, and what its `outputSchema` describes.
    Structured,
}

#[derive(Deserialize)]
struct ExtendedResult {
    #[serde(rename = "x-mcp", default)]
    mcp: Extension,
}

impl Services {
    pub(crate) fn new(bus: Arc<Bus>, exposed: Vec<Exposed>) -> Self {
        Self { bus, exposed }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.exposed.iter().map(|exposed| exposed.service.as_str())
    }

    /// How long the longest call may take.
    pub(crate) fn longest(&self) -> Duration {
        self.exposed.iter().map(|exposed| exposed.deadline).max().unwrap_or_default()
    }

    /// Asks each service that the caller may use what it may call there.
    ///
    /// # Errors
    /// [`OfferError`] if none of them answers.
    pub(crate) async fn offer(&self, caller: &dyn Caller, last: Option<&Offer>) -> Result<Offer, OfferError> {
        self.bus.connect().await.map_err(|error| OfferError::Silent(error.to_string()))?;
        let open: Vec<&Exposed> = self.exposed.iter().filter(|exposed| caller.admits(&exposed.service)).collect();
        let asked = open.iter().map(async |exposed| match self.bus.request(caller, &exposed.service).await {
            Ok((request, _)) => request.deadline(ASKED).discover().await,
            Err(away) => Err(away.into()),
        });
        let mut offer = Offer { many: self.exposed.len() > 1, ..Offer::default() };
        let mut all: Vec<Arc<Tool>> = Vec::new();
        let mut no_token = None;
        for (exposed, found) in open.iter().zip(join_all(asked).await) {
            match found {
                Ok(found) => {
                    let methods = found.methods.into_iter().filter(|method| (exposed.allows)(&method.name));
                    all.extend(methods.map(|method| Arc::new(Tool::new(exposed, method))));
                }
                Err(error) => {
                    tracing::warn!(target: "sealwire::gateway", service = exposed.service, %error, "cannot list the methods");
                    match &error {
                        ClientError::Token(fault) => no_token = Some(Arc::clone(fault)),
                        // The service is unreachable, which does not change what it has.
                        _ => all.extend(last.into_iter().flat_map(|last| last.of_service(&exposed.service))),
                    }
                    offer.missing.push(format!("`{}`: {error}", exposed.service));
                }
            }
        }
        if offer.missing.len() == open.len() {
            return Err(no_token.map_or_else(|| OfferError::Silent(offer.missing.join("; ")), OfferError::Token));
        }
        offer.bytes = all.iter().map(|tool| tool.bytes()).sum();
        let (relayed, tools): (Vec<_>, Vec<_>) = all.into_iter().partition(|tool| tool.mcp.request.is_some());
        offer.relayed = relayed;
        offer.tools = named(tools, offer.many);
        Ok(offer)
    }
}

impl std::fmt::Debug for Exposed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exposed").field("service", &self.service).finish_non_exhaustive()
    }
}

/// These tools by the names that callers use. Subscriptions are left out, since no tool call can use one.
fn named(tools: Vec<impl Into<Arc<Tool>>>, many: bool) -> BTreeMap<String, Arc<Tool>> {
    let mut by_name: BTreeMap<String, Vec<Arc<Tool>>> = BTreeMap::new();
    for tool in tools.into_iter().map(Into::into).filter(|tool| !tool.method.is_subscription) {
        by_name.entry(tool_name(many, &tool)).or_default().push(tool);
    }
    let mut named = BTreeMap::new();
    for (name, tools) in by_name {
        let shared = tools.len() > 1;
        for tool in tools {
            let own = if shared { with_digest(&name, &tool.origin()) } else { name.clone() };
            named.insert(own, tool);
        }
    }
    named
}

impl Tool {
    fn new(exposed: &Exposed, method: MethodInfo) -> Self {
        let extended =
            method.document.as_deref().and_then(|text| serde_json::from_str::<ExtendedResult>(text.get()).ok());
        let mcp = extended.map(|extended| extended.mcp).unwrap_or_default();
        let mirrored = headers::mirrored_in(method.params.get());
        Self { service: exposed.service.clone(), deadline: exposed.deadline, mcp, method, mirrored }
    }

    /// Roughly how many bytes it occupies: parts of its document are stored twice.
    fn bytes(&self) -> usize {
        1_024 + 3 * self.method.document.as_deref().map_or(0, |text| text.get().len())
    }

    /// Identifies the method among those of all services.
    fn origin(&self) -> String {
        format!("{} {}", self.service, self.method.name)
    }
}

/// The longest name that all clients accept.
const MAX_NAME: usize = 64;

/// The name of a method for callers that accept 1 to 64 of `A-Z a-z 0-9 _ -`: `math_add` for `math/add`, and `demo__math_add` if
/// there are several services. A name that is too long, or would equal another, ends in a digest of service and method.
fn tool_name(many: bool, tool: &Tool) -> String {
    let method = tool.method.name.replace(['/', '.'], "_");
    let name = if many { format!("{}__{method}", tool.service) } else { method };
    if name.len() <= MAX_NAME { name } else { with_digest(&name, &tool.origin()) }
}

fn with_digest(name: &str, of: &str) -> String {
    let digest: String = Sha256::digest(of.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let kept: String = name.chars().take(MAX_NAME - digest.len() - 1).collect();
    format!("{kept}_{digest}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn tool(service: &str, method: &str) -> Tool {
        let text = format!(r#"{{"name":"{method}","x-params":{{}},"result":{{"schema":{{}}}}}}"#);
        let exposed =
            Exposed { service: service.to_owned(), deadline: Duration::from_secs(1), allows: Box::new(|_| true) };
        Tool::new(&exposed, serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn names_are_such_as_all_clients_take_and_each_is_of_one_method() {
        let names = |tools: Vec<Tool>, many| {
            named(tools, many).into_iter().map(|(name, tool)| (name, tool.method.name.clone())).collect::<Vec<_>>()
        };
        let pair = |name: &str, method: &str| (name.to_owned(), method.to_owned());
        assert_eq!(names(vec![tool("demo", "math/add")], false), [pair("math_add", "math/add")]);
        assert_eq!(names(vec![tool("demo", "math.add")], true), [pair("demo__math_add", "math.add")]);
        let long = format!("m/{}", "x".repeat(100));
        let all = names(vec![tool("demo", "a/b"), tool("demo", "a_b"), tool("demo", &long)], false);
        assert_eq!(all.len(), 3);
        for (name, _) in &all {
            assert!(
                name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)),
                "{name}"
            );
        }
        assert!(all.iter().all(|(name, _)| name != "a_b"), "neither has the name that both would have: {all:?}");
        let offer = |tools: Vec<Tool>, many| Offer { tools: self::named(tools, many), many, ..Offer::default() };
        let called = |offer: &Offer, name: &str| offer.tool(name).map(|tool| tool.method.name.clone());
        let one = offer(vec![tool("demo", "math/add")], false);
        for name in ["math_add", "math/add", "math.add"] {
            assert_eq!(called(&one, name).as_deref(), Some("math/add"));
        }
        assert_eq!((called(&one, "math/mul"), called(&one, "demo__math/add")), (None, None));
        let two = offer(vec![tool("demo", "math/add"), tool("other", "math/add")], true);
        assert_eq!(two.tool("other__math.add").map(|tool| tool.service.as_str()), Some("other"));
        assert!(two.tool("math/add").is_none());
        let alike = offer(vec![tool("demo", "a/b"), tool("demo", "a.b"), tool("demo", "a_b")], false);
        for name in ["a/b", "a.b"] {
            assert_eq!(called(&alike, name).as_deref(), Some(name), "its own");
        }
        assert_eq!(called(&alike, "a_b"), None);
        // The name does not depend on the other methods.
        let alone = names(vec![tool("demo", &long)], false);
        assert!(all.contains(&alone[0]));
        // An unreachable service keeps its tools, under the same names.
        let kept = named(two.of_service("demo").chain(two.of_service("other")).collect(), true);
        assert!(kept.keys().eq(two.tools.keys()) && two.of_service("demo").count() == 1);
    }
}
