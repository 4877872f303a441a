//! Frames: the numbered, signed parts of an answer that are sent while its call runs (SPEC.md §25).
//! Never gives two frames the same number, and never signs one after the end.

use std::fmt::Write as _;

use async_nats::Subject;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::headers::HeaderBlock;
use super::proof::{ProofError, ProofHeader, SCHEME, object, some_string};
use super::seal::{AUTHENTICATION_INFO, Binding, ReplyKey, Signing};
use super::subject::ReplyTo;
use crate::jose::{b64, b64_to, integer, sha256, unb64, unb64_array};
use crate::nats::{PublishError, Session};

/// The memory that a frame needs besides its bytes: its place in a queue whose capacity may be twice its length, and
/// the allocator's overhead for two buffers. We measured 300 to 400 bytes (`tests/bus/streams/memory.rs`).
const BESIDE: usize = 384;

/// The `typ` of a frame's proof.
pub(crate) const FRAME_TYP: &str = "nats-rpc-v1-frame+jwt";

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameKind {
    /// The call has begun. Always the first frame, number 0; empty.
    Open,
    /// A part of the result: a JSON-RPC response, or an array of some.
    Item,
    /// A JSON-RPC notification to the caller, or an array of some.
    Note,
    /// A JSON-RPC request to the caller.
    Ask,
    /// Bytes of the text of a response that is too large for one message.
    Piece,
    /// The call is still running; empty. Repeats the number of the frame before it.
    Beat,
    /// The JSON-RPC response, or its last bytes after pieces. Nothing follows it.
    End,
}

/// The claims of a frame's proof, exactly as the protocol names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameClaims {
    /// `<environment>/<service>`.
    pub iss: String,
    /// The reply subject.
    pub to: String,
    /// When it was signed: whole seconds since the Unix epoch.
    #[serde(deserialize_with = "integer")]
    pub iat: u64,
    /// base64url(SHA-256(proof of the request)).
    pub req: String,
    /// base64url(SHA-256(payload)).
    pub dig: String,
    /// The frame's number: 0 for [`FrameKind::Open`], then increasing by one; a [`FrameKind::Beat`] repeats the last number.
    #[serde(deserialize_with = "integer")]
    pub seq: u64,
    /// The frame's kind.
    pub knd: FrameKind,
    /// The replica that runs the call.
    pub rep: String,
    /// Only for [`FrameKind::End`]: the digest of everything that was answered.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_string")]
    pub acc: Option<String>,
}

impl FrameKind {
    /// The value of the claim `knd`.
    fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Item => "item",
            Self::Note => "note",
            Self::Ask => "ask",
            Self::Piece => "piece",
            Self::Beat => "beat",
            Self::End => "end",
        }
    }
}

impl FrameClaims {
    pub(crate) fn parse(part: &str) -> Result<Self, ProofError> {
        let bytes = unb64(part).ok_or(ProofError::Encoding)?;
        let claims: Self = object(&bytes).ok_or(ProofError::Claims)?;
        // Only `open` has the number 0, except for beats, and only `end` has the digest.
        if (claims.knd == FrameKind::Open) != (claims.seq == 0 && claims.knd != FrameKind::Beat) {
            return Err(ProofError::Claim("knd"));
        }
        if (claims.knd == FrameKind::End) != claims.acc.is_some() {
            return Err(ProofError::Claim("acc"));
        }
        // A text that no digest has is malformed, and the frame is ignored; one that another stream has ends this one.
        if claims.acc.as_deref().is_some_and(|acc| unb64_array::<32>(acc).is_none()) {
            return Err(ProofError::Claim("acc"));
        }
        Ok(claims)
    }
}

/// The digest of everything that a call has answered so far: if the last one matches, nothing is missing.
///
/// It starts as the digest of the request's proof; each frame with content changes it to `SHA-256(digest ||
/// SHA-256(payload))`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningDigest([u8; 32]);

impl RunningDigest {
    /// The digest before the first frame; `request` is the digest of the request's proof.
    pub(crate) fn of_request(request: [u8; 32]) -> Self {
        Self(request)
    }

    /// Adds the next frame's payload, given its digest.
    pub(crate) fn add(&mut self, payload: &[u8; 32]) {
        let mut both = [0; 64];
        let (before, added) = both.split_at_mut(32);
        before.copy_from_slice(&self.0);
        added.copy_from_slice(payload);
        self.0 = sha256(&both);
    }

    pub(crate) fn to_text(&self) -> String {
        b64(self.0)
    }
}

/// Signs the frames of one call, in order. Made from the call's [`Binding`], so a call that has sent a frame can no
/// longer be answered in the ordinary way.
#[derive(Debug)]
pub(crate) struct FrameSealer {
    reply: ReplyTo,
    key: ReplyKey,
    texts: Texts,
    stem: Option<Stem>,
    /// The next frame number to assign.
    next: u64,
    digest: RunningDigest,
    /// When the last frame was signed, seconds since the Unix epoch.
    last_iat: u64,
}

/// The parts that are the same in every frame: the header block up to the claims, and the JSON between the claims' values.
#[derive(Debug)]
struct Texts {
    head: String,
    /// The offset of the proof in `head`.
    proof_at: usize,
    before_iat: String,
    after_iat: String,
    replica: String,
}

/// The beginning of all frames signed in one second, already encoded and fed to the MAC: most of each frame's proof.
#[derive(Debug)]
struct Stem {
    iat: u64,
    /// The header block, up to the last whole group of base64url.
    block: String,
    /// Up to two bytes of the claims that do not fill a group yet.
    rest: String,
    signing: Signing,
}

/// A frame that may be published, as often as the caller requests it.
#[derive(Clone)]
pub struct SealedFrame {
    seq: u64,
    kind: FrameKind,
    /// Only for [`FrameKind::Ask`]: the digest of its proof, by which an answer refers to it.
    question: Option<Box<str>>,
    to: Subject,
    headers: HeaderBlock,
    payload: Bytes,
}

impl FrameSealer {
    pub(crate) fn new(binding: Binding, replica: &str) -> Self {
        let (reply, iss, request, key) = binding.into_parts();
        let texts = Texts::new(&reply, iss.as_str(), &request, &key, replica);
        let digest = RunningDigest::of_request(request);
        Self { reply, key, texts, stem: None, next: 0, digest, last_iat: 0 }
    }

    /// The number that the next frame will get, which is how many numbers are used.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next
    }

    /// Opens the call's stream. Must come first.
    pub(crate) fn open(&mut self, now_s: u64) -> SealedFrame {
        debug_assert_eq!(self.next, 0, "opened once");
        self.numbered(FrameKind::Open, Bytes::new(), now_s)
    }

    /// Signs a frame with content. Not for [`FrameKind::End`]: see [`FrameSealer::end`].
    pub(crate) fn content(&mut self, kind: FrameKind, payload: Bytes, now_s: u64) -> SealedFrame {
        debug_assert!(matches!(kind, FrameKind::Item | FrameKind::Note | FrameKind::Ask | FrameKind::Piece));
        debug_assert!(self.next > 0, "after `open`");
        self.numbered(kind, payload, now_s)
    }

    /// Signs a beat. Its `iat` is later than that of every frame before it, so a repeated beat is recognized.
    pub(crate) fn beat(&mut self, now_s: u64) -> SealedFrame {
        let iat = now_s.max(self.last_iat.saturating_add(1));
        self.signed(FrameKind::Beat, self.next.saturating_sub(1), Bytes::new(), iat, false)
    }

    /// Signs the last frame.
    pub(crate) fn end(mut self, payload: Bytes, now_s: u64) -> SealedFrame {
        self.numbered(FrameKind::End, payload, now_s)
    }

    fn numbered(&mut self, kind: FrameKind, payload: Bytes, now_s: u64) -> SealedFrame {
        let seq = self.next;
        self.next = self.next.saturating_add(1);
        let iat = now_s.max(self.last_iat);
        self.signed(kind, seq, payload, iat, kind != FrameKind::Open)
    }

    fn signed(&mut self, kind: FrameKind, seq: u64, payload: Bytes, iat: u64, counts: bool) -> SealedFrame {
        let digest = sha256(&payload);
        if counts {
            self.digest.add(&digest);
        }
        self.last_iat = iat;
        let stem = match self.stem.take() {
            Some(stem) if stem.iat == iat => stem,
            _ => self.texts.stem(iat, &self.key),
        };
        // The claims are in the order of `FrameClaims`.
        let mut claims = String::with_capacity(256);
        claims.push_str(&stem.rest);
        b64_to(digest, &mut claims);
        let _ = write!(claims, r#"","seq":{seq},"knd":"{}","rep":{}"#, kind.as_str(), self.texts.replica);
        if kind == FrameKind::End {
            let _ = write!(claims, r#","acc":"{}""#, self.digest.to_text());
        }
        claims.push('}');
        // Room for separator, MAC and two line ends, exactly, since frames are kept. An Ed25519 signature makes it grow once.
        let mut block = String::with_capacity(stem.block.len() + (claims.len() * 4).div_ceil(3) + 48);
        block.push_str(&stem.block);
        b64_to(claims, &mut block);
        let signature = stem.signing.sign(&self.key, &block, stem.block.len(), self.texts.proof_at);
        block.push('.');
        b64_to(signature, &mut block);
        let question = (kind == FrameKind::Ask).then(|| {
            let proof = block.get(self.texts.proof_at..).unwrap_or_default();
            b64(sha256(proof.as_bytes())).into_boxed_str()
        });
        block.push_str("\r\n\r\n");
        let headers = HeaderBlock::from(Bytes::from(block));
        self.stem = Some(stem);
        SealedFrame { seq, kind, question, to: self.reply.to_subject(), headers, payload }
    }
}

impl Texts {
    fn new(reply: &ReplyTo, iss: &str, request: &[u8; 32], key: &ReplyKey, replica: &str) -> Self {
        // Names and subjects need no escaping; this makes the result JSON in any case.
        let json = |text: &str| serde_json::to_string(text).unwrap_or_default();
        let (algorithm, kid) = key.algorithm_and_kid();
        let header = ProofHeader { algorithm, kid: kid.to_owned(), typ: FRAME_TYP }.encode();
        let block = HeaderBlock::of(&[(AUTHENTICATION_INFO, &format!("{SCHEME} {header}."))]);
        let head = String::from_utf8_lossy(block.as_bytes()).trim_end().to_owned();
        Self {
            proof_at: head.len() - header.len() - 1,
            head,
            before_iat: format!(r#"{{"iss":{},"to":{},"iat":"#, json(iss), json(reply.as_str())),
            after_iat: format!(r#","req":"{}","dig":""#, b64(request)),
            replica: json(replica),
        }
    }

    fn stem(&self, iat: u64, key: &ReplyKey) -> Stem {
        let claims = format!("{}{iat}{}", self.before_iat, self.after_iat);
        let (whole, rest) = claims.split_at_checked(claims.len() - claims.len() % 3).unwrap_or((&claims, ""));
        let mut block = self.head.clone();
        b64_to(whole, &mut block);
        let signing = key.begin(block.get(self.proof_at..).unwrap_or_default());
        Stem { iat, rest: rest.to_owned(), block, signing }
    }
}

impl SealedFrame {
    /// The frame's number.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The frame's kind.
    #[must_use]
    pub fn kind(&self) -> FrameKind {
        self.kind
    }

    /// The digest of a question's proof.
    pub(crate) fn question(&self) -> Option<&str> {
        self.question.as_deref()
    }

    /// How many bytes keeping the frame takes, overhead included.
    pub(crate) fn len(&self) -> usize {
        self.headers.len() + self.payload.len() + BESIDE
    }

    /// The subject to publish the frame on.
    #[must_use]
    pub fn to(&self) -> &str {
        self.to.as_str()
    }

    /// The header block.
    #[must_use]
    pub fn headers(&self) -> &HeaderBlock {
        &self.headers
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Publishes the frame, for the first time or again.
    ///
    /// Cancel safety: a dropped future may or may not have queued the message.
    pub(crate) async fn send(&self, session: &Session) -> Result<(), PublishError> {
        session.publish(&self.to, "", self.headers.as_bytes(), &self.payload).await
    }
}

/// Omits the signature, and the payload, which holds results.
impl std::fmt::Debug for SealedFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedFrame")
            .field("seq", &self.seq)
            .field("kind", &self.kind)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
