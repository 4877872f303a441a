//! What a program can learn about a message that was sent: its id, and the proofs of it and of its answer.
//! Never exposes the token.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The id of the last message sent for a request: `message_id` in the service's log. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct MessageId(Arc<Mutex<Option<String>>>);

impl MessageId {
    /// `None` until a message is signed, just before it is sent.
    #[must_use]
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, id: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.to_owned());
    }
}

/// The proofs of a request and of its answer, with which others can check, without any secret, that exactly these bytes were asked and
/// answered: SPEC.md §6 and §12 say what they cover. Under HMAC only the two parties can. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Receipt(Arc<Mutex<Proofs>>);

#[derive(Debug, Default)]
struct Proofs {
    request: Option<String>,
    answer: Option<String>,
}

impl Receipt {
    /// The proof of the request that was sent last, without the token; `None` until one is sent.
    #[must_use]
    pub fn request(&self) -> Option<String> {
        self.lock().request.clone()
    }

    /// The proof of the verified answer that the request ended with; `None` if there is none.
    #[must_use]
    pub fn answer(&self) -> Option<String> {
        self.lock().answer.clone()
    }

    pub(super) fn sent(&self, authorization: &str) {
        let request = authorization.rsplit_once('~').map(|(_, proof)| proof.to_owned());
        *self.lock() = Proofs { request, answer: None };
    }

    /// Runs `take`, and keeps the proof if that took the answer: whoever waits for the answer then finds the proof here.
    pub(super) fn taking<T>(&self, proof: Option<&str>, take: impl FnOnce() -> T, is_taken: impl Fn(&T) -> bool) -> T {
        let mut proofs = self.lock();
        let taken = take();
        if is_taken(&taken) {
            proofs.answer = proof.map(str::to_owned);
        }
        taken
    }

    pub(super) fn answered(&self, proof: &str) {
        self.lock().answer = Some(proof.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, Proofs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
