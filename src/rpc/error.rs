//! JSON-RPC error objects: the codes, the public text, and the private cause that only the log gets.
//! Never puts an internal detail into the text that is sent.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// An error object of JSON-RPC 2.0 (§5.1), which the caller of a method gets instead of a result.
///
/// `message` and `data` are public: they are sent to the caller. A cause attached with [`RpcError::caused_by`] is
/// private: it is logged and never sent.
#[derive(Clone)]
pub struct RpcError {
    code: i32,
    origin: Origin,
    message: Cow<'static, str>,
    data: Option<Box<RawValue>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Who chose the code of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// This process, with the meaning that SPEC.md §14 gives the code.
    Profile,
    /// Another party that speaks this profile, with the same meaning, but about a call of its own.
    Peer,
    /// An application, with whatever meaning it has there.
    Application,
}

/// The codes that Sealwire itself answers with.
///
/// An application may use the same numbers for something else: [`RpcError::profile_code`] tells them apart. The first five are from JSON-RPC 2.0 §5.1; the others lie in its range for implementation-defined server errors.
pub mod code {
    /// Invalid JSON was received.
    pub const PARSE_ERROR: i32 = -32700;
    /// The JSON is not a valid request object.
    pub const INVALID_REQUEST: i32 = -32600;
    /// The method does not exist.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// The parameters do not fit the method.
    pub const INVALID_PARAMS: i32 = -32602;
    /// The method failed in a way that is not the caller's business.
    pub const INTERNAL_ERROR: i32 = -32603;
    /// The application rejects well-formed parameters.
    pub const VALIDATION_FAILED: i32 = -32001;
    /// The policy denies the call.
    pub const PERMISSION_DENIED: i32 = -32002;
    /// The deadline passed before there was an answer.
    pub const TIMEOUT: i32 = -32003;
    /// An upstream of the method failed.
    pub const DEPENDENCY_FAILED: i32 = -32004;
    /// Anything that is wrong before the caller is known; never more detail, never signed.
    pub const UNAUTHENTICATED: i32 = -32010;
    /// Outside the time window; `data.server_time` in seconds since the Unix epoch.
    pub const STALE: i32 = -32011;
    /// The nonce was seen before.
    pub const REPLAYED: i32 = -32012;
    /// The caller's quota is used up; `data.retry_after_ms` and `data.scope`.
    pub const QUOTA_EXCEEDED: i32 = -32013;
    /// The message was shed under load, or the replay store cannot be reached; `data.retry_after_ms`.
    pub const OVERLOADED: i32 = -32014;
    /// The request or the response exceeds its limit.
    pub const TOO_LARGE: i32 = -32015;
    /// The caller cancelled the call.
    pub const CANCELLED: i32 = -32016;
    /// The idempotency key was used before, and there is no outcome to return; `data.idempotency`.
    pub const CONFLICT: i32 = -32017;
    /// The call runs once people have approved it; `data.approval`, `data.needs` and `data.deadline`.
    pub const APPROVAL_REQUIRED: i32 = -32018;
}

impl RpcError {
    /// An error of the application, with any code. It reaches the caller unchanged.
    ///
    /// Codes outside -32768..=-32000, preferably positive ones, cannot be mistaken for anything else. Inside, a response says that the code
    /// is the application's (SPEC.md §14), so it is never taken for a refusal by Sealwire. For the meanings that Sealwire shares with
    /// applications, use [`RpcError::validation`], [`RpcError::dependency`], [`RpcError::invalid_params`] and [`RpcError::internal`].
    #[must_use]
    pub fn application(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { origin: Origin::Application, ..Self::with_code(code, message) }
    }

    /// `-32001`: the application rejects the well-formed parameters.
    #[must_use]
    pub fn validation(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_code(code::VALIDATION_FAILED, message)
    }

    /// `-32004`: something this method depends on failed. The cause is logged, not sent.
    #[must_use]
    pub fn dependency(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::with_code(code::DEPENDENCY_FAILED, "dependency failed").caused_by(cause)
    }

    /// `-32602`: the parameters do not fit the method.
    #[must_use]
    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::with_code(code::INVALID_PARAMS, message)
    }

    /// `-32603`: the method failed. The cause is logged, not sent.
    #[must_use]
    pub fn internal(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::with_code(code::INTERNAL_ERROR, "Internal error").caused_by(cause)
    }

    /// A method's error as it may be sent: a method cannot speak for Sealwire's own checks. An error that was received from another
    /// service and is passed on says nothing about checks of this one.
    pub(crate) fn of_application(self) -> Self {
        let is_shared = matches!(
            self.code,
            code::INVALID_PARAMS | code::INTERNAL_ERROR | code::VALIDATION_FAILED | code::DEPENDENCY_FAILED
        );
        if is_shared && self.origin == Origin::Profile { self } else { Self { origin: Origin::Application, ..self } }
    }

    /// The error of a layer around the methods, or one that it passed on from a method, as it may be sent.
    pub(crate) fn of_layer(self) -> Self {
        // The methods themselves return it if a policy allows a name that is not registered.
        let is_unknown_method = self.code == code::METHOD_NOT_FOUND && self.origin == Origin::Profile;
        if is_unknown_method { self } else { self.of_application() }
    }

    /// Any code, for Sealwire's own answers.
    pub(crate) fn with_code(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, origin: Origin::Profile, message: message.into(), data: None, source: None }
    }

    /// The error object of a response that was received. `is_application`: the response says that it is the application's.
    pub(super) fn received(code: i32, message: String, data: Option<Box<RawValue>>, is_application: bool) -> Self {
        let origin = if is_application { Origin::Application } else { Origin::Peer };
        Self { code, origin, message: message.into(), data, source: None }
    }

    /// Attaches `data` (§5.1): public, sent to the caller. A value that cannot be serialised is left out, which is logged.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        match serde_json::value::to_raw_value(data) {
            Ok(raw) => self.data = Some(raw),
            Err(error) => {
                tracing::error!(target: "sealwire::call", %error, code = self.code, "error data could not be serialised")
            }
        }
        self
    }

    /// Attaches the private cause: logged, never sent.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(cause.into()));
        self
    }

    /// `code` (§5.1). An application may use any number: for decisions, see [`RpcError::profile_code`].
    #[must_use]
    pub fn code(&self) -> i32 {
        self.code
    }

    /// The code, if it has the meaning that SPEC.md §14 gives it, so that it is one of [`code`]; `None` if the application chose it.
    ///
    /// Only these codes can say that a call was refused, or that it may be made again.
    #[must_use]
    pub fn profile_code(&self) -> Option<i32> {
        (!self.is_application()).then_some(self.code)
    }

    /// Whether the application chose the code, with a meaning of its own. Its method, or a layer around it, has answered the call.
    #[must_use]
    pub fn is_application(&self) -> bool {
        self.origin == Origin::Application || !is_reserved(self.code)
    }

    /// Whether a response has to say that the code is the application's.
    pub(crate) fn is_marked(&self) -> bool {
        self.origin == Origin::Application && is_reserved(self.code)
    }

    /// `message` (§5.1): public.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// `data` (§5.1), as JSON text: public.
    #[must_use]
    pub fn data(&self) -> Option<&RawValue> {
        self.data.as_deref()
    }
}

/// Serialized as sent: `code`, `message`, and `data` if there is any, without the private cause.
impl Serialize for RpcError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("RpcError", 2 + usize::from(self.data.is_some()))?;
        object.serialize_field("code", &self.code)?;
        object.serialize_field("message", &self.message)?;
        if let Some(data) = &self.data {
            object.serialize_field("data", data)?;
        }
        object.end()
    }
}

/// Whether JSON-RPC 2.0 §5.1 reserves the code, so that it could be one of SPEC.md §14.
fn is_reserved(code: i32) -> bool {
    (-32768..=-32000).contains(&code)
}

/// The most characters of a message that are shown; [`RpcError::message`] returns all of it.
const MAX_MESSAGE: usize = 1_000;

/// Escapes whatever is not printable, and keeps the first `most` characters.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let escape = |c: char| {
        let printable = matches!(c, '"' | '\'' | '\\');
        printable.then_some(c).into_iter().chain((!printable).then(|| c.escape_debug()).into_iter().flatten())
    };
    text.chars().flat_map(escape).take(most).collect()
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Another party wrote the message: it must be safe to show anywhere.
        let of = if self.is_marked() { " of the application" } else { "" };
        write!(f, "{} ({}{of})", one_line(&self.message, MAX_MESSAGE), self.code)
    }
}

impl fmt::Debug for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcError")
            .field("code", &self.code)
            .field("origin", &self.origin)
            .field("message", &self.message)
            .field("data", &self.data.as_ref().map(|raw| raw.get()))
            .field("source", &self.source.as_ref().map(ToString::to_string))
            .finish()
    }
}

impl StdError for RpcError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_on_one_short_line_whatever_its_sender_says() {
        let said = format!("no \"Zürich\"\u{1b}[2J\u{202e}\r\n{}", "x".repeat(190_000));
        let shown = RpcError::received(7, said.clone(), None, false).to_string();
        assert!(shown.starts_with(r#"no "Zürich"\u{1b}[2J\u{202e}\r\nxxx"#) && shown.ends_with("x (7)"), "{shown}");
        assert_eq!(shown.chars().count(), MAX_MESSAGE + " (7)".len());
        assert_eq!(RpcError::received(7, said.clone(), None, false).message(), said);
    }
}
