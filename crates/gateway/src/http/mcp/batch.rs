//! Batches, which only revision 2025-03-26 has.
//! Never answers a part of a batch before the rest.

use std::sync::Arc;

use futures_util::future::join_all;
use hyper::{Response, StatusCode};
use sealwire::internal::trace::Trace;
use sealwire_mcp::{ClientCapabilities, Id, Meta, RequestParams, Revision};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::answer::{Ended, accepted};
use super::head::{Accepts, Claims};
use super::running::Running;
use super::sessions::McpClient;
use super::validity::over;
use super::{Mcp, Sender, bad, read};
use crate::caller::until_lost;
use crate::http::connections::Body;
use crate::http::pipeline::admission::{AdmittedMessage, ServiceSet};
use crate::http::refusal::Refusal;
use crate::http::response::{response, with_permit};
use crate::mcp::message::{self, Fault};
use crate::mcp::outbox::Outbox;
use crate::mcp::peer::Peer;

/// The most messages of a batch, as on standard input.
const BATCH: usize = 32;

impl Mcp {
    /// Handles a batch.
    pub(super) async fn batch(
        &self,
        message: AdmittedMessage<ServiceSet>,
        sender: Sender,
        claims: &Claims<'_>,
        text: &str,
    ) -> Result<Response<Body>, Refusal> {
        let client = self.sessions.client(message.principal(), claims, None, &Meta::default())?;
        if client.revision != Revision::V2025_03_26 {
            return Err(bad("each POST must be one message, not a batch"));
        }
        let entries: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| bad("not a batch"))?;
        if entries.is_empty() || entries.len() > BATCH {
            return Err(bad("a batch has 1 to 32 messages"));
        }
        // The first one has already been charged.
        message.charge_more(entries.len() - 1)?;
        let entries =
            entries.into_iter().map(|entry| Ok((entry, read(entry.get())?))).collect::<Result<Vec<_>, Refusal>>()?;
        let mut requests = Vec::new();
        for (_, entry) in &entries {
            match (entry.method.as_deref(), entry.id) {
                (Some(method), Some(id)) => {
                    let id: Id =
                        serde_json::from_str(id.get()).map_err(|_| bad("`id` must be a string or a whole number"))?;
                    requests.push((id, method.to_owned(), entry.params.map(ToOwned::to_owned)));
                }
                (Some(_), None) => {}
                (None, Some(_)) if client.has_session => {}
                (None, _) => return Err(bad("`method` is missing")),
            }
        }
        if !requests.is_empty() && !sender.accepts.json {
            return Err(Accepts::refusal());
        }
        // Each of them is a call. What only cancels or answers needs no permit: it must not wait for what it is about.
        let mut calls = Vec::with_capacity(requests.len());
        for _ in &requests {
            calls.push(message.admit()?);
        }
        drop(message);
        // Nothing has an effect before every entry is read, and each request has its permit.
        for (raw, entry) in entries {
            match (entry.method.as_deref(), entry.id) {
                (Some(method), None) => {
                    let onward = sender.onward.as_ref().map(|onward| onward.with_text(raw.get()));
                    self.note(&client, method, entry.params, onward).await;
                }
                (None, Some(id)) => {
                    sender.server.questions.answer(&client.peer, id, entry.result, entry.error);
                }
                _ => {}
            }
        }
        let mut running = Vec::new();
        for (id, ..) in &requests {
            running.push(
                Running::begin(&self.running, &client, id).map_err(|fault| Refusal::of_fault(StatusCode::OK, fault))?,
            );
        }
        let Some(first) = calls.first() else { return Ok(accepted()) };
        let (caller, observer) = (first.caller(), first.principal().observer());
        let principal = Arc::clone(first.principal().name());
        let permits: Vec<_> = calls.into_iter().map(|call| Arc::new(call.into_permit())).collect();
        let (ended, end) = oneshot::channel();
        let around = Trace::current();
        let McpClient { revision, peer, .. } = client;
        let Sender { server, trace, .. } = sender;
        let held = permits.clone();
        let task = async move {
            let _held = held;
            let answers = requests.iter().zip(running).map(|((id, method, params), mut running)| {
                // Nothing can be sent, neither questions nor progress, before the whole answer.
                let out = Outbox::closed();
                let (caller, name, trace) = (Arc::clone(&caller), Arc::clone(&peer), &trace);
                let principal = Arc::clone(&principal);
                let around = around.clone();
                let (observer, server) = (observer.clone(), &server);
                async move {
                    let mut asked = match RequestParams::read(params.as_deref()).map_err(Fault::of_params) {
                        Ok(asked) => asked,
                        Err(fault) => return Some(Ended::new(revision, id, Err(fault)).text),
                    };
                    let trace = message::trace(&asked.meta, trace);
                    // Of 2025-03-26 alone; what it says of a session is said one by one.
                    let peer = Peer { name, principal, has_session: false, caller, out, trace, around, observer };
                    let nobody = ClientCapabilities::default();
                    tokio::select! {
                        biased;
                        () = running.stopped() => None,
                        () = until_lost(&*peer.caller) => Some(Ended::new(revision, id, Err(over())).text),
                        outcome = server.outcome(&peer, revision, nobody, method, &mut asked) => Some(Ended::new(revision, id, outcome).text),
                    }
                }
            });
            let answers: Vec<Vec<u8>> = join_all(answers).await.into_iter().flatten().collect();
            drop(ended.send([b"[".as_slice(), &answers.join(&b","[..]), b"]"].concat()));
        };
        self.tasks.spawn(task);
        match end.await {
            Ok(text) => Ok(with_permit(response(StatusCode::OK, "application/json", text), permits)),
            Err(_) => Err(Refusal::unknown("the gateway is being stopped")),
        }
    }
}
