//! Clients that listen for changes of lists and resources: with `subscriptions/listen`, or by `GET` in revisions with a handshake.
//! Never reports an outage as a change.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use hyper::Response;
use sealwire_mcp::{Id, Revision, SUBSCRIPTION_ID, SubscriptionFilter, members};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::answer::{COMMENT, beats, streamed};
use crate::caller::{Caller, hold};
use crate::http::connections::Body;
use crate::http::events::data;
use crate::http::pipeline::admission::{Admitted, ServiceSet};
use crate::http::pipeline::quota::Permit;
use crate::mcp::message;
use crate::mcp::news::{Digests, Lists, acknowledged, news, told_of, updated};
use crate::mcp::server::Server;
use crate::mcp::sessions::{Heard, SessionStream};
use crate::mcp::watch::{Updates, Watch};
use crate::revocation::Hold;

/// One listener.
struct Listening {
    server: Arc<Server>,
    caller: Arc<dyn Caller>,
    /// Whether it may still listen.
    hold: Hold,
    /// The id of its subscription; `None` in revisions with a handshake.
    id: Option<Id>,
    /// The lists of which it is told when they change.
    lists: Lists,
    /// What it is told of.
    news: News,
    ready: VecDeque<Bytes>,
    has_ended: bool,
    stopping: watch::Receiver<bool>,
    look: Interval,
    beat: Interval,
    _permit: Permit,
}

/// What a listener is to be told.
pub(super) enum About {
    /// What a session with a handshake watches; the last event that its client has heard, and the lists as they were when it began.
    Session { name: Arc<str>, last_heard: Option<String>, knew: Option<Digests> },
    /// What a subscription asks for, with its id.
    Subscription(Id, SubscriptionFilter),
}

/// Where the news of a listener comes from.
enum News {
    /// A session, whose client may come back with another stream.
    OfSession(SessionStream),
    /// What a subscription was granted, and the lists as its client knows them; `None` until a service has answered.
    OfSubscription { watch: Option<(Watch, Updates)>, told: Option<Digests> },
}

impl News {
    /// What there is to tell: the events.
    ///
    /// Cancel safe.
    async fn next(&mut self, id: Option<&Id>) -> Vec<Bytes> {
        match self {
            Self::OfSession(stream) => {
                let told = stream.next().await;
                told.into_iter().map(|(id, subject)| numbered(&id, &subject.message())).collect()
            }
            Self::OfSubscription { watch: Some((_, updates)), .. } => {
                updates.next().await.iter().map(|uri| event(&updated(id, uri))).collect()
            }
            Self::OfSubscription { watch: None, .. } => std::future::pending().await,
        }
    }
}

/// The stream of a client that listens.
pub(super) async fn listening(
    server: Arc<Server>,
    admitted: Admitted<ServiceSet>,
    about: About,
    stopping: watch::Receiver<bool>,
) -> Response<Body> {
    let caller = admitted.caller();
    let refresh = server.refresh();
    let mut look = interval_at(Instant::now() + refresh, refresh);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let offer = server.listed(&*caller).await.ok();
    let now = offer.as_ref().map(|offer| Digests::of(offer));
    let (id, lists, news, first) = match about {
        // The first bytes are there so that the response headers go out.
        About::Session { name, last_heard, knew } => {
            let heard = last_heard.as_deref().map_or(Heard::Unknown, Heard::UpTo);
            let stream = server.heard(&name, &caller, heard, knew);
            if let Some(now) = now {
                stream.look(now);
            }
            (None, Lists::ALL, News::OfSession(stream), Bytes::from_static(COMMENT))
        }
        About::Subscription(id, wanted) => {
            let told = offer.as_ref().map_or(Lists { tools: true, ..Lists::default() }, |offer| told_of(offer));
            let lists = Lists::of(&wanted).within(told);
            let (watch, uris) = match wanted.uris.is_empty() {
                true => (None, wanted.uris),
                false => {
                    let watch = server.watch(&caller, wanted.uris);
                    let granted = watch.settled(1).await.granted;
                    let updates = watch.updates();
                    (Some((watch, updates)), granted)
                }
            };
            let first = event(&acknowledged(&id, lists, &uris));
            // In an outage, what it was told last.
            let told = now.or_else(|| server.last_digests(&*caller));
            (Some(id), lists, News::OfSubscription { watch, told }, first)
        }
    };
    let listening = Listening {
        server,
        hold: hold(&caller, None),
        caller,
        id,
        lists,
        news,
        ready: [first].into(),
        has_ended: false,
        stopping,
        look,
        beat: beats(),
        _permit: admitted.into_permit(),
    };
    streamed(stream::unfold(listening, async |mut listening| Some((listening.next().await?, listening))))
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
                _ = self.hold.lost() => None,
                _ = self.look.tick(), if !self.lists.is_empty() => Some(true),
                news = self.news.next(self.id.as_ref()) => {
                    self.ready.extend(news);
                    continue;
                }
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
        let now = Digests::of(&offer);
        match &mut self.news {
            News::OfSession(stream) => stream.look(now),
            News::OfSubscription { told, .. } => {
                let changed = now.changed(told.replace(now.clone()).as_ref(), self.lists);
                let id = self.id.as_ref();
                self.ready.extend(changed.notifications().map(|method| event(&news(method, id, None))));
            }
        }
    }

    fn close(&mut self) {
        self.has_ended = true;
        if let Some(id) = &self.id {
            let result = message::complete_result(
                Revision::V2026_07_28,
                members([("_meta", json!({ SUBSCRIPTION_ID: id }))]),
                None,
            );
            let closing = message::Response::new(Some(id), &Ok(result)).text();
            self.ready.push_back(data(&closing));
        }
    }
}

fn event(message: &Value) -> Bytes {
    data(message.to_string().as_bytes())
}

/// An event that its client names when it comes back, as the last one that it has heard.
fn numbered(id: &str, message: &Value) -> Bytes {
    [b"id: ", id.as_bytes(), b"\n", &event(message)].concat().into()
}
