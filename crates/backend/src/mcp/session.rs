//! A server that has answered, in the revision of the protocol that it speaks: 2026-07-28, where every request describes itself, or an
//! earlier one, which begins with a handshake.
//! Never guesses the revision: a server that answers `server/discover` as the newer revision requires is of the newer one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use sealwire::internal::service::FairPermit;
use sealwire::{Caller, RpcError};
use sealwire_mcp::{
    CallerInfo, ClientCapabilities, Id, Implementation, LogLevel, Members, Meta, Revision, SubscriptionFilter, code,
    headers, insert,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::conversation::{Exchange, JsonRpcPeer, PeerHealth};
use super::headers::{bounded, encoded};
use super::http::VERSION;
use super::questions::Questions;
use super::types::{Answer, Purpose, Refusal, UnaskedStream};
use crate::backend::without_position;

/// A server that has said what it is.
#[derive(Debug)]
pub(super) struct Session {
    conversation: Arc<JsonRpcPeer>,
    revision: Revision,
    /// What it may ask callers for.
    questions: Questions,
    pub(super) capabilities: Capabilities,
}

/// What the server offers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    pub(super) tools: bool,
    /// Whether it announces changes of its tools.
    pub(super) tools_change: bool,
    pub(super) resources: bool,
    /// Whether it announces changes of their list, ...
    pub(super) resources_change: bool,
    /// ... and, as it says, of single ones.
    pub(super) subscribe: bool,
    pub(super) prompts: bool,
    pub(super) completions: bool,
    /// Whether it announces changes of its prompts.
    pub(super) prompts_change: bool,
}

impl Capabilities {
    pub(super) const ALL: Self = Self {
        tools: true,
        tools_change: true,
        resources: true,
        resources_change: true,
        subscribe: true,
        prompts: true,
        prompts_change: true,
        completions: true,
    };
}

/// What goes with a request besides its parameters.
#[derive(Debug)]
pub(super) struct CallContext<'a> {
    /// Whether the caller takes notifications and questions.
    pub(super) takes_frames: bool,
    /// What the caller can be asked for.
    pub(super) capable: ClientCapabilities,
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

const MODERN: &str = Revision::V2026_07_28.as_str();

/// How long a server may take for `server/discover` before the handshake is tried as well. A server of an earlier revision may not answer
/// what it does not know, and a slow one may still answer.
const PROBE: Duration = Duration::from_secs(10);
/// MCP 2026-07-28: the request for news, which lasts until its answer.
const LISTEN: &str = "subscriptions/listen";
/// MCP 2026-07-28, Streamable HTTP: what the head of each request repeats of its body.
const METHOD: HeaderName = HeaderName::from_static(headers::METHOD);
const NAME: HeaderName = HeaderName::from_static(headers::NAME);
/// How often to check whether a server hangs: the shortest and the longest interval.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// After how many failed checks in a row the service connects anew ...
const FAILURES: u32 = 3;
/// ... and the pause after the first; later ones are longer.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Line<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'a str,
    params: &'a Members,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoverResult {
    supported_versions: Vec<String>,
    capabilities: Offers,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeResult {
    protocol_version: String,
    capabilities: Offers,
}

#[derive(Deserialize)]
struct Offers {
    tools: Option<Value>,
    resources: Option<Value>,
    prompts: Option<Value>,
    completions: Option<serde::de::IgnoredAny>,
}

/// Whether an offer has this flag. Nothing else depends on what is in it.
fn says(offer: Option<&Value>, flag: &str) -> bool {
    offer.and_then(|offer| offer.get(flag)) == Some(&Value::Bool(true))
}

impl From<Offers> for Capabilities {
    fn from(offers: Offers) -> Self {
        Self {
            tools_change: says(offers.tools.as_ref(), "listChanged"),
            resources_change: says(offers.resources.as_ref(), "listChanged"),
            subscribe: says(offers.resources.as_ref(), "subscribe"),
            tools: offers.tools.is_some(),
            resources: offers.resources.is_some(),
            prompts: offers.prompts.is_some(),
            completions: offers.completions.is_some(),
            prompts_change: says(offers.prompts.as_ref(), "listChanged"),
        }
    }
}

impl Session {
    /// Speaks the revision that is `wanted`, or finds out which one the server speaks. `probe` is false if only an earlier one is wanted, and
    /// for a server that ended when it was asked in the newer way.
    ///
    /// # Errors
    /// Why that failed, for the log.
    pub(super) async fn open(
        conversation: Arc<JsonRpcPeer>,
        questions: Questions,
        wanted: Option<Revision>,
        probe: bool,
        patience: Duration,
    ) -> Result<Self, String> {
        let is_only = wanted == Some(Revision::V2026_07_28);
        let (revision, capabilities) = (Revision::V2026_07_28, Capabilities::default());
        let mut session = Self { conversation, revision, questions, capabilities };
        let ended = |_| "it has ended".to_owned();
        let mut discovery = None;
        if probe {
            let asked = session.send("server/discover", Members::new(), None, Purpose::Us).await.map_err(ended)?;
            let asked = discovery.insert(asked);
            let patience = if is_only { patience } else { PROBE.min(patience) };
            if let Ok(answer) = tokio::time::timeout(patience, answer(asked)).await {
                let refused = answer.as_ref().err().map(|refusal| format!(": {refusal}")).unwrap_or_default();
                if session.discovered(answer)? {
                    return Ok(session);
                }
                discovery = None;
                if is_only {
                    return Err(format!("it does not speak {MODERN}, the `revision` of the configuration{refused}"));
                }
            }
        }
        if is_only {
            return Err("it does not answer `server/discover`".to_owned());
        }
        session.revision = wanted.unwrap_or(Revision::NEWEST_WITH_HANDSHAKE);
        let mut params = Members::new();
        insert(&mut params, "protocolVersion", &session.revision);
        insert(&mut params, "capabilities", &questions.any());
        insert(&mut params, "clientInfo", &Implementation::SEALWIRE);
        let mut asked = session.send("initialize", params, None, Purpose::Us).await.map_err(ended)?;
        let first = async {
            let Some(discovery) = &mut discovery else { return Ok(answer(&mut asked).await) };
            tokio::select! {
                biased;
                found = answer(discovery) => Err(found),
                settled = answer(&mut asked) => match settled {
                    // Having read the first question, it speaks the newer revision.
                    Err(Refusal::Server(error)) if error.code() == code::UNSUPPORTED_VERSION => Err(answer(discovery).await),
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
        let found: InitializeResult = serde_json::from_str(result.get())
            .map_err(|error| format!("its answer to `initialize`: {}", without_position(&error)))?;
        let known = Revision::parse(&found.protocol_version).filter(|revision| revision.has_handshake());
        let Some(revision) = known else {
            return Err(format!("it speaks revision `{}`, which is not known", found.protocol_version.escape_debug()));
        };
        (session.revision, session.capabilities) = (revision, found.capabilities.into());
        if let Some(http) = session.conversation.http() {
            http.agree(revision.as_str())?;
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
            Err(Refusal::Server(error)) if error.code() == code::UNSUPPORTED_VERSION && !names_earlier(&error) => {
                let refusal = Refusal::Server(error);
                return Err(format!("it speaks neither {MODERN} nor an earlier revision that is known: {refusal}"));
            }
            Err(refusal @ (Refusal::Unreached(_) | Refusal::Status(401 | 403))) => return Err(refusal.to_string()),
            // MCP 2026-07-28, stdio and Streamable HTTP: anything but an error of the newer revision means the earlier handshake.
            Err(_) => return Ok(false),
        };
        let found = serde_json::from_str::<DiscoverResult>(result.get()).ok();
        let found = found.filter(|found| found.supported_versions.iter().any(|version| version == MODERN));
        let Some(found) = found else { return Ok(false) };
        (self.revision, self.capabilities) = (Revision::V2026_07_28, found.capabilities.into());
        Ok(true)
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn questions(&self) -> Questions {
        self.questions
    }

    pub(super) fn conversation(&self) -> &Arc<JsonRpcPeer> {
        &self.conversation
    }

    pub(super) fn is_over_http(&self) -> bool {
        self.conversation.http().is_some()
    }

    /// Sends a request for a caller.
    pub(super) async fn begin(
        &self,
        method: &str,
        params: Members,
        about: &CallContext<'_>,
    ) -> Result<Exchange, RpcError> {
        self.send(method, params, Some(about), Purpose::Caller).await
    }

    /// Why it has no way to tell of changes, as it may be over HTTP before 2026-07-28.
    pub(super) fn silence(&self) -> Option<&'static str> {
        let http = self.conversation.http().filter(|_| self.revision.has_handshake())?;
        match *http.stream.borrow() {
            _ if !http.has_session() => Some("the server keeps no session, in which it could tell of changes"),
            UnaskedStream::Refused => Some("the server has no stream on which it could tell of changes"),
            UnaskedStream::Unknown | UnaskedStream::Open => None,
        }
    }

    /// Whether it tells of changes of single resources.
    pub(super) fn tells_of_resources(&self) -> bool {
        self.capabilities.subscribe && self.silence().is_none()
    }

    /// The stream on which it tells of changes; one that is there from the beginning if it needs none.
    pub(super) fn stream(&self) -> watch::Receiver<UnaskedStream> {
        let http = self.conversation.http();
        http.map_or_else(|| watch::channel(UnaskedStream::Open).1, |http| http.stream.subscribe())
    }

    /// Asks to be told when these resources change, for as long as the returned exchange is kept (2026-07-28).
    pub(super) async fn watch(&self, uris: &BTreeSet<Arc<str>>) -> Result<Exchange, RpcError> {
        let uris = uris.iter().map(ToString::to_string).collect();
        self.subscribe(&SubscriptionFilter { uris, ..SubscriptionFilter::default() }).await
    }

    async fn subscribe(&self, filter: &SubscriptionFilter) -> Result<Exchange, RpcError> {
        let mut params = Members::new();
        insert(&mut params, "notifications", filter);
        self.send(LISTEN, params, None, Purpose::News).await
    }

    /// Asks to be told when the tools change, and the `prompts` and the list of `resources` if they matter, for as long as the returned exchange is kept. A process of an
    /// earlier revision tells unasked; over HTTP, such a server does so if it keeps sessions.
    pub(super) async fn listen(&self, prompts: bool, resources: bool) -> Option<Exchange> {
        if self.revision.has_handshake() {
            // Some announce changes without having declared it.
            self.conversation.http().filter(|http| http.has_session())?;
            let mut news = self.conversation.begin(Purpose::News, None)?;
            news.listen();
            return Some(news);
        }
        let Capabilities { tools_change, prompts_change, resources_change, .. } = self.capabilities;
        let filter = SubscriptionFilter {
            tools: tools_change,
            prompts: prompts && prompts_change,
            resources: resources && resources_change,
            ..SubscriptionFilter::default()
        };
        if filter == SubscriptionFilter::default() {
            return None;
        }
        self.subscribe(&filter).await.ok()
    }

    /// Watches the server for as long as the future is polled. Returns if the server is silent for `patience` on everything that it was
    /// asked, or is unavailable while nobody waits for anything from it. `tell` gets the reason when it is unavailable, and `None` when it
    /// is back.
    pub(super) async fn until_unresponsive(&self, patience: Duration, tell: impl Fn(Option<String>)) -> String {
        let mut look = tokio::time::interval((patience / 8).clamp(LOOK.0, LOOK.1));
        let (mut asked, mut failures) = (None, 0_u32);
        let again = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(again);
        loop {
            let is_doubtful = tokio::select! {
                _ = look.tick() => match self.conversation.look(patience) {
                    PeerHealth::Fine => false,
                    PeerHealth::Ask => true,
                    PeerHealth::Hangs => {
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
                let method = if self.revision.has_handshake() { "ping" } else { "server/discover" };
                let sent = tokio::time::timeout(LOOK.1, self.send(method, Members::new(), None, Purpose::Us)).await;
                asked = sent.ok().and_then(Result::ok);
            }
        }
    }

    /// Makes a request of the service itself, and waits for its answer.
    pub(super) async fn ask(&self, method: &str, params: Members) -> Answer {
        let sent = self.send(method, params, None, Purpose::Us).await;
        answer(&mut sent.map_err(|_| Refusal::Broken("it has ended".to_owned()))?).await
    }

    async fn send(
        &self,
        method: &str,
        mut params: Members,
        about: Option<&CallContext<'_>>,
        made_for: Purpose,
    ) -> Result<Exchange, RpcError> {
        let mut fields = HeaderMap::new();
        if !self.revision.has_handshake() && self.is_over_http() {
            fields = about.map(|about| about.headers.clone()).unwrap_or_default();
            if let Some(name) = headers::named(method).and_then(|member| params.get(member)) {
                fields.insert(NAME, encoded(&serde_json::from_str::<String>(name.get()).unwrap_or_default()));
            }
            bounded(&fields)?;
            fields.insert(VERSION, HeaderValue::from_static(MODERN));
            fields.insert(METHOD, encoded(method));
        }
        let of = about.map(|about| (about.caller, about.permit));
        let mut exchange = self.conversation.begin(made_for, of).ok_or_else(gone)?;
        if method.ends_with("/list") {
            // Its entries are judged one by one.
            self.conversation.take_leniently(exchange.id);
        }
        let (modern, asks) = (!self.revision.has_handshake(), about.is_some_and(|about| about.takes_frames));
        let who = |caller: &Caller| CallerInfo { agent: caller.agent.to_string(), subject: caller.subject.clone() };
        let meta = Meta {
            version: modern.then(|| MODERN.to_owned()),
            client: modern.then_some(Implementation::SEALWIRE),
            capabilities: modern.then(|| about.map(|about| about.capable).unwrap_or_default()),
            level: (modern && asks).then_some(LogLevel::Info),
            progress: asks.then(|| i64::try_from(exchange.id).map(Id::Number).ok()).flatten(),
            traceparent: about.and_then(|about| about.traceparent).map(str::to_owned),
            caller: about.filter(|about| about.send_caller).map(|about| who(about.caller)),
            ..Meta::default()
        };
        if modern || asks || meta.traceparent.is_some() || meta.caller.is_some() {
            insert(&mut params, "_meta", &meta);
        }
        let line = Line { jsonrpc: "2.0", id: exchange.id, method, params: &params };
        exchange.send(serde_json::to_vec(&line).map_err(RpcError::internal)?, fields).await;
        Ok(exchange)
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

/// Whether a refusal of our version leaves open an earlier one that we speak.
fn names_earlier(error: &RpcError) -> bool {
    #[derive(Deserialize)]
    struct SupportedVersions {
        supported: Vec<String>,
    }
    let supported = error.data().and_then(|data| serde_json::from_str::<SupportedVersions>(data.get()).ok());
    supported.is_none_or(|known| {
        known.supported.iter().any(|version| Revision::parse(version).is_some_and(Revision::has_handshake))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use sealwire::internal::rpc::{Limits, Response, Responses};

    #[test]
    fn a_server_that_refuses_writes_no_lines_of_its_own() {
        let (conversation, _) = JsonRpcPeer::of_process("server", &Arc::default());
        let mut session = Session {
            conversation,
            revision: Revision::V2026_07_28,
            questions: Questions::new(&[]),
            capabilities: Capabilities::default(),
        };
        let answer = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"x\nerror: FAKE","data":{"supported":["1"]}}}"#;
        let Responses::Single(Response { outcome, .. }) = Responses::parse(answer, &Limits::default()).unwrap() else {
            unreachable!("one answer")
        };
        let said = session.discovered(outcome.map_err(Refusal::Server)).unwrap_err();
        assert!(said.contains(r"error -32022: x\nerror: FAKE") && !said.contains('\n'), "{said}");
    }
}
