//! The forms of A2A for tasks, their states and what is told of them.

use std::time::SystemTime;

use sealwire_gateway::dialect::Refusal;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::raw::raw;

/// A2A §4.1.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    #[serde(rename = "TASK_STATE_SUBMITTED")]
    Submitted,
    #[serde(rename = "TASK_STATE_WORKING")]
    Working,
    #[serde(rename = "TASK_STATE_COMPLETED")]
    Completed,
    #[serde(rename = "TASK_STATE_FAILED")]
    Failed,
    #[serde(rename = "TASK_STATE_CANCELED")]
    Canceled,
    #[serde(rename = "TASK_STATE_INPUT_REQUIRED")]
    InputRequired,
    #[serde(rename = "TASK_STATE_REJECTED")]
    Rejected,
    #[serde(rename = "TASK_STATE_AUTH_REQUIRED")]
    AuthRequired,
    #[serde(rename = "TASK_STATE_UNSPECIFIED")]
    Unspecified,
}

/// How a task is, and since when.
#[derive(Clone, Serialize)]
pub(crate) struct Status {
    pub(crate) state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Box<RawValue>>,
    #[serde(serialize_with = "written")]
    pub(crate) timestamp: OffsetDateTime,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskView<'a> {
    pub(crate) id: &'a str,
    pub(crate) context_id: &'a str,
    pub(crate) status: &'a Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifacts: Option<Vec<Artifact<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Artifact<'a> {
    pub(crate) artifact_id: &'static str,
    pub(crate) parts: Vec<Part<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ArtifactUpdate<'a> {
    pub(crate) task_id: &'a str,
    pub(crate) context_id: &'a str,
    pub(crate) artifact: Artifact<'a>,
    pub(crate) append: bool,
    pub(crate) last_chunk: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusUpdate<'a> {
    pub(crate) task_id: &'a str,
    pub(crate) context_id: &'a str,
    pub(crate) status: &'a Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message<'a> {
    pub(crate) message_id: String,
    pub(crate) context_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) task_id: Option<&'a str>,
    pub(crate) role: &'static str,
    pub(crate) parts: Vec<Part<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Part<'a> {
    Text {
        text: String,
    },
    Data {
        data: &'a RawValue,
        #[serde(rename = "mediaType")]
        media_type: &'static str,
    },
}

impl<'a> Part<'a> {
    pub(crate) fn of(value: &'a RawValue) -> Self {
        match serde_json::from_str(value.get()) {
            Ok(text) => Self::Text { text },
            Err(_) => Self::Data { data: value, media_type: "application/json" },
        }
    }
}

impl<'a> Artifact<'a> {
    /// The one artifact of a task.
    pub(crate) fn of(parts: Vec<Part<'a>>) -> Self {
        Self { artifact_id: "result", parts }
    }
}

impl Status {
    pub(crate) fn now(state: State, message: Option<Box<RawValue>>) -> Self {
        Self { state, message, timestamp: SystemTime::now().into() }
    }
}

/// A2A §5.6.1: to the millisecond, in UTC.
fn timestamp(at: OffsetDateTime) -> String {
    let at = at.replace_nanosecond(u32::from(at.millisecond()) * 1_000_000).unwrap_or(at);
    // Cannot fail for years up to 9999.
    at.format(&Rfc3339).unwrap_or_default()
}

fn written<S: Serializer>(at: &OffsetDateTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&timestamp(*at))
}

/// An object with one member, as for a `oneof`.
pub(crate) fn chosen(name: &'static str, value: &RawValue) -> Box<RawValue> {
    raw(&std::collections::BTreeMap::from([(name, value)]))
}

/// The error of a refusal, in machine-readable form.
pub(crate) fn error_of(refusal: &Refusal) -> Option<Box<RawValue>> {
    #[derive(Serialize, Deserialize)]
    struct Said {
        error: Box<RawValue>,
    }
    serde_json::from_slice::<Said>(&refusal.text()).ok().map(|said| raw(&said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_to_the_millisecond_in_utc() {
        let at = |millis: u64| {
            timestamp((SystemTime::UNIX_EPOCH + std::time::Duration::from_micros(millis * 1_000 + 999)).into())
        };
        assert_eq!(at(1_761_647_400_123), "2025-10-28T10:30:00.123Z");
        assert_eq!(at(1_761_647_400_000), "2025-10-28T10:30:00Z");
    }
}
