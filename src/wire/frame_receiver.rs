//! The caller's side of a stream of frames: in order, each once, up to the end, or not at all (SPEC.md §25).
//! Knows neither time nor bus: it is given what arrives, and says what that was.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;

use super::frame::{FrameKind, RunningDigest};
use super::sign::{AcceptedFrame, Expectation};
use crate::jose::{sha256, unb64_array};

/// Puts the frames of one call in order. For programs that talk to the broker themselves; [`crate::client::Client`] does all of this.
/// of this.
#[derive(Debug)]
pub struct FrameReceiver {
    digest: RunningDigest,
    replica: Option<String>,
    /// The number of the next frame to accept.
    next: u64,
    /// The highest number seen; `None` before the first frame.
    highest: Option<u64>,
    /// The highest number that the service may use, except for `end`, which may exceed it by one.
    limit: u64,
    /// Frames held because one before them is missing.
    held: BTreeMap<u64, Received>,
    held_bytes: usize,
    max_bytes: usize,
    /// The latest `iat` of all frames, in seconds since the Unix epoch.
    latest_iat: u64,
    ended: bool,
    /// Why no further frame is accepted.
    fault: Option<FrameFault>,
}

/// A frame that has passed every check.
#[derive(Clone)]
#[non_exhaustive]
pub struct Received {
    /// The frame's number.
    pub seq: u64,
    /// The frame's kind.
    pub kind: FrameKind,
    /// The frame's content.
    pub payload: Bytes,
    /// Only for [`FrameKind::Ask`]: how an answer refers to it.
    pub ask: Option<String>,
    acc: Option<String>,
    /// SHA-256 of the payload.
    digest: [u8; 32],
}

/// Omits the payload, which holds results.
impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Received")
            .field("seq", &self.seq)
            .field("kind", &self.kind)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What a frame turned out to be.
#[derive(Debug)]
pub enum Taken {
    /// These frames are next, in this order.
    Next(Vec<Received>),
    /// The frame shows that others are missing: ask for them again.
    Gap,
    /// The call is still running.
    Alive,
    /// A duplicate, and no sign of life: anybody could have repeated it.
    Repeated,
}

/// Why a stream cannot continue. Its outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum FrameFault {
    /// The frame is signed by this service, but came from another replica than the first frame.
    #[error("a frame came from another replica than the first one")]
    Replica,
    /// The service sent more frames than the window allows, or more bytes.
    #[error("the service sent more than the window allows")]
    Window,
    /// Two different frames have the same number.
    #[error("two frames have the same number")]
    Conflict,
    /// Our digest of everything that was answered differs from the service's.
    #[error("the digest over all frames does not hold")]
    Digest,
}

impl FrameReceiver {
    /// A receiver of the answer to `expected`, which was sent with this window. It holds at most `max_bytes` of frames beyond a gap.
    #[must_use]
    pub fn new(expected: &Expectation, window: u64, max_bytes: usize) -> Self {
        Self {
            digest: RunningDigest::of_request(*expected.request()),
            replica: None,
            next: 0,
            highest: None,
            limit: window,
            held: BTreeMap::new(),
            held_bytes: 0,
            max_bytes,
            latest_iat: 0,
            ended: false,
            fault: None,
        }
    }

    /// The replica that answers, once a frame has arrived.
    #[must_use]
    pub fn replica(&self) -> Option<&str> {
        self.replica.as_deref()
    }

    /// The last number that was accepted without a gap, and handed on.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// Whether frames are known to be missing.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        self.highest.is_some_and(|highest| highest >= self.next)
    }

    /// Whether the last frame was accepted.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Lets the service send up to this number: the acknowledged frames plus the window.
    pub fn allow(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Takes a frame whose signature and binding are valid.
    ///
    /// # Errors
    /// [`FrameFault`]: the stream is over, and nothing more is accepted; every later frame gets the same error.
    pub fn take(&mut self, frame: AcceptedFrame, payload: Bytes) -> Result<Taken, FrameFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let next = self.next;
        let taken = self.judge(frame, payload);
        if let Err(fault) = taken {
            self.fault = Some(fault);
            // Frames that are not handed on do not count as accepted.
            self.next = next;
            self.held.clear();
            self.held_bytes = 0;
        }
        taken
    }

    fn judge(&mut self, frame: AcceptedFrame, payload: Bytes) -> Result<Taken, FrameFault> {
        let AcceptedFrame { claims, ask } = frame;
        if self.ended {
            return Ok(Taken::Repeated);
        }
        match &self.replica {
            None => self.replica = Some(claims.rep),
            Some(replica) if *replica == claims.rep => {}
            Some(_) => return Err(FrameFault::Replica),
        }
        let seq = claims.seq;
        let room = if claims.knd == FrameKind::End { self.limit.saturating_add(1) } else { self.limit };
        if seq > room {
            return Err(FrameFault::Window);
        }
        if claims.knd == FrameKind::Beat {
            if claims.iat <= self.latest_iat {
                return Ok(Taken::Repeated);
            }
            self.latest_iat = claims.iat;
            self.highest = self.highest.max(Some(seq));
            return Ok(if self.has_gap() { Taken::Gap } else { Taken::Alive });
        }
        if seq < self.next {
            return Ok(Taken::Repeated);
        }
        self.latest_iat = self.latest_iat.max(claims.iat);
        self.highest = self.highest.max(Some(seq));
        // The signature covers the payload's digest, so there is no need to compute it again.
        let digest = unb64_array(&claims.dig).unwrap_or_else(|| sha256(&payload));
        let frame = Received { seq, kind: claims.knd, payload, ask, acc: claims.acc, digest };
        if seq > self.next {
            return self.hold(frame);
        }
        let mut next = vec![self.in_order(frame)?];
        while let Some(frame) = self.held.remove(&self.next) {
            self.held_bytes = self.held_bytes.saturating_sub(frame.payload.len());
            next.push(self.in_order(frame)?);
        }
        Ok(Taken::Next(next))
    }

    fn hold(&mut self, frame: Received) -> Result<Taken, FrameFault> {
        let bytes = self.held_bytes.saturating_add(frame.payload.len());
        match self.held.entry(frame.seq) {
            Entry::Occupied(held) if held.get().kind != frame.kind || held.get().payload != frame.payload => {
                Err(FrameFault::Conflict)
            }
            Entry::Occupied(_) => Ok(Taken::Repeated),
            Entry::Vacant(_) if bytes > self.max_bytes => Err(FrameFault::Window),
            Entry::Vacant(place) => {
                self.held_bytes = bytes;
                place.insert(frame);
                Ok(Taken::Gap)
            }
        }
    }

    fn in_order(&mut self, frame: Received) -> Result<Received, FrameFault> {
        self.next = self.next.saturating_add(1);
        if frame.kind != FrameKind::Open {
            self.digest.add(&frame.digest);
        }
        if frame.kind == FrameKind::End {
            if frame.acc.as_deref() != Some(self.digest.to_text().as_str()) {
                return Err(FrameFault::Digest);
            }
            self.ended = true;
            self.held.clear();
            self.held_bytes = 0;
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests;
