//! One entry of the store: what it says of a call, under a MAC that binds it to its key.
//! Never believes an entry whose MAC is wrong.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::super::streams::Progress;
use crate::auth::OutcomeKey;
use crate::wire::HmacKey;

/// What an entry says besides the outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    pub(super) state: State,
    /// The digest of the parameters.
    pub(super) params: String,
    /// The message that wrote it.
    pub(super) message: String,
    /// When the run is stopped if it still goes on, in milliseconds since the Unix epoch. Of a task: unless that is put off before.
    pub(super) until_ms: u64,
    /// Whose caller does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<TaskHead>,
    /// When the run had ended, in seconds since the Unix epoch, if its method may be called as a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<u64>,
}

/// What the entry of a task says in addition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskHead {
    /// When it began, in seconds since the Unix epoch.
    pub(super) started: u64,
    /// When it is stopped in any case, in milliseconds since the Unix epoch.
    pub(super) limit_ms: u64,
    /// Its caller wants it to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) cancel: bool,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) progress: Option<Progress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Running,
    Done,
    Unknown,
    NotKept,
    NotStarted,
    /// Its caller has cancelled it, as a task.
    Cancelled,
}

impl Head {
    /// What the broker or this process keeps under `key`: the MAC, what the entry says about the call, and the call's outcome.
    pub(super) fn sealed(&self, mac: &HmacKey, key: &OutcomeKey, outcome: Option<&[u8]>) -> Bytes {
        let mut signed = serde_json::to_vec(self).unwrap_or_default();
        signed.push(b'\n');
        signed.extend_from_slice(outcome.unwrap_or_default());
        let proof = mac.sign(&bound(key, &signed));
        let mut entry = proof.to_vec();
        entry.extend_from_slice(&signed);
        // The claim leaves room for each state that may replace it without an outcome.
        if outcome.is_none() {
            let least = if self.task.is_some() { TASK_CLAIM } else { CLAIM };
            entry.resize(entry.len().max(least), b' ');
        }
        entry.into()
    }

    /// Reads an entry that was made under this key, and the outcome in it.
    pub(super) fn open<'a>(mac: &HmacKey, key: &OutcomeKey, entry: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (proof, signed) = entry.split_at_checked(MAC)?;
        let mut lines = signed.splitn(2, |byte| *byte == b'\n');
        let (head, body) = (lines.next()?, lines.next()?);
        // The padding of a claim is not signed and means nothing.
        let padded = body.iter().all(|byte| *byte == b' ');
        let signed = if padded { signed.get(..=head.len())? } else { signed };
        if !mac.verify(&bound(key, signed), proof) {
            return None;
        }
        let head: Self = serde_json::from_slice(head).ok()?;
        Some((head, if padded { &[] } else { body }))
    }

    /// Whether its call may run at this moment, as far as the entry says.
    pub(super) fn is_running(&self, now_ms: u64) -> bool {
        self.state == State::Running && now_ms < self.until_ms.saturating_add(GRACE_MS)
    }
}

/// What is signed: an entry under one key is not valid under another.
fn bound(key: &OutcomeKey, signed: &[u8]) -> Vec<u8> {
    [key.digest().as_bytes(), b"\n", signed].concat()
}

/// Bytes of an HMAC-SHA256.
const MAC: usize = 32;

/// The fewest bytes of an entry without an outcome: MAC, digest, message id, time and names take about 150; of a task, those of its
/// progress come to at most 600 more.
const CLAIM: usize = 256;
const TASK_CLAIM: usize = 1_024;

/// For how long after its deadline a run counts as running: replicas' clocks differ by at most twice the skew, here twice 5 s, and a run
/// that is stopped has 2 s to be recorded.
pub(super) const GRACE_MS: u64 = 12_000;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::name::Name;

    fn head(task: Option<TaskHead>) -> Head {
        let (params, message) = ("p".repeat(43), "m".repeat(22));
        Head { state: State::Running, params, message, until_ms: u64::MAX, task, ended: Some(u64::MAX) }
    }

    /// Whatever replaces a claim without an outcome needs no more room than the claim.
    #[test]
    fn what_a_method_says_of_its_progress_never_makes_an_entry_larger() {
        let (mac, key) = (HmacKey::new([7; 32]), OutcomeKey::new(Name::new("ann").unwrap(), b"k"));
        let told = |text: &str| Progress::new(f64::MIN_POSITIVE, Some(-f64::MAX), Some(text)).unwrap();
        for progress in [None, Some(told("")), Some(told(&"\u{1F600}".repeat(1_000))), Some(told(&"\"".repeat(1_000)))]
        {
            let task = TaskHead { started: u64::MAX, limit_ms: u64::MAX, cancel: true, progress };
            let head = head(Some(task));
            let sealed = head.sealed(&mac, &key, None);
            assert_eq!(sealed.len(), TASK_CLAIM);
            assert_eq!(Head::open(&mac, &key, &sealed).unwrap(), (head, &[][..]));
        }
        assert_eq!(head(None).sealed(&mac, &key, None).len(), CLAIM);
    }

    /// SPEC.md §6.1.
    #[test]
    fn an_entry_counts_only_under_its_own_key_and_unchanged() {
        let (mac, key) = (HmacKey::new([7; 32]), OutcomeKey::new(Name::new("ann").unwrap(), b"k"));
        let sealed = head(None).sealed(&mac, &key, Some(b"{}"));
        assert!(Head::open(&mac, &key, &sealed).is_some());
        assert!(Head::open(&mac, &OutcomeKey::new(Name::new("ann").unwrap(), b"l"), &sealed).is_none());
        assert!(Head::open(&HmacKey::new([8; 32]), &key, &sealed).is_none());
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            *changed.get_mut(at).unwrap() ^= 1;
            assert!(Head::open(&mac, &key, &changed).is_none(), "{at}");
        }
    }
}
