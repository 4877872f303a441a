//! The shared replay guard on three nodes: leaders that die, a cluster that loses its memory, nodes that are cut off.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sealwire::internal::auth::{AdmitError, Outage, ReplayGuard, SharedConfig, SharedGuard, Window};
use sealwire::{BusConfig, Name, SystemClock};
use sealwire_testkit::cluster::Cluster;
use sealwire_testkit::replay::Message;
use sealwire_testkit::{SOON, within};
use tokio::time::{Instant, sleep};

use super::is_behind;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Opens a replica's guard, and waits until it is ready.
async fn replica(bus: BusConfig) -> SharedGuard {
    let mut config = SharedConfig::new(name("test"), name("math"));
    config.window = Window::new(30, 1).unwrap();
    // These tests are not about loaded machines.
    config.answer_within = Duration::from_secs(1);
    let guard = within(2 * SOON, SharedGuard::open(config, bus, Arc::new(SystemClock))).await.unwrap();
    ready(&guard).await;
    guard
}

/// Waits until the guard is ready, and returns how long that took.
async fn ready(guard: &SharedGuard) -> Duration {
    let began = Instant::now();
    while let Some(why) = guard.not_ready() {
        assert!(began.elapsed() < 2 * SOON, "{why}");
        sleep(Duration::from_millis(20)).await;
    }
    began.elapsed()
}

async fn offer(guard: &SharedGuard, message: Message) -> Result<(), AdmitError> {
    let Message { nonce, iat } = message;
    within(SOON, guard.admit(&name("a"), nonce, iat, iat + 30, Instant::now())).await
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
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    within(2 * SOON, admitted).await
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
    within(2 * SOON, judged).await
}

/// The node that leads this stream, once there is one.
async fn led(cluster: &Cluster, stream: &str, ask: usize) -> usize {
    let led = async {
        loop {
            match cluster.leader_of(stream, ask).await {
                Some(leader) => return leader,
                None => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    within(2 * SOON, led).await
}

/// Offers new messages until each guard has admitted one, and returns how long that took. Any other answer must be a refusal.
async fn admitted_again(guards: &[&SharedGuard]) -> Duration {
    let began = Instant::now();
    for guard in guards {
        loop {
            match offer(guard, Message::new()).await {
                Ok(()) => break,
                Err(AdmitError::Unavailable(_) | AdmitError::Stale | AdmitError::Fenced { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
            assert!(began.elapsed() < 2 * SOON, "{:?}", guard.not_ready());
            sleep(Duration::from_millis(20)).await;
        }
    }
    began.elapsed()
}

#[tokio::test]
async fn a_cluster_keeps_three_copies_and_admits_one_of_many_racers() {
    let cluster = Cluster::start(3).await;
    let replicas = join_all((0..3).map(|node| replica(cluster.bus(node)))).await;
    let mut whole = 0;
    for _ in 0..100 {
        let messages: Vec<_> = (0..40).map(|_| Message::new()).collect();
        let offers = messages.iter().flat_map(|message| replicas.iter().map(move |guard| offer(guard, *message)));
        let answers = join_all(offers).await;
        for (message, answers) in messages.iter().zip(answers.chunks(replicas.len())) {
            let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
            let replayed = answers.iter().filter(|answer| **answer == Err(AdmitError::Replayed)).count();
            let refused = |answer: &Result<(), AdmitError>| {
                is_behind(answer) || matches!(answer, Err(AdmitError::Unavailable(_)))
            };
            assert!(admitted <= 1, "{message:?} {answers:?}");
            assert_eq!(
                admitted + replayed + answers.iter().filter(|&answer| refused(answer)).count(),
                3,
                "{answers:?}"
            );
        }
        // Not so while the stream changes its leader, or if a guard could not look at it in time. Without either, one is admitted.
        let is_whole = |answers: &[Result<(), AdmitError>]| answers.iter().filter(|answer| answer.is_ok()).count() == 1;
        if answers.iter().all(|answer| matches!(answer, Ok(()) | Err(AdmitError::Replayed)))
            && answers.chunks(replicas.len()).all(is_whole)
        {
            whole += 1;
        }
        if whole == 10 {
            break;
        }
    }
    assert_eq!(whole, 10, "hardly ever without an interruption");
    let stream = replicas[0].stats().shared.unwrap().stream;
    led(&cluster, &stream, 0).await;
}

#[tokio::test]
async fn a_leader_that_hands_over_costs_no_fence_and_one_that_dies_costs_one() {
    let mut cluster = Cluster::start(3).await;
    let (one, two) = (replica(cluster.bus(0)).await, replica(cluster.bus(1)).await);
    let stream = one.stats().shared.unwrap().stream;
    sleep(Duration::from_secs(2)).await;

    let known = admitted(&one).await;
    let client = cluster.nodes[0].client().await;
    let before = led(&cluster, &stream, 0).await;
    within(SOON, client.request(format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}"), "".into())).await.unwrap();
    let took = admitted_again(&[&one, &two]).await;
    println!("handed over in {took:?}");
    let leader = led(&cluster, &stream, 0).await;
    assert_ne!(leader, before);
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(judged(&two, known).await, Err(AdmitError::Replayed), "neither forgotten nor stale");

    let killed = Instant::now();
    cluster.nodes[leader].kill().await;
    let Some(away) = (0..3).find(|node| *node != leader) else { unreachable!() };
    sleep(Duration::from_millis(300)).await;
    let took = admitted_again(&[&one, &two]).await;
    println!("leader killed: admitted again after {:?} (offers began later: {took:?})", killed.elapsed());
    assert_ne!(led(&cluster, &stream, away).await, leader);
    assert!(
        offer(&two, known).await.is_err() && two.fence() >= known.iat,
        "the memory counts from the new leader's term"
    );
    cluster.nodes[leader].restart().await;
    admitted_again(&[&one, &two]).await;
}

/// A check sent over one connection and answered over the next may have been answered from another memory.
#[tokio::test]
async fn an_answer_that_arrives_over_another_connection_admits_nothing() {
    let mut cluster = Cluster::start(3).await;
    let (bus, proxy) = cluster.proxy(0).await;
    let guard = replica(bus).await;
    let stream = guard.stats().shared.unwrap().stream;
    let client = cluster.nodes[1].client().await;
    // On a busy machine, the answer may come too late, or over the connection that the question went over.
    for _ in 0..20 {
        admitted_again(&[&guard]).await;
        let leader = led(&cluster, &stream, 1).await;
        if leader == 0 {
            let down = client.request(format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}"), "".into());
            let _ = within(SOON, down).await;
            continue;
        }
        let before = guard.stats().shared.unwrap().unanswered;
        cluster.nodes[leader].pause().await;
        let message = Message::new();
        let reconnected = async {
            sleep(Duration::from_millis(100)).await;
            proxy.cut(true);
            sleep(Duration::from_millis(50)).await;
            proxy.cut(false);
            sleep(Duration::from_millis(350)).await;
            cluster.nodes[leader].resume().await;
        };
        let (answer, ()) = tokio::join!(offer(&guard, message), reconnected);
        // It is not known what answered, unless another node leads by now.
        assert!(answer.is_err() || led(&cluster, &stream, 1).await != leader, "admitted");
        let in_time = guard.stats().shared.unwrap().unanswered == before;
        if in_time && answer == Err(AdmitError::Unavailable(Outage::Unverified)) {
            admitted_again(&[&guard]).await;
            return;
        }
    }
    panic!("not answered in time");
}

/// The stream comes back empty, with the same name and the same creation time.
#[tokio::test]
async fn a_cluster_that_lost_its_memory_executes_nothing_twice() {
    let mut cluster = Cluster::start(3).await;
    let (one, two) = (replica(cluster.bus(0)).await, replica(cluster.bus(1)).await);
    let stream = one.stats().shared.unwrap().stream;
    let mut before = Vec::new();
    for _ in 0..100 {
        before.push(admitted(&one).await);
    }
    for node in &mut cluster.nodes {
        node.kill().await;
    }
    for node in &mut cluster.nodes {
        node.restart().await;
    }
    let fence = two.fence();
    let began = Instant::now();
    while two.fence() <= fence + 1 || two.not_ready().is_some() {
        // Only half of them: a message offered while nothing answers is known locally from then on, and proves less.
        for answer in join_all(before[50..].iter().map(|message| offer(&two, *message))).await {
            assert!(answer.is_err());
        }
        assert!(began.elapsed() < 2 * SOON, "{:?}", two.not_ready());
        sleep(Duration::from_millis(100)).await;
    }
    for message in &before[..50] {
        assert!(is_behind(&judged(&two, *message).await));
    }
    assert_eq!(two.stats().shared.unwrap().stream, stream, "which is why the name alone proves nothing");
    // A replica that starts now has nothing in its own memory.
    let late = replica(cluster.bus(2)).await;
    for message in &before {
        assert!(offer(&late, *message).await.is_err());
    }
    let after = admitted(&late).await;
    let again = judged(&two, after).await;
    assert!(again == Err(AdmitError::Replayed) || is_behind(&again), "{again:?}");
}

#[tokio::test]
async fn a_replica_on_a_node_that_is_cut_off_refuses_and_the_others_go_on() {
    let cluster = Cluster::start(3).await;
    let replicas = join_all((0..3).map(|node| replica(cluster.bus_of(node)))).await;
    let stream = replicas[0].stats().shared.unwrap().stream;
    let leader = led(&cluster, &stream, 0).await;
    let cut = (leader + 1) % 3;
    let others: Vec<_> = (0..3).filter(|node| *node != cut).map(|node| &replicas[node]).collect();
    cluster.isolate(cut, true);
    let message = admitted(others[0]).await;
    let answer = offer(&replicas[cut], message).await;
    // Behind a fence only if the guard could not look at the stream in time before.
    assert!(is_behind(&answer) || matches!(answer, Err(AdmitError::Unavailable(_))), "{answer:?}");
    let noticed = async {
        while replicas[cut].not_ready().is_none() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    within(SOON, noticed).await;
    sleep(Duration::from_secs(2)).await;
    assert!(matches!(
        offer(&replicas[cut], Message::new()).await,
        Err(AdmitError::Unavailable(
            Outage::Unanswered | Outage::Unreachable | Outage::StreamReplaced | Outage::Unverified
        ))
    ));
    let again = judged(others[1], message).await;
    assert!(again == Err(AdmitError::Replayed) || is_behind(&again), "{again:?}");
    admitted(others[1]).await;
    cluster.isolate(cut, false);
    let took = ready(&replicas[cut]).await;
    println!("ready {took:?} after it was connected again");
    assert!(offer(&replicas[cut], message).await.is_err());
    admitted_again(&[&replicas[cut]]).await;
}
