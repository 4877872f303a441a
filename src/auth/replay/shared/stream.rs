//! The guard stream at the broker: finds it, creates it, and reports what it is. Never changes an existing one, and removes only a
//! surplus one of its own making.
//!
//! The stream's subjects lie below `rg.<environment>.<service>.`: an owner's ids under its name, an instance's probes below
//! `$probe`. What is below `$outcome` belongs to another stream (`shared/outcomes.rs`).
//! No agent may publish there; the service's user for the guard needs to publish to `rg.<environment>.<service>.>`,
//! `$JS.API.STREAM.NAMES`, `$JS.API.STREAM.INFO.*`, `$JS.API.STREAM.MSG.GET.*`, `$JS.API.STREAM.CREATE.*` and
//! `$JS.API.STREAM.DELETE.*`, and to subscribe to `_SVC.<service>.guard.>`.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, RequestErrorKind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::super::Outage;
use super::probe::Found;
use super::{SharedConfig, fit, outcome_fit};

/// Why the stream cannot be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamError {
    pub(super) outage: Outage,
    /// For people.
    pub(super) detail: String,
    /// Trying again changes nothing: somebody has to change the broker's configuration, or ours.
    pub(super) lasts: bool,
}

impl StreamError {
    pub(super) fn new(outage: Outage, detail: impl Into<String>) -> Self {
        Self { outage, detail: detail.into(), lasts: false }
    }
}

/// What the broker says about a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Info {
    pub(super) config: Map<String, Value>,
    created: String,
    pub(super) state: State,
    cluster: Option<Cluster>,
    ts: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct State {
    pub(super) messages: u64,
    #[serde(default)]
    pub(super) bytes: u64,
    first_ts: String,
    pub(super) last_seq: u64,
}

#[derive(Debug, Deserialize)]
struct Cluster {
    /// Absent outside a cluster.
    name: Option<String>,
    leader: Option<String>,
    leader_since: Option<String>,
}

impl Info {
    pub(super) fn created_ms(&self) -> Result<u64, StreamError> {
        needed(&self.created)
    }

    pub(super) fn now_ms(&self) -> Result<u64, StreamError> {
        needed(&self.ts)
    }

    /// When the oldest message was stored.
    pub(super) fn first_ms(&self) -> Result<Option<u64>, StreamError> {
        if self.state.messages == 0 { Ok(None) } else { needed(&self.state.first_ts).map(Some) }
    }

    /// The leader and since when; `None` outside a cluster.
    pub(super) fn leader(&self) -> Result<Option<(String, Option<u64>)>, StreamError> {
        let Some(Cluster { name: Some(_), leader, leader_since }) = &self.cluster else { return Ok(None) };
        let Some(leader) = leader.clone().filter(|leader| !leader.is_empty()) else {
            return Err(StreamError::new(Outage::Unverified, "the guard stream has no leader"));
        };
        let since_ms = leader_since.as_deref().map(needed).transpose()?;
        Ok(Some((leader, since_ms)))
    }

    /// How many copies it should have.
    pub(super) fn copies(&self, wanted: &SharedConfig) -> Result<usize, StreamError> {
        let clustered = self.leader()?.is_some();
        Ok(wanted.replicas.unwrap_or(if clustered { CLUSTER_COPIES } else { 1 }))
    }

    /// Its name, for people.
    pub(super) fn shown_name(&self) -> String {
        crate::name::shown(self.config.get("name").and_then(Value::as_str).unwrap_or_default())
    }

    /// Whether the stream is exactly as this service makes it.
    pub(super) fn fits(&self, wanted: &SharedConfig) -> Result<(), StreamError> {
        let wrong = fit::differences(&self.config, wanted, self.copies(wanted)?);
        if wrong.is_empty() {
            return Ok(());
        }
        let name = self.shown_name();
        let wrong = wrong.join("; ");
        Err(StreamError::new(
            Outage::StreamUnfit,
            format!(
                "stream `{name}` cannot serve as replay guard: {wrong}. Stop all replicas; if the skew becomes smaller, wait \
                 for twice the old one; remove the stream; the service makes its own"
            ),
        ))
    }
}

/// The connection, and where JetStream's API is heard on it.
#[derive(Debug, Clone)]
pub(super) struct StreamApi {
    client: Client,
    /// The domain of the streams, if it is not that of the broker to which we connect.
    domain: Option<Arc<str>>,
}

impl StreamApi {
    pub(super) fn new(client: Client, domain: Option<&str>) -> Self {
        Self { client, domain: domain.map(Arc::from) }
    }

    fn subject(&self, verb: &str) -> String {
        match &self.domain {
            Some(domain) => format!("$JS.{domain}.API.{verb}"),
            None => format!("$JS.API.{verb}"),
        }
    }

    /// Whether the streams are on a single server. In another domain, that is not known.
    fn is_alone(&self) -> bool {
        self.domain.is_none() && self.client.server_info().cluster.is_none()
    }
}

impl Deref for StreamApi {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// The name of the stream that has the guard's subjects, if there is one.
///
/// Replicas that start together at a single server can each create one: the server looks for overlapping subjects before it
/// creates a stream, not while it does. The oldest stays. Nothing is lost with the others, because an answer from any stream but
/// the verified one admits nothing, and the memory of the one that stays counts from its own oldest message.
pub(super) async fn find(client: &StreamApi, wanted: &SharedConfig) -> Result<Option<String>, StreamError> {
    let mut names = names(client, &wanted.subjects()).await?;
    // The stream of outcomes lies below the guard's prefix, but has none of the guard's own subjects.
    names.retain(|name| !outcome_fit::is_own(name, wanted));
    if names.len() <= 1 {
        return Ok(names.pop());
    }
    if !names.iter().all(|name| fit::is_own(name, wanted)) {
        let list = names.join(", ");
        let detail = format!("several streams have subjects in {}: {list}. Leave at most one", wanted.subjects());
        return Err(StreamError::new(Outage::StreamUnfit, detail));
    }
    let mut streams = Vec::new();
    for name in names {
        if let Some(info) = look(client, &name).await? {
            info.fits(wanted)?;
            streams.push((info.created_ms()?, name));
        }
    }
    keep_oldest(client, streams, "guard stream").await
}

/// The names of the streams whose subjects overlap `subject`.
pub(super) async fn names(client: &StreamApi, subject: &str) -> Result<Vec<String>, StreamError> {
    #[derive(Deserialize)]
    struct Names {
        #[serde(default)]
        streams: Option<Vec<String>>,
    }
    let names: Names = api(client, "STREAM.NAMES", &json!({ "subject": subject })).await?;
    Ok(names.streams.unwrap_or_default())
}

/// The oldest of this service's own streams of one kind, by creation time; removes the others.
pub(super) async fn keep_oldest(
    client: &StreamApi,
    mut streams: Vec<(u64, String)>,
    kind: &'static str,
) -> Result<Option<String>, StreamError> {
    streams.sort();
    let mut streams = streams.into_iter();
    let oldest = streams.next();
    for (_, surplus) in streams {
        tracing::warn!(target: "sealwire::replay", stream = surplus, "removing a second {kind}");
        remove(client, &surplus).await?;
    }
    Ok(oldest.map(|(_, name)| name))
}

pub(super) async fn remove(client: &StreamApi, name: &str) -> Result<(), StreamError> {
    match api::<serde_json::Value>(client, &format!("STREAM.DELETE.{name}"), &json!({})).await {
        Err(error) if error.outage != Outage::StreamReplaced => Err(error),
        // Removed, or another replica was quicker.
        _ => Ok(()),
    }
}

/// What the broker says about the stream `name`; `None` if there is none.
pub(super) async fn look(client: &StreamApi, name: &str) -> Result<Option<Info>, StreamError> {
    match api(client, &format!("STREAM.INFO.{name}"), &json!({})).await {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.outage == Outage::StreamReplaced => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is stored under `sequence`; `None` if it cannot be read.
pub(super) async fn content(client: &StreamApi, name: &str, sequence: u64) -> Option<Vec<u8>> {
    let got = ask::<Got>(client, &format!("STREAM.MSG.GET.{name}"), &json!({ "seq": sequence })).await.ok()?;
    got.message.content()
}

/// The broker's answer to a request for a message.
#[derive(Deserialize)]
pub(super) struct Got {
    pub(super) message: Stored,
}

/// A message in a stream.
#[derive(Deserialize)]
pub(super) struct Stored {
    pub(super) subject: String,
    pub(super) seq: u64,
    #[serde(default)]
    data: String,
    time: String,
}

impl Stored {
    /// Its content; `None` if that cannot be read.
    pub(super) fn content(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.data).ok()
    }
}

/// The first probe, of any instance, stored under `sequence` or later; `None` if there is none.
pub(super) async fn probe_from(
    client: &StreamApi,
    wanted: &SharedConfig,
    name: &str,
    sequence: u64,
) -> Result<Option<Found>, StreamError> {
    let asked = json!({ "seq": sequence, "next_by_subj": wanted.probe_subject("*") });
    let stored = match ask::<Got>(client, &format!("STREAM.MSG.GET.{name}"), &asked).await {
        Ok(got) => got.message,
        Err(ApiError { code: NO_MESSAGE, .. }) => return Ok(None),
        Err(error) => return Err(error.into_stream_error()),
    };
    let instance = stored.subject.strip_prefix(&wanted.probe_subject("")).unwrap_or_default().to_owned();
    let claim = stored.content().and_then(|text| serde_json::from_slice(&text).ok());
    Ok(Some(Found { instance, sequence: stored.seq, stored_ms: needed(&stored.time)?, claim }))
}

/// Creates a stream with the configuration that `config` gives for this many copies. If another replica is quicker, that is fine:
/// look again.
pub(super) async fn create(
    client: &StreamApi,
    wanted: &SharedConfig,
    config: fn(&SharedConfig, usize) -> Value,
) -> Result<(), StreamError> {
    let mut asked = config(wanted, wanted.replicas.unwrap_or(CLUSTER_COPIES));
    let mut made = create_with(client, &asked).await;
    // A single server looks for room first, and for as many copies as were asked for.
    let is_alone = client.is_alone();
    let is_single = |error: &ApiError| error.code == NOT_CLUSTERED || is_alone && error.is_limit();
    if wanted.replicas.is_none() && made.as_ref().is_err_and(is_single) {
        asked = config(wanted, 1);
        made = create_with(client, &asked).await;
    }
    made.map_err(|error| error.lacking(client, &asked).into_stream_error())
}

async fn create_with(client: &StreamApi, config: &Value) -> Result<(), ApiError> {
    let name = config.get("name").and_then(Value::as_str).unwrap_or_default();
    match ask::<Value>(client, &format!("STREAM.CREATE.{name}"), config).await {
        Ok(_) | Err(ApiError { code: SUBJECTS_OVERLAP, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) async fn api<T: for<'de> Deserialize<'de>>(
    client: &StreamApi,
    verb: &str,
    body: &impl Serialize,
) -> Result<T, StreamError> {
    ask(client, verb, body).await.map_err(ApiError::into_stream_error)
}

/// An error of the JetStream API, or no answer.
#[derive(Debug)]
pub(super) struct ApiError {
    /// JetStream's own error code; 0 if there was no such answer.
    pub(super) code: u64,
    description: String,
    /// See [`StreamError::lasts`].
    lasts: bool,
}

impl ApiError {
    fn none(description: impl std::fmt::Display) -> Self {
        Self { code: 0, description: description.to_string(), lasts: false }
    }

    fn is_limit(&self) -> bool {
        ACCOUNT_LIMITS.contains(&self.code) || SERVER_LIMITS.contains(&self.code)
    }

    /// What is missing, if it is room for the stream of this configuration.
    fn lacking(mut self, client: &StreamApi, config: &Value) -> Self {
        if !self.is_limit() {
            return self;
        }
        let of_account = ACCOUNT_LIMITS.contains(&self.code);
        let number = |member: &str| config.get(member).and_then(Value::as_i64).unwrap_or_default();
        let (bytes, copies) = (number("max_bytes"), number("num_replicas"));
        let name = config.get("name").and_then(Value::as_str).unwrap_or_default();
        let smaller = if name.starts_with("RO_") { "outcome_bytes" } else { "stream_messages" };
        let on_each = if copies > 1 { format!(" on each of {copies} servers") } else { String::new() };
        let mib = u64::try_from(bytes).unwrap_or_default().div_ceil(1 << 20);
        self.description = format!(
            "{}: the stream `{name}` needs {bytes} bytes ({mib} MiB) of memory{on_each} and one more stream: raise what limits them in \
             the broker's configuration (`max_mem`, `max_streams` and the like, of the server and of the account), or set a smaller \
             `replay.{smaller}`",
            self.description
        );
        // In a cluster, the servers that have room may be away.
        self.lasts = of_account || client.is_alone();
        self
    }

    pub(super) fn into_stream_error(self) -> StreamError {
        let outage = match self.code {
            0 => Outage::Unreachable,
            STREAM_NOT_FOUND => Outage::StreamReplaced,
            NOT_CLUSTERED => Outage::StreamUnfit,
            _ => Outage::Unverified,
        };
        StreamError { lasts: self.lasts, ..StreamError::new(outage, self.description) }
    }
}

pub(super) async fn ask<T: for<'de> Deserialize<'de>>(
    client: &StreamApi,
    verb: &str,
    body: &impl Serialize,
) -> Result<T, ApiError> {
    #[derive(Deserialize)]
    struct Failed {
        error: ErrorBody,
    }
    #[derive(Deserialize)]
    struct ErrorBody {
        #[serde(default)]
        err_code: u64,
        #[serde(default)]
        description: String,
    }
    let body = serde_json::to_vec(body).map_err(ApiError::none)?;
    let answer = client.request(client.subject(verb), body.into());
    let answer = match tokio::time::timeout(API_TIMEOUT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
            // In a cluster, the servers with JetStream may be away.
            let lasts = client.is_alone();
            return Err(ApiError { lasts, ..ApiError::none(OFF) });
        }
        Ok(Err(error)) => return Err(ApiError::none(format!("JetStream: {error}"))),
        Err(_) => return Err(ApiError::none("JetStream does not answer")),
    };
    if let Ok(Failed { error }) = serde_json::from_slice(&answer.payload) {
        let description = match error.err_code {
            code if DISABLED.contains(&code) => NOT_FOR_ACCOUNT.to_owned(),
            _ => format!("JetStream: {}", error.description),
        };
        return Err(ApiError { code: error.err_code, description, lasts: DISABLED.contains(&error.err_code) });
    }
    serde_json::from_slice(&answer.payload).map_err(|error| ApiError::none(format!("JetStream's answer: {error}")))
}

/// A broker time in milliseconds since the Unix epoch.
fn needed(text: &str) -> Result<u64, StreamError> {
    let parsed = OffsetDateTime::parse(text, &Rfc3339).ok();
    let ms = parsed.and_then(|time| u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok());
    let unreadable = || StreamError::new(Outage::StreamUnfit, "the broker's answer has no readable time");
    ms.filter(|ms| *ms > 0).ok_or_else(unreadable)
}

/// One node may die with its copy while another is away, and what it knew is still there.
const CLUSTER_COPIES: usize = 3;

/// Longer than any answer of a working broker takes.
const API_TIMEOUT: Duration = Duration::from_secs(1);

/// What to do where nobody answers JetStream's API.
const OFF: &str = "the broker has no JetStream, which the shared replay guard needs: turn it on (`jetstream { store_dir: … }` in the \
                   broker's configuration, or `nats-server --jetstream`), or use `replay.guard = \"local\"` with a single replica";
/// The same where the server has it and the account does not.
const NOT_FOR_ACCOUNT: &str = "JetStream is not enabled for this account of the broker, and the shared replay guard needs it: give the \
                               account `jetstream: enabled`";
/// `JSNotEnabledForAccountErr`, `JSNotEnabledErr`.
const DISABLED: [u64; 2] = [10_039, 10_076];
/// `JSAccountResourcesExceededErr`, `JSMaximumStreamsLimitErr`, `JSStreamMaxBytesRequired`, `JSNoLimitsErr`,
/// `JSStreamMaxStreamBytesExceeded`, `JSMaximumConsumersLimitErr`.
const ACCOUNT_LIMITS: [u64; 6] = [10_002, 10_027, 10_113, 10_120, 10_122, 10_026];
/// `JSInsufficientResourcesErr`, `JSMemoryResourcesExceededErr`, `JSStorageResourcesExceededErr`, `JSClusterNoPeersErrF`.
const SERVER_LIMITS: [u64; 4] = [10_023, 10_028, 10_047, 10_005];
/// `JSStreamNotFoundErr`.
const STREAM_NOT_FOUND: u64 = 10_059;
/// `JSNoMessageFoundErr`.
pub(super) const NO_MESSAGE: u64 = 10_037;
/// `JSStreamSubjectOverlapErr`.
const SUBJECTS_OVERLAP: u64 = 10_065;
/// `JSStreamReplicasNotSupportedErr`.
const NOT_CLUSTERED: u64 = 10_074;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::name::Name;

    fn info(change: impl FnOnce(&mut serde_json::Value)) -> Info {
        let mut info = json!({
            "config": fit::wanted(&wanted(), 3),
            "created": "2026-11-21T23:16:53.086921884Z",
            "state": {"messages": 2, "bytes": 108, "first_seq": 1, "first_ts": "2026-11-21T23:16:54.5Z", "last_seq": 2},
            "cluster": {"name": "c", "leader": "n3", "leader_since": "2026-11-21T23:14:55.8897883Z"},
            "ts": "2026-11-21T23:16:53.090695702Z"
        });
        change(&mut info);
        serde_json::from_value(info).unwrap()
    }

    fn wanted() -> SharedConfig {
        SharedConfig::new(Name::new("prod").unwrap(), Name::new("math").unwrap())
    }

    #[test]
    fn the_stream_that_is_made_fits() {
        let info = info(|_| ());
        assert_eq!(info.fits(&wanted()), Ok(()));
        assert_eq!(info.created_ms(), Ok(1_795_303_013_086));
        assert_eq!(info.first_ms(), Ok(Some(1_795_303_014_500)));
        assert_eq!(info.leader(), Ok(Some(("n3".to_owned(), Some(1_795_302_895_889)))));
    }

    #[test]
    fn a_stream_that_is_not_as_it_is_made_is_refused_with_what_to_do() {
        let squatted = info(|info| {
            info["config"]["name"] = json!("SQUAT");
            info["config"]["max_msgs"] = json!(60);
            info["config"]["persist_mode"] = json!("async");
        });
        let error = squatted.fits(&wanted()).unwrap_err();
        assert_eq!(error.outage, Outage::StreamUnfit);
        assert_eq!(
            error.detail,
            "stream `SQUAT` cannot serve as replay guard: its name is not `RG_prod_math_` and 12 letters or digits; `max_msgs` is \
             60 and should be 1000000; `persist_mode` is \"async\" and should not be set. Stop all replicas; if the skew becomes \
             smaller, wait for twice the old one; remove the stream; the service makes its own"
        );
    }

    #[test]
    fn one_server_needs_one_copy_and_a_configured_number_is_kept_to() {
        let single = info(|info| {
            info["cluster"] = json!({"leader": "NCOEM"});
            info["config"]["num_replicas"] = json!(1);
        });
        assert_eq!(single.leader(), Ok(None));
        assert_eq!(single.fits(&wanted()), Ok(()));
        assert!(single.fits(&SharedConfig { replicas: Some(3), ..wanted() }).is_err());
    }

    #[test]
    fn an_empty_stream_has_no_oldest_message_and_a_missing_leader_is_an_error() {
        let info = info(|info| {
            info["state"] = json!({"messages": 0, "first_ts": "0001-01-01T00:00:00Z", "last_seq": 0});
            info["cluster"] = json!({"name": "c", "leader": ""});
        });
        assert_eq!(info.first_ms(), Ok(None));
        assert!(info.leader().is_err());
    }
}
