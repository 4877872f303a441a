//! Arguments that are larger than a message: a call names them by digest, size and type in its params, where policies can judge them, and
//! its method fetches the bytes from the caller (SPEC.md §25.6).
//! Never takes a byte of an attachment above its limit, and never hands any on before its whole size and digest are verified.

mod fetch;

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::parts::AskError;
use crate::jose::unb64_array;
use crate::policy::{Param, ParamType};
use crate::rpc::{RpcError, code};

pub(super) use fetch::{AttachmentMemory, CallAttachments};

/// An argument that is larger than a message, as a call names it in its params: `{"sha256": …, "size": …, "type": …}`. The caller has the
/// bytes; [`Ctx::attachment`](super::Ctx::attachment) fetches them.
///
/// ```
/// use sealwire::RpcError;
/// use sealwire::serve::Attachment;
/// use sealwire::{Ctx, Router};
///
/// #[derive(serde::Deserialize)]
/// struct Store { document: Attachment }
///
/// async fn store(ctx: Ctx, p: Store) -> Result<usize, RpcError> {
///     let document = ctx.attachment(&p.document).await?;
///     Ok(document.len())
/// }
///
/// let methods = Router::new(())
///     .method("archive/store", store)
///     .params("archive/store", [Attachment::param("document")]);
/// assert_eq!(methods.names().collect::<Vec<_>>(), ["archive/store"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    sha256: String,
    size: u64,
    media_type: String,
}

impl Attachment {
    /// A required parameter of this type, for [`Router::params`](super::Router::params): an object with `sha256`, `size` and `type`,
    /// so that policies can have `when.params.document.size = { max = 1000000 }`.
    #[must_use]
    pub fn param(name: impl Into<String>) -> Param {
        Param::new(name, Self::param_type())
    }

    pub(super) fn param_type() -> ParamType {
        ParamType::Object(vec![Param::string("sha256"), Param::integer("size"), Param::string("type")])
    }

    /// The digest of its bytes: base64url of SHA-256, 43 characters.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// How many bytes it has.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its media type according to the caller, such as `application/pdf`. Nothing checks whether the bytes match it.
    #[must_use]
    pub fn media_type(&self) -> &str {
        &self.media_type
    }
}

/// By name only: an array of the same values would be a second text for the same attachment, one that policies do not
/// recognize.
impl<'de> Deserialize<'de> for Attachment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ByName)
    }
}

struct ByName;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Members {
    sha256: String,
    #[serde(deserialize_with = "crate::jose::integer")]
    size: u64,
    #[serde(rename = "type")]
    media_type: String,
}

impl<'de> Visitor<'de> for ByName {
    type Value = Attachment;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `sha256`, `size` and `type`")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Attachment, A::Error> {
        let Members { sha256, size, media_type } = Members::deserialize(MapAccessDeserializer::new(members))?;
        if unb64_array::<32>(&sha256).is_none() {
            return Err(A::Error::custom("`sha256` is base64url of a SHA-256: 43 characters"));
        }
        if !is_media_type(&media_type) {
            return Err(A::Error::custom(
                "`type` is a media type in lower case, without parameters, such as `text/plain`",
            ));
        }
        Ok(Attachment { sha256, size, media_type })
    }
}

/// RFC 6838 §4.2, in lower case, so that there is one text for each type; 127 bytes at most.
fn is_media_type(text: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$&-^_.+".contains(&b))
    };
    text.len() <= 127 && text.split_once('/').is_some_and(|(kind, name)| is_name(kind) && is_name(name))
}

/// The bounds of attachments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachmentLimits {
    /// The largest attachment, in bytes; 16 MiB.
    pub each: usize,
    /// The bytes of all attachments that this replica fetches or its methods hold; 64 MiB. An agent may take more only if it then holds no
    /// more than what is left free.
    pub in_all: usize,
}

impl Default for AttachmentLimits {
    fn default() -> Self {
        Self { each: 16 << 20, in_all: 64 << 20 }
    }
}

/// An attachment cannot be delivered to the method. As an [`RpcError`], it tells the caller what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachmentError {
    /// The caller cannot be asked: its call has no window for frames.
    #[error("the attachment cannot be fetched: the call takes no frames (claim `win`)")]
    NoFrames,
    /// It is larger than the service accepts.
    #[error("the attachment has {size} bytes, and the limit is {limit}")]
    TooLarge {
        /// Its size in bytes, according to the caller.
        size: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// There is no room for it, even after a wait: the caller's other attachments, or everybody's, fill the memory.
    #[error("no room for an attachment of {size} bytes: call again when others are done")]
    NoRoom {
        /// Its size in bytes, according to the caller.
        size: u64,
    },
    /// The caller refused to provide it.
    #[error("the caller did not give the attachment: {0}")]
    Refused(RpcError),
    /// The caller did not answer for 45 s, although asked three times.
    #[error("the caller gave no part of the attachment for 45 s")]
    NotAnswered,
    /// A part that the caller gave does not have the requested length, or is not base64url.
    #[error("the attachment is not what was announced: a part of another size")]
    OtherSize,
    /// The bytes that the caller gave have another digest.
    #[error("the attachment is not what was announced: another digest")]
    OtherDigest,
    /// The caller could not be asked: the call has ended, or its method asks too many other questions.
    #[error(transparent)]
    Ask(AskError),
}

impl From<AskError> for AttachmentError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::NoFrames => Self::NoFrames,
            AskError::Refused(error) => Self::Refused(error),
            AskError::Malformed(_) => Self::OtherSize,
            other => Self::Ask(other),
        }
    }
}

impl From<AttachmentError> for RpcError {
    fn from(error: AttachmentError) -> Self {
        match &error {
            // A later call may succeed.
            AttachmentError::NoRoom { .. } | AttachmentError::NotAnswered => {
                Self::with_code(code::DEPENDENCY_FAILED, error.to_string())
            }
            AttachmentError::Ask(_) => Self::internal(error),
            // The caller's own text is not repeated.
            AttachmentError::Refused(_) => {
                Self::invalid_params("Invalid params: the caller did not give the attachment").caused_by(error)
            }
            _ => Self::invalid_params(format!("Invalid params: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const DIGEST: &str = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";

    /// SPEC.md §25.6.
    #[test]
    fn an_attachment_has_one_text() {
        let text =
            |sha256: &str, size: &str, kind: &str| format!(r#"{{"type":"{kind}","sha256":"{sha256}","size":{size}}}"#);
        let good: Attachment = serde_json::from_str(&text(DIGEST, "9007199254740991", "image/svg+xml")).unwrap();
        assert_eq!((good.sha256(), good.size(), good.media_type()), (DIGEST, (1 << 53) - 1, "image/svg+xml"));
        let short = &DIGEST[..42];
        for bad in [
            text(&format!("{short}V"), "0", "a/b"),
            text(short, "0", "a/b"),
            text(DIGEST, "9007199254740992", "a/b"),
            text(DIGEST, "1.0", "a/b"),
            text(DIGEST, "-1", "a/b"),
            text(DIGEST, "0", "a"),
            text(DIGEST, "0", "a/"),
            text(DIGEST, "0", "a/b/c"),
            text(DIGEST, "0", "A/b"),
            text(DIGEST, "0", "text/plain; charset=utf-8"),
            text(DIGEST, "0", &format!("a/{}", "b".repeat(126))),
            format!(r#"["{DIGEST}",0,"a/b"]"#),
            format!(r#"{{"sha256":"{DIGEST}","size":0}}"#),
            format!(r#"{{"sha256":"{DIGEST}","size":0,"type":"a/b","name":"x"}}"#),
        ] {
            assert!(serde_json::from_str::<Attachment>(&bad).is_err(), "{bad}");
        }
    }
}
