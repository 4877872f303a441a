//! What a server answers: a result or an error for each call, serialized and parsed.
//! Never accepts a response that could be read in two ways.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::json;
use super::{Id, Limits, RpcError};
use crate::strict_json::{self, Flaw};

/// The outcome of a call: the result as JSON text, or the error.
pub type Outcome = Result<Box<RawValue>, RpcError>;

/// A response object (§5).
#[derive(Debug, Clone)]
pub struct Response {
    /// The id of the request, or null if it is not known.
    // JSON-RPC 2.0 §5: the id "MUST be the same as the value of the id member in the Request Object."
    pub id: Id,
    /// The result or the error: one of them, never both.
    pub outcome: Outcome,
    of_earlier_run: bool,
    of_task: bool,
}

impl Response {
    /// The response to the request with this id.
    #[must_use]
    pub fn new(id: Id, outcome: Outcome) -> Self {
        Self { id, outcome, of_earlier_run: false, of_task: false }
    }

    /// Marks the outcome as that of an earlier request with the same idempotency key: member `idempotent_replay`.
    #[must_use]
    pub fn of_earlier_run(self) -> Self {
        Self { of_earlier_run: true, ..self }
    }

    /// Whether the server marked the outcome as that of an earlier request.
    #[must_use]
    pub fn is_of_earlier_run(&self) -> bool {
        self.of_earlier_run
    }

    /// Marks the result as the state of a task, and not what the method has returned: member `task`.
    #[must_use]
    pub fn of_task(self) -> Self {
        Self { of_task: true, ..self }
    }

    /// Whether the server marked the result as the state of a task.
    #[must_use]
    pub fn is_of_task(&self) -> bool {
        self.of_task
    }

    /// The text of a single response. Id, result and `data` are included unchanged, byte for byte.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let result = self.outcome.as_ref().map_or(0, |result| result.get().len());
        json::to_bytes_of(self, result + AROUND)
    }

    /// The text of the responses to a batch. `None` if there are none: then nothing is sent.
    // JSON-RPC 2.0 §6: "If there are no Response objects contained within the Response array as it is to be sent to the
    // client, the server MUST NOT return an empty Array and should return nothing at all."
    #[must_use]
    pub fn batch_to_bytes(responses: &[Self]) -> Option<Vec<u8>> {
        json::array_to_bytes(responses)
    }

    fn read(text: &str) -> Result<Self, ResponseError> {
        // serde would also accept an array for the struct.
        if !json::is_object(text) {
            return Err(ResponseError::NotAnObject);
        }
        let members: Members<'_> = serde_json::from_str(text).map_err(|_| ResponseError::NotAnObject)?;
        // JSON-RPC 2.0 §5: `jsonrpc` "MUST be exactly "2.0"."
        if members.jsonrpc.and_then(json::string).is_none_or(|version| version != "2.0") {
            return Err(ResponseError::Version);
        }
        // JSON-RPC 2.0 §5: the id "is REQUIRED".
        let id = members.id.and_then(Id::from_raw).ok_or(ResponseError::Id)?;
        // JSON-RPC 2.0 §5: "Either the result member or error member MUST be included, but both members MUST NOT be
        // included."
        let outcome = match (members.result, members.error) {
            (Some(result), None) => Ok(result.to_owned()),
            (None, Some(error)) => {
                let is_application = members.application_error.is_some_and(|member| member.get() == "true");
                Err(read_error(error.get(), is_application).ok_or(ResponseError::Error)?)
            }
            (None, None) | (Some(_), Some(_)) => return Err(ResponseError::Outcome),
        };
        let is_true = |member: Option<&RawValue>| member.is_some_and(|member| member.get() == "true");
        let (of_earlier_run, of_task) = (is_true(members.idempotent_replay), is_true(members.task));
        Ok(Self { id, outcome, of_earlier_run, of_task })
    }
}

/// More than most responses need besides their result: two braces, three names, the version and a short id.
const AROUND: usize = 64;

impl Serialize for Response {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Response", 4)?;
        object.serialize_field("jsonrpc", "2.0")?;
        match &self.outcome {
            Ok(result) => object.serialize_field("result", result)?,
            Err(error) => {
                object.serialize_field("error", error)?;
                // Not within the error, where the application could write it, too.
                if error.is_marked() {
                    object.serialize_field("application_error", &true)?;
                }
            }
        }
        if self.of_earlier_run {
            object.serialize_field("idempotent_replay", &true)?;
        }
        if self.of_task {
            object.serialize_field("task", &true)?;
        }
        object.serialize_field("id", &self.id)?;
        object.end()
    }
}

/// The content of a reply.
#[derive(Debug, Clone)]
pub enum Responses {
    /// The answer to a single call, or the refusal of a whole message (id null).
    Single(Response),
    /// The answers to a batch, at least one, in any order.
    // JSON-RPC 2.0 §6: they "MAY be returned in any order within the Array. The Client SHOULD match contexts [..] based
    // on the id member within each Object."
    Batch(Vec<Response>),
}

impl Responses {
    /// Parses the bytes that a server sent. `max_batch` also bounds the responses in an array: there cannot be more
    /// responses than requests.
    ///
    /// Members with other names than the specification's are ignored, as in requests: a server's extension is not an
    /// error, and nothing reads it.
    ///
    /// # Errors
    /// [`ResponseError`], always the server's fault. If any part of a reply is wrong, nothing of it is used.
    pub fn parse(payload: &[u8], limits: &Limits) -> Result<Self, ResponseError> {
        let text = json::trimmed(strict_json::check(payload)?);
        if !json::is_array(text) {
            return Response::read(text).map(Self::Single);
        }
        let entries: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| ResponseError::NotAnObject)?;
        if entries.is_empty() {
            return Err(ResponseError::EmptyBatch);
        }
        if entries.len() > limits.max_batch {
            return Err(ResponseError::LongBatch);
        }
        entries.into_iter().map(|entry| Response::read(entry.get())).collect::<Result<_, _>>().map(Self::Batch)
    }
}

/// Why a reply is not what JSON-RPC 2.0 allows a server to send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseError {
    /// The text is not strict JSON.
    #[error("the reply {0}")]
    Json(#[from] Flaw),
    /// An empty array, which a server must not send (§6).
    #[error("the reply is an empty batch")]
    EmptyBatch,
    /// More responses than a batch may have requests.
    #[error("the reply has more responses than a batch may have requests")]
    LongBatch,
    /// A response is something other than an object.
    #[error("a response is not an object")]
    NotAnObject,
    /// `jsonrpc` is missing or not "2.0".
    #[error("`jsonrpc` of a response is not \"2.0\"")]
    Version,
    /// `id` is missing, or neither a string nor a number nor null.
    #[error("`id` of a response is missing or of a wrong type")]
    Id,
    /// Neither `result` nor `error`, or both.
    #[error("a response must have either `result` or `error`")]
    Outcome,
    /// `error` is not an object with an integer `code` (of 32 bits) and a string `message`.
    #[error("`error` of a response is malformed")]
    Error,
}

/// The members of a response object, not parsed further yet.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow, default, deserialize_with = "json::member")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    error: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    idempotent_replay: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    task: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    application_error: Option<&'a RawValue>,
}

/// The members of an error object.
#[derive(Deserialize)]
struct ErrorMembers<'a> {
    #[serde(borrow)]
    code: &'a RawValue,
    message: String,
    #[serde(borrow, default, deserialize_with = "json::member")]
    data: Option<&'a RawValue>,
}

// JSON-RPC 2.0 §5.1: the code "MUST be an integer." A fraction or an exponent is not accepted.
fn read_error(text: &str, is_application: bool) -> Option<RpcError> {
    let members: ErrorMembers<'_> = json::is_object(text).then(|| serde_json::from_str(text).ok())??;
    let code = members.code.get().parse().ok()?;
    Some(RpcError::received(code, members.message, members.data.map(ToOwned::to_owned), is_application))
}

#[cfg(test)]
mod tests;
