//! The store of outcomes for all replicas: one message for each key in a stream beside the guard's. Never takes silence, or an answer that
//! it does not understand, for a yes.
//!
//! An entry is created by a publication that expects nothing under its subject, and replaced by one that expects the current sequence
//! number; of any number of such publications, the stream accepts one. A publication without an answer is repeated; an entry that is read
//! then is its own if the contents are equal, since no two are. A publication that got no answer at all may be stored long after its caller
//! was refused or has gone, so it is withdrawn.
//!
//! The stream shares the guard's connection and permissions. A task of its own finds, creates and looks at it, once a second, so that
//! trouble with this stream stops no call without a key.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_nats::HeaderMap;
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use super::super::{AdmitError, Outage};
use super::check::Shared;
use super::in_flight::InFlightLimiter;
use super::publish_check::{INSUFFICIENT_RESOURCES, MEMORY_EXCEEDED, STORE_FAILED};
use super::stream::{self, ApiError, Info, StreamApi, StreamError};
use super::{SharedConfig, fit, outcome_fit};
use crate::auth::outcomes::{
    Amount, Claimed, Ledger, OutcomeKey, OutcomeStore, OutcomeStoreError, Withdrawal, room_for_subjects,
};
use crate::name::Name;

/// What [`super::SharedGuard::outcomes`] returns.
pub(super) struct SharedOutcomes {
    shared: Arc<Shared>,
    enabled: AtomicBool,
    wake: Notify,
    /// The stream, once it is found and as it should be.
    stream: ArcSwap<Option<Found>>,
    /// What this replica has stored.
    ledger: Mutex<Ledger>,
    flight: InFlightLimiter,
    approval_reads: Semaphore,
    /// Each with the number of times it was looked for.
    withdrawn: Mutex<VecDeque<(Withdrawal, usize)>>,
}

struct Found {
    name: String,
    /// What it held when it was looked at.
    used: Amount,
}

/// The broker's answer to a publication.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Stored {
        sequence: u64,
    },
    /// The subject does not have the expected sequence number, or is just being written.
    Other,
    Refused(OutcomeStoreError),
    /// It may have been stored.
    Silence,
}

impl SharedOutcomes {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            enabled: AtomicBool::new(false),
            wake: Notify::new(),
            stream: ArcSwap::from_pointee(None),
            ledger: Mutex::default(),
            flight: InFlightLimiter::new(IN_FLIGHT, IN_FLIGHT_PER_AGENT),
            approval_reads: Semaphore::new(APPROVAL_READS),
            withdrawn: Mutex::default(),
        }
    }

    /// Looks at the stream again and again, until `stop` says so or its sender is gone. Does nothing while nobody needs it.
    pub(super) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut said = None;
        let watching = async {
            loop {
                if self.enabled.load(Ordering::SeqCst) {
                    let error = self.look().await.err();
                    if error.is_some() {
                        self.stream.store(Arc::new(None));
                    } else {
                        self.settle().await;
                    }
                    let now = error.map(|error| self.shared.explained(&error.detail));
                    if now != said {
                        match &now {
                            Some(reason) => tracing::warn!(
                                target: "sealwire::replay", reason, "outcomes cannot be stored: calls with an idempotency key are refused"
                            ),
                            None => tracing::info!(target: "sealwire::replay", "outcomes can be stored"),
                        }
                        said = now;
                    }
                    let _ = timeout(LOOK_EVERY, self.wake.notified()).await;
                    sleep(LEAST_PAUSE).await;
                } else {
                    self.wake.notified().await;
                }
            }
        };
        tokio::select! {
            () = watching => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        self.stream.store(Arc::new(None));
    }

    async fn look(&self) -> Result<(), StreamError> {
        let client = self.client().map_err(|outage| StreamError::new(outage, outage.to_string()))?;
        let config = &self.shared.config;
        let known = self.stream.load().as_ref().as_ref().map(|found| found.name.clone());
        let name = match known {
            Some(name) => name,
            None => locate(&client, config).await?,
        };
        let Some(info) = stream::look(&client, &name).await? else {
            return Err(StreamError::new(Outage::StreamReplaced, format!("stream `{name}` is gone")));
        };
        check(&info, config)?;
        let number = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let used = Amount { entries: number(info.state.messages), bytes: number(info.state.bytes) };
        self.ledger().sweep(Instant::now());
        self.stream.store(Arc::new(Some(Found { name, used })));
        Ok(())
    }

    /// Looks for withdrawn changes, the oldest first.
    async fn settle(&self) {
        let some: Vec<_> = {
            let mut all = self.withdrawn();
            let count = all.len().min(SETTLED_AT_A_TIME);
            all.drain(..count).collect()
        };
        let settled = join_all(some.iter().map(|(change, _)| self.undo(change))).await;
        let left = some.into_iter().zip(settled).filter(|(_, settled)| !settled);
        let left = left.map(|((change, looks), _)| (change, looks + 1)).filter(|(_, looks)| *looks < LOOKS);
        self.withdrawn().extend(left);
    }

    /// Whether the change is not there and can no longer arrive.
    ///
    /// INVARIANT: this makes no call run twice. What is replaced has exactly the bytes that this replica wrote for a call that it then
    /// refused or gave up, so that call has not run and never will; and it is replaced under the revision at which these bytes were read.
    /// The claim of a call that runs has other bytes, or has since taken the place of these, under another revision. Where there is no
    /// entry, the replacement expects none, as every first claim does: only one of the two is stored.
    async fn undo(&self, change: &Withdrawal) -> bool {
        let Withdrawal { key, revision, content, instead, keep } = change;
        let Ok((client, stream, _)) = self.ready() else { return false };
        let at = match read(&client, &self.shared.config, &stream, key).await {
            Ok(Some((sequence, held))) if held == content => sequence,
            // A claim still on its way finds this entry, and is not stored.
            Ok(None) if *revision == 0 => 0,
            // It may still arrive.
            Ok(Some((sequence, _))) if sequence == *revision => return false,
            Ok(_) => return true,
            Err(()) => return false,
        };
        self.replace(key, at, instead.clone(), *keep).await.is_ok()
    }

    /// The guard's client, while the guard itself is up.
    fn client(&self) -> Result<StreamApi, Outage> {
        self.shared.link.load().up().map(|up| up.api.clone())
    }

    fn ready(&self) -> Result<(StreamApi, String, Amount), OutcomeStoreError> {
        let client = self.client().map_err(|_| OutcomeStoreError::Unavailable)?;
        match self.stream.load().as_ref() {
            Some(Found { name, used }) => Ok((client, name.clone(), *used)),
            None => Err(OutcomeStoreError::Unavailable),
        }
    }

    /// How many replicas there are, this one included.
    fn replicas(&self) -> usize {
        self.shared.peers().values().filter(|ago| **ago < PEER_IS_THERE).count() + 1
    }

    /// Whether the agent may store `more` bytes, and one more entry if `new`. The other replicas are assumed to hold as much for it as this
    /// one, since the broker gives each the same share of its messages.
    fn admit(&self, key: &OutcomeKey, new: bool, more: usize, used: Amount) -> Result<(), OutcomeStoreError> {
        let config = &self.shared.config;
        let bound = |most: i64| usize::try_from(most).unwrap_or(usize::MAX);
        // A quarter of the bytes is reserved for the outcomes of calls that are already running.
        let bytes = if new { config.outcome_bytes / 4 * 3 } else { config.outcome_bytes };
        let bound = Amount { entries: bound(config.max_outcomes), bytes: bound(bytes) };
        let replicas = self.replicas();
        let ledger = self.ledger();
        let free = bound.saturating_sub(used.max(ledger.total()));
        if (new && free.entries == 0) || more > free.bytes {
            return Err(OutcomeStoreError::Full);
        }
        if ledger.admits(key.agent(), new, more, free, replicas) { Ok(()) } else { Err(OutcomeStoreError::AgentFull) }
    }

    async fn claim(&self, key: &OutcomeKey, content: Bytes, keep: Duration) -> Result<Claimed, OutcomeStoreError> {
        let (client, stream, used) = self.ready()?;
        let _permit = self.enter(key)?;
        // An existing entry is reported whether there is room or not; without room, it is only looked for.
        let room = self.admit(key, true, size(key, &content), used);
        let (began, mut silent) = (Instant::now(), false);
        loop {
            let answer = match room {
                Ok(()) => publish(&client, &self.shared.config, &stream, key, 0, &content, keep).await,
                Err(_) => Answer::Other,
            };
            match answer {
                Answer::Stored { sequence } => {
                    self.ledger().set(key, size(key, &content), Instant::now() + keep);
                    return Ok(Claimed::New { revision: sequence });
                }
                Answer::Refused(error) => return Err(self.failed(error, silent)),
                Answer::Silence => silent = true,
                Answer::Other => match (read(&client, &self.shared.config, &stream, key).await, room) {
                    (Ok(Some((revision, held))), _) if held == content => {
                        self.ledger().set(key, size(key, &content), Instant::now() + keep);
                        return Ok(Claimed::New { revision });
                    }
                    (Ok(Some((revision, held))), _) => return Ok(Claimed::Held { revision, content: held }),
                    (Ok(None), Err(error)) => return Err(error),
                    // It ended between the two questions, or is on its way to the copies.
                    (Ok(None) | Err(()), _) => {}
                },
            }
            if began.elapsed() + AGAIN > ASK_FOR {
                return Err(self.failed(OutcomeStoreError::Unanswered, silent));
            }
            sleep(AGAIN).await;
        }
    }

    async fn replace(
        &self,
        key: &OutcomeKey,
        revision: u64,
        content: Bytes,
        keep: Duration,
    ) -> Result<u64, OutcomeStoreError> {
        let (client, stream, used) = self.ready()?;
        if size(key, &content) > outcome_fit::MAX_ENTRY || content.len() + HEADERS > client.server_info().max_payload {
            return Err(OutcomeStoreError::TooLarge);
        }
        let more = growth(&self.ledger(), key, &content);
        if more > 0 {
            self.admit(key, false, more, used)?;
        }
        let (began, mut silent) = (Instant::now(), false);
        loop {
            match publish(&client, &self.shared.config, &stream, key, revision, &content, keep).await {
                Answer::Stored { sequence } => {
                    self.ledger().set(key, size(key, &content), Instant::now() + keep);
                    return Ok(sequence);
                }
                Answer::Refused(error) => return Err(self.failed(error, silent)),
                Answer::Silence => silent = true,
                Answer::Other => match read(&client, &self.shared.config, &stream, key).await {
                    Ok(Some((sequence, held))) if held == content => {
                        self.ledger().set(key, size(key, &content), Instant::now() + keep);
                        return Ok(sequence);
                    }
                    Ok(Some((sequence, _))) if sequence == revision => {}
                    Ok(_) => return Err(OutcomeStoreError::Taken),
                    Err(()) => {}
                },
            }
            if began.elapsed() + AGAIN > ASK_FOR {
                return Err(self.failed(OutcomeStoreError::Unanswered, silent));
            }
            sleep(AGAIN).await;
        }
    }

    /// Asks `question` until there is an answer, for [`ASK_FOR`]; its only error is that there was none.
    async fn until_answered<T, E, F>(&self, question: impl Fn() -> F) -> Result<T, OutcomeStoreError>
    where
        F: Future<Output = Result<T, E>>,
    {
        let began = Instant::now();
        loop {
            if let Ok(answer) = question().await {
                return Ok(answer);
            }
            if began.elapsed() + AGAIN > ASK_FOR {
                return Err(self.failed(OutcomeStoreError::Unavailable, false));
            }
            sleep(AGAIN).await;
        }
    }

    async fn read_entry(&self, key: &OutcomeKey) -> Result<Option<(u64, Bytes)>, OutcomeStoreError> {
        let (client, stream, _) = self.ready()?;
        // Approvals are read for other people than their agent, who must not be able to stop that: they wait for each other, in turn.
        let _permits = match key.is_approval() {
            true => (None, Some(self.approval_reads.acquire().await.map_err(|_| OutcomeStoreError::Unavailable)?)),
            false => (Some(self.enter(key)?), None),
        };
        self.until_answered(|| read(&client, &self.shared.config, &stream, key)).await
    }

    async fn approvals(&self) -> Result<Vec<OutcomeKey>, OutcomeStoreError> {
        let (client, stream, _) = self.ready()?;
        let prefix = self.shared.config.outcome_subject(APPROVALS);
        let asked = json!({ "subjects_filter": format!("{prefix}.>") });
        let verb = format!("STREAM.INFO.{stream}");
        let listed: Listed = self.until_answered(|| stream::ask(&client, &verb, &asked)).await?;
        let subjects = listed.state.subjects.unwrap_or_default();
        let read = |subject: String| {
            let (agent, place) = subject.strip_prefix(&prefix)?.strip_prefix('.')?.split_once('.')?;
            OutcomeKey::approval(Name::new(agent).ok()?, place)
        };
        Ok(subjects.into_keys().filter_map(read).collect())
    }

    fn enter<'a>(&'a self, key: &'a OutcomeKey) -> Result<super::in_flight::InFlightPermit<'a>, OutcomeStoreError> {
        self.flight.enter(key.agent(), 0).map_err(|refused| match refused {
            AdmitError::OwnerFull { .. } => OutcomeStoreError::AgentFull,
            _ => OutcomeStoreError::Full,
        })
    }

    /// Has the stream looked at if it may have changed. An earlier publication without an answer outweighs the answer to the last one.
    fn failed(&self, error: OutcomeStoreError, silent: bool) -> OutcomeStoreError {
        let error = if silent { OutcomeStoreError::Unanswered } else { error };
        if matches!(error, OutcomeStoreError::Unavailable | OutcomeStoreError::Unanswered) {
            self.wake.notify_one();
        }
        error
    }

    /// Nothing between lock and unlock can panic halfway.
    fn withdrawn(&self) -> MutexGuard<'_, VecDeque<(Withdrawal, usize)>> {
        self.withdrawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing between lock and unlock can panic halfway.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutcomeStore for SharedOutcomes {
    fn enable(&self) {
        self.enabled.store(true, Ordering::SeqCst);
        self.wake.notify_one();
    }

    fn held(&self) -> (usize, usize) {
        let mut ledger = self.ledger();
        ledger.sweep(Instant::now());
        let Amount { entries, bytes } = ledger.total();
        (entries, bytes)
    }

    fn is_shared(&self) -> bool {
        true
    }

    /// The brokers lose a stream in their memory only with all connections to them.
    fn era(&self) -> String {
        let (link, stream) = (self.shared.link.load(), self.stream.load());
        let name = stream.as_ref().as_ref().map_or("", |found| &found.name);
        link.up().map_or_else(|_| String::new(), |up| format!("{name} {} {}", up.generation, up.epoch.now()))
    }

    fn room_for_subjects(&self) -> usize {
        let entries = usize::try_from(self.shared.config.max_outcomes).unwrap_or(usize::MAX);
        room_for_subjects(entries, self.replicas())
    }

    fn claim<'a>(
        &'a self,
        key: &'a OutcomeKey,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<Claimed, OutcomeStoreError>> {
        Box::pin(self.claim(key, content, keep))
    }

    fn replace<'a>(
        &'a self,
        key: &'a OutcomeKey,
        revision: u64,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<u64, OutcomeStoreError>> {
        Box::pin(self.replace(key, revision, content, keep))
    }

    fn read<'a>(&'a self, key: &'a OutcomeKey) -> BoxFuture<'a, Result<Option<(u64, Bytes)>, OutcomeStoreError>> {
        Box::pin(self.read_entry(key))
    }

    fn approvals(&self) -> BoxFuture<'_, Result<Vec<OutcomeKey>, OutcomeStoreError>> {
        Box::pin(self.approvals())
    }

    fn withdraw(&self, change: Withdrawal) {
        let mut all = self.withdrawn();
        // The first ones without an answer are the likeliest to be stored.
        if all.len() < WITHDRAWN {
            all.push_back((change, 0));
        }
    }
}

impl fmt::Debug for SharedOutcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = self.stream.load();
        f.debug_struct("SharedOutcomes")
            .field("stream", &stream.as_ref().as_ref().map(|found| &found.name))
            .finish_non_exhaustive()
    }
}

/// The name of the stream; creates it if there is none.
async fn locate(client: &StreamApi, config: &SharedConfig) -> Result<String, StreamError> {
    let mut found = find(client, config).await?;
    if found.is_none() {
        stream::create(client, config, outcome_fit::wanted).await?;
        found = find(client, config).await?;
    }
    found.ok_or_else(|| StreamError::new(Outage::StreamReplaced, "the stream of outcomes is not there yet"))
}

/// Replicas that start together at a single server can each create one. The oldest stays.
async fn find(client: &StreamApi, config: &SharedConfig) -> Result<Option<String>, StreamError> {
    let subject = config.outcome_subject(">");
    let mut own = Vec::new();
    for name in stream::names(client, &subject).await? {
        if !outcome_fit::is_own(&name, config) {
            let earlier = if fit::is_own(&name, config) { ", as earlier versions made it" } else { "" };
            let detail = format!(
                "stream `{}` takes {subject}{earlier}. Stop all replicas and remove it; the service makes its own",
                crate::name::shown(&name)
            );
            return Err(StreamError::new(Outage::StreamUnfit, detail));
        }
        if let Some(info) = stream::look(client, &name).await? {
            check(&info, config)?;
            own.push((info.created_ms()?, name));
        }
    }
    stream::keep_oldest(client, own, "stream of outcomes").await
}

/// Whether the stream is exactly as this service creates it.
fn check(info: &Info, config: &SharedConfig) -> Result<(), StreamError> {
    let wrong = outcome_fit::differences(&info.config, config, info.copies(config)?);
    if wrong.is_empty() {
        return Ok(());
    }
    let name = info.shown_name();
    let wrong = wrong.join("; ");
    let detail = format!(
        "stream `{name}` cannot keep outcomes: {wrong}. Stop all replicas and remove it, with the outcomes in it; the service \
         makes its own"
    );
    Err(StreamError::new(Outage::StreamUnfit, detail))
}

/// Stores `content` if the key's last sequence number is `expected`, 0 for none.
async fn publish(
    client: &StreamApi,
    config: &SharedConfig,
    stream: &str,
    key: &OutcomeKey,
    expected: u64,
    content: &Bytes,
    keep: Duration,
) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Stream", stream);
    headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string().as_str());
    let keep_s = keep.as_secs() + u64::from(keep.subsec_nanos() > 0);
    headers.insert("Nats-TTL", keep_s.max(1).to_string().as_str());
    let asked = client.request_with_headers(subject(config, key), headers, content.clone());
    match timeout(config.answer_within, asked).await {
        Ok(Ok(answer)) if answer.status.is_none() => understood(&answer.payload, stream, expected),
        // Without responders (a stream without a leader) nothing was stored; a time-out does not say.
        _ => Answer::Silence,
    }
}

fn understood(answer: &[u8], stream: &str, expected: u64) -> Answer {
    #[derive(Deserialize)]
    struct Told {
        #[serde(default)]
        error: Option<Code>,
        #[serde(default)]
        stream: String,
        #[serde(default)]
        seq: u64,
        #[serde(default)]
        duplicate: bool,
    }
    #[derive(Deserialize)]
    struct Code {
        #[serde(default)]
        err_code: u64,
    }
    let refused = match serde_json::from_slice::<Told>(answer) {
        Ok(Told { error: Some(Code { err_code }), .. }) => err_code,
        Ok(told) if told.stream == stream && told.seq > expected && !told.duplicate => {
            return Answer::Stored { sequence: told.seq };
        }
        Ok(_) | Err(_) => return Answer::Refused(OutcomeStoreError::Unanswered),
    };
    match refused {
        WRONG_LAST | WRONG_LAST_NOW => Answer::Other,
        STORE_FAILED | INSUFFICIENT_RESOURCES | MEMORY_EXCEEDED => Answer::Refused(OutcomeStoreError::Full),
        TOO_LARGE => Answer::Refused(OutcomeStoreError::TooLarge),
        code => {
            tracing::debug!(target: "sealwire::replay", code, "an outcome was not stored");
            Answer::Refused(OutcomeStoreError::Unavailable)
        }
    }
}

/// The entry of a key and its sequence number, if there is one.
async fn read(
    client: &StreamApi,
    config: &SharedConfig,
    stream: &str,
    key: &OutcomeKey,
) -> Result<Option<(u64, Bytes)>, ()> {
    let subject = subject(config, key);
    let asked = json!({ "last_by_subj": subject });
    match stream::ask::<stream::Got>(client, &format!("STREAM.MSG.GET.{stream}"), &asked).await {
        Ok(stream::Got { message }) if message.subject == subject => {
            message.content().map(|content| Some((message.seq, content.into()))).ok_or(())
        }
        Err(ApiError { code: stream::NO_MESSAGE, .. }) => Ok(None),
        Ok(_) | Err(_) => Err(()),
    }
}

fn subject(config: &SharedConfig, key: &OutcomeKey) -> String {
    let rest = format!("{}.{}", key.agent(), key.digest());
    config.outcome_subject(&if key.is_approval() { format!("{APPROVALS}.{rest}") } else { rest })
}

/// Below it are the subjects of approvals. No agent can be called that: names have no `$`.
const APPROVALS: &str = "$approval";

/// The broker's answer about the stream, as far as it is about subjects.
#[derive(Deserialize)]
struct Listed {
    state: Subjects,
}

#[derive(Deserialize)]
struct Subjects {
    /// Absent if there are none.
    #[serde(default)]
    subjects: Option<BTreeMap<String, u64>>,
}

/// What the broker counts for an entry: subject, headers and content.
fn size(key: &OutcomeKey, content: &Bytes) -> usize {
    content.len() + key.agent().as_str().len() + key.digest().len() + HEADERS
}

/// How many bytes a replacement needs. What another replica has stored of an approval is charged there: whoever denies it here need not
/// find room for it again.
fn growth(ledger: &Ledger, key: &OutcomeKey, content: &Bytes) -> usize {
    match ledger.bytes_of(key) {
        0 if key.is_approval() => 0,
        known => size(key, content).saturating_sub(known),
    }
}

/// The subject's prefix, the three headers, and the broker's own 16 bytes, with room to spare.
const HEADERS: usize = 512;

/// How many claims are in flight, in all and for one agent.
const IN_FLIGHT: usize = 1_024;
const IN_FLIGHT_PER_AGENT: usize = 128;
/// How many approvals are read at a time.
const APPROVAL_READS: usize = 64;

/// How long an unanswered question is repeated, and the pause between two.
const ASK_FOR: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(100);

/// How many unanswered changes are remembered, how many of them are looked for at a time, and how often each is: once a second, for longer
/// than a publication takes that a broker has read.
const WITHDRAWN: usize = 1_024;
const SETTLED_AT_A_TIME: usize = 64;
const LOOKS: usize = 10;

/// How often the stream is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// A replica leaves a trace more than once a second.
const PEER_IS_THERE: Duration = Duration::from_secs(10);

/// `JSStreamWrongLastSequenceErrF`.
const WRONG_LAST: u64 = 10_071;
/// `JSStreamWrongLastSequenceConstantErr`: in a cluster, another publication is on its way to the copies.
const WRONG_LAST_NOW: u64 = 10_164;
/// `JSStreamMessageExceedsMaximumErr`.
const TOO_LARGE: u64 = 10_054;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Its agent may have used up its share: whoever denies it at another replica than the one that made it must not be stopped.
    #[test]
    fn an_approval_that_another_replica_stored_needs_no_room_of_its_agent_here() {
        let (agent, content) = (Name::new("ann").unwrap(), Bytes::from(vec![b'x'; 1_000]));
        let mut ledger = Ledger::default();
        let approval = OutcomeKey::approval(agent.clone(), "a").unwrap();
        assert_eq!(growth(&ledger, &approval, &content), 0);
        ledger.set(&approval, size(&approval, &content) - 10, Instant::now() + ASK_FOR);
        assert_eq!(growth(&ledger, &approval, &content), 10);
        let outcome = OutcomeKey::new(agent, b"a");
        assert_eq!(growth(&ledger, &outcome, &content), size(&outcome, &content));
    }

    #[test]
    fn only_a_plain_acknowledgement_of_the_stream_is_taken_for_a_yes() {
        let told = |text: &str| understood(text.as_bytes(), "RO_1", 4);
        assert_eq!(told(r#"{"stream":"RO_1","seq":5}"#), Answer::Stored { sequence: 5 });
        for strange in [
            r#"{"stream":"RO_1","seq":4}"#,
            r#"{"stream":"RO_2","seq":5}"#,
            r#"{"stream":"RO_1","seq":5,"duplicate":true}"#,
            "{}",
            "",
        ] {
            assert_eq!(told(strange), Answer::Refused(OutcomeStoreError::Unanswered), "{strange}");
        }
        for refused in [r#"{"error":{"err_code":10060}}"#, r#"{"error":{}}"#] {
            assert_eq!(told(refused), Answer::Refused(OutcomeStoreError::Unavailable), "{refused}");
        }
        for (code, answer) in [
            (WRONG_LAST, Answer::Other),
            (WRONG_LAST_NOW, Answer::Other),
            (STORE_FAILED, Answer::Refused(OutcomeStoreError::Full)),
            (TOO_LARGE, Answer::Refused(OutcomeStoreError::TooLarge)),
        ] {
            assert_eq!(told(&format!(r#"{{"error":{{"code":400,"err_code":{code}}}}}"#)), answer);
        }
    }
}
