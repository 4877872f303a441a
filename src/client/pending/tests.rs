#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
use super::*;
use crate::client::StaticToken;
use crate::client::credentials::Credentials;
use crate::client::known_service::KnownServices;
use crate::clock::ManualClock;
use crate::nats::BusConfig;
use crate::wire::{AgentKey, Signed};

const NOW: u64 = 1_790_000_000;

fn pending() -> Arc<Pending> {
    Arc::new(Pending::new(Arc::new(ManualClock::at(NOW))))
}

/// A call to the service `desk` that waits under `token`.
fn call(pending: &Arc<Pending>, token: &str, repeatable: bool) -> Waiter {
    let key = AgentKey::hmac("ann.k1", &[1; 32]).unwrap();
    let name = |text: &str| text.parse().unwrap();
    let credentials = Credentials::new(name("test"), name("ann"), key, BusConfig::open("nats://localhost"));
    let service = KnownServices::default().find(&credentials, "desk", 30).unwrap();
    let signed = service.signer.sign(&Signed {
        subject: "rpc.v1.desk.ann",
        reply: &format!("_INBOX.ann.c.{token}"),
        payload: b"{}",
        token: "t",
        now_ms: NOW * 1000,
        valid_s: 30,
        ..Signed::default()
    });
    let subject = "rpc.v1.desk.ann".to_owned();
    let expected = Expected {
        expectation: signed.expectation,
        subject,
        service,
        sent_s: NOW,
        repeatable,
        cancels: true,
        counter: Mutex::default(),
        receipt: None,
        tokens: Arc::new(TokenCache::new(Arc::new(StaticToken::new("t")), Arc::new(ManualClock::at(NOW)))),
        renew_token_s: AtomicU64::new(u64::MAX),
        uncontrolled: AtomicBool::new(false),
    };
    pending.register(Nonce::from_text(&padded(token)).unwrap(), expected)
}

/// A token, padded to the length that all have.
fn padded(token: &str) -> String {
    format!("{token:A<22}")
}

const NOBODY: &str = "NATS/1.0 503\r\n\r\n";

fn message(token: &str, headers: &str, payload: &str) -> Message {
    Message {
        sid: 1,
        subject: format!("_INBOX.ann.c.{token}"),
        reply: None,
        headers: Bytes::copy_from_slice(headers.as_bytes()),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        oversized: false,
    }
}

#[tokio::test]
async fn waiter_is_forgotten_however_it_ends() {
    let pending = pending();
    let (mut one, two, three) = (call(&pending, "1", false), call(&pending, "2", false), call(&pending, "3", false));
    assert_eq!(pending.len(), 3);
    drop(two);
    assert_eq!(pending.len(), 2);
    assert!(three.overdue().is_none(), "nothing was seen");
    pending.arrived(&padded("1"), &message("1", NOBODY, ""));
    assert!(matches!(one.ended().await, Some(Err(ClientError::NoResponders { .. }))));
    drop(one);
    assert_eq!(pending.len(), 0);
    pending.arrived(&padded("1"), &message("1", "", ""));
    assert_eq!(pending.counts(), (0, 1));
}

/// SPEC.md §13.
#[tokio::test]
async fn status_of_no_responders_counts_only_without_signature_and_payload() {
    let pending = pending();
    let signed = "NATS/1.0 503\r\nauthentication-INFO: NatsRpc a.b.c\r\n\r\n";
    let malformed = "NATS/1.0 503\r\nA: b\r\n";
    for (headers, payload) in [(signed, ""), (NOBODY, "x"), (malformed, ""), ("NATS/1.0 5030\r\n\r\n", "")] {
        let waiter = call(&pending, "1", false);
        pending.arrived(&padded("1"), &message("1", headers, payload));
        assert!(matches!(waiter.overdue(), Some(Err(ClientError::Unverifiable(_)))));
    }
}

/// SPEC.md §13.2.
#[tokio::test]
async fn violation_ends_every_call_on_that_subject_and_no_other() {
    let pending = pending();
    let mut waiters: Vec<Waiter> = (0..3).map(|n| call(&pending, &n.to_string(), false)).collect();
    pending.forbidden("rpc.v1.desk.bob");
    pending.forbidden("rpc.v1.desk.ann.x");
    pending.forbidden("rpc.v1.desk.ann");
    for waiter in &mut waiters {
        let end = waiter.ended().await;
        assert!(
            matches!(&end, Some(Err(ClientError::Forbidden { subject, sent: false })) if subject == "rpc.v1.desk.ann"),
            "{end:?}"
        );
    }
}

#[tokio::test]
async fn lost_connection_ends_repeatable_calls_and_is_remembered_by_the_others() {
    let pending = pending();
    let (mut repeatable, patient) = (call(&pending, "1", true), call(&pending, "2", false));
    pending.disconnected();
    assert!(matches!(repeatable.ended().await, Some(Err(ClientError::ConnectionLost))));
    assert!(matches!(patient.overdue(), Some(Err(ClientError::ConnectionLost))));
    let marked = call(&pending, "3", false);
    marked.mark_lost();
    assert!(matches!(marked.overdue(), Some(Err(ClientError::ConnectionLost))));
}

#[tokio::test]
async fn first_end_counts() {
    let pending = pending();
    let mut waiter = call(&pending, "1", false);
    pending.end_all(|| ClientError::Closed { sent: true });
    pending.forbidden("rpc.v1.desk.ann");
    assert!(matches!(waiter.ended().await, Some(Err(ClientError::Closed { .. }))));
    assert!(waiter.ended().await.is_none());
}
