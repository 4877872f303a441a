//! What a client sends: a request, a notification or a batch of them, parsed and serialized.
//! Never answers, and never decides whether a method exists or may be called.

use std::borrow::Cow;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::json;
use super::{Id, Limits, Params, ParamsError, Response, RpcError, code};
use crate::strict_json::{self, Flaw};

/// A well-formed request object (§4). Without an id it is a notification.
///
/// ```
/// use sealwire::internal::rpc::{Id, Request};
///
/// let request = Request::new("math/add", &[1, 2], Some(Id::from(7)))?;
/// assert_eq!(request.to_bytes(), br#"{"jsonrpc":"2.0","method":"math/add","params":[1,2],"id":7}"#);
/// # Ok::<(), sealwire::internal::rpc::ParamsError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Request {
    /// The method's name: any text, whether or not such a method can exist.
    pub method: String,
    /// The parameters, if any.
    pub params: Option<Params>,
    /// The id of a call; `None` makes it a notification. A request with the id null is a call as well.
    // JSON-RPC 2.0 §4.1: "A Notification is a Request object without an "id" member."
    pub id: Option<Id>,
}

impl Request {
    /// A request to send: a call if it has an id, otherwise a notification.
    ///
    /// # Errors
    /// [`ParamsError`] if `params` does not serialise to an object, an array or null. Null, as from `()` and `None`, sends
    /// no parameters.
    pub fn new<T: Serialize + ?Sized>(
        method: impl Into<String>,
        params: &T,
        id: Option<Id>,
    ) -> Result<Self, ParamsError> {
        Ok(Self { method: method.into(), params: Params::encode(params)?, id })
    }

    /// Whether it is a notification, so that nobody waits for an answer.
    #[must_use]
    pub fn is_notification(&self) -> bool {
        self.id.is_none()
    }

    /// The text of a single request, to send.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let params = self.params.as_ref().map_or(0, |params| params.raw().get().len());
        json::to_bytes_of(self, self.method.len() + params + AROUND)
    }

    /// The text of a batch, to send. `None` if it is empty, since an empty batch is an invalid request.
    // JSON-RPC 2.0 §6: "the Client MAY send an Array filled with Request objects."
    #[must_use]
    pub fn batch_to_bytes(requests: &[Self]) -> Option<Vec<u8>> {
        json::array_to_bytes(requests)
    }

    /// Parses one request object. If anything is wrong with it, returns the response that it gets.
    fn read(text: &str) -> Entry {
        let refused = |id: Option<Id>, reason| Err(Response::new(id.unwrap_or_else(Id::null), Err(invalid(reason))));
        // serde would also accept an array for the struct below.
        if !json::is_object(text) {
            return refused(None, "");
        }
        let Ok(members) = serde_json::from_str::<Members<'_>>(text) else {
            return refused(None, "");
        };
        // JSON-RPC 2.0 §5: "If there was an error in detecting the id in the Request object (e.g. Parse error/Invalid
        // Request), it MUST be Null." A present and legal id is detected, whatever else is wrong.
        let id = match members.id {
            None => None,
            Some(raw) => match Id::from_raw(raw) {
                Some(id) => Some(id),
                None => return refused(None, "`id` must be a string, a number or null"),
            },
        };
        let Some(method) = members.method.and_then(json::string).map(Cow::into_owned) else {
            return refused(id, "");
        };
        // JSON-RPC 2.0 §4: `jsonrpc` "MUST be exactly "2.0"." Requests of JSON-RPC 1.0 lack the member and are refused (§3).
        if members.jsonrpc.and_then(json::string).is_none_or(|version| version != "2.0") {
            return refused(id, "`jsonrpc` must be \"2.0\"");
        }
        let params = match members.params {
            None => None,
            Some(raw) => match Params::from_raw(raw) {
                Some(params) => Some(params),
                None => return refused(id, "`params` must be an object or an array"),
            },
        };
        Ok(Self { method, params, id })
    }
}

impl Serialize for Request {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let members = 2 + usize::from(self.params.is_some()) + usize::from(self.id.is_some());
        let mut object = serializer.serialize_struct("Request", members)?;
        object.serialize_field("jsonrpc", "2.0")?;
        object.serialize_field("method", &self.method)?;
        if let Some(params) = &self.params {
            object.serialize_field("params", params)?;
        }
        if let Some(id) = &self.id {
            object.serialize_field("id", id)?;
        }
        object.end()
    }
}

/// More than most requests need besides method and parameters: two braces, four names, the version and a short id.
const AROUND: usize = 64;

/// The content of a message, in the order received.
#[derive(Debug, Clone)]
pub enum Body {
    /// One object: it is answered by one object, or not at all.
    Single(Entry),
    /// One to [`Limits::max_batch`] entries: answered by an array, or not at all if all are notifications.
    Batch(Vec<Entry>),
}

/// A request, or the response that stands in for one because it was not valid.
pub type Entry = Result<Request, Response>;

impl Body {
    /// Parses the bytes that a client sent.
    ///
    /// # Errors
    /// The message is refused as a whole. The answer is a single response object with the id null:
    /// - `-32700`: not UTF-8, a byte-order mark, not JSON, or nested deeper than [`MAX_DEPTH`](super::MAX_DEPTH) levels;
    /// - `-32600`: a member name twice in one object, an empty batch, or more entries than allowed.
    ///
    /// Errors in a single entry are not reported here: they are in that [`Entry`].
    pub fn parse(payload: &[u8], limits: &Limits) -> Result<Self, RpcError> {
        let text = json::trimmed(strict_json::check(payload)?);
        if !json::is_array(text) {
            return Ok(Self::Single(Request::read(text)));
        }
        let entries: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| invalid(""))?;
        // JSON-RPC 2.0 §6: "If the batch rpc call itself fails to be recognized as an valid JSON or as an Array with at
        // least one value, the response from the Server MUST be a single Response object."
        if entries.is_empty() {
            return Err(invalid(""));
        }
        if entries.len() > limits.max_batch {
            return Err(invalid(&format!("a batch may have at most {} entries", limits.max_batch)));
        }
        Ok(Self::Batch(entries.into_iter().map(|entry| Request::read(entry.get())).collect()))
    }
}

impl From<Flaw> for RpcError {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::Syntax => Self::with_code(code::PARSE_ERROR, "Parse error"),
            Flaw::NotUtf8 | Flaw::ByteOrderMark | Flaw::TooDeep => {
                Self::with_code(code::PARSE_ERROR, format!("Parse error: the text {flaw}"))
            }
            Flaw::DuplicateMember => invalid(&format!("the text {flaw}")),
        }
    }
}

/// The text of the specification, and how to fix the request where that is not obvious.
fn invalid(reason: &str) -> RpcError {
    let separator = if reason.is_empty() { "" } else { ": " };
    RpcError::with_code(code::INVALID_REQUEST, format!("Invalid Request{separator}{reason}"))
}

/// The members of a request object, not parsed further yet.
///
/// Members with other names are ignored: the specification does not mention them, and nothing reads them later.
// JSON-RPC 2.0 §2: member names "should be considered to be case-sensitive".
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow, default, deserialize_with = "json::member")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json::member")]
    id: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests;
