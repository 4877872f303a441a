//! The shared replay guard against a real server: replicas that race, a server that dies, a stream that is removed, a
//! clock that is wrong. Every admitted message is admitted once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use sealwire::errors::SharedOpenError;
use sealwire::internal::auth::{
    AdmitError, LocalGuard, NonceLimits, Outage, ReplayGuard, SharedConfig, SharedGuard, TimeFloor, Window,
};
use sealwire::internal::wire::Nonce;
use sealwire::{BusConfig, Clock, Name, SystemClock};
use sealwire_testkit::nats_server::ServerOptions;
use sealwire_testkit::replay::Message;
use sealwire_testkit::site::in_memory;
use sealwire_testkit::{NatsServer, SOON, settle, within};
use tokio::time::{Instant, sleep};

use super::is_behind;

/// The machine's clock with an error, as on a replica whose clock is wrong.
#[derive(Debug, Default)]
struct WrongClock(AtomicI64);

impl Clock for WrongClock {
    fn now_ms(&self) -> u64 {
        SystemClock.now_ms().saturating_add_signed(self.0.load(Ordering::SeqCst))
    }
}

/// A short skew, so that a fence of twice the skew does not take long.
fn config() -> SharedConfig {
    let mut config = SharedConfig::new(name("test"), name("math"));
    config.window = Window::new(30, 1).unwrap();
    config.open_within = SOON;
    // These tests are not about loaded machines.
    config.answer_within = Duration::from_secs(1);
    config
}

fn opening_within(open_within: Duration) -> SharedConfig {
    let mut config = config();
    config.open_within = open_within;
    config
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

async fn open_with(url: &str, config: SharedConfig, clock: Arc<dyn Clock>) -> SharedGuard {
    within(2 * SOON, SharedGuard::open(config, BusConfig::open(url), clock)).await.unwrap()
}

/// Opens a replica's guard, and waits until it is ready.
async fn replica(server: &NatsServer) -> SharedGuard {
    let guard = open_with(&server.url(), config(), Arc::new(SystemClock)).await;
    ready(&guard).await;
    guard
}

async fn ready(guard: &SharedGuard) {
    let began = Instant::now();
    while let Some(why) = guard.not_ready() {
        assert!(began.elapsed() < SOON, "{why}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Opens a guard that is refused, in ever more time, until the reason is one with these words: in too little time, a busy machine only
/// learns that there is no answer yet.
async fn refused_for(words: &str, open: impl AsyncFn(Duration) -> Result<SharedGuard, SharedOpenError>) {
    let mut open_within = Duration::from_millis(300);
    loop {
        let refused = open(open_within).await;
        if matches!(&refused, Err(SharedOpenError::NotReady(why)) if why.contains(words)) {
            return;
        }
        assert!(matches!(refused, Err(SharedOpenError::NotReady(_))) && open_within < SOON, "{refused:?}");
        open_within *= 2;
    }
}

/// What the guard says of a message once it says anything.
async fn judged(guard: &SharedGuard, message: Message) -> Result<(), AdmitError> {
    let judged = async {
        loop {
            match offer(guard, message).await {
                Err(AdmitError::Unavailable(_)) => sleep(Duration::from_millis(50)).await,
                judged => return judged,
            }
        }
    };
    within(SOON, judged).await
}

/// Waits until the fence set by an interruption is older than newly issued messages.
async fn admits(guard: &SharedGuard) {
    let admitted = async {
        while offer(guard, Message::new()).await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    within(SOON, admitted).await;
}

async fn offer(guard: &SharedGuard, message: Message) -> Result<(), AdmitError> {
    offer_as(guard, &name("a"), message, Instant::now()).await
}

async fn offer_to(guard: &dyn ReplayGuard, message: Message) -> Result<(), AdmitError> {
    let Message { nonce, iat } = message;
    within(SOON, guard.admit(&name("a"), nonce, iat, iat + 30, Instant::now())).await
}

async fn offer_as(guard: &SharedGuard, owner: &Name, message: Message, received: Instant) -> Result<(), AdmitError> {
    let Message { nonce, iat } = message;
    within(SOON, guard.admit(owner, nonce, iat, iat + 30, received)).await
}

/// The guard's user needs permission to subscribe to the guard's own inbox, and to nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_hears_its_broker_at_its_own_inbox_only() {
    let users = "authorization { users: [{ user: test, password: test }, \
                 { user: guard, password: guard, permissions: { subscribe: [\"_SVC.math.guard.>\"] } }, \
                 { user: other, password: guard, permissions: { subscribe: [\"_SVC.bank.guard.>\"] } }] }\n\
                 no_auth_user: test\n";
    let options = ServerOptions { config: Some(users.to_owned()), ..ServerOptions::default() };
    let server = NatsServer::start_with_options(options).await;
    let open = async |user: &str, open_within| {
        let secret = Some("guard".to_owned().into());
        let bus = BusConfig { user: Some(user.to_owned()), password: secret, ..BusConfig::open(&server.url()) };
        within(2 * SOON, SharedGuard::open(opening_within(open_within), bus, Arc::new(SystemClock))).await
    };
    let refused = open("other", Duration::from_secs(2)).await;
    assert!(matches!(refused, Err(SharedOpenError::NotReady(_))), "another inbox is not permitted");
    ready(&open("guard", SOON).await.unwrap()).await;
}

/// The client library's own inbox names follow from one another. Nobody else learns this one, so nobody else can
/// acknowledge in the stream's place.
#[tokio::test]
async fn nobody_can_foretell_where_a_guard_hears_its_broker() {
    let server = NatsServer::start().await;
    let client = server.client().await;
    let mut answers = within(SOON, client.subscribe("_SVC.math.guard.>")).await.unwrap();
    settle(&client).await;
    let mut secrets = std::collections::HashSet::new();
    for _ in 0..4 {
        let guard = replica(&server).await;
        admits(&guard).await;
        within(SOON, guard.close()).await;
    }
    // All four are heard, and then whatever else there is.
    let patience = |heard| if heard < 4 { SOON } else { Duration::from_millis(300) };
    while let Ok(Some(answer)) = tokio::time::timeout(patience(secrets.len()), answers.next()).await {
        let mut tokens = answer.subject.split('.').skip(3);
        let secret = tokens.next().unwrap().to_owned();
        assert!(Nonce::from_text(&secret).is_some(), "{secret} is 128 bits of the cryptographic source");
        assert!(tokens.next().is_some(), "and only below it are the library's own");
        secrets.insert(secret);
    }
    assert_eq!(secrets.len(), 4, "each connection has its own");
}

#[tokio::test]
async fn replayed_nonce_is_refused_by_second_replica() {
    let server = NatsServer::start().await;
    let (one, two) = (replica(&server).await, replica(&server).await);
    let message = Message::new();
    assert_eq!(offer(&one, message).await, Ok(()));
    assert_eq!(offer(&two, message).await, Err(AdmitError::Replayed));
    assert_eq!(offer(&two, message).await, Err(AdmitError::Replayed));
    assert_eq!(offer(&one, message).await, Err(AdmitError::Replayed));
    assert_eq!(offer_as(&two, &name("b"), message, Instant::now()).await, Ok(()), "the nonce is the owner's own");
    let stats = two.stats();
    let shared = stats.shared.unwrap();
    assert_eq!(shared.latency.count, 2, "the second copy was known locally");
    assert!(shared.stream.starts_with("RG_test_math_"));
    assert_eq!((stats.admitted, stats.replayed, shared.interruptions), (1, 2, 0));
    assert_eq!(one.kind(), "shared");
    within(SOON, one.close()).await;
    assert_eq!(offer(&one, Message::new()).await, Err(AdmitError::Unavailable(Outage::Closed)));
}

/// With the default skew of five seconds, a replica that nobody vouches for would wait ten seconds.
#[tokio::test]
async fn a_replica_that_joins_others_knows_what_they_admitted_and_does_not_wait_for_a_fence() {
    let server = NatsServer::start().await;
    let open = async || {
        let mut config = config();
        config.window = Window::default();
        open_with(&server.url(), config, Arc::new(SystemClock)).await
    };
    let one = open().await;
    ready(&one).await;
    let message = Message::new();
    assert_eq!(offer(&one, message).await, Ok(()));
    sleep(Duration::from_secs(1)).await;

    let opened = Instant::now();
    let late = open().await;
    late.serving();
    assert!(late.not_ready().is_some(), "not before the other has looked at the stream again");
    ready(&late).await;
    println!("joined after {:?}", opened.elapsed());
    assert_eq!(late.fence(), one.fence(), "it vouches for what the other does, and for nothing less");
    assert_eq!(offer(&late, message).await, Err(AdmitError::Replayed));
    assert_eq!(offer(&late, Message::new()).await, Ok(()));
    assert_eq!(late.identity(), one.identity());
}

/// It opens its guard, sees that a replica with another guard is serving, and gives up, again and again. Its traces in the
/// stream do not prove that anybody guarded.
#[tokio::test]
async fn a_replica_that_never_serves_vouches_for_nobody() {
    let server = NatsServer::start().await;
    let idle = replica(&server).await;
    for _ in 0..3 {
        let looped = open_with(&server.url(), config(), Arc::new(SystemClock)).await;
        within(SOON, looped.close()).await;
    }
    let opened = SystemClock.now_s();
    let late = open_with(&server.url(), config(), Arc::new(SystemClock)).await;
    ready(&late).await;
    assert!(late.fence() >= opened + 2, "behind its own start, and not as far back as the stream reaches");
    let seen = late.peers_seen();
    assert!(seen.contains_key(idle.instance().unwrap()), "though it is seen: {seen:?}");
}

/// Messages that another guard admitted while this one was away, or not serving yet, are not admitted again.
#[tokio::test]
async fn a_guard_that_is_changed_and_changed_back_admits_nothing_twice() {
    let server = NatsServer::start().await;
    let folder = in_memory();
    let floor = TimeFloor::File(folder.path().join("math.floor"));
    let shared = async || open_with(&server.url(), config(), Arc::new(SystemClock)).await;
    let local = || LocalGuard::open(config().window, NonceLimits::default(), Arc::new(SystemClock), &floor).unwrap();
    let mut admitted: Vec<Message> = Vec::new();
    for round in 0..4 {
        let guard: Box<dyn ReplayGuard> = if round % 2 == 0 { Box::new(shared().await) } else { Box::new(local()) };
        // As a service does once no other guard serves any more.
        guard.serving();
        let began = Instant::now();
        while guard.not_ready().is_some() {
            for message in &admitted {
                assert!(offer_to(&*guard, *message).await.is_err(), "round {round}: {message:?}");
            }
            sleep(Duration::from_millis(50)).await;
        }
        println!("{} ready after {:?}", guard.kind(), began.elapsed());
        assert!(began.elapsed() < 2 * SOON);
        for message in &admitted {
            assert!(offer_to(&*guard, *message).await.is_err(), "round {round}: {message:?}");
        }
        for _ in 0..20 {
            // Dated by a clock that is ahead by the permitted skew, and by one that is right.
            for ahead_s in [0, 1] {
                let message = Message { iat: SystemClock.now_s() + ahead_s, ..Message::new() };
                assert_eq!(offer_to(&*guard, message).await, Ok(()), "round {round}");
                admitted.push(message);
            }
        }
        within(SOON, guard.close()).await;
    }
}

#[tokio::test]
async fn what_was_issued_while_somebody_served_by_another_guard_is_stale() {
    let server = NatsServer::start().await;
    let (one, two) = (replica(&server).await, replica(&server).await);
    assert_eq!(offer(&one, Message::new()).await, Ok(()));
    assert_eq!(offer(&two, Message::new()).await, Ok(()));
    let elsewhere = Message::new();
    one.outsider();
    let answer = offer(&one, Message::new()).await;
    assert_eq!(answer, Err(AdmitError::Unavailable(Outage::Unverified)), "at once");
    ready(&one).await;
    assert!(is_behind(&offer(&one, elsewhere).await), "although another replica vouches for that time");
    assert_eq!(offer(&one, Message::new()).await, Ok(()));
}

/// SPEC.md §9.
#[tokio::test]
async fn of_many_replicas_asked_at_once_exactly_one_admits() {
    let server = NatsServer::start().await;
    let replicas = join_all((0..4).map(|_| replica(&server))).await;
    for round in 0..20 {
        let messages: Vec<_> = (0..50).map(|_| Message::new()).collect();
        let offers = messages.iter().flat_map(|message| replicas.iter().map(move |guard| offer(guard, *message)));
        let answers = join_all(offers).await;
        for (message, answers) in messages.iter().zip(answers.chunks(replicas.len())) {
            let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
            let replayed = answers.iter().filter(|answer| **answer == Err(AdmitError::Replayed)).count();
            assert_eq!((admitted, replayed), (1, replicas.len() - 1), "round {round}: {message:?} {answers:?}");
        }
    }
}

/// If asked twice at the same moment, a single server makes two streams with the same subjects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_start_together_agree_on_one_stream() {
    for _ in 0..5 {
        let server = NatsServer::start().await;
        let replicas = join_all((0..8).map(|_| replica(&server))).await;
        let message = Message::new();
        let answers = join_all(replicas.iter().map(|guard| offer(guard, message))).await;
        assert!(answers.iter().filter(|answer| answer.is_ok()).count() <= 1, "{answers:?}");
        for guard in &replicas {
            ready(guard).await;
        }
        let message = Message::new();
        let mut answers: Vec<_> = Vec::new();
        for guard in &replicas {
            answers.push(judged(guard, message).await);
        }
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
        let client = server.client().await;
        let names = within(SOON, client.request("$JS.API.STREAM.NAMES", "".into())).await.unwrap();
        let names: serde_json::Value = serde_json::from_slice(&names.payload).unwrap();
        assert_eq!(names["total"], 1, "{names}");
    }
}

/// The only copy of the stream dies with its server.
/// SPEC.md §9.
#[tokio::test]
async fn what_a_dead_server_knew_is_stale_and_the_guard_recovers_by_itself() {
    let mut server = NatsServer::start().await;
    let (one, two) = (replica(&server).await, replica(&server).await);
    let before: Vec<_> = (0..200).map(|_| Message::new()).collect();
    for message in &before {
        assert_eq!(offer(&one, *message).await, Ok(()));
    }
    let fence = two.fence();
    server.kill().await;
    let answer = offer(&one, Message::new()).await;
    assert!(matches!(answer, Err(AdmitError::Unavailable(_))), "{answer:?}");
    server.restart().await;
    let restarted = Instant::now();
    while two.fence() == fence || two.not_ready().is_some() || one.not_ready().is_some() {
        for message in &before {
            assert!(offer(&two, *message).await.is_err());
        }
        assert!(restarted.elapsed() < 2 * SOON, "{:?}", two.not_ready());
        sleep(Duration::from_millis(100)).await;
    }
    println!("recovered {:?} after the restart", restarted.elapsed());
    for message in &before {
        assert!(is_behind(&offer(&two, *message).await));
    }
    let after = Message::new();
    assert_eq!(offer(&two, after).await, Ok(()));
    assert_eq!(offer(&one, after).await, Err(AdmitError::Replayed));
}

#[tokio::test]
async fn a_stream_that_is_removed_is_made_anew_and_what_it_knew_is_stale() {
    let server = NatsServer::start().await;
    let (one, two) = (replica(&server).await, replica(&server).await);
    let message = Message::new();
    assert_eq!(offer(&one, message).await, Ok(()));
    let stream = one.stats().shared.unwrap().stream;
    let client = server.client().await;
    within(SOON, client.request(format!("$JS.API.STREAM.DELETE.{stream}"), "".into())).await.unwrap();
    let removed = Instant::now();
    let mut fenced = 0;
    while two.not_ready().is_some() || two.stats().shared.unwrap().stream == stream {
        let answer = offer(&two, message).await;
        assert!(
            is_behind(&answer) || matches!(answer, Err(AdmitError::Unavailable(_) | AdmitError::Replayed)),
            "{answer:?}"
        );
        // While no message can be fresh enough, the answer blames the guard and not the message.
        fenced += usize::from(matches!(offer(&two, Message::new()).await, Err(AdmitError::Fenced { .. })));
        assert!(removed.elapsed() < 2 * SOON, "{:?}", two.not_ready());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(fenced > 0);
    assert!(offer(&two, message).await.is_err() && two.fence() >= message.iat);
    let after = Message::new();
    assert_eq!(offer(&two, after).await, Ok(()));
    ready(&one).await;
    assert_eq!(offer(&one, after).await, Err(AdmitError::Replayed));
    assert!(two.stats().shared.unwrap().interruptions > 0);
}

/// Made by somebody else before the service starts, as similar to the service's own as possible: each is refused, and
/// nothing is written to it.
#[tokio::test]
async fn a_squatted_stream_is_refused_and_the_way_out_is_told() {
    let server = NatsServer::start().await;
    let client = server.client().await;
    let api = async |verb: String, body: String| {
        let answer = within(SOON, client.request(format!("$JS.API.STREAM.{verb}"), body.into())).await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&answer.payload).unwrap()
    };
    let own = replica(&server).await;
    let name = own.identity().stream;
    let genuine = api(format!("INFO.{name}"), String::new()).await["config"].clone();
    within(SOON, own.close()).await;
    api(format!("DELETE.{name}"), String::new()).await;

    type Change = (&'static str, fn(&mut serde_json::Value), &'static str);
    let changes: [Change; 8] = [
        ("SQUAT", |_| (), "its name is not `RG_test_math_`"),
        ("RG_test_math_x", |config| config["max_msgs"] = 60.into(), "`max_msgs` is 60 and should be 1000000"),
        ("RG_test_math_x", |config| config["max_msgs_per_subject"] = 5.into(), "`max_msgs_per_subject` is 5"),
        ("RG_test_math_x", |config| config["storage"] = "file".into(), "`storage` is \"file\""),
        (
            "RG_test_math_x",
            |config| {
                config["storage"] = "file".into();
                config["persist_mode"] = "async".into();
            },
            "`persist_mode` is \"async\" and should not be set",
        ),
        (
            "RG_test_math_x",
            |config| config["republish"] = serde_json::json!({"src": "rg.test.math.>", "dest": "spy.>"}),
            "`republish` is ",
        ),
        ("RG_test_math_x", |config| config["allow_direct"] = true.into(), "`allow_direct` is true"),
        (
            "RG_test_math_x",
            |config| config["metadata"]["sealwire.skew_s"] = "2".into(),
            "metadata `sealwire.skew_s` is",
        ),
    ];
    for (name, change, says) in changes {
        let mut config = genuine.clone();
        config["name"] = name.into();
        change(&mut config);
        // "Error creating store": the files of the previous stream are still being removed.
        let made = async {
            while let Some(error) = api(format!("CREATE.{name}"), config.to_string()).await.get("error") {
                assert_eq!(error["err_code"], 10049, "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within(SOON, made).await;
        let bus = BusConfig::open(&server.url());
        match SharedGuard::open(self::config(), bus, Arc::new(SystemClock)).await {
            Err(SharedOpenError::Unfit(why)) => {
                assert!(why.contains(says) && why.ends_with("remove the stream; the service makes its own"), "{why}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(api(format!("INFO.{name}"), String::new()).await["state"]["messages"], 0);
        api(format!("DELETE.{name}"), String::new()).await;
    }
    ready(&replica(&server).await).await;
}

/// An agent whose messages live for two seconds always has room for new ones in the replica's memory. In the stream they
/// stay for a minute and a half.
/// SPEC.md §9.
#[tokio::test]
async fn no_owner_fills_the_stream_and_others_do_not_notice() {
    let server = NatsServer::start().await;
    let open = async || {
        let mut config = config();
        (config.max_messages, config.nonce_limits.owner, config.nonce_limits.reserve) = (4_000, 200, 1);
        let share = config.owner_share();
        let guard = open_with(&server.url(), config, Arc::new(SystemClock)).await;
        ready(&guard).await;
        (guard, share)
    };
    let (guard, share) = open().await;
    assert_eq!(share, 594, "200 in 31 s, for 92 s");
    let (greedy, other) = (name("greedy"), name("other"));
    let offer_short = async |guard: &SharedGuard, nonce| {
        let now = SystemClock.now_s();
        within(SOON, guard.admit(&greedy, nonce, now - 1, now + 1, Instant::now())).await
    };
    let (mut admitted, mut refused_locally) = (0, 0);
    let began = Instant::now();
    let last = loop {
        let before = guard.stats().shared.unwrap().latency.count;
        let nonce = Nonce::random();
        match offer_short(&guard, nonce).await {
            Ok(()) => admitted += 1,
            Err(AdmitError::Stale | AdmitError::Fenced { .. } | AdmitError::Unavailable(_)) => {}
            Err(AdmitError::OwnerFull { .. }) if guard.stats().shared.unwrap().latency.count == before => {
                refused_locally += 1;
                sleep(Duration::from_millis(50)).await;
            }
            Err(refused) => break refused,
        }
        assert!(began.elapsed() < Duration::from_secs(80), "before the stream forgets the first: {admitted} admitted");
    };
    assert!(refused_locally > 0, "the replica's own bound comes first");
    assert_eq!(last, AdmitError::OwnerFull { retry_after_ms: 1000 });
    // Some late ones were stored but not admitted.
    assert!(admitted <= share && admitted > share - 100, "{admitted}");
    // The guard goes on.
    ready(&guard).await;
    let (second, _) = open().await;
    let of_second = async {
        loop {
            match offer_short(&second, Nonce::random()).await {
                // Its life is short, and the stream may have been asked too late.
                Err(AdmitError::Stale | AdmitError::Fenced { .. } | AdmitError::Unavailable(_)) => {
                    sleep(Duration::from_millis(50)).await;
                }
                judged => return judged,
            }
        }
    };
    assert_eq!(within(SOON, of_second).await, Err(AdmitError::OwnerFull { retry_after_ms: 1000 }), "everywhere");
    for guard in [&guard, &second] {
        let mut admitted = 0;
        while admitted < 100 {
            match offer_as(guard, &other, Message::new(), Instant::now()).await {
                Ok(()) => admitted += 1,
                // Of which no other owner is the cause.
                Err(AdmitError::Stale | AdmitError::Fenced { .. } | AdmitError::Unavailable(_)) => {
                    assert!(began.elapsed() < 5 * SOON, "{admitted} admitted");
                    sleep(Duration::from_millis(50)).await;
                }
                Err(refused) => panic!("{refused:?}"),
            }
        }
    }
}

/// Somebody else makes a stream with the guard's subjects, right in the gap.
#[tokio::test]
async fn an_answer_of_another_stream_admits_nothing() {
    let server = NatsServer::start().await;
    let one = replica(&server).await;
    let stream = one.stats().shared.unwrap().stream;
    let client = server.client().await;
    within(SOON, client.request(format!("$JS.API.STREAM.DELETE.{stream}"), "".into())).await.unwrap();
    let foreign =
        r#"{"name":"X","subjects":["rg.>"],"storage":"memory","num_replicas":1,"retention":"limits","discard":"new"}"#;
    within(SOON, client.request("$JS.API.STREAM.CREATE.X", foreign.into())).await.unwrap();
    for _ in 0..50 {
        assert!(offer(&one, Message::new()).await.is_err());
        sleep(Duration::from_millis(20)).await;
    }
    let why = one.not_ready().unwrap();
    assert!(why.contains("stream `X` cannot serve as replay guard") && why.contains("`subjects` is"), "{why}");

    let refused = SharedGuard::open(config(), BusConfig::open(&server.url()), Arc::new(SystemClock)).await;
    assert!(
        matches!(refused, Err(SharedOpenError::Unfit(why)) if why.contains("`max_age` is 0 and should be 92000000000"))
    );
}

#[tokio::test]
async fn a_paused_server_refuses_quickly_and_nothing_runs_twice_afterwards() {
    let mut server = NatsServer::start().await;
    let (one, two) = (replica(&server).await, replica(&server).await);
    let known = Message::new();
    assert_eq!(offer(&one, known).await, Ok(()));
    server.pause().await;
    let asked: Vec<_> = (0..50).map(|_| Message::new()).collect();
    let paused = Instant::now();
    for answer in join_all(asked.iter().map(|message| offer(&one, *message))).await {
        assert!(matches!(answer, Err(AdmitError::Unavailable(_))), "{answer:?}");
    }
    assert!(paused.elapsed() < SOON);
    // By then, it may have waited too long for its own check of the stream.
    let outage = offer(&two, known).await;
    assert!(matches!(outage, Err(AdmitError::Unavailable(Outage::Unanswered | Outage::Unverified))), "{outage:?}");
    let noticed = async {
        while one.not_ready().is_none() || two.not_ready().is_none() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    within(SOON, noticed).await;
    let mut quickest = Duration::MAX;
    for _ in 0..10 {
        let asked_down = Instant::now();
        assert!(matches!(offer(&one, Message::new()).await, Err(AdmitError::Unavailable(_))));
        quickest = quickest.min(asked_down.elapsed());
    }
    assert!(quickest < Duration::from_millis(100), "a guard that is down does not wait: {quickest:?}");
    server.resume().await;
    ready(&one).await;
    ready(&two).await;
    // Checks that were given up may have been stored since: no copy is admitted here, and at most one elsewhere.
    for message in asked {
        assert!(offer(&one, message).await.is_err());
        let _ = offer(&two, message).await;
        assert!(offer(&two, message).await.is_err());
    }
    assert!(offer(&two, known).await.is_err());
    admits(&two).await;
}

/// The broker stands still for longer than a check waits, and then stores the message of that check.
/// SPEC.md §9.
#[tokio::test]
async fn a_check_that_is_answered_too_late_admits_its_own_message_and_no_copy() {
    let mut server = NatsServer::start().await;
    let open = || async {
        let mut config = config();
        config.answer_within = Duration::from_millis(500);
        open_with(&server.url(), config, Arc::new(SystemClock)).await
    };
    let (one, two) = (open().await, open().await);
    // On a busy machine, a check or a verification may time out. That refuses messages, but admits none twice.
    for _ in 0..10 {
        admits(&one).await;
        admits(&two).await;
        let (alone, raced): (Vec<_>, Vec<_>) = (0..20).map(|_| (Message::new(), Message::new())).unzip();
        let unanswered = || one.stats().shared.unwrap().unanswered;
        let before = unanswered();
        server.pause().await;
        let asked = async {
            let offers = |guard, messages: &[Message]| {
                join_all(messages.iter().map(|message| offer(guard, *message)).collect::<Vec<_>>())
            };
            tokio::join!(offers(&one, &alone), offers(&one, &raced), offers(&two, &raced))
        };
        let resumed = async {
            sleep(Duration::from_millis(700)).await;
            server.resume().await;
        };
        let ((alone_at_one, raced_at_one, raced_at_two), ()) = tokio::join!(asked, resumed);
        let late =
            |answer: &Result<(), AdmitError>| is_behind(answer) || matches!(answer, Err(AdmitError::Unavailable(_)));
        let is_late = alone_at_one.iter().chain(&raced_at_one).chain(&raced_at_two).any(late);
        for pair in raced_at_one.iter().zip(&raced_at_two) {
            assert!(!matches!(pair, (Ok(()), Ok(()))), "admitted twice");
            let once = matches!(pair, (Ok(()), Err(AdmitError::Replayed)) | (Err(AdmitError::Replayed), Ok(())));
            assert!(once || is_late, "{pair:?}");
        }
        if is_late {
            continue;
        }
        assert!(alone_at_one.iter().all(Result::is_ok), "{alone_at_one:?}");
        assert!(unanswered() - before >= 20, "they were not answered in time");
        for message in alone.into_iter().chain(raced) {
            for guard in [&one, &two] {
                let again = offer(guard, message).await;
                assert!(again == Err(AdmitError::Replayed) || late(&again), "{again:?}");
            }
        }
        return;
    }
    panic!("refused each time");
}

/// A check that was given up burns the nonce for everybody: its caller is gone.
/// SPEC.md §9.
#[tokio::test]
async fn a_check_that_died_before_its_answer_admits_nobody() {
    let mut server = NatsServer::start().await;
    let (one, two) = (replica(&server).await, replica(&server).await);
    let message = Message::new();
    server.pause().await;
    let (owner, now) = (name("a"), Instant::now());
    let check = one.admit(&owner, message.nonce, message.iat, message.iat + 30, now);
    assert!(tokio::time::timeout(Duration::from_millis(100), check).await.is_err());
    server.resume().await;
    // It went over another connection: the stream may not have it yet.
    let client = server.client().await;
    let subject = format!("$JS.API.STREAM.MSG.GET.{}", two.identity().stream);
    let stored = async {
        loop {
            let asked = client.request(subject.clone(), r#"{"last_by_subj":"rg.test.math.a"}"#.into());
            if let Ok(answer) = asked.await
                && String::from_utf8_lossy(&answer.payload).contains("\"message\"")
            {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    within(SOON, stored).await;
    for guard in [&two, &one] {
        let again = judged(guard, message).await;
        // Behind a fence, if the pause was too long for the guard.
        assert!(again == Err(AdmitError::Replayed) || is_behind(&again), "{again:?}");
    }
}

#[tokio::test]
async fn a_step_of_this_machines_clock_is_noticed_by_the_next_message() {
    let server = NatsServer::start().await;
    let clock = Arc::new(WrongClock::default());
    let guard = open_with(&server.url(), config(), clock.clone()).await;
    ready(&guard).await;
    for step_ms in [-5_000, 5_000, 3_600_000] {
        admits(&guard).await;
        clock.0.store(step_ms, Ordering::SeqCst);
        let at_the_wrong_clock = Message { iat: clock.now_s(), ..Message::new() };
        let refused = Err(AdmitError::Unavailable(Outage::ClockDiffers));
        assert_eq!(offer(&guard, at_the_wrong_clock).await, refused, "{step_ms}");
        assert_eq!(offer(&guard, Message::new()).await, refused, "{step_ms}");
        // The guard's task must see it too, before anything else reads the clock.
        while !guard.not_ready().is_some_and(|why| why.contains("ms ahead of this machine's")) {
            sleep(Duration::from_millis(5)).await;
        }
        sleep(Duration::from_millis(1500)).await;
        clock.0.store(0, Ordering::SeqCst);
        ready(&guard).await;
    }
    assert_eq!(offer(&guard, Message::new()).await, Ok(()), "no leap is remembered");
}

#[tokio::test]
async fn a_replica_with_a_wrong_clock_does_not_start() {
    let server = NatsServer::start().await;
    let open = async |open_within| {
        let clock = Arc::new(WrongClock(AtomicI64::new(1_500)));
        SharedGuard::open(opening_within(open_within), BusConfig::open(&server.url()), clock).await
    };
    refused_for("ahead of this machine's", open).await;
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_stale() {
    let server = NatsServer::start().await;
    let guard = replica(&server).await;
    let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(33)) else { return };
    let message = Message::new();
    assert_eq!(offer_as(&guard, &name("a"), message, long_ago).await, Err(AdmitError::Stale), "30 s + 2 s ago");
    assert_eq!(offer(&guard, message).await, Err(AdmitError::Replayed), "its nonce is burnt");
    // A second less than that, if the answer takes less than this.
    let nearly = async {
        let ago = || Instant::now().checked_sub(Duration::from_secs(31)).unwrap();
        while offer_as(&guard, &name("a"), Message::new(), ago()).await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    within(SOON, nearly).await;
}

/// The wall clock passes `exp` while the stream is being asked.
/// SPEC.md §9.
#[tokio::test]
async fn the_clock_is_read_again_after_the_answer() {
    let mut server = NatsServer::start().await;
    let guard = replica(&server).await;
    // On a busy machine, the message is stale before the stream is asked, or the answer comes too late.
    for _ in 0..20 {
        admits(&guard).await;
        sleep(Duration::from_millis(1500 - SystemClock.now_ms() % 1000)).await;
        let now = SystemClock.now_s();
        server.pause().await;
        let before = guard.stats().shared.unwrap();
        let owner = name("a");
        let asked = guard.admit(&owner, Nonce::random(), now, now + 1, Instant::now());
        let resumed = async {
            sleep(Duration::from_millis(700)).await;
            server.resume().await;
        };
        let (answer, ()) = tokio::join!(asked, resumed);
        assert!(answer.is_err(), "its life is over");
        let after = guard.stats().shared.unwrap();
        // It was asked, and answered, and in time.
        if answer == Err(AdmitError::Stale)
            && after.latency.count > before.latency.count
            && after.unanswered == before.unanswered
        {
            return;
        }
    }
    panic!("not answered in time");
}

/// SPEC.md §9.
#[tokio::test]
async fn a_full_stream_refuses_and_forgets_nothing() {
    let server = NatsServer::start().await;
    let small = async || {
        let mut config = config();
        config.max_messages = 60;
        let guard = open_with(&server.url(), config, Arc::new(SystemClock)).await;
        ready(&guard).await;
        guard
    };
    let (guard, other) = (small().await, small().await);
    let (mut admitted, began) = (Vec::new(), Instant::now());
    let refused = loop {
        let message = Message::new();
        match offer(&guard, message).await {
            Ok(()) => admitted.push(message),
            // The stream may be asked too late on a busy machine.
            Err(AdmitError::Unavailable(outage)) if outage != Outage::StreamFull => {
                assert!(began.elapsed() < SOON, "{outage:?}");
                sleep(Duration::from_millis(50)).await;
            }
            Err(refused) if is_behind(&Err(refused)) => assert!(began.elapsed() < SOON, "{refused:?}"),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, AdmitError::Unavailable(Outage::StreamFull));
    assert!(!admitted.is_empty());
    for message in admitted {
        let again = offer(&other, message).await;
        assert!(
            is_behind(&again) || matches!(again, Err(AdmitError::Replayed | AdmitError::Unavailable(_))),
            "{again:?}"
        );
    }
    let says_so = async {
        while !guard.not_ready().is_some_and(|why| why.contains("full")) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    within(SOON, says_so).await;
}

#[tokio::test]
async fn one_owners_checks_in_flight_are_bounded_and_others_go_on() {
    let mut server = NatsServer::start().await;
    let mut config = config();
    config.in_flight_per_owner = 8;
    config.in_flight = 12;
    let guard = open_with(&server.url(), config, Arc::new(SystemClock)).await;
    ready(&guard).await;
    server.pause().await;
    let (a, b) = (name("a"), name("b"));
    let now = Instant::now();
    let mut offers: Vec<_> = (0..10).map(|_| offer_as(&guard, &a, Message::new(), now)).collect();
    offers.extend((0..5).map(|_| offer_as(&guard, &b, Message::new(), now)));
    let answers = join_all(offers).await;
    let full = |answers: &[Result<(), AdmitError>], refused| answers.iter().filter(|a| **a == Err(refused)).count();
    assert_eq!(full(&answers[..10], AdmitError::OwnerFull { retry_after_ms: 1000 }), 2, "{answers:?}");
    assert_eq!(full(&answers[10..], AdmitError::Full { retry_after_ms: 1000 }), 1, "{answers:?}");
    assert_eq!(guard.stats().shared.unwrap().in_flight, 0, "all are given back");
    server.resume().await;
}

/// The user that `shared/stream.rs` documents, and an agent besides.
/// SPEC.md §19.
#[tokio::test]
async fn the_documented_permissions_suffice_and_agents_cannot_touch_the_stream() {
    let users = r#"
        accounts { A { jetstream: enabled, users: [
            { user: guard, password: g, permissions: {
                publish: ["rg.test.math.>", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.DELETE.*"]
                subscribe: ["_SVC.math.guard.>"] } }
            { user: agent, password: a, permissions: { publish: ["rpc.v1.*.a", "rpc.v1.*.a.>"], subscribe: ["_INBOX.a.>"] } }
            { user: narrow, password: n, permissions: { publish: ["rg.test.math.>"], subscribe: ["_SVC.math.guard.>"] } }
        ] } }"#;
    let server = NatsServer::start_with(users).await;
    let mut bus = BusConfig::open(&server.url());
    (bus.user, bus.password) = (Some("guard".into()), Some(String::from("g").into()));
    let guard = SharedGuard::open(config(), bus.clone(), Arc::new(SystemClock)).await.unwrap();
    ready(&guard).await;
    assert_eq!(offer(&guard, Message::new()).await, Ok(()));

    (bus.user, bus.password) = (Some("narrow".into()), Some(String::from("n").into()));
    let impatient =
        async |open_within| SharedGuard::open(opening_within(open_within), bus.clone(), Arc::new(SystemClock)).await;
    refused_for("Permissions Violation", impatient).await;

    let options = async_nats::ConnectOptions::new().user_and_password("agent".into(), "a".into());
    let agent = options.custom_inbox_prefix("_INBOX.a").connect(server.url()).await.unwrap();
    let message = Message::new();
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("a.{}", message.nonce.to_text()));
    agent.publish_with_headers("rg.test.math.a", headers, "".into()).await.unwrap();
    agent.flush().await.unwrap();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(offer(&guard, message).await, Ok(()), "nobody burns a nonce from outside");
}

#[tokio::test]
async fn a_configuration_that_cannot_work_is_refused_before_connecting() {
    let open = async |change: fn(&mut SharedConfig)| {
        let mut config = config();
        change(&mut config);
        SharedGuard::open(config, BusConfig::open("nats://127.0.0.1:1"), Arc::new(SystemClock)).await.unwrap_err()
    };
    assert!(matches!(open(|config| config.window.skew_s = 0).await, SharedOpenError::NoSkew));
    assert!(matches!(open(|config| config.window.window_s = 0).await, SharedOpenError::Local(_)));
    assert!(matches!(open(|config| config.max_messages = 0).await, SharedOpenError::NoRoom));
    let error = open(|config| config.instance = "a.b".to_owned()).await;
    assert_eq!(error.to_string(), "the instance `a.b` is not of 1 to 64 characters A-Z a-z 0-9 _ -");
    let error = open(|config| config.answer_within = Duration::ZERO).await;
    assert_eq!(error.to_string(), "a check may take 10 ms to 1000 ms, not 0ns");
    let error = open(|config| config.open_within = Duration::from_millis(200)).await;
    assert!(error.to_string().contains("no broker answers at nats://127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn a_dropped_guard_leaves_nothing_behind() {
    let server = NatsServer::start().await;
    let clock = Arc::new(SystemClock);
    let closed = open_with(&server.url(), config(), clock.clone()).await;
    within(SOON, closed.close()).await;
    for guard in [closed, open_with(&server.url(), config(), clock.clone()).await] {
        drop(guard);
    }
    let gone = async {
        while Arc::strong_count(&clock) > 1 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    within(SOON, gone).await;
}

/// The header that permanently ends an async-nats 0.51.0 client, sent to the guard's own inbox.
#[tokio::test]
async fn a_dead_client_is_replaced() {
    let server = NatsServer::start().await;
    let guard = replica(&server).await;
    let client = server.client().await;
    let mut answers = within(SOON, client.subscribe("_SVC.math.guard.>")).await.unwrap();
    settle(&client).await;
    assert_eq!(offer(&guard, Message::new()).await, Ok(()));
    let inbox = within(SOON, answers.next()).await.unwrap().subject;
    let mut raw = sealwire_testkit::raw::RawConnection::connect(&server.url(), None).await;
    raw.hpub_raw(&inbox, None, b"NATS/1.0\r\nA: b\rc\r\n\r\n", b"").await;
    let before = guard.stats().shared.unwrap().interruptions;
    raw.flush().await;
    let killed = Instant::now();
    loop {
        match offer(&guard, Message::new()).await {
            Ok(()) if guard.stats().shared.unwrap().interruptions > before => break,
            Ok(()) | Err(AdmitError::Unavailable(_) | AdmitError::Stale | AdmitError::Fenced { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(killed.elapsed() < SOON);
        sleep(Duration::from_millis(5)).await;
    }
    println!("back {:?} after the client died", killed.elapsed());
}

/// `cargo test --release --test bus guard::shared:: -- --ignored --nocapture cost`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a check"]
async fn cost_of_a_shared_check() {
    let server = NatsServer::start().await;
    let guard = Arc::new(replica(&server).await);
    let owners: Vec<_> = (0..100).map(|owner| name(&format!("o{owner}"))).collect();
    for in_flight in [1, 64, 512] {
        let started = std::time::Instant::now();
        let count = if in_flight == 1 { 5_000 } else { 100_000 };
        let offers = (0..count).map(|index| {
            let (guard, owner) = (&guard, &owners[index % owners.len()]);
            async move {
                guard.admit(owner, Nonce::random(), SystemClock.now_s(), SystemClock.now_s() + 30, Instant::now()).await
            }
        });
        let answers: Vec<_> = futures_util::stream::iter(offers).buffer_unordered(in_flight).collect().await;
        let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
        let per_second = count as f64 / started.elapsed().as_secs_f64();
        println!("{in_flight} in flight: {per_second:.0}/s, {admitted} of {count} admitted");
    }
    println!("{:?}", guard.stats());
}

/// What a broker may lack: what it is called, and how to make it, are said at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_broker_lacks_is_said_within_a_second() {
    let own = "user: guard, password: g";
    let account = |limits: &str| format!("accounts {{ A {{ jetstream: {limits}, users: [{{ {own} }}] }} }}");
    let with = |permissions: &str| {
        format!("accounts {{ A {{ jetstream: enabled, users: [{{ {own}, permissions: {{ {permissions} }} }}] }} }}")
    };
    let needs = "238000000 bytes (227 MiB) of memory and one more stream";
    for (what, config, says) in [
        ("JetStream off", "", ["the broker has no JetStream", "`jetstream {"]),
        (
            "JetStream off in a configuration",
            "accounts { A { users: [{ user: guard, password: g }] } }",
            ["has no JetStream", "replay.guard"],
        ),
        (
            "an account without JetStream",
            "accounts { A { users: [{ user: guard, password: g }] }, B { jetstream: enabled } }",
            ["not enabled for this account", "jetstream: enabled"],
        ),
        ("too little memory for the account", &account("{ max_mem: 1M, max_file: 1G }"), [needs, "`max_mem`"]),
        ("no memory for the account", &account("{ max_mem: 0, max_file: 1G }"), [needs, "`max_mem`"]),
        (
            "too large a stream for the account",
            &account("{ max_mem: 1G, max_file: 1G, max_ack_pending: 10, memory_max_stream_bytes: 1M }"),
            [needs, "replay.stream_messages"],
        ),
        (
            "no stream for the account",
            &account("{ max_mem: 1G, max_file: 1G, max_streams: 1 }"),
            [needs, "`max_streams`"],
        ),
        ("too little memory of the server", "jetstream { max_mem: 1M }", [needs, "`max_mem`"]),
        (
            "no permission for the API",
            &with("publish: [\"rg.test.math.>\"]"),
            ["Permissions Violation for Publish", "section 19"],
        ),
        (
            "no permission to create",
            &with("publish: [\"rg.test.math.>\", \"$JS.API.STREAM.NAMES\"]"),
            ["Permissions Violation for Publish", "STREAM.CREATE"],
        ),
        (
            "no permission to hear answers",
            &with("subscribe: [\"_SVC.bank.guard.>\"]"),
            ["Permissions Violation for Subscription", "_SVC.math.guard"],
        ),
        (
            "no permission to store",
            &with("publish: [\"$JS.API.>\"]"),
            ["Permissions Violation for Publish", "rg.test.math"],
        ),
    ] {
        let without_jetstream = what.starts_with("JetStream off");
        let text = Some(config.to_owned()).filter(|text| !text.is_empty());
        let server = NatsServer::start_with_options(ServerOptions {
            config: text,
            without_jetstream,
            ..ServerOptions::default()
        });
        let server = server.await;
        let mut bus = BusConfig::open(&server.url());
        if config.contains("user") {
            (bus.user, bus.password) = (Some("guard".into()), Some(String::from("g").into()));
        }
        if config.contains("max_streams") {
            let options = async_nats::ConnectOptions::new().user_and_password("guard".into(), "g".into());
            let client = options.connect(server.url()).await.unwrap();
            let stream = r#"{"name":"X","subjects":["x"],"storage":"memory"}"#;
            within(SOON, client.request("$JS.API.STREAM.CREATE.X", stream.into())).await.unwrap();
        }
        let began = Instant::now();
        let refused = SharedGuard::open(opening_within(5 * SOON), bus, Arc::new(SystemClock)).await;
        let took = began.elapsed();
        let Err(SharedOpenError::NotReady(why)) = &refused else { panic!("{what}: {refused:?}") };
        for words in says {
            assert!(why.contains(words), "{what}: no `{words}` in: {why}");
        }
        println!("{what}: after {took:?}: {why}");
        // A second, on a machine that may be busy: not when the time for opening is over.
        assert!(took < SOON, "{what}: {took:?}");
    }
}
