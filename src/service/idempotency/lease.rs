//! The claim of a task: renewed while it runs, since nobody can say beforehand how long that will be.
//! Never lets a task run on once another replica may take it for dead.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::{Attempt, Ended, GRACE_MS, Head, Idempotency, NOT_KEPT, State, TaskHead, Ticket, millis};
use crate::auth::{Claimed, OutcomeKey, OutcomeStoreError, Verifier};
use crate::clock::Clock;
use crate::service::streams::Ending;
use crate::wire::HmacKey;

/// What was found where the task's claim should be.
enum Found {
    /// The claim, or what nobody who counts has written: this replica replaces it next.
    Ours,
    /// The claim, and its caller wants it to end.
    Cancelled,
    /// The call of another message, or an outcome: the task is not this replica's any more.
    Another,
}

impl Idempotency {
    /// Keeps the claim of a task that runs, and stores how far the task is; puts the task's deadline off each time. Ends the task if its
    /// caller has asked any replica for that.
    ///
    /// Cancel safety: what a dropped future was writing may yet be stored, for which [`Idempotency::finish`] is prepared.
    pub(in crate::service) async fn hold(
        &self,
        ticket: &mut Ticket,
        lease: Duration,
        verifier: &Verifier,
        clock: &dyn Clock,
    ) -> Infallible {
        let open = Arc::clone(&ticket.attempt.open);
        let pause = lease / RENEWED;
        let least = pause.min(BETWEEN);
        loop {
            sleep(least).await;
            tokio::select! {
                () = open.says() => {}
                () = sleep(pause.saturating_sub(least)) => {}
            }
            for _ in 0..ATTEMPTS {
                if self.renew(ticket, lease, verifier, clock.now_ms()).await != Err(OutcomeStoreError::Taken) {
                    break;
                }
            }
        }
    }

    /// `Taken` if it is worth trying again at once.
    async fn renew(
        &self,
        ticket: &mut Ticket,
        lease: Duration,
        verifier: &Verifier,
        now_ms: u64,
    ) -> Result<(), OutcomeStoreError> {
        let attempt = &mut ticket.attempt;
        // Too late: others may take it for dead. The timer of its deadline may not have noticed, since it stands still while a machine sleeps.
        if now_ms >= attempt.deadline_ms {
            attempt.open.put_off(now_ms);
            return Ok(());
        }
        let Some(task) = &mut attempt.task else { return Ok(()) };
        task.progress = attempt.open.said();
        let until_ms = task.limit_ms.min(now_ms.saturating_add(millis(lease)));
        let mac = self.mac(verifier).ok_or(OutcomeStoreError::Unavailable)?;
        let entry = Head { until_ms, ..attempt.head(State::Running) }.sealed(&mac, &attempt.key, None);
        let keep = attempt.declared.keep + Duration::from_millis(until_ms.saturating_sub(now_ms) + GRACE_MS);
        match self.put(&attempt.key, ticket.revision, entry, keep).await {
            Ok(revision) => {
                ticket.revision = revision;
                ticket.attempt.deadline_ms = until_ms;
                ticket.attempt.open.put_off(until_ms);
                Ok(())
            }
            Err(OutcomeStoreError::Taken) => match self.found(ticket, &mac).await? {
                Found::Ours => Err(OutcomeStoreError::Taken),
                Found::Cancelled => {
                    ticket.attempt.open.end(Ending::Cancelled);
                    Ok(())
                }
                Found::Another => {
                    ticket.attempt.open.put_off(now_ms);
                    Ok(())
                }
            },
            Err(reason) => {
                let what = "a task cannot say that it runs: it is stopped once its lease is over";
                self.log(&ticket.attempt, Some(reason), what);
                Err(reason)
            }
        }
    }

    /// Replaces the entry of this revision, or makes one if there was none.
    pub(super) async fn put(
        &self,
        key: &OutcomeKey,
        revision: u64,
        content: Bytes,
        keep: Duration,
    ) -> Result<u64, OutcomeStoreError> {
        if revision > 0 {
            return self.store.replace(key, revision, content, keep).await;
        }
        match self.store.claim(key, content, keep).await? {
            Claimed::New { revision } => Ok(revision),
            Claimed::Held { .. } => Err(OutcomeStoreError::Taken),
        }
    }

    /// Looks at what is stored in place of the task's claim, and takes its revision; 0 if there is nothing.
    async fn found(&self, ticket: &mut Ticket, mac: &HmacKey) -> Result<Found, OutcomeStoreError> {
        let Some((revision, content)) = self.store.read(&ticket.attempt.key).await? else {
            ticket.revision = 0;
            return Ok(Found::Ours);
        };
        let Attempt { key, message, .. } = &ticket.attempt;
        let found = match Head::open(mac, key, &content) {
            // Nobody who has the service's key wrote it.
            None => Found::Ours,
            Some((head, _)) if head.message != *message || head.state != State::Running => Found::Another,
            Some((Head { task: Some(TaskHead { cancel: true, .. }), .. }, _)) => Found::Cancelled,
            Some(_) => Found::Ours,
        };
        if !matches!(found, Found::Another) {
            ticket.revision = revision;
        }
        Ok(found)
    }

    /// Records how a task ended, for as long as its claim holds. If that fails, the claim stays, and later says that nobody knows.
    pub(in crate::service) async fn finish(
        &self,
        mut ticket: Ticket,
        ended: Ended<'_>,
        verifier: &Verifier,
        clock: &dyn Clock,
    ) {
        let mut taken = 0;
        loop {
            let written = self.write_end(&ticket, &ended, verifier, clock.now_ms()).await;
            let reason = match written {
                Ok(_) => return,
                // A renewal that was given up was stored after all, or its caller has cancelled it just now.
                Err(OutcomeStoreError::Taken) if taken < ATTEMPTS => {
                    taken += 1;
                    match self.mac(verifier) {
                        Some(mac) => match self.found(&mut ticket, &mac).await {
                            Ok(Found::Ours | Found::Cancelled) => continue,
                            Ok(Found::Another) => OutcomeStoreError::Taken,
                            Err(reason) => reason,
                        },
                        None => OutcomeStoreError::Unavailable,
                    }
                }
                Err(reason) => reason,
            };
            let is_held = clock.now_ms() < ticket.attempt.deadline_ms;
            if !is_held || reason == OutcomeStoreError::Taken {
                self.log(&ticket.attempt, Some(reason), NOT_KEPT);
                return;
            }
            sleep(BETWEEN).await;
        }
    }
}

/// How often a claim is renewed within the time for which it holds.
const RENEWED: u32 = 6;

/// The least time between two writes of one task.
const BETWEEN: Duration = Duration::from_secs(1);

/// How often a write is tried anew because somebody else was quicker.
const ATTEMPTS: u32 = 4;
