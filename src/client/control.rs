//! Controls calls that are under way, with a fresh token, and cancels them when nobody waits any more.
//! Never waits for a connection: what could not be sent is sent once it is back, or not at all.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::Inner;
use super::link::{Link, NotPublished};
use super::pending::Expected;
use crate::name::Name;
use crate::wire::{ControlOp, HeaderBlock, SignedControl};

/// Why a control message was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotSent {
    /// There is no connection, no token, or no room at the moment.
    Now,
    /// The broker accepts no message this large.
    TooLarge,
}

impl Inner {
    /// Sends a control message about a call to the replica that runs it, or to all of them.
    ///
    /// Cancel safety: if the future is dropped, the message may or may not have been sent.
    pub(super) async fn control(
        &self,
        expected: &Expected,
        replica: Option<&str>,
        op: &ControlOp,
        payload: &[u8],
    ) -> Result<(), NotSent> {
        let deadline = Instant::now() + SENT_WITHIN;
        let token = expected.tokens.current_by(deadline).await.map_err(|_| NotSent::Now)?;
        let bus = self.link.session().ok_or(NotSent::Now)?;
        let (service, call) = (&expected.service, &expected.expectation);
        let replica = replica.and_then(|replica| Name::new(replica).ok());
        let subject = service.endpoint.control_subject(self.credentials.agent(), replica.as_ref(), call.message_id());
        let send_now = || {
            // INVARIANT: numbered and handed to the connection under one lock: the service drops what comes with a lower number.
            let mut counter = expected.counter.lock().unwrap_or_else(PoisonError::into_inner);
            *counter += 1;
            let authorization = service.signer.sign_control(&SignedControl {
                subject: &subject,
                payload,
                token: token.as_str(),
                now_ms: service.now_ms(self.options.clock.now_ms()),
                valid_s: self.options.valid_s,
                call,
                counter: *counter,
                op,
            });
            let headers = HeaderBlock::of(&[("Authorization", &authorization)]);
            // Without a reply subject: anybody who may publish in an inbox could claim there that nobody listens.
            Link::publish_now(&bus, &subject, "", &headers, payload)
        };
        loop {
            match send_now() {
                Ok(true) => break,
                Ok(false) if Instant::now() < deadline => sleep(ROOM_AGAIN).await,
                Err(NotPublished::TooLarge { .. }) => return Err(NotSent::TooLarge),
                Ok(false) | Err(NotPublished::Disconnected | NotPublished::DeadlineExceeded) => {
                    return Err(NotSent::Now);
                }
            }
        }
        expected.renew_token_s.store(token.renew_s(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether there is a newer token than the one that the service was shown for this call, which ends with that token.
    ///
    /// Cancel safety: nothing is lost.
    pub(super) async fn has_newer_token(&self, expected: &Expected) -> bool {
        let shown = expected.renew_token_s.load(Ordering::Relaxed);
        if self.options.clock.now_s() < shown {
            return false;
        }
        let token = expected.tokens.current_by(Instant::now() + SENT_WITHIN).await;
        token.is_ok_and(|token| token.renew_s() > shown)
    }

    /// Tells the services, once, that nobody waits any more for anything that is under way.
    pub(super) async fn cancel_all(&self) {
        let all = async {
            for (expected, replica) in self.pending.cancellable() {
                if self.control(&expected, replica.as_deref(), &ControlOp::Cancel, b"").await.is_err() {
                    break;
                }
            }
        };
        drop(timeout(SENT_WITHIN, all).await);
    }
}

/// Cancels a call, and repeats that until the call has ended or its deadline has passed: the first cancellation may overtake the request,
/// and then finds no call to cancel.
///
/// It holds the client only until the first one is sent.
pub(super) async fn cancel(
    client: Arc<Inner>,
    expected: Arc<Expected>,
    replica: impl Fn() -> Option<String> + Send,
    ended: impl Future<Output = ()> + Send,
    deadline: Instant,
) {
    let Ok(_place) = Arc::clone(&client.cancellations).try_acquire_owned() else { return };
    let weak = Arc::downgrade(&client);
    let (mut client, mut ended, mut pause) = (Some(client), pin!(ended), CANCEL_AGAIN);
    while !expected.uncontrolled.load(Ordering::Relaxed) && Instant::now() < deadline {
        let Some(inner) = client.take().or_else(|| weak.upgrade()) else { return };
        let sent = inner.control(&expected, replica().as_deref(), &ControlOp::Cancel, b"").await;
        if sent.is_ok() && Arc::strong_count(&inner) == 1 {
            // The connection ends with the client, and what is not written by then is lost.
            if let Some(bus) = inner.link.session() {
                drop(timeout(SENT_WITHIN, bus.flush()).await);
            }
        }
        drop(inner);
        tokio::select! {
            () = &mut ended => return,
            () = sleep(pause) => pause *= 2,
        }
    }
}

/// How long sending a control message may take.
const SENT_WITHIN: Duration = Duration::from_secs(2);

/// The pause before trying again where the connection has no room.
const ROOM_AGAIN: Duration = Duration::from_millis(50);

/// The pause before a cancellation is repeated; doubled each time.
const CANCEL_AGAIN: Duration = Duration::from_millis(250);
