//! The Model Context Protocol: methods of services as tools, in revision 2026-07-28 and those with a handshake back to 2025-03-26.
//! Never sends what the client has not declared that it takes, and never more of a service than the agent may call.

mod call;
mod message;
mod outbox;
mod relay;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::JoinSet;

use self::call::{Parked, QuestionReply};
use self::message::{
    Asked, Cancelled, Capabilities, Era, Fault, Id, Initialize, Legacy, MODERN, Message, Outcome, Response, members,
    notification, raw, server_info,
};
pub use self::outbox::Line;
use self::outbox::Outbox;
use crate::bus::Bus;
use crate::catalogue::{Offer, Services, Tool};

/// How a door to MCP is used.
#[derive(Debug, Clone)]
pub struct Options {
    /// The services whose methods are tools.
    pub services: Vec<String>,
    /// How long a call may take.
    pub deadline: Duration,
    /// How often services are asked whether something has changed.
    pub refresh: Duration,
}

/// Why a door has ended before its client did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The input is no line of text, or cannot be read.
    #[error("what comes in cannot be read: {0}")]
    Input(#[from] io::Error),
    /// The client has read nothing for too long.
    #[error("the client has not read for 60 s what it was sent")]
    Stalled,
}

/// One client.
struct Door {
    services: Services,
    options: Options,
    agent: String,
    /// When it began, in nanoseconds since the Unix epoch: names of its own are unlike those of another one.
    started_ns: u128,
    out: Outbox,
    state: Mutex<State>,
    /// Held while services are asked.
    asking: AsyncMutex<()>,
}

#[derive(Default)]
struct State {
    /// What was agreed on with `initialize`.
    legacy: Option<(Legacy, Capabilities)>,
    offer: Option<(Instant, Arc<Offer>)>,
    /// What the client was told last: it hears of it when that changes.
    told: Option<Vec<u8>>,
    /// Requests under way, and how each is stopped.
    running: HashMap<Id, oneshot::Sender<()>>,
    parked: BTreeMap<String, Parked>,
    questions: HashMap<String, oneshot::Sender<QuestionReply>>,
    asked: u64,
    listening: Vec<Id>,
}

/// The most requests under way.
const RUNNING: usize = 32;
/// The most subscriptions to changes, which are beside them.
const LISTENING: usize = 8;
/// What was asked just now is not asked again.
const FRESH: Duration = Duration::from_secs(1);

/// Serves one client until its input ends.
///
/// # Errors
/// [`Ended`].
///
/// Cancel safety: dropping the future gives up what is under way.
pub async fn serve(
    bus: Bus,
    options: Options,
    mut input: mpsc::Receiver<io::Result<Vec<u8>>>,
    write: impl FnOnce(mpsc::Receiver<Line>),
) -> Result<(), Ended> {
    let (out, lines) = Outbox::new();
    write(lines);
    let agent = bus.agent();
    let services = Services::new(bus, options.services.clone());
    let started_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let (state, asking) = (Mutex::default(), AsyncMutex::new(()));
    let door = Arc::new(Door { services, options, agent, started_ns, out, state, asking });
    let mut tasks = JoinSet::new();
    let mut look = tokio::time::interval(door.options.refresh);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    look.tick().await;
    let ended = loop {
        tokio::select! {
            () = door.out.stalled() => break Err(Ended::Stalled),
            Some(done) = tasks.join_next() => {
                if let Err(error) = done
                    && error.is_panic()
                {
                    tracing::error!(target: "sealwire::door", "a request panicked");
                }
            }
            _ = look.tick() => {
                door.state().forget_parked();
                if door.state().is_watched() {
                    let door = Arc::clone(&door);
                    tasks.spawn(async move { door.look().await });
                }
            }
            line = input.recv() => match line {
                None => break Ok(()),
                Some(Err(error)) => break Err(error.into()),
                Some(Ok(line)) => door.take(&line, &mut tasks, true).await,
            },
        }
    };
    // What is under way is given up, and so cancelled at the services.
    tasks.shutdown().await;
    door.state().parked.clear();
    door.services.bus.close().await;
    ended
}

impl Door {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line from the client.
    async fn take(self: &Arc<Self>, line: &[u8], tasks: &mut JoinSet<()>, may_be_batch: bool) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let message = match serde_json::from_slice::<Message<'_>>(line) {
            Ok(message) if message.jsonrpc.as_deref() == Some("2.0") => message,
            Ok(_) => return self.refuse(Fault::new(-32600, "`jsonrpc` must be \"2.0\"")).await,
            Err(error) => {
                let entries = serde_json::from_slice::<Vec<&RawValue>>(line).ok().filter(|_| may_be_batch);
                let takes_batches =
                    self.state().legacy.as_ref().is_some_and(|(version, _)| *version == Legacy::V2025_03_26);
                return match entries {
                    Some(entries) if takes_batches && (1..=RUNNING).contains(&entries.len()) => {
                        for entry in entries {
                            Box::pin(self.take(entry.get().as_bytes(), tasks, false)).await;
                        }
                    }
                    Some(_) => self.refuse(Fault::new(-32600, "one message on each line, and no batch")).await,
                    None if error.is_data() => self.refuse(Fault::new(-32600, format!("no message: {error}"))).await,
                    None => self.refuse(Fault::new(-32700, format!("no JSON: {error}"))).await,
                };
            }
        };
        match (&message.method, message.id) {
            (Some(method), Some(id)) => match serde_json::from_str::<Id>(id.get()) {
                Ok(id) => self.start(id, method, message.params, tasks).await,
                Err(_) => self.refuse(Fault::new(-32600, "`id` must be a string or a whole number")).await,
            },
            (Some(method), None) => self.note(method, message.params),
            (None, Some(id)) => self.answered(id, message.result, message.error),
            (None, None) => self.refuse(Fault::new(-32600, "`method` is missing")).await,
        }
    }

    async fn refuse(&self, fault: Fault) {
        self.out.send(&Response::new(None, &Err(fault))).await;
    }

    fn note(&self, method: &str, params: Option<&RawValue>) {
        if method == "notifications/cancelled"
            && let Some(Ok(cancelled)) = params.map(|params| serde_json::from_str::<Cancelled>(params.get()))
        {
            let mut state = self.state();
            state.listening.retain(|id| *id != cancelled.request);
            if let Some(stop) = state.running.remove(&cancelled.request) {
                // It may have ended just now.
                let _ = stop.send(());
            }
        }
    }

    /// An answer to a question of ours.
    fn answered(&self, id: &RawValue, result: Option<&RawValue>, error: Option<&RawValue>) {
        let Ok(Id::Text(id)) = serde_json::from_str(id.get()) else { return };
        let Some(waiting) = self.state().questions.remove(&id) else { return };
        let reply = match (result, error) {
            (Some(result), None) => Ok(result.to_owned()),
            (_, error) => Err(error.map(|error| error.get().to_owned()).unwrap_or_default()),
        };
        drop(waiting.send(reply));
    }

    async fn start(self: &Arc<Self>, id: Id, method: &str, params: Option<&RawValue>, tasks: &mut JoinSet<()>) {
        let (stop, stopped) = oneshot::channel();
        let refused = {
            let mut state = self.state();
            if state.running.contains_key(&id) || state.listening.contains(&id) {
                Some(Fault::new(-32600, "a request with this id is under way"))
            } else if state.running.len() >= RUNNING {
                Some(Fault::internal(format!("{RUNNING} requests are under way: wait for one of them")))
            } else {
                state.running.insert(id.clone(), stop);
                None
            }
        };
        if let Some(fault) = refused {
            return self.out.send(&Response::new(Some(&id), &Err(fault))).await;
        }
        let (door, method, params) = (Arc::clone(self), method.to_owned(), params.map(ToOwned::to_owned));
        tasks.spawn(async move {
            let outcome = tokio::select! {
                biased;
                // Nothing is said to what was cancelled.
                _ = stopped => None,
                outcome = door.outcome(&id, &method, params.as_deref()) => outcome,
            };
            let was_running = door.state().running.remove(&id).is_some();
            if let (Some(outcome), true) = (outcome, was_running) {
                door.out.send(&Response::new(Some(&id), &outcome)).await;
            }
        });
    }

    /// `None` for a request that is not answered now.
    async fn outcome(self: &Arc<Self>, id: &Id, method: &str, params: Option<&RawValue>) -> Option<Outcome> {
        if method == "initialize" {
            return Some(self.initialize(params));
        }
        let asked = params.map_or_else(|| Ok(Asked::default()), |params| serde_json::from_str(params.get()));
        let asked: Asked = match asked {
            Ok(asked) => asked,
            Err(error) => return Some(Err(Fault::params(error.to_string()))),
        };
        let (era, capabilities) = match self.era(&asked) {
            Ok(era) => era,
            Err(fault) => return Some(Err(fault)),
        };
        Some(match (method, era) {
            ("server/discover", Era::Modern) => Ok(self.discover(era)),
            ("ping", Era::Legacy(_)) => Ok(raw(&json!({}))),
            ("tools/list", _) => self.tools(era, asked.cursor.as_deref()).await,
            ("tools/call", _) => self.call(era, asked, &capabilities).await,
            ("subscriptions/listen", Era::Modern) => match self.listen(id, asked.notifications.tools).await {
                Ok(()) => return None,
                Err(fault) => Err(fault),
            },
            ("resources/list" | "resources/templates/list" | "resources/read" | "prompts/list" | "prompts/get", _) => {
                self.relay(era, method, &asked).await
            }
            _ => Err(Fault::new(-32601, "Method not found")),
        })
    }

    /// In which revision a request is, and what its client can do.
    fn era(&self, asked: &Asked) -> Result<(Era, Capabilities), Fault> {
        match (&asked.meta.version, &asked.meta.capabilities) {
            (Some(version), _) if version != MODERN => {
                let data = json!({ "supported": [MODERN], "requested": version });
                Err(Fault::new(-32022, "Unsupported protocol version").with(data))
            }
            (Some(_), Some(capabilities)) => Ok((Era::Modern, capabilities.clone())),
            (Some(_), None) => Err(Fault::params("`io.modelcontextprotocol/clientCapabilities` is missing in `_meta`")),
            (None, _) => match &self.state().legacy {
                Some((version, capabilities)) => Ok((Era::Legacy(*version), capabilities.clone())),
                None => Err(Fault::params(format!(
                    "say `io.modelcontextprotocol/protocolVersion` {MODERN} in `_meta`, or begin with `initialize`"
                ))),
            },
        }
    }

    fn initialize(&self, params: Option<&RawValue>) -> Outcome {
        let asked: Initialize = serde_json::from_str(params.map_or("null", RawValue::get))
            .map_err(|error| Fault::params(error.to_string()))?;
        let version = Legacy::negotiated(&asked.version);
        self.state().legacy = Some((version, asked.capabilities));
        let result = members([
            ("protocolVersion", version.as_str().into()),
            ("capabilities", capabilities()),
            ("serverInfo", server_info()),
            ("instructions", self.instructions().into()),
        ]);
        Ok(Era::Legacy(version).result(result, None))
    }

    fn discover(&self, era: Era) -> Box<RawValue> {
        let result = members([
            ("supportedVersions", json!([MODERN])),
            ("capabilities", capabilities()),
            ("instructions", self.instructions().into()),
        ]);
        era.result(result, Some(self.ttl_ms()))
    }

    fn instructions(&self) -> String {
        let services = self.options.services.join("`, `");
        format!("Tools are methods of the services `{services}`, which the agent `{}` may call.", self.agent)
    }

    fn ttl_ms(&self) -> u64 {
        u64::try_from(self.options.refresh.as_millis()).unwrap_or(u64::MAX)
    }

    /// What the agent may call, not older than this.
    async fn offer(&self, age: Duration) -> Result<Arc<Offer>, Fault> {
        let known = |state: &State| {
            let known = state.offer.as_ref().filter(|(at, _)| at.elapsed() < age);
            known.map(|(_, offer)| Arc::clone(offer))
        };
        if let Some(offer) = known(&self.state()) {
            return Ok(offer);
        }
        let _asking = self.asking.lock().await;
        // Somebody else has asked meanwhile.
        if let Some(offer) = known(&self.state()) {
            return Ok(offer);
        }
        let offer = self.services.offer().await.map_err(Fault::internal)?;
        for missing in &offer.missing {
            tracing::warn!(target: "sealwire::door", "{missing}");
        }
        let offer = Arc::new(offer);
        self.state().offer = Some((Instant::now(), Arc::clone(&offer)));
        Ok(offer)
    }

    async fn tools(&self, era: Era, cursor: Option<&str>) -> Outcome {
        let offer = self.offer(FRESH).await?;
        if cursor.is_none() {
            self.state().told = Some(fingerprint(&offer));
        }
        // The name of the first tool of the page.
        let rest = offer.tools.iter().skip_while(|(name, _)| cursor.is_some_and(|cursor| name.as_str() < cursor));
        let (mut page, mut bytes, mut next) = (Vec::new(), 0, None);
        for (name, tool) in rest {
            let tool = described(era, name, tool);
            let length = tool.to_string().len();
            if !page.is_empty() && bytes + length > PAGE {
                next = Some(name);
                break;
            }
            bytes += length;
            page.push(tool);
        }
        let mut result = members([("tools", page.into())]);
        if let Some(next) = next {
            result.insert("nextCursor".to_owned(), raw(next));
        }
        Ok(era.result(result, Some(self.ttl_ms())))
    }

    async fn listen(&self, id: &Id, tools: bool) -> Result<(), Fault> {
        {
            let mut state = self.state();
            if state.listening.len() >= LISTENING {
                return Err(Fault::internal(format!("{LISTENING} subscriptions are open: end one of them")));
            }
            state.running.remove(id);
            if tools {
                state.listening.push(id.clone());
            }
        }
        let granted = if tools { json!({ "toolsListChanged": true }) } else { json!({}) };
        let params = json!({ "_meta": { SUBSCRIPTION: id }, "notifications": granted });
        self.out.send(&notification("notifications/subscriptions/acknowledged", &params)).await;
        Ok(())
    }

    /// Looks whether what the agent may call has changed, and says so.
    async fn look(&self) {
        // An outage is no change.
        let Ok(offer) = self.offer(Duration::ZERO).await else { return };
        let now = fingerprint(&offer);
        let (listening, legacy) = {
            let mut state = self.state();
            match state.told.replace(now.clone()) {
                Some(told) if told != now => (state.listening.clone(), state.legacy.is_some()),
                _ => return,
            }
        };
        for id in listening {
            let params = json!({ "_meta": { SUBSCRIPTION: id } });
            self.out.send(&notification(LIST_CHANGED, &params)).await;
        }
        if legacy {
            self.out.send(&json!({ "jsonrpc": "2.0", "method": LIST_CHANGED })).await;
        }
    }
}

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
const LIST_CHANGED: &str = "notifications/tools/list_changed";
/// The most bytes of tools on a page.
const PAGE: usize = 1 << 20;

impl State {
    fn is_watched(&self) -> bool {
        self.told.is_some() && (self.legacy.is_some() || !self.listening.is_empty())
    }
}

fn capabilities() -> Value {
    json!({ "tools": { "listChanged": true }, "resources": {}, "prompts": {} })
}

/// What clients are told when it differs.
fn fingerprint(offer: &Offer) -> Vec<u8> {
    use sha2::Digest as _;
    let mut digest = sha2::Sha256::new();
    for (name, tool) in &offer.tools {
        digest.update(name);
        digest.update([0]);
        digest.update(tool.method.document.as_deref().map_or("", RawValue::get));
        digest.update([0]);
    }
    digest.finalize().to_vec()
}

/// A tool, as the client sees it.
fn described(era: Era, name: &str, tool: &Tool) -> Value {
    let method = &tool.method;
    let mut input: Value = serde_json::from_str(method.params.get()).unwrap_or_default();
    match input.as_object_mut() {
        Some(members) => drop(members.insert("type".to_owned(), "object".into())),
        None => input = json!({ "type": "object" }),
    }
    let origin = format!("Method {} of the service {}.", method.name, tool.service);
    let description = method.description.clone().filter(|text| !text.is_empty()).unwrap_or(origin);
    let mut described = json!({ "name": name, "description": description, "inputSchema": input });
    if let Some(members) = described.as_object_mut() {
        let annotations = tool.mcp.annotations.clone().map(Value::Object);
        members.extend(annotations.map(|annotations| ("annotations".to_owned(), annotations)));
        if era.has_structured_content() {
            members.extend(tool.mcp.title.clone().map(|title| ("title".to_owned(), title.into())));
            members.extend(call::output_schema(era, tool).map(|schema| ("outputSchema".to_owned(), schema)));
        }
    }
    described
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("services", &self.services).finish_non_exhaustive()
    }
}
