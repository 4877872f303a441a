//! Keeps a server subscribed to the resources that are watched, and to no others.
//! Never asks for more than a few resources at a time, and never takes silence for consent.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use sealwire::RpcError;
use sealwire::errors::code;
use sealwire_mcp::{Members, insert};
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::conversation::{Event, Exchange};
use super::exchange::of_server;
use super::plain::SUBSCRIBE;
use super::session::{Session, over};
use super::types::{Refusal, UnaskedStream};
use super::watches::{Denial, Step, Watches};

/// How long the server may take to say whether a resource can be watched.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to open the stream on which it tells of changes.
const OPENING: Duration = Duration::from_secs(2);
/// How many resources it is asked for at a time, where each takes a request of its own.
const AT_A_TIME: usize = 8;
/// How long to wait for further watchers, where one request asks for all resources.
const TOGETHER: Duration = Duration::from_millis(20);
/// The pause before a stream of updates that has ended is opened again: the first, doubled each time, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// When the session is over, nothing is subscribed to.
struct Lost<'a>(&'a Watches);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        self.0.lost();
    }
}

/// Does so for as long as the future is polled.
pub(super) async fn keep(watches: &Watches, session: &Session) -> Infallible {
    let _lost = Lost(watches);
    watches.lost();
    match session.revision().has_handshake() {
        true => one_by_one(watches, session).await,
        false => together(watches, session).await,
    }
}

/// `resources/subscribe` and `resources/unsubscribe` of the revisions with a handshake.
async fn one_by_one(watches: &Watches, session: &Session) -> Infallible {
    let ask = |uri: Arc<str>, step| async move {
        let mut params = Members::new();
        insert(&mut params, "uri", &uri);
        let request = if step == Step::Subscribe { SUBSCRIBE } else { "resources/unsubscribe" };
        (uri, step, timeout(PATIENCE, session.ask(request, params)).await)
    };
    let (mut asking, mut stream) = (FuturesUnordered::new(), session.stream());
    // Some servers answer when there is something to tell.
    drop(timeout(OPENING, stream.wait_for(|stream| *stream != UnaskedStream::Unknown)).await);
    loop {
        if let Some(why) = session.silence() {
            let why = Denial::ours(code::DEPENDENCY_FAILED, why);
            watches.wanted().iter().for_each(|uri| watches.refuse(uri, &why));
        }
        while asking.len() < AT_A_TIME
            && let Some((uri, step)) = watches.step()
        {
            asking.push(ask(uri, step));
        }
        tokio::select! {
            // A change may have been missed until it was there.
            Ok(()) = stream.changed() => watches.lost(),
            Some((uri, step, answer)) = asking.next() => match (step, answer) {
                (Step::Subscribe, Ok(Ok(_))) => watches.subscribed(&uri),
                (Step::Subscribe, Ok(Err(refusal))) => watches.refuse(&uri, &denial(refusal)),
                (Step::Subscribe, Err(_)) => watches.refuse(&uri, &late()),
                // If it goes on telling, nobody listens.
                (Step::Unsubscribe, _) => watches.unsubscribed(&uri),
            },
            () = watches.changed.notified() => {}
        }
    }
}

/// A stream of updates of one set of resources (`subscriptions/listen`, 2026-07-28). Another set takes another stream, which begins before
/// the other ends.
async fn together(watches: &Watches, session: &Session) -> Infallible {
    let mut held: Option<Exchange> = None;
    let mut known = BTreeSet::<Arc<str>>::new();
    let (mut since, mut again, mut pause) = (Instant::now(), None, AGAIN.0);
    loop {
        let wanted = watches.wanted();
        if wanted.is_empty() {
            known.iter().for_each(|uri| watches.unsubscribed(uri));
            (held, known, again) = (None, wanted, None);
        } else if wanted == known {
            again = None;
        } else if again.is_none_or(|at| at <= Instant::now()) {
            match timeout(PATIENCE, listen(session, &wanted)).await {
                Ok(Ok((stream, granted))) => {
                    (held, since, again) = (Some(stream), Instant::now(), None);
                    // What is new, and all of it if the stream before had ended.
                    granted.difference(&known).for_each(|uri| watches.subscribed(uri));
                    known.difference(&granted).for_each(|uri| watches.unsubscribed(uri));
                    let why =
                        Denial::ours(code::INVALID_PARAMS, "the server does not tell of changes of this resource");
                    wanted.difference(&granted).for_each(|uri| watches.refuse(uri, &why));
                    known = granted;
                }
                other => {
                    let why = other.map_or_else(|_| late(), |refused| refused.map_or_else(denial, |_| late()));
                    // What was granted before stays, on the stream that it has, or is asked for again.
                    wanted.difference(&known).for_each(|uri| watches.refuse(uri, &why));
                    again = Some(Instant::now() + AGAIN.0);
                }
            }
            // Somebody may have come meanwhile.
            continue;
        }
        tokio::select! {
            () = watches.changed.notified() => sleep(TOGETHER).await,
            // Nothing else comes on it that has not been taken already.
            _ = over(&mut held) => {
                known.clear();
                watches.lost();
                pause = if since.elapsed() < AGAIN.1 { (pause * 2).min(AGAIN.1) } else { AGAIN.0 };
                again = Some(Instant::now() + pause);
            }
            () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
        }
    }
}

/// Opens a stream; returns it with the resources that the server has acknowledged.
async fn listen(session: &Session, wanted: &BTreeSet<Arc<str>>) -> Result<(Exchange, BTreeSet<Arc<str>>), Refusal> {
    #[derive(Deserialize)]
    struct Acknowledged {
        notifications: GrantedSubscription,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct GrantedSubscription {
        #[serde(default)]
        resource_subscriptions: Option<BTreeSet<Arc<str>>>,
    }
    let mut asked = session.watch(wanted).await.map_err(|error| Refusal::Broken(error.to_string()))?;
    loop {
        tokio::select! {
            biased;
            Some(event) = asked.events.recv() => {
                if let Event::Note { params, .. } = event {
                    let read = serde_json::from_str::<Acknowledged>(params.get());
                    let read = read.map_err(|_| Refusal::Failed("its acknowledgement cannot be read".to_owned()))?;
                    let granted = read.notifications.resource_subscriptions.unwrap_or_default();
                    return Ok((asked, granted.into_iter().filter(|uri| wanted.contains(uri)).collect()));
                }
            }
            ended = &mut asked.outcome => return Err(match ended {
                Ok(Err(refusal)) => refusal,
                Ok(Ok(_)) => Refusal::Failed("it has ended the stream of updates at once".to_owned()),
                Err(_) => Refusal::Broken("it has ended".to_owned()),
            }),
        }
    }
}

/// Why the server does not tell of changes, for callers.
fn denial(refusal: Refusal) -> Denial {
    Denial::new(&match refusal {
        Refusal::Server(error) => of_server(error),
        refusal => RpcError::dependency(refusal.to_string()),
    })
}

/// The reason if it says nothing.
pub(super) fn late() -> Denial {
    Denial::ours(code::DEPENDENCY_FAILED, "the server has not answered in time")
}
