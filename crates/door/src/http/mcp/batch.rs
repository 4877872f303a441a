//! Batches, which only revision 2025-03-26 has.
//! Never answers a part of a batch before the rest.

use std::sync::Arc;

use futures_util::future::join_all;
use hyper::{Response, StatusCode};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::answer::Ended;
use super::era::Spoken;
use super::head::{Accepts, Claims};
use super::running::Running;
use super::{Sender, accepted, lapsed, over, read};
use crate::http::connections::Body;
use crate::http::principal::Place;
use crate::http::refusal::Refusal;
use crate::http::{Door, answered, holding};
use crate::mcp::message::{self, Asked, Capabilities, Era, Id, Legacy};
use crate::mcp::outbox::Outbox;
use crate::mcp::server::Peer;

/// The most messages of a batch, as on standard input.
const BATCH: usize = 32;

impl Door {
    /// Handles a batch.
    pub(super) async fn mcp_batch(
        &self,
        sender: Sender,
        claims: &Claims<'_>,
        text: &str,
        reading: Place,
    ) -> Result<Response<Body>, Refusal> {
        let bad = |message| Refusal::bad(StatusCode::BAD_REQUEST, message);
        let spoken = self.mcp.spoken(&sender.principal, claims, None, &message::Meta::default())?;
        if spoken.era != Era::Legacy(Legacy::V2025_03_26) {
            return Err(bad("each POST must be one message, not a batch"));
        }
        let entries: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| bad("not a batch"))?;
        if entries.is_empty() || entries.len() > BATCH {
            return Err(bad("a batch has 1 to 32 messages"));
        }
        // The first one has already been charged.
        self.admission.charge_more(&sender.principal, entries.len() - 1)?;
        let entries =
            entries.into_iter().map(|entry| Ok((entry, read(entry.get())?))).collect::<Result<Vec<_>, Refusal>>()?;
        let mut requests = Vec::new();
        for (_, message) in &entries {
            match (message.method.as_deref(), message.id) {
                (Some(method), Some(id)) => {
                    let id: Id =
                        serde_json::from_str(id.get()).map_err(|_| bad("`id` must be a string or a whole number"))?;
                    requests.push((id, method.to_owned(), message.params.map(ToOwned::to_owned)));
                }
                (Some(_), None) => {}
                (None, Some(_)) if spoken.has_session => {}
                (None, _) => return Err(bad("`method` is missing")),
            }
        }
        if !requests.is_empty() && !sender.accepts.json {
            return Err(Accepts::refusal());
        }
        // Each of them is a call. What only cancels or answers needs no place: it must not wait for what it is about.
        let enter = |_| self.admission.enter(&sender.principal, reading.service()).map(Arc::new);
        let places = requests.iter().map(enter).collect::<Result<Vec<_>, _>>()?;
        drop(reading);
        // Nothing has an effect before every entry is read, and each request has its place.
        for (entry, message) in entries {
            match (message.method.as_deref(), message.id) {
                (Some(method), None) => {
                    let onward = sender.onward.as_ref().map(|onward| onward.saying(entry.get()));
                    self.mcp_note(&spoken, method, message.params, onward).await;
                }
                (None, Some(id)) => {
                    sender.server.answered(&spoken.peer, id, message.result, message.error);
                }
                _ => {}
            }
        }
        if requests.is_empty() {
            return Ok(accepted());
        }
        let mut running = Vec::new();
        for (id, ..) in &requests {
            running.push(
                Running::begin(&self.mcp.running, &spoken, id)
                    .map_err(|fault| Refusal::of_fault(StatusCode::OK, fault))?,
            );
        }
        let (ended, end) = oneshot::channel();
        let Spoken { era, peer, .. } = spoken;
        let Sender { server, principal, caller, trace, .. } = sender;
        let (observer, held) = (principal.observer(), places.clone());
        let task = async move {
            let _held = held;
            let answers = requests.iter().zip(running).map(|((id, method, params), mut running)| {
                // Nothing can be sent, neither questions nor progress, before the whole answer.
                let out = Outbox::closed();
                let (caller, name, trace) = (Arc::clone(&caller), Arc::clone(&peer), &trace);
                let (observer, server) = (observer.clone(), &server);
                async move {
                    let mut asked = match Asked::read(params.as_deref()) {
                        Ok(asked) => asked,
                        Err(fault) => return Some(Ended::new(era, id, Err(fault)).text),
                    };
                    let trace = asked.meta.trace(trace);
                    let peer = Peer { name, caller, out, trace, observer };
                    let nobody = Capabilities::default();
                    tokio::select! {
                        biased;
                        () = running.stopped() => None,
                        () = lapsed(&*peer.caller) => Some(Ended::new(era, id, Err(over())).text),
                        outcome = server.outcome(&peer, era, &nobody, method, &mut asked) => Some(Ended::new(era, id, outcome).text),
                    }
                }
            });
            let answers: Vec<Vec<u8>> = join_all(answers).await.into_iter().flatten().collect();
            drop(ended.send([b"[".as_slice(), &answers.join(&b","[..]), b"]"].concat()));
        };
        self.mcp.tasks.spawn(task);
        match end.await {
            Ok(text) => Ok(holding(answered(StatusCode::OK, "application/json", text), places)),
            Err(_) => Err(Refusal::unknown("the door is being stopped")),
        }
    }
}
