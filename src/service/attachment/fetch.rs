//! Fetches the bytes of one attachment, part by part, from the caller.
//! Never asks before there is room for all of it, and never gives back the room while somebody holds the bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Attachment, AttachmentError, AttachmentLimits};
use crate::jose::{b64, unb64};
use crate::name::Name;
use crate::service::parts::Parts;
use crate::service::streams::FrameMemory;
use crate::wire::WireLimits;

/// The memory for all attachments of a replica.
#[derive(Debug)]
pub(in crate::service) struct AttachmentMemory {
    limits: AttachmentLimits,
    /// Shared between agents like the memory for frames.
    memory: Arc<FrameMemory>,
}

/// How the attachments of one call are fetched.
#[derive(Debug)]
pub(in crate::service) struct CallAttachments {
    all: Arc<AttachmentMemory>,
    /// Bytes of one part.
    part: usize,
    /// Bounds the questions under way for all attachments of the call.
    turns: Semaphore,
}

/// Room taken from the memory.
struct Room {
    memory: Arc<FrameMemory>,
    agent: Name,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.memory.give(&self.agent, self.bytes);
    }
}

/// The bytes, which count as used for as long as somebody holds them.
struct Held {
    bytes: Vec<u8>,
    _room: Room,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The question for one part of the bytes.
#[derive(Serialize)]
struct Question<'a> {
    sha256: &'a str,
    offset: usize,
    length: usize,
}

/// The most bytes of one part: 128 KiB in base64url, which fits a request payload of 192 KiB, and 256 KiB with its headers.
const PART: usize = 96 * 1024;
/// The fewest bytes of one part, however small messages are.
const LEAST_PART: usize = 768;
/// More than an answer has besides the bytes.
const AROUND: usize = 256;
/// Questions under way per call; even with all repetitions, fewer than a call may have.
const UNDER_WAY: usize = 4;
/// How long to wait for an answer before asking again: the answer may be lost with a connection, and nobody says so.
const PATIENCE: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(30)];
/// How long to wait for room.
const ROOM_WITHIN: Duration = Duration::from_secs(30);

impl AttachmentMemory {
    pub(in crate::service) fn new(limits: AttachmentLimits) -> Self {
        Self { memory: Arc::new(FrameMemory::new(limits.in_all)), limits }
    }

    /// How much is taken.
    pub(in crate::service) fn held(&self) -> usize {
        self.memory.total()
    }

    /// Takes room for a whole attachment, as soon as `agent` may have it.
    async fn room(&self, agent: &Name, bytes: usize) -> Room {
        loop {
            let freed = self.memory.freed().notified();
            let mut freed = std::pin::pin!(freed);
            freed.as_mut().enable();
            if self.memory.try_take(agent, bytes) {
                return Room { memory: Arc::clone(&self.memory), agent: agent.clone(), bytes };
            }
            freed.await;
        }
    }
}

impl CallAttachments {
    /// `room` is what the broker's message limit leaves beside the headers of an answer.
    pub(in crate::service) fn new(all: &Arc<AttachmentMemory>, limits: &WireLimits, room: usize) -> Self {
        let payload = limits.payload.min(room.saturating_sub(limits.authorization)).saturating_sub(AROUND);
        let part = (payload / 4 * 3).clamp(LEAST_PART, PART);
        Self { all: Arc::clone(all), part, turns: Semaphore::new(UNDER_WAY) }
    }

    /// All bytes of an attachment, once its size and digest are verified.
    ///
    /// Cancel safety: a dropped future gives its room back; answers under way are ignored.
    pub(in crate::service) async fn fetch(
        &self,
        agent: &Name,
        parts: &Parts,
        wanted: &Attachment,
    ) -> Result<Bytes, AttachmentError> {
        if !parts.can_ask() {
            return Err(AttachmentError::NoFrames);
        }
        let AttachmentLimits { each, in_all } = self.all.limits;
        // An agent that is alone may have half.
        let limit = each.min(in_all / 2);
        let size = usize::try_from(wanted.size).ok().filter(|size| *size <= limit);
        let size = size.ok_or(AttachmentError::TooLarge { size: wanted.size, limit })?;
        let no_room = || AttachmentError::NoRoom { size: wanted.size };
        let room = timeout(ROOM_WITHIN, self.all.room(agent, size)).await.map_err(|_| no_room())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| no_room())?;
        let mut digest = Sha256::new();
        let offsets = (0..size).step_by(self.part);
        // Boxed, since the compiler cannot follow what the stream borrows across an await.
        let asked = stream::iter(offsets).map(|offset| {
            let length = self.part.min(size - offset);
            self.part(parts, Question { sha256: &wanted.sha256, offset, length }).boxed()
        });
        let mut asked = asked.buffered(UNDER_WAY);
        while let Some(part) = asked.next().await {
            let part = part?;
            digest.update(&part);
            bytes.extend_from_slice(&part);
        }
        if b64(digest.finalize()) != wanted.sha256 {
            return Err(AttachmentError::OtherDigest);
        }
        Ok(Bytes::from_owner(Held { bytes, _room: room }))
    }

    /// Fetches one part. Asks again if there is no answer; an answer to an earlier question is just as good.
    async fn part(&self, parts: &Parts, question: Question<'_>) -> Result<Vec<u8>, AttachmentError> {
        // The semaphore is never closed.
        let _turn = self.turns.acquire().await;
        let mut answers = FuturesUnordered::new();
        for patience in PATIENCE {
            answers.push(parts.ask::<String>("rpc.attachment", &question));
            if let Ok(Some(answer)) = timeout(patience, answers.next()).await {
                let bytes = unb64(&answer?).filter(|bytes| bytes.len() == question.length);
                return bytes.ok_or(AttachmentError::OtherSize);
            }
        }
        Err(AttachmentError::NotAnswered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC.md §25.6.
    #[test]
    fn question_and_answer_fit_the_messages_that_there_are() {
        let all = Arc::new(AttachmentMemory::new(AttachmentLimits::default()));
        let part = |limits: &WireLimits, room| CallAttachments::new(&all, limits, room).part;
        let limits = WireLimits::default();
        assert_eq!(part(&limits, usize::MAX), PART);
        assert_eq!(part(&limits, 256 * 1024), PART, "a broker's `max_payload` as recommended");
        let small = part(&limits, 64 * 1024);
        assert!(b64(vec![0; small]).len() + AROUND + limits.authorization <= 64 * 1024, "{small}");
        assert!(small > 40 * 1024, "{small}");
        let short = part(&WireLimits { payload: 8 * 1024, ..limits.clone() }, usize::MAX);
        assert!(b64(vec![0; short]).len() + AROUND <= 8 * 1024 && short > 5 * 1024, "{short}");
        assert_eq!(part(&limits, 1024), LEAST_PART);
    }
}
