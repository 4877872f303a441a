//! One check: is this id new to the stream? Never takes silence, or an answer that it does not understand, for a yes.

use std::error::Error as _;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context};

use super::super::Outage;

/// The stream's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The id was new to this stream and is stored now, under this sequence number.
    Acknowledged {
        stream: String,
        sequence: u64,
    },
    /// The id was stored before, or is being stored right now.
    Known {
        /// The stream, and the number under which it stored the id. Not told in the second case.
        held: Option<(String, u64)>,
    },
    /// The subject holds as many ids as it may: the owner's share is used up.
    OwnerFull,
    Failed(Outage),
}

/// What an answer means to a caller that has verified one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckReply {
    New {
        sequence: u64,
    },
    Known {
        /// The number under which the id is stored, if it already is.
        sequence: Option<u64>,
    },
    /// Another stream answered.
    OtherStream {
        stream: String,
    },
    /// New, but stored under a number that was already assigned.
    SequenceRegressed,
    OwnerFull,
    Failed(Outage),
}

impl Answer {
    /// Compares the answer with the verified `stream` and the `highest` number that was seen before the question: what is
    /// stored after an answer was seen has a higher number than that answer.
    pub(super) fn heard(self, stream: &str, highest: u64) -> CheckReply {
        match self {
            Self::Acknowledged { stream: other, .. } | Self::Known { held: Some((other, _)) } if other != stream => {
                CheckReply::OtherStream { stream: other }
            }
            Self::Acknowledged { sequence, .. } if sequence <= highest => CheckReply::SequenceRegressed,
            Self::Acknowledged { sequence, .. } => CheckReply::New { sequence },
            Self::Known { held } => CheckReply::Known { sequence: held.map(|(_, sequence)| sequence) },
            Self::OwnerFull => CheckReply::OwnerFull,
            Self::Failed(outage) => CheckReply::Failed(outage),
        }
    }
}

/// Asks once and waits at most `within`. A check that is given up may still be stored.
pub(super) async fn publish(
    jetstream: &Context,
    subject: String,
    id: &str,
    content: Vec<u8>,
    within: Duration,
) -> Answer {
    let message = PublishMessage::build().message_id(id).payload(content.into());
    let asked = async {
        match jetstream.send_publish(subject, message).await {
            Ok(answer) => (answer.await, false),
            Err(error) => (Err(error), true),
        }
    };
    // The client's own time-out starts only once its queue has taken the message.
    match tokio::time::timeout(within, asked).await {
        Ok((Ok(ack), _)) if ack.duplicate => Answer::Known { held: Some((ack.stream, ack.sequence)) },
        Ok((Ok(ack), _)) => Answer::Acknowledged { stream: ack.stream, sequence: ack.sequence },
        Ok((Err(error), unsent)) => failed(&error, unsent),
        Err(_) => Answer::Failed(Outage::Unanswered),
    }
}

fn failed(error: &PublishError, unsent: bool) -> Answer {
    let code = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    let outage = match (error.kind(), code.map(|error| error.error_code().0)) {
        (_, Some(IN_PROCESS)) => return Answer::Known { held: None },
        // One code for every limit: only its text says which. With any other text, the safe side is the stream's limit, not an
        // owner's.
        (_, Some(STORE_FAILED)) if code.is_some_and(|error| error.to_string().contains(SHARE_USED_UP)) => {
            return Answer::OwnerFull;
        }
        (_, Some(STORE_FAILED | INSUFFICIENT_RESOURCES | MEMORY_EXCEEDED)) => Outage::StreamFull,
        (PublishErrorKind::StreamNotFound, _) => Outage::StreamReplaced,
        (PublishErrorKind::TimedOut | PublishErrorKind::MaxAckPending, _) => Outage::Unanswered,
        (PublishErrorKind::BrokenPipe, _) => Outage::Unreachable,
        _ if unsent => Outage::Unreachable,
        _ => Outage::Unexpected,
    };
    tracing::debug!(target: "sealwire::replay", %error, %outage, "a replay check failed");
    Answer::Failed(outage)
}

/// `JSStreamDuplicateMessageConflict`: in a cluster, the id is still on its way to the copies. It is a replay, unless this very
/// check has sent it before: of many that ask at once, one is told that its id is stored.
const IN_PROCESS: u64 = 10_158;

/// `JSStreamStoreFailedF`, whose description names the limit that was reached.
pub(super) const STORE_FAILED: u64 = 10_077;
/// `ErrMaxMsgsPerSubject`, nats-server 2.15.1.
const SHARE_USED_UP: &str = "maximum messages per subject exceeded";
/// `JSInsufficientResourcesErr`.
pub(super) const INSUFFICIENT_RESOURCES: u64 = 10_023;
/// `JSMemoryResourcesExceededErr`.
pub(super) const MEMORY_EXCEEDED: u64 = 10_028;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_higher_number_of_the_verified_stream_is_new() {
        let acknowledged = |stream: &str, sequence| Answer::Acknowledged { stream: stream.into(), sequence };
        assert_eq!(acknowledged("RG_1", 8).heard("RG_1", 7), CheckReply::New { sequence: 8 });
        assert_eq!(acknowledged("RG_1", 7).heard("RG_1", 7), CheckReply::SequenceRegressed);
        assert_eq!(acknowledged("RG_1", 1).heard("RG_1", 7), CheckReply::SequenceRegressed);
        assert_eq!(acknowledged("RG_2", 8).heard("RG_1", 7), CheckReply::OtherStream { stream: "RG_2".into() });
    }

    #[test]
    fn what_is_known_or_still_in_process_is_a_replay() {
        let known = |stream: Option<&str>| Answer::Known { held: stream.map(|stream| (stream.to_owned(), 5)) };
        assert_eq!(known(Some("RG_1")).heard("RG_1", 7), CheckReply::Known { sequence: Some(5) });
        assert_eq!(known(None).heard("RG_1", 7), CheckReply::Known { sequence: None });
        assert_eq!(known(Some("RG_2")).heard("RG_1", 7), CheckReply::OtherStream { stream: "RG_2".into() });
    }

    #[test]
    fn nothing_else_than_a_plain_acknowledgement_is_taken_for_a_yes() {
        for kind in [
            PublishErrorKind::StreamNotFound,
            PublishErrorKind::WrongLastMessageId,
            PublishErrorKind::WrongLastSequence,
            PublishErrorKind::TimedOut,
            PublishErrorKind::BrokenPipe,
            PublishErrorKind::MaxAckPending,
            PublishErrorKind::MaxPayloadExceeded,
            PublishErrorKind::Other,
        ] {
            for unsent in [false, true] {
                let answer = failed(&PublishError::new(kind), unsent);
                assert!(matches!(answer, Answer::Failed(_)), "{kind:?}: {answer:?}");
            }
        }
        let error = |code| {
            let body = format!(r#"{{"code":503,"err_code":{code},"description":"x"}}"#);
            let source = serde_json::from_str::<jetstream::Error>(&body).ok();
            source.map(|source| failed(&PublishError::with_source(PublishErrorKind::Other, source), false))
        };
        assert_eq!(error(IN_PROCESS), Some(Answer::Known { held: None }));
        assert_eq!(error(STORE_FAILED), Some(Answer::Failed(Outage::StreamFull)));
        assert_eq!(error(10_008), Some(Answer::Failed(Outage::Unexpected)));

        let full = |text: &str| {
            let body = format!(r#"{{"code":503,"err_code":{STORE_FAILED},"description":"{text}"}}"#);
            let source = serde_json::from_str::<jetstream::Error>(&body).ok();
            source.map(|source| failed(&PublishError::with_source(PublishErrorKind::Other, source), false))
        };
        assert_eq!(full("maximum messages per subject exceeded"), Some(Answer::OwnerFull));
        assert_eq!(full("maximum messages exceeded"), Some(Answer::Failed(Outage::StreamFull)));
        assert_eq!(full("maximum bytes exceeded"), Some(Answer::Failed(Outage::StreamFull)));
    }
}
