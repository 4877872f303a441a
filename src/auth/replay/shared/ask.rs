//! One check: is this id new to the stream? Never takes silence, or an answer that it does not understand, for a yes.

use std::error::Error as _;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context};

use super::super::Outage;

/// What the stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The id was new to this stream and is stored now, under this sequence number.
    Acknowledged {
        stream: String,
        sequence: u64,
    },
    /// The id was stored before, or is just being stored for somebody else.
    Known {
        /// Not told in the second case.
        stream: Option<String>,
    },
    Failed(Outage),
}

/// Asks once and waits at most `within`. A check that is given up may still be stored.
pub(super) async fn ask(jetstream: &Context, subject: String, id: &str, within: Duration) -> Answer {
    let message = PublishMessage::build().message_id(id);
    let asked = async {
        match jetstream.send_publish(subject, message).await {
            Ok(answer) => (answer.await, false),
            Err(error) => (Err(error), true),
        }
    };
    // The client's own time-out begins only when its queue has taken the message.
    match tokio::time::timeout(within, asked).await {
        Ok((Ok(ack), _)) if ack.duplicate => Answer::Known { stream: Some(ack.stream) },
        Ok((Ok(ack), _)) => Answer::Acknowledged { stream: ack.stream, sequence: ack.sequence },
        Ok((Err(error), unsent)) => failed(&error, unsent),
        Err(_) => Answer::Failed(Outage::Unanswered),
    }
}

fn failed(error: &PublishError, unsent: bool) -> Answer {
    let code = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    let outage = match (error.kind(), code.map(|error| error.error_code().0)) {
        (_, Some(IN_PROCESS)) => return Answer::Known { stream: None },
        (_, Some(STORE_FAILED | INSUFFICIENT_RESOURCES | MEMORY_EXCEEDED)) => Outage::StreamFull,
        (PublishErrorKind::StreamNotFound, _) => Outage::StreamReplaced,
        (PublishErrorKind::TimedOut | PublishErrorKind::MaxAckPending, _) => Outage::Unanswered,
        (PublishErrorKind::BrokenPipe, _) => Outage::Unreachable,
        _ if unsent => Outage::Unreachable,
        _ => Outage::Unexpected,
    };
    tracing::debug!(%error, %outage, "a replay check failed");
    Answer::Failed(outage)
}

/// `JSStreamDuplicateMessageConflict`: in a cluster, the id is still on its way to the copies. It is a replay: of many
/// that ask at once, one is told that its id is stored.
const IN_PROCESS: u64 = 10_158;

/// `JSStreamStoreFailedF`, with the limit that was reached in its description.
const STORE_FAILED: u64 = 10_077;
/// `JSInsufficientResourcesErr`.
const INSUFFICIENT_RESOURCES: u64 = 10_023;
/// `JSMemoryResourcesExceededErr`.
const MEMORY_EXCEEDED: u64 = 10_028;
