//! Bare requests and answers of the same size, over the client library that a user would take without Sealwire: what a call would cost if
//! nothing were signed, checked or decided.
//! Never publishes or subscribes outside its own subjects.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, Event, HeaderMap, Request, RequestErrorKind};
use bytes::Bytes;
use futures_util::StreamExt as _;
use sealwire::internal::nats::library_options;
use sealwire::internal::wire::{Endpoint, Nonce, RequestSigner, Signed};
use sealwire::{BusConfig, ClientError, Clock as _, Name, SystemClock};
use tokio::sync::oneshot;

use crate::bench::error::BenchError;
use crate::bench::plan::{Bare, MAX_IN_FLIGHT, Shape, Target};
use crate::bench::tally::Fault;
use crate::bench::thread::thread;

/// What the broker's user must be permitted to publish and subscribe to for bare requests.
pub const BARE_SUBJECTS: &str = "sealwire-bench.>";

/// The size of a response around its result.
const AROUND_RESULT: usize = r#"{"jsonrpc":"2.0","result":,"id":1000000}"#.len();
/// The size of the value of an answer's one header, `Authentication-Info`, in bytes, as it came from the service `demo` for the agent
/// `planner`: an HS256 proof. An EdDSA proof has 43 more.
const ANSWER_HEADER: usize = 415;
/// How long connecting and a first answer may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What bare requests and answers look like, and where they go.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    bus: BusConfig,
    subject: String,
    inbox: String,
    request: (HeaderMap, Bytes),
    answer: (HeaderMap, Bytes),
    deadline: Duration,
}

impl Exchange {
    /// Messages as large as those of calls of `target`.
    pub(crate) async fn like(target: &Target, bare: &Bare) -> Result<Self, BenchError> {
        let calls = usize::try_from(target.shape.calls()).unwrap_or(1);
        let around = match target.shape {
            Shape::Batch(_) => 2 + calls - 1,
            Shape::Single | Shape::Stream => 0,
        };
        let params = target.params.as_ref().map_or(0, |params| r#","params":"#.len() + params.get().len());
        let request = r#"{"jsonrpc":"2.0","method":"","id":1000000}"#.len() + target.method.len() + params;
        let filled = |bytes: usize| Bytes::from("x".repeat(bytes));
        let id = Nonce::random().to_text();
        Ok(Self {
            bus: bare.bus.clone(),
            subject: format!("sealwire-bench.{id}.request"),
            inbox: format!("sealwire-bench.{id}.answer"),
            request: (header("Authorization", authorization(target).await?), filled(request * calls + around)),
            answer: (
                header("Authentication-Info", ANSWER_HEADER),
                filled((bare.result_bytes + AROUND_RESULT) * calls + around),
            ),
            deadline: target.deadline,
        })
    }

    async fn connect(&self) -> Result<(Client, Complaints), BenchError> {
        let complaints = Complaints::default();
        let heard = complaints.clone();
        let (options, addresses) = library_options(&self.bus).map_err(ClientError::from)?;
        let options = options
            .name("sealwire bench, bare")
            .custom_inbox_prefix(&self.inbox)
            .connection_timeout(PATIENCE)
            // Room for everything that can be under way: a message without room is lost.
            .subscription_capacity(MAX_IN_FLIGHT)
            .event_callback(move |event| {
                heard.hear(event);
                async {}
            });
        let client = options.connect(addresses).await;
        let client = client.map_err(|error| BenchError::Bare(format!("no connection for bare requests: {error}")))?;
        Ok((client, complaints))
    }
}

/// What the broker complains about; the last complaint is kept.
#[derive(Debug, Clone, Default)]
struct Complaints(Arc<Mutex<Option<String>>>);

impl Complaints {
    fn hear(&self, event: Event) {
        if let Event::ServerError(error) = event {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
    }

    fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn header(name: &'static str, bytes: usize) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, "x".repeat(bytes).as_str());
    headers
}

/// The length of the value of a call's one header.
async fn authorization(target: &Target) -> Result<usize, BenchError> {
    let credentials = &target.credentials;
    let token = credentials.tokens().map_err(ClientError::from)?.fetch().await;
    let token = token.map_err(|error| BenchError::Bare(format!("no access token: {error}")))?;
    let service = Name::new(&target.service).map_err(|error| BenchError::Bare(error.to_string()))?;
    let endpoint = Endpoint::new(credentials.environment().clone(), service.clone());
    let signer = RequestSigner::new(credentials.key(), endpoint.audience().clone(), credentials.pinned(&service));
    let signer = signer.map_err(|error| BenchError::Bare(error.to_string()))?;
    let reply = format!("{}.{}", endpoint.inbox(credentials.agent()), Nonce::random().to_text());
    let signed = signer.sign(&Signed {
        subject: &endpoint.subject(credentials.agent()),
        reply: &reply,
        payload: b"",
        token: token.trim(),
        now_ms: SystemClock.now_ms(),
        valid_s: 30,
        timeout_ms: u64::try_from(target.deadline.as_millis()).ok(),
        ..Signed::default()
    });
    Ok(signed.authorization.len())
}

/// Answers bare requests until it is dropped, on a thread and a connection of its own, as a service does. It is not a separate process:
/// that would need the login handed to it and somebody to end it, and the threads' processor time can be told apart.
#[derive(Debug)]
pub(crate) struct Responder {
    _stop: oneshot::Sender<()>,
}

/// The name of its thread.
pub(crate) const RESPONDER: &str = "bare-responder";

impl Responder {
    /// Starts it, and makes it answer a first request.
    pub(crate) async fn start(exchange: &Exchange) -> Result<Self, BenchError> {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let answering = exchange.clone();
        thread(RESPONDER.to_owned(), move || async move {
            match subscribed(&answering).await {
                Ok((client, requests, complaints)) => {
                    // The caller may have been stopped meanwhile.
                    drop(tell.send(Ok(complaints)));
                    tokio::select! {
                        () = answer(&client, requests, &answering.answer) => {}
                        _ = stopped => {}
                    }
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        })?;
        let complaints = told.await.unwrap_or(Err(BenchError::Ended))?;
        let requester = Requester::connect(exchange.clone()).await?;
        match tokio::time::timeout(PATIENCE, requester.request()).await {
            Ok(Ok(())) => Ok(Self { _stop: stop }),
            failed => {
                let failed = failed.map_or_else(
                    |_| "no answer".to_owned(),
                    |failed| failed.map_or_else(|f| f.to_string(), |()| String::new()),
                );
                Err(match requester.complaints.last().or_else(|| complaints.last()) {
                    Some(why) => BenchError::BareForbidden(why),
                    None => BenchError::Bare(format!("a bare request failed: {failed}")),
                })
            }
        }
    }
}

async fn subscribed(exchange: &Exchange) -> Result<(Client, async_nats::Subscriber, Complaints), BenchError> {
    let (client, complaints) = exchange.connect().await?;
    let failed = |error: &dyn std::fmt::Display| BenchError::Bare(error.to_string());
    let requests = client.subscribe(exchange.subject.clone()).await.map_err(|error| failed(&error))?;
    client.flush().await.map_err(|error| failed(&error))?;
    Ok((client, requests, complaints))
}

async fn answer(client: &Client, mut requests: async_nats::Subscriber, (headers, payload): &(HeaderMap, Bytes)) {
    while let Some(request) = requests.next().await {
        if let Some(reply) = request.reply {
            // A closed client yields no further requests.
            drop(client.publish_with_headers(reply, headers.clone(), payload.clone()).await);
        }
    }
}

/// Makes bare requests.
#[derive(Debug)]
pub(crate) struct Requester {
    client: Client,
    exchange: Exchange,
    complaints: Complaints,
}

impl Requester {
    pub(crate) async fn connect(exchange: Exchange) -> Result<Self, BenchError> {
        let (client, complaints) = exchange.connect().await?;
        Ok(Self { client, exchange, complaints })
    }

    /// One request, and its answer.
    pub(crate) async fn request(&self) -> Result<(), Fault> {
        let (headers, payload) = &self.exchange.request;
        let request = Request::new().headers(headers.clone()).payload(payload.clone());
        let request = request.timeout(Some(self.exchange.deadline));
        let answer = self.client.send_request(self.exchange.subject.clone(), request).await;
        answer.map(drop).map_err(|error| {
            Fault::Bare(match error.kind() {
                RequestErrorKind::TimedOut => "no answer to a bare request in time".to_owned(),
                _ => format!("a bare request failed: {error}"),
            })
        })
    }
}
