//! How long no call is executed after the node that leads the guard's stream was lost, and where the time goes.
//!
//! The bounds are generous, and the figures are printed:
//! `SEALWIRE_LEADER_KILLS=20 cargo test --test bus guard::recovery:: -- --nocapture`

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sealwire::internal::auth::{AdmitError, ReplayGuard, SharedConfig, SharedGuard, Window};
use sealwire::{BusConfig, Name, SystemClock};
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::replay::Message;
use sealwire_testkit::{SOON, within};
use tokio::time::{Instant, sleep};

use super::is_behind;

/// As configured by `sealwire setup cluster`.
const WINDOW_S: u64 = 30;
const SKEW_S: u64 = 2;
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

async fn replica(bus: BusConfig) -> SharedGuard {
    let mut config = SharedConfig::new(name("test"), name("math"));
    config.window = Window::new(WINDOW_S, SKEW_S).unwrap();
    config.answer_within = ANSWER_WITHIN;
    within(3 * SOON, SharedGuard::open(config, bus, Arc::new(SystemClock))).await.unwrap()
}

async fn offer(guard: &SharedGuard, message: Message) -> Result<(), AdmitError> {
    let Message { nonce, iat } = message;
    within(SOON, guard.admit(&name("a"), nonce, iat, iat + WINDOW_S, Instant::now())).await
}

/// A message that the guard has admitted just now.
async fn admitted(guard: &SharedGuard) -> Message {
    let admitted = async {
        loop {
            let message = Message::new();
            match offer(guard, message).await {
                Ok(()) => return message,
                Err(AdmitError::Unavailable(_) | AdmitError::Stale | AdmitError::Fenced { .. }) => {
                    sleep(Duration::from_millis(20)).await;
                }
                Err(other) => panic!("a wrong answer: {other:?}"),
            }
        }
    };
    within(LIMIT, admitted).await
}

/// What the guard says of a message once it says anything.
async fn judged(guard: &SharedGuard, message: Message) -> Result<(), AdmitError> {
    let judged = async {
        loop {
            match offer(guard, message).await {
                Err(AdmitError::Unavailable(_)) => sleep(Duration::from_millis(20)).await,
                judged => return judged,
            }
        }
    };
    within(LIMIT, judged).await
}

/// What one replica saw, measured from the loss.
#[derive(Debug)]
struct Seen {
    /// It vouches for the stream again, though perhaps not yet for messages of this second.
    verified: Duration,
    executed: Duration,
    refused: BTreeMap<String, u32>,
    admitted: Vec<Message>,
}

/// Offers a new message every few milliseconds, until ten were admitted after the interruption.
async fn call(guard: &SharedGuard, lost: Instant) -> Seen {
    let (mut verified, mut executed, mut refused) = (None, None, BTreeMap::new());
    let (mut admitted, mut after, mut down) = (Vec::new(), 0, false);
    while after < 10 {
        let message = Message::new();
        match offer(guard, message).await {
            Ok(()) => {
                admitted.push(message);
                // Answers that the dying leader still gave do not end the interruption.
                if !refused.is_empty() {
                    executed.get_or_insert_with(|| lost.elapsed());
                    after += 1;
                }
            }
            Err(why @ (AdmitError::Unavailable(_) | AdmitError::Stale | AdmitError::Fenced { .. })) => {
                *refused.entry(format!("{why:?}")).or_default() += 1;
            }
            Err(other) => panic!("a wrong answer: {other:?}"),
        }
        let up = !guard.stats().shared.unwrap().stream.is_empty();
        down |= !up;
        if down && up {
            verified.get_or_insert_with(|| lost.elapsed());
        }
        assert!(lost.elapsed() < LIMIT, "{:?} {refused:?}", guard.not_ready());
        sleep(Duration::from_millis(5)).await;
    }
    let executed = executed.unwrap();
    Seen { verified: verified.unwrap_or(executed), executed, refused, admitted }
}

/// How long it takes until a surviving node reports that the stream has a leader again.
async fn led_again(client: &async_nats::Client, stream: &str, lost: Instant, old: usize) -> Duration {
    loop {
        let info = client.request(format!("$JS.API.STREAM.INFO.{stream}"), "".into());
        if let Ok(Ok(info)) = tokio::time::timeout(Duration::from_millis(200), info).await {
            let info: serde_json::Value = serde_json::from_slice(&info.payload).unwrap();
            let leader = info["cluster"]["leader"].as_str().unwrap_or_default();
            if !leader.is_empty() && leader != format!("n{old}") {
                return lost.elapsed();
            }
        }
        assert!(lost.elapsed() < LIMIT, "no leader");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the stream has three complete copies, and every guard vouches for new messages.
async fn whole(cluster: &Cluster, guards: &[SharedGuard]) -> (String, usize) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < LIMIT, "{:?}", guards.iter().map(ReplayGuard::not_ready).collect::<Vec<_>>());
        sleep(Duration::from_millis(100)).await;
        let stream = guards[0].stats().shared.unwrap().stream;
        if stream.is_empty() || guards.iter().any(|guard| guard.not_ready().is_some()) {
            continue;
        }
        let client = cluster.nodes[0].client().await;
        let info = client.request(format!("$JS.API.STREAM.INFO.{stream}"), "".into());
        let Ok(Ok(info)) = tokio::time::timeout(Duration::from_secs(1), info).await else { continue };
        let info: serde_json::Value = serde_json::from_slice(&info.payload).unwrap();
        let copies = info["cluster"]["replicas"].as_array().map_or(&[][..], Vec::as_slice);
        let current = copies.iter().filter(|copy| copy["current"] == true && copy["offline"] != true).count();
        let leader = info["cluster"]["leader"].as_str().and_then(|leader| leader.strip_prefix('n')?.parse().ok());
        if let (2, Some(leader)) = (current, leader) {
            return (stream, leader);
        }
    }
}

/// How a node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// Its connections end (SIGKILL).
    Killed,
    /// Its connections stay open but nothing comes back (SIGSTOP): like a machine without power, or a network that drops everything.
    Silent,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_costs_seconds_and_never_a_wrong_answer() {
    let times = std::env::var("SEALWIRE_LEADER_KILLS").map_or(5, |kills| kills.parse().unwrap());
    lose_leaders(Loss::Killed, times).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_leader_costs_seconds_and_never_a_wrong_answer() {
    let times = std::env::var("SEALWIRE_LEADER_KILLS").map_or(3, |kills| kills.parse().unwrap());
    lose_leaders(Loss::Silent, times).await;
}

async fn lose_leaders(loss: Loss, times: usize) {
    let mut cluster = Cluster::start(3).await;
    let guards = join_all((0..3).map(|node| replica(cluster.bus(node)))).await;
    let mut figures: [Vec<Duration>; 4] = Default::default();
    let mut refused_in_all = 0;
    for time in 1..=times {
        let (stream, leader) = whole(&cluster, &guards).await;
        let before = admitted(&guards[time % 3]).await;
        let survivor = cluster.nodes[(leader + 1) % 3].client().await;

        let lost = Instant::now();
        match loss {
            Loss::Killed => cluster.nodes[leader].kill().await,
            Loss::Silent => cluster.nodes[leader].pause().await,
        }
        let calls = join_all(guards.iter().map(|guard| call(guard, lost)));
        let (led, seen) = tokio::join!(led_again(&survivor, &stream, lost, leader), calls);

        let verified = seen.iter().map(|seen| seen.verified).max().unwrap();
        let executed = seen.iter().map(|seen| seen.executed).min().unwrap();
        let last = seen.iter().map(|seen| seen.executed).max().unwrap();
        let mut refused: BTreeMap<&str, u32> = BTreeMap::new();
        for (why, count) in seen.iter().flat_map(|seen| &seen.refused) {
            *refused.entry(why).or_default() += count;
        }
        println!(
            "{loss:?} {time}: leader again {led:.2?}, verified by all {verified:.2?}, first executed {executed:.2?}, by every \
             replica {last:.2?}; {} executed, refused {refused:?}",
            seen.iter().map(|seen| seen.admitted.len()).sum::<usize>()
        );
        refused_in_all += refused.values().sum::<u32>();
        for (figure, value) in figures.iter_mut().zip([led, verified, executed, last]) {
            figure.push(value);
        }
        // Nothing that was executed, before or during the loss, is executed again by any replica.
        for guard in &guards {
            for message in seen.iter().flat_map(|seen| &seen.admitted).chain([&before]) {
                let answer = judged(guard, *message).await;
                assert!(is_behind(&answer) || answer == Err(AdmitError::Replayed), "{answer:?}");
            }
        }
        match loss {
            Loss::Killed => cluster.nodes[leader].restart().await,
            Loss::Silent => cluster.nodes[leader].resume().await,
        }
    }
    let what = [
        "the stream has a leader again",
        "every guard has verified it",
        "the first call is executed",
        "every replica executes",
    ];
    for (what, figure) in what.iter().zip(&mut figures) {
        figure.sort();
        let (min, median, max) = (figure[0], figure[figure.len() / 2], figure[figure.len() - 1]);
        println!("{loss:?}: {what}: min {min:.1?}, median {median:.1?}, max {max:.1?} of {times}");
    }
    println!("{loss:?}: {refused_in_all} calls refused unexecuted, none executed twice");
}

/// An election, twice the skew, and plenty for a machine that has other work.
const LIMIT: Duration = Duration::from_secs(120);
