//! Keeps a server within reach: restarts its process, or connects to its address again.
//! Never gives up for good, and never tries more often than its failures allow.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::config::Address;
use super::conversation::JsonRpcPeer;
use super::shared::Shared;
use crate::child::{Launch, Supervisor};

/// The pause before a server is tried again: the first, doubled each time, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A server that was available for this long gets a fresh start.
const SETTLED: Duration = Duration::from_secs(60);

/// Keeps a process running until `stopped`.
pub(super) async fn process(shared: Arc<Shared>, launch: Launch, stopped: impl Future<Output = ()>) {
    let (up, down) = (Arc::clone(&shared), shared);
    let talk = move |stdin, stdout| {
        let up = Arc::clone(&up);
        async move {
            let (conversation, messages) = JsonRpcPeer::of_process(up.name(), &up.watches);
            let reason = tokio::select! {
                reason = conversation.run(messages, stdin, stdout) => reason,
                reason = up.attend(&conversation) => reason,
            };
            up.down(reason.clone());
            reason
        }
    };
    let ended = move |reason| {
        // Whoever waits reads the whole reason, and then that it has ended once more.
        down.down(reason);
        down.ends.fetch_add(1, Ordering::Relaxed);
        down.health.send_modify(|_| ());
    };
    Supervisor::new(launch).run(talk, ended, stopped).await;
}

/// Stays in touch with a server at an address until `stopped`.
pub(super) async fn address(shared: Arc<Shared>, server: Address, stopped: impl Future<Output = ()>) {
    tokio::pin!(stopped);
    let (mut wait, mut told) = (AGAIN.0, String::new());
    loop {
        let (began, conversation) = (Instant::now(), JsonRpcPeer::over_http(shared.name(), &shared.watches, &server));
        let reason = tokio::select! {
            biased;
            () = &mut stopped => None,
            reason = shared.attend(&conversation) => Some(reason),
        };
        // Whoever waits for the health looks at this, too.
        shared.ends.fetch_add(1, Ordering::Relaxed);
        match &reason {
            // If this session never came up, the next may not either, so nobody should wait for it.
            Some(reason) if !(conversation.was_lost() && shared.lost(&conversation)) => shared.down(reason.clone()),
            Some(_) | None => {}
        }
        conversation.close().await;
        let Some(reason) = reason else { return };
        let has_settled = began.elapsed() >= SETTLED;
        wait = if has_settled { AGAIN.0 } else { wait };
        if has_settled || reason != told {
            let backend = shared.name();
            tracing::warn!(target: "sealwire::backend", backend, reason, "the server is unavailable; it is tried again");
            told = reason;
        }
        tokio::select! {
            biased;
            () = &mut stopped => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = (wait * 2).min(AGAIN.1);
    }
}
