//! Where the answers of one round arrive, apart for each question.
//! Putting one in never waits, and what is beyond a question's bounds costs nothing more than to be counted.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sealwire::internal::nats::Message;
use tokio::sync::mpsc;

/// The questions that are open.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<HashMap<String, Slot>>);

#[derive(Debug)]
struct Slot {
    sender: mpsc::Sender<Message>,
    answers: usize,
    bytes: usize,
    over: u64,
}

/// What is read of the answers to one question.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) answers: usize,
    pub(crate) bytes: usize,
}

impl Budget {
    /// Of all services whose keys are not known, together.
    pub(crate) const OF_OTHERS: Self = Self { answers: MAX_OTHERS, bytes: MAX_OTHERS_BYTES };
    /// Of one service whose keys are known. Its answers arrive where only those who may listen to its questions could send any.
    pub(crate) const OF_SERVICE: Self = Self { answers: MAX_REPLICAS, bytes: MAX_SERVICE_BYTES };
}

/// The most answers of others in a round, and their bytes: half a second to read.
const MAX_OTHERS: usize = 1_024;
const MAX_OTHERS_BYTES: usize = 16 * 1024 * 1024;
/// The most answers of one service in a round, and their bytes.
const MAX_REPLICAS: usize = 256;
const MAX_SERVICE_BYTES: usize = 8 * 1024 * 1024;

impl Mailbox {
    /// Takes the answers on this subject from now on.
    pub(crate) fn open(&self, subject: &str, budget: Budget) -> mpsc::Receiver<Message> {
        let (sender, answers) = mpsc::channel(budget.answers);
        let slot = Slot { sender, answers: budget.answers, bytes: budget.bytes, over: 0 };
        self.slots().insert(subject.to_owned(), slot);
        answers
    }

    /// Takes no more, and says how many were too many.
    pub(crate) fn close(&self, subject: &str) -> u64 {
        self.slots().remove(subject).map_or(0, |slot| slot.over)
    }

    /// Puts in an answer, perhaps to an earlier question.
    pub(crate) fn offer(&self, message: Message) {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&message.subject) else { return };
        let size = message.headers.len().saturating_add(message.payload.len());
        match (slot.answers.checked_sub(1), slot.bytes.checked_sub(size)) {
            (Some(answers), Some(bytes)) => {
                (slot.answers, slot.bytes) = (answers, bytes);
                // There is room for as many as there may be; if nobody reads any more, the round is over.
                drop(slot.sender.try_send(message));
            }
            _ => slot.over = slot.over.saturating_add(1),
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        // Nothing between lock and unlock can panic halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
