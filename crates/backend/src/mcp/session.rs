//! A server that has answered, in the era of the protocol that it speaks: 2026-07-28, where every request describes itself, or an earlier
//! revision, which begins with a handshake.
//! Never guesses the era: a server that answers `server/discover` as the newer revision requires is of the newer one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use sealwire::RpcError;
use sealwire::auth::Caller;
use sealwire::service::FairPermit;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;

use super::conversation::{Answer, Conversation, Exchange, For, Look, Refusal};
use super::headers::{bounded, encoded};
use super::http::VERSION;

/// The params of a request, each member as the text that came.
pub(super) type Members = BTreeMap<String, Box<RawValue>>;

/// A server that has said what it is.
#[derive(Debug)]
pub(super) struct Session {
    conversation: Arc<Conversation>,
    era: Era,
    pub(super) capabilities: Capabilities,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// 2026-07-28.
    Modern,
    /// Up to 2025-11-25.
    Legacy,
}

/// What the server offers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    pub(super) tools: bool,
    /// Whether it announces changes of its tools.
    pub(super) tools_change: bool,
    pub(super) resources: bool,
    pub(super) prompts: bool,
}

impl Capabilities {
    pub(super) const ALL: Self = Self { tools: true, tools_change: true, resources: true, prompts: true };
}

/// What goes with a request besides its parameters.
#[derive(Debug)]
pub(super) struct About<'a> {
    /// Whether the caller takes notifications and questions.
    pub(super) takes_frames: bool,
    /// The W3C trace context to continue.
    pub(super) traceparent: Option<&'a str>,
    /// Who calls.
    pub(super) caller: &'a Caller,
    /// The call's place among those of the backend.
    pub(super) permit: &'a Arc<FairPermit>,
    /// Whether the server is told who calls.
    pub(super) send_caller: bool,
    /// What the tool wants in the head of the request, over HTTP.
    pub(super) headers: &'a HeaderMap,
}

/// The caller, for servers that are told who calls. Never the token.
#[derive(Debug, Clone, Copy, Serialize)]
struct Who<'a> {
    agent: &'a str,
    subject: &'a str,
}

const MODERN: &str = "2026-07-28";
/// The newest first: it is the one that is offered.
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// How long a server may take for `server/discover` before the handshake is tried as well. A server of an earlier revision may not answer
/// what it does not know, and a slow one may still answer.
const PROBE: Duration = Duration::from_secs(10);
/// MCP 2026-07-28: the server does not speak the requested version.
const UNSUPPORTED_VERSION: i32 = -32022;
/// MCP 2026-07-28, Streamable HTTP: what the head of each request repeats of its body ...
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// ... and which requests have a name.
const NAMED: [&str; 3] = ["tools/call", "resources/read", "prompts/get"];
/// How often to check whether a server hangs: the shortest and the longest interval.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// After how many failed checks in a row the service connects anew ...
const FAILURES: u32 = 3;
/// ... and the pause after the first; later ones are longer.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Meta<'a> {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion", skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    #[serde(rename = "io.modelcontextprotocol/clientInfo", skip_serializing_if = "Option::is_none")]
    client: Option<Implementation>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities", skip_serializing_if = "Option::is_none")]
    capabilities: Option<ClientCapabilities>,
    #[serde(rename = "io.modelcontextprotocol/logLevel", skip_serializing_if = "Option::is_none")]
    log_level: Option<&'static str>,
    #[serde(rename = "progressToken", skip_serializing_if = "Option::is_none")]
    progress_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(rename = "dev.sealwire/caller", skip_serializing_if = "Option::is_none")]
    caller: Option<Who<'a>>,
}

#[derive(Serialize)]
struct Implementation {
    name: &'static str,
    version: &'static str,
}

const US: Implementation = Implementation { name: "sealwire", version: env!("CARGO_PKG_VERSION") };

/// We take questions to the caller, as forms.
#[derive(Serialize)]
struct ClientCapabilities {
    #[serde(skip_serializing_if = "Option::is_none")]
    elicitation: Option<Elicitation>,
}

#[derive(Serialize)]
struct Elicitation {
    form: Empty,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct Line<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: &'a Members,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Discovered {
    supported_versions: Vec<String>,
    capabilities: Offers,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialized {
    protocol_version: String,
    capabilities: Offers,
}

#[derive(Deserialize)]
struct Offers {
    tools: Option<Tools>,
    resources: Option<serde::de::IgnoredAny>,
    prompts: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tools {
    #[serde(default)]
    list_changed: bool,
}

impl From<Offers> for Capabilities {
    fn from(offers: Offers) -> Self {
        Self {
            tools: offers.tools.is_some(),
            tools_change: offers.tools.is_some_and(|tools| tools.list_changed),
            resources: offers.resources.is_some(),
            prompts: offers.prompts.is_some(),
        }
    }
}

impl Session {
    /// Finds out which revision the server speaks. `probe` is false for a server that ended when it was asked in the newer way.
    ///
    /// # Errors
    /// Why that failed, for the log.
    pub(super) async fn open(conversation: Arc<Conversation>, probe: bool, patience: Duration) -> Result<Self, String> {
        let mut session = Self { conversation, era: Era::Modern, capabilities: Capabilities::default() };
        let ended = |_| "it has ended".to_owned();
        let mut discovery = None;
        if probe {
            let asked = session.send("server/discover", Members::new(), None, For::Us).await.map_err(ended)?;
            let asked = discovery.insert(asked);
            if let Ok(answer) = tokio::time::timeout(PROBE.min(patience), answer(asked)).await {
                if session.discovered(answer)? {
                    return Ok(session);
                }
                discovery = None;
            }
        }
        session.era = Era::Legacy;
        let mut params = Members::new();
        insert(&mut params, "protocolVersion", &LEGACY[0]);
        insert(&mut params, "capabilities", &ClientCapabilities { elicitation: Some(Elicitation { form: Empty {} }) });
        insert(&mut params, "clientInfo", &US);
        let mut asked = session.send("initialize", params, None, For::Us).await.map_err(ended)?;
        let first = async {
            let Some(discovery) = &mut discovery else { return Ok(answer(&mut asked).await) };
            tokio::select! {
                biased;
                found = answer(discovery) => Err(found),
                settled = answer(&mut asked) => match settled {
                    // Having read the first question, it speaks the newer revision.
                    Err(Refusal::Server(error)) if error.code() == UNSUPPORTED_VERSION => Err(answer(discovery).await),
                    settled => Ok(settled),
                },
            }
        };
        let late = |_| "it does not answer `initialize`".to_owned();
        let result = match tokio::time::timeout(patience, first).await.map_err(late)? {
            Err(found) => {
                if session.discovered(found)? {
                    return Ok(session);
                }
                tokio::time::timeout(patience, answer(&mut asked)).await.map_err(late)?
            }
            Ok(result) => result,
        };
        let result = result.map_err(|refusal| match refusal {
            Refusal::Unreached(reason) => reason,
            refusal => format!("`initialize`: {refusal}"),
        })?;
        let found: Initialized =
            serde_json::from_str(result.get()).map_err(|error| format!("its answer to `initialize`: {error}"))?;
        let Some(version) = LEGACY.into_iter().find(|version| *version == found.protocol_version) else {
            return Err(format!("it speaks revision `{}`, which is not known", found.protocol_version.escape_debug()));
        };
        session.capabilities = found.capabilities.into();
        if let Some(http) = session.conversation.http() {
            http.agree(version)?;
        }
        let initialized = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_vec();
        // What becomes of it shows in the next request.
        drop(session.conversation.write(initialized, None).await);
        Ok(session)
    }

    /// Whether the server speaks the newer revision; if so, records what it offers.
    ///
    /// # Errors
    /// It speaks no known revision, or refuses to speak to us; says why.
    fn discovered(&mut self, answer: Answer) -> Result<bool, String> {
        let result = match answer {
            Ok(result) => result,
            Err(Refusal::Server(error)) if error.code() == UNSUPPORTED_VERSION && !names_earlier(&error) => {
                let refusal = Refusal::Server(error);
                return Err(format!("it speaks neither {MODERN} nor an earlier revision that is known: {refusal}"));
            }
            Err(refusal @ (Refusal::Unreached(_) | Refusal::Status(401 | 403))) => return Err(refusal.to_string()),
            // MCP 2026-07-28, stdio and Streamable HTTP: anything but an error of the newer revision means the earlier handshake.
            Err(_) => return Ok(false),
        };
        let found = serde_json::from_str::<Discovered>(result.get()).ok();
        let found = found.filter(|found| found.supported_versions.iter().any(|version| version == MODERN));
        let Some(found) = found else { return Ok(false) };
        (self.era, self.capabilities) = (Era::Modern, found.capabilities.into());
        Ok(true)
    }

    pub(super) fn era(&self) -> Era {
        self.era
    }

    pub(super) fn conversation(&self) -> &Arc<Conversation> {
        &self.conversation
    }

    pub(super) fn is_over_http(&self) -> bool {
        self.conversation.http().is_some()
    }

    /// Sends a request for a caller.
    pub(super) async fn begin(&self, method: &str, params: Members, about: &About<'_>) -> Result<Exchange, RpcError> {
        self.send(method, params, Some(about), For::Caller).await
    }

    /// Asks to be told when the tools change, for as long as the returned exchange is kept. A process of an earlier revision tells unasked;
    /// over HTTP, such a server does so if it keeps sessions.
    pub(super) async fn listen(&self) -> Option<Exchange> {
        if self.era == Era::Legacy {
            // Some announce changes without having declared it.
            self.conversation.http().filter(|http| http.has_session())?;
            let mut news = self.conversation.begin(For::News, None)?;
            news.listen();
            return Some(news);
        }
        if !self.capabilities.tools_change {
            return None;
        }
        let mut params = Members::new();
        insert(&mut params, "notifications", &serde_json::json!({ "toolsListChanged": true }));
        self.send("subscriptions/listen", params, None, For::News).await.ok()
    }

    /// Watches the server for as long as the future is polled. Returns if the server is silent for `patience` on everything that it was
    /// asked, or is unavailable while nobody waits for anything from it. `tell` gets the reason when it is unavailable, and `None` when it
    /// is back.
    pub(super) async fn hangs(&self, patience: Duration, tell: impl Fn(Option<String>)) -> String {
        let mut look = tokio::time::interval((patience / 8).clamp(LOOK.0, LOOK.1));
        let (mut asked, mut failures) = (None, 0_u32);
        let again = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(again);
        loop {
            let is_doubtful = tokio::select! {
                _ = look.tick() => match self.conversation.look(patience) {
                    Look::Fine => false,
                    Look::Ask => true,
                    Look::Hangs => {
                        return format!("it has not responded to anything for {} s", patience.as_secs());
                    }
                },
                () = self.conversation.doubt() => asked.is_none(),
                // Calls under way have connections of their own, about which one answer says nothing.
                refusal = over(&mut asked) => match refusal {
                    Some(refusal) if refusal.is_doubtful() => {
                        failures += 1;
                        if failures >= FAILURES && !self.conversation.is_in_use() {
                            return refusal.to_string();
                        }
                        tell(Some(refusal.to_string()));
                        again.as_mut().reset(Instant::now() + AGAIN * failures.min(FAILURES));
                        false
                    }
                    _ => {
                        if failures > 0 {
                            failures = 0;
                            tell(None);
                        }
                        false
                    }
                },
                () = &mut again, if failures > 0 && asked.is_none() => true,
            };
            if is_doubtful && asked.is_none() {
                // Every server must answer this. One that reads nothing cannot even be asked.
                let method = if self.era == Era::Modern { "server/discover" } else { "ping" };
                let sent = tokio::time::timeout(LOOK.1, self.send(method, Members::new(), None, For::Us)).await;
                asked = sent.ok().and_then(Result::ok);
            }
        }
    }

    /// Makes a request of the service itself, and waits for its answer.
    pub(super) async fn ask(&self, method: &str, params: Members) -> Answer {
        let sent = self.send(method, params, None, For::Us).await;
        answer(&mut sent.map_err(|_| Refusal::Broken("it has ended".to_owned()))?).await
    }

    async fn send(
        &self,
        method: &str,
        mut params: Members,
        about: Option<&About<'_>>,
        made_for: For,
    ) -> Result<Exchange, RpcError> {
        let mut headers = HeaderMap::new();
        if self.era == Era::Modern && self.is_over_http() {
            headers = about.map(|about| about.headers.clone()).unwrap_or_default();
            let name = ["name", "uri"].iter().find_map(|name| params.get(*name));
            if let (Some(name), true) = (name, NAMED.contains(&method)) {
                headers.insert(NAME, encoded(&serde_json::from_str::<String>(name.get()).unwrap_or_default()));
            }
            bounded(&headers)?;
            headers.insert(VERSION, HeaderValue::from_static(MODERN));
            headers.insert(METHOD, encoded(method));
        }
        let of = about.map(|about| (about.caller, about.permit));
        let mut exchange = self.conversation.begin(made_for, of).ok_or_else(gone)?;
        let (modern, asks) = (self.era == Era::Modern, about.is_some_and(|about| about.takes_frames));
        let who = |about: &&About<'_>| about.send_caller;
        let meta = Meta {
            version: modern.then_some(MODERN),
            client: modern.then_some(US),
            capabilities: modern
                .then(|| ClientCapabilities { elicitation: asks.then_some(Elicitation { form: Empty {} }) }),
            log_level: (modern && asks).then_some("info"),
            progress_token: asks.then_some(exchange.id),
            traceparent: about.and_then(|about| about.traceparent),
            caller: about.map(|about| about.caller).filter(|_| about.as_ref().is_some_and(who)).map(Who::of),
        };
        if modern || asks || meta.traceparent.is_some() || meta.caller.is_some() {
            insert(&mut params, "_meta", &meta);
        }
        let line = Line { jsonrpc: "2.0", id: exchange.id, method, params: &params };
        exchange.send(serde_json::to_vec(&line).map_err(RpcError::internal)?, headers).await;
        Ok(exchange)
    }
}

impl<'a> Who<'a> {
    fn of(caller: &'a Caller) -> Self {
        Self { agent: caller.agent.as_str(), subject: &caller.subject }
    }
}

/// Waits for the answer to a request of the service itself.
async fn answer(asked: &mut Exchange) -> Answer {
    (&mut asked.outcome).await.unwrap_or_else(|_| Err(Refusal::Broken("it has ended".to_owned())))
}

/// Waits for the end of such a request, if there is one, and forgets it; returns why it has no result.
pub(super) async fn over(asked: &mut Option<Exchange>) -> Option<Refusal> {
    let Some(exchange) = asked else { return std::future::pending().await };
    let answer = (&mut exchange.outcome).await;
    *asked = None;
    answer.ok().and_then(Result::err)
}

/// The error of a request whose server is unavailable.
pub(super) fn gone() -> RpcError {
    RpcError::dependency("the server is gone")
}

pub(super) fn insert(members: &mut Members, name: &str, value: &impl Serialize) {
    // Serializing our own types cannot fail.
    if let Ok(raw) = to_raw_value(value) {
        members.insert(name.to_owned(), raw);
    }
}

/// Whether a refusal of our version leaves open an earlier one that we speak.
fn names_earlier(error: &RpcError) -> bool {
    #[derive(Deserialize)]
    struct Supported {
        supported: Vec<String>,
    }
    let supported = error.data().and_then(|data| serde_json::from_str::<Supported>(data.get()).ok());
    supported.is_none_or(|known| known.supported.iter().any(|version| LEGACY.contains(&version.as_str())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use sealwire::rpc::{Limits, Response, Responses};

    #[test]
    fn a_server_that_refuses_writes_no_lines_of_its_own() {
        let (conversation, _) = Conversation::of_process("server");
        let mut session = Session { conversation, era: Era::Modern, capabilities: Capabilities::default() };
        let answer = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"x\nerror: FAKE","data":{"supported":["1"]}}}"#;
        let Responses::Single(Response { outcome, .. }) = Responses::parse(answer, &Limits::default()).unwrap() else {
            unreachable!("one answer")
        };
        let said = session.discovered(outcome.map_err(Refusal::Server)).unwrap_err();
        assert!(said.contains(r"error -32022: x\nerror: FAKE") && !said.contains('\n'), "{said}");
    }
}
