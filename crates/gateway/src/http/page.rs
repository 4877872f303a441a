//! The gateway's page: shows who may call what, the gateway's traffic, and the state of its services, to viewers on this machine.
//! Never changes anything, never contains a parameter, result or token, and never makes a call wait.

mod services;
mod traffic;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;
use tokio::sync::{broadcast, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use self::services::{Services, ShownAnswer};
use self::traffic::{CallObserver, CallRecord, Counts, ShownCall, ShownCaller, ShownReplica, Traffic, now_ms};
use super::config::{GatewayConfig, Identity};
use super::connections::Body;
use super::head::{self, CheckedHead};
use super::identity::Principal;
use super::pipeline::admission::Admission;
use super::refusal::{Refusal, require_method};
use super::response::response;
use crate::bus::Bus;

/// The most concurrent viewers.
const LOOKING: usize = 8;
/// How often viewers are sent new calls, and after how many of these ticks everything else.
const TOLD: Duration = Duration::from_millis(250);
const TICKS: u32 = 4;
/// How many calls in progress, and how many callers, are shown.
const SHOWN: usize = 50;

/// The state of the page.
#[derive(Debug)]
pub(super) struct Page {
    traffic: Arc<Traffic>,
    services: Services,
    looking: watch::Sender<usize>,
    started: u64,
    config: GatewayConfig,
    bus: Arc<Bus>,
    admission: Arc<Admission>,
    agent: String,
    /// Ends the streams of viewers.
    stopping: watch::Receiver<bool>,
}

/// Everything that is shown, except calls that have ended.
#[derive(Serialize)]
struct State<'a> {
    now: u64,
    started: u64,
    agent: &'a str,
    identity: &'static str,
    bus: bool,
    limits: Limits,
    services: Vec<ShownService<'a>>,
    under_way: Vec<ShownCall>,
    under_way_count: usize,
    callers: Vec<ShownCaller>,
    callers_count: usize,
    /// In the order of [`Counts`].
    minute: Vec<[u64; 5]>,
}

#[derive(Serialize)]
struct Limits {
    per_second: u32,
    burst: u32,
    in_flight: u32,
    streams: u32,
}

#[derive(Serialize)]
struct ShownService<'a> {
    service: &'a str,
    /// The ceiling.
    methods: &'a [String],
    timeout_s: u64,
    answer: Option<ShownAnswer>,
    counts: Counts,
    replicas: Vec<ShownReplica>,
}

impl Page {
    /// `None` unless the page is configured.
    pub(super) fn of(
        config: &GatewayConfig,
        bus: &Arc<Bus>,
        admission: &Arc<Admission>,
        stopping: watch::Receiver<bool>,
    ) -> Option<Arc<Self>> {
        config.page.then(|| {
            let traffic = Arc::new(Traffic::new(config.identity != (Identity::Own {})));
            for expose in &config.expose {
                traffic.counts(expose.service.as_str());
            }
            Arc::new(Self {
                traffic,
                services: Services::new(),
                looking: watch::Sender::new(0),
                started: now_ms(),
                config: config.clone(),
                bus: Arc::clone(bus),
                admission: Arc::clone(admission),
                agent: bus.agent(),
                stopping,
            })
        })
    }

    /// The observer of the calls of a request.
    pub(super) fn observer(&self, principal: Option<&Principal>, head: &CheckedHead) -> Arc<CallObserver> {
        let name = principal.map(|principal| Arc::clone(principal.name()));
        self.traffic.observer(name, dialect(head.uri.path()))
    }

    /// Queries the services while there are viewers. Does nothing if callers have tokens: the gateway has none of its own to ask with.
    pub(super) async fn keep(&self) {
        if self.config.identity == (Identity::Own {}) {
            self.services.ask(&self.config, &self.bus, &self.looking).await;
        }
        std::future::pending().await
    }

    fn state(&self) -> State<'_> {
        let GatewayConfig { per_second, burst, in_flight, streams, expose, identity, .. } = &self.config;
        let services = expose.iter().map(|expose| {
            let service = expose.service.as_str();
            let (counts, replicas) = self.traffic.service(service);
            let answer = self.services.answer(service);
            let (methods, timeout_s) = (expose.methods.as_slice(), expose.timeout_s);
            ShownService { service, methods, timeout_s, answer, counts, replicas }
        });
        let (under_way, under_way_count) = self.traffic.under_way(SHOWN);
        let (mut callers, callers_count) = self.traffic.callers(SHOWN);
        for caller in &mut callers {
            (caller.in_flight, caller.streams) = self.admission.in_progress(&caller.principal);
        }
        State {
            now: now_ms(),
            started: self.started,
            agent: &self.agent,
            identity: if *identity == (Identity::Own {}) { "own" } else { "mint" },
            bus: self.bus.is_up(),
            limits: Limits { per_second: *per_second, burst: *burst, in_flight: *in_flight, streams: *streams },
            services: services.collect(),
            under_way,
            under_way_count,
            callers,
            callers_count,
            minute: self.traffic.minute(),
        }
    }
}

/// The protocol at this address.
fn dialect(path: &str) -> &'static str {
    let mut steps = path.split('/').skip(1);
    match (steps.next(), steps.nth(1)) {
        (Some("rpc"), Some("stream")) => "sse",
        (Some("rpc"), Some("ws")) | (Some("ws"), _) => "ws",
        (Some("rpc"), _) => "rpc",
        (Some("mcp"), _) => "mcp",
        (Some("a2a"), _) => "a2a",
        (Some("approvals"), _) => "approvals",
        _ => "http",
    }
}

/// Whether the request is for the page. The listener for replicas has no page, since other machines may reach it.
pub(super) fn is_at(head: &CheckedHead) -> bool {
    let path = head.uri.path();
    (path == "/" || path.starts_with("/page/")) && !head.is_from_replica()
}

impl Page {
    /// `GET /`, and the files and events of the page.
    pub(super) fn respond(self: &Arc<Self>, head: &CheckedHead) -> Response<Body> {
        let mut answer = self.file(head).unwrap_or_else(Refusal::response);
        let headers = answer.headers_mut();
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    fn file(self: &Arc<Self>, head: &CheckedHead) -> Result<Response<Body>, Refusal> {
        head::may_look(head)?;
        require_method(&head.method, Method::GET)?;
        let (kind, file) = match head.uri.path() {
            "/" => ("text/html; charset=utf-8", HTML),
            "/page/page.css" => ("text/css; charset=utf-8", CSS),
            "/page/page.js" => ("text/javascript; charset=utf-8", JS),
            "/page/icon.svg" => ("image/svg+xml", ICON),
            "/page/events" => return self.events(),
            _ => return Err(Refusal::not_found("not found")),
        };
        Ok(response(StatusCode::OK, kind, Bytes::from_static(file)))
    }

    fn events(self: &Arc<Self>) -> Result<Response<Body>, Refusal> {
        let mut has_room = false;
        self.looking.send_if_modified(|looking| {
            has_room = *looking < LOOKING;
            *looking += usize::from(has_room);
            has_room
        });
        if !has_room {
            return Err(Refusal::unavailable("this page has too many viewers already: close another one"));
        }
        let permit = ViewerPermit(Arc::clone(self));
        let (recent, rows) = self.traffic.listen();
        let mut tick = interval(TOLD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let methods = self.services.methods.subscribe();
        let mut viewer =
            Viewer { rows, methods, stopping: self.stopping.clone(), tick, ticks: 0, ready: VecDeque::new(), permit };
        viewer.methods.mark_changed();
        viewer.ready.push_back(event("calls", &recent));
        let body = StreamBody::new(stream::unfold(viewer, async |mut viewer| {
            let event = viewer.next().await?;
            Some((Ok(Frame::data(event)), viewer))
        }));
        let mut answer = Response::new(body.boxed_unsync());
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        Ok(answer)
    }
}

/// One viewer.
struct Viewer {
    rows: broadcast::Receiver<Arc<CallRecord>>,
    methods: watch::Receiver<Arc<str>>,
    stopping: watch::Receiver<bool>,
    tick: Interval,
    ticks: u32,
    ready: VecDeque<Bytes>,
    permit: ViewerPermit,
}

/// A viewer's permit; dropping it makes room for another.
struct ViewerPermit(Arc<Page>);

impl Drop for ViewerPermit {
    fn drop(&mut self) {
        self.0.looking.send_modify(|looking| *looking = looking.saturating_sub(1));
    }
}

impl Viewer {
    /// The next bytes; `None` when the gateway is stopped.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let is_stopping = tokio::select! {
                // Also completes when the sender is gone.
                _ = self.stopping.wait_for(|stopping| *stopping) => true,
                _ = self.tick.tick() => false,
            };
            if is_stopping {
                return None;
            }
            self.tell();
        }
    }

    fn tell(&mut self) {
        if self.ticks.is_multiple_of(TICKS) {
            self.ready.push_back(event("state", &self.permit.0.state()));
        }
        self.ticks = self.ticks.wrapping_add(1);
        if self.methods.has_changed().unwrap_or(false) {
            let methods = Arc::clone(&self.methods.borrow_and_update());
            self.ready.push_back(Bytes::from(format!("event: methods\ndata: {methods}\n\n")));
        }
        let (mut rows, mut missed) = (Vec::new(), 0);
        loop {
            match self.rows.try_recv() {
                Ok(row) => rows.push(row),
                Err(broadcast::error::TryRecvError::Lagged(some)) => missed += some,
                Err(_) => break,
            }
        }
        if missed > 0 {
            self.ready.push_back(event("missed", &missed));
        }
        if !rows.is_empty() {
            self.ready.push_back(event("calls", &rows));
        }
    }
}

/// One event. `serde_json` writes JSON on one line.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    format!("event: {name}\ndata: {}\n\n", serde_json::to_string(data).unwrap_or_default()).into()
}

/// Allows only the page's own script, nothing from elsewhere, no framing, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const HTML: &[u8] = include_bytes!("page/page.html");
const CSS: &[u8] = include_bytes!("page/page.css");
const JS: &[u8] = include_bytes!("page/page.js");
const ICON: &[u8] = include_bytes!("page/icon.svg");
