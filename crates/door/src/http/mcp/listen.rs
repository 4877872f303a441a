//! Clients that listen for changes of the tools: with `subscriptions/listen`, or by `GET` in revisions with a handshake.
//! Never reports an outage as a change.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use hyper::Response;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::HOLDS;
use super::answer::{COMMENT, beats, streamed};
use crate::caller::Caller;
use crate::http::Door;
use crate::http::connections::Body;
use crate::http::events::data;
use crate::http::principal::Place;
use crate::mcp::message::{self, Era, Id, members, notification};
use crate::mcp::server::{Server, fingerprint};
use crate::mcp::{LIST_CHANGED, SUBSCRIPTION};

/// One listener.
struct Listening {
    server: Arc<Server>,
    caller: Arc<dyn Caller>,
    /// When to check whether it may still listen.
    holds: Interval,
    /// The id of its subscription; `None` in revisions with a handshake.
    id: Option<Id>,
    /// Whether it wants to be told when the tools change.
    tools: bool,
    /// The last fingerprint of the tools; `None` until a service has answered.
    told: Option<Vec<u8>>,
    ready: VecDeque<Bytes>,
    has_ended: bool,
    stopping: watch::Receiver<bool>,
    look: Interval,
    beat: Interval,
    _place: Place,
}

impl Door {
    pub(super) async fn listening(
        &self,
        server: Arc<Server>,
        caller: Arc<dyn Caller>,
        id: Option<Id>,
        tools: bool,
        place: Place,
    ) -> Response<Body> {
        let refresh = server.refresh();
        let mut look = interval_at(Instant::now() + refresh, refresh);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let first = match &id {
            Some(id) => {
                let granted = if tools { json!({ "toolsListChanged": true }) } else { json!({}) };
                let params = json!({ "_meta": { SUBSCRIPTION: id }, "notifications": granted });
                event(&notification("notifications/subscriptions/acknowledged", &params))
            }
            // So that the response headers go out.
            None => Bytes::from_static(COMMENT),
        };
        let told = server.listed(&*caller).await.ok().map(|offer| fingerprint(&offer));
        let stopping = self.stopping.subscribe();
        let listening = Listening {
            server,
            caller,
            holds: interval_at(Instant::now() + HOLDS, HOLDS),
            id,
            tools,
            told,
            ready: [first].into(),
            has_ended: false,
            stopping,
            look,
            beat: beats(),
            _place: place,
        };
        streamed(stream::unfold(listening, async |mut listening| Some((listening.next().await?, listening))))
    }
}

impl Listening {
    /// The next bytes for the client; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            let looks = tokio::select! {
                // Also completes when the sender is gone.
                _ = self.stopping.wait_for(|stopping| *stopping) => None,
                _ = self.holds.tick() => match self.caller.holds() {
                    true => continue,
                    false => None,
                },
                _ = self.look.tick(), if self.tools => Some(true),
                _ = self.beat.tick() => Some(false),
            };
            match looks {
                None => self.close(),
                Some(true) => self.look().await,
                Some(false) => self.ready.push_back(Bytes::from_static(COMMENT)),
            }
        }
    }

    async fn look(&mut self) {
        // Another listener may have asked just now.
        let Ok(offer) = self.server.offer(&*self.caller, self.server.refresh() / 2).await else { return };
        let now = fingerprint(&offer);
        let has_changed = self.told.replace(now.clone()).is_some_and(|told| told != now);
        if has_changed {
            self.ready.push_back(event(&match &self.id {
                Some(id) => notification(LIST_CHANGED, &json!({ "_meta": { SUBSCRIPTION: id } })),
                None => json!({ "jsonrpc": "2.0", "method": LIST_CHANGED }),
            }));
        }
    }

    fn close(&mut self) {
        self.has_ended = true;
        if let Some(id) = &self.id {
            let result = Era::Modern.result(members([("_meta", json!({ SUBSCRIPTION: id }))]), None);
            let closing = message::Response::new(Some(id), &Ok(result)).text();
            self.ready.push_back(data(&closing));
        }
    }
}

fn event(message: &Value) -> Bytes {
    data(message.to_string().as_bytes())
}
