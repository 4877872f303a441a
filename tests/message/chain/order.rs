//! Each check in its place: a message that fails before the nonce leaves no trace, one that fails later can never be retried.

use std::sync::Arc;

use sealwire::ServiceLimits;
use sealwire::internal::auth::{Denylist, TokenIssuer};
use sealwire::serve::QuotaLimits;

use sealwire_testkit::desk::{Agent, Desk, Letter, Setup, b64, call, code, digest, jws, part, recording, text};

/// Copies of a good letter, each with one fault that is found before the nonce is burnt. The letter itself stays good.
fn spoilt(desk: &Desk, ann: &Agent, good: &Letter) -> Vec<(&'static str, Letter)> {
    let (token, proof) = good.credentials();
    let (input, signature) = proof.rsplit_once('.').unwrap();
    let flipped = if signature.starts_with('A') { "B" } else { "A" };
    let header = |kid: &str, alg: &str| format!(r#"{{"alg":"{alg}","kid":"{kid}","typ":"nats-rpc-v1+jwt"}}"#);
    let (_, claims) = input.split_once('.').unwrap();
    let resigned = |key: &Agent, header: &str| {
        let claims = String::from_utf8(sealwire_testkit::desk::unb64(claims)).unwrap();
        good.with_credentials(&token, &jws(&desk.derived(key), header, &claims))
    };
    let bob = desk.agent("bob", &["worker"]);
    let token_of_bob = bob.token.clone();
    let stranger = TokenIssuer::generate("https://issuer.test").unwrap();
    let mut request = sealwire::internal::auth::IssueRequest::new("ann", "test/desk", sealwire_testkit::desk::NOW);
    request.roles = ["worker".to_owned()].into();
    let forged_token = stranger.issue(&request).unwrap();
    let under = |token: &str| {
        let mut claims = good.claims();
        claims.ath = digest(token.as_bytes());
        let claims = serde_json::to_string(&claims).unwrap();
        good.with_credentials(token, &jws(&desk.derived(ann), &header("ann.k1", "HS256"), &claims))
    };
    let other = |change: &dyn Fn(&mut Letter)| {
        let mut letter = good.clone();
        change(&mut letter);
        letter
    };
    vec![
        ("flipped signature", good.with_credentials(&token, &format!("{input}.{flipped}{}", &signature[1..]))),
        ("unknown key id", resigned(ann, &header("ann.k9", "HS256"))),
        ("another's key id", resigned(ann, &header("bob.k1", "HS256"))),
        ("another's key and key id", resigned(&bob, &header("bob.k1", "HS256"))),
        ("another algorithm", resigned(ann, &header("ann.k1", "EdDSA"))),
        ("another payload", other(&|letter| letter.payload = call("desk/note", "[]").into_bytes())),
        ("another subject", other(&|letter| letter.subject.push_str(".desk.echo"))),
        ("another agent's subject", other(&|letter| letter.subject = "rpc.v1.desk.bob".to_owned())),
        ("another reply subject", other(&|letter| letter.reply.push('2'))),
        ("no reply subject", other(&|letter| letter.reply.clear())),
        ("another's token in place", good.with_credentials(&token_of_bob, &proof)),
        ("another's token, signed", under(&token_of_bob)),
        ("a token of a stranger's key, signed", under(&forged_token)),
        ("no token at all, signed", under("x")),
        ("no authorization", other(&|letter| letter.headers = async_nats::HeaderMap::new())),
    ]
}

/// SPEC.md §10.
#[tokio::test]
async fn forged_messages_do_not_burn_a_nonce() {
    let (router, runs) = recording();
    let desk = Desk::open_with(
        router,
        sealwire_testkit::desk::POLICY,
        ServiceLimits { hints_per_second: 1_000_000, ..ServiceLimits::default() },
    );
    let ann = desk.agent("ann", &["worker"]);
    let good = desk.letter(&ann, &call("desk/echo", "[1]"));
    for (what, letter) in spoilt(&desk, &ann, &good) {
        for _ in 0..20 {
            let code = desk.offer(&letter).await;
            // On another agent's subject, the reply subject is in a stranger's inbox: silence.
            let silent = letter.reply.is_empty() || what == "another agent's subject";
            assert_eq!(code, (!silent).then_some(-32010), "{what}");
        }
        let stats = desk.service.verifier().guard().stats();
        assert_eq!((stats.live, stats.owners, stats.admitted), (0, 0, 0), "{what}");
    }
    assert_eq!(runs.count(), 0);
    // The message whose nonce all of them carried is still good, once.
    assert!(desk.answer(&good).await.unwrap().contains(r#""result":[1]"#));
    assert_eq!(desk.offer(&good).await, Some(-32012));
    assert_eq!((runs.count(), desk.burnt()), (1, 1));
}

/// SPEC.md §9.
#[tokio::test]
async fn stale_messages_burn_no_nonce_and_are_told_the_time_under_a_signature() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", "[]"));
    // From W + S after its expiry, a message is a copy that somebody kept: it gets an unsigned hint, like an unknown key.
    for seconds in [30, 31, 65] {
        desk.clock.set_ms((sealwire_testkit::desk::NOW + seconds) * 1000);
        let answer = desk.answer(&letter).await.unwrap();
        assert_eq!(code(&answer), Some(-32011));
        assert!(
            answer.contains(&format!(r#""data":{{"server_time":{}}}"#, sealwire_testkit::desk::NOW + seconds)),
            "{answer}"
        );
    }
    for seconds in [66, 3_600] {
        desk.clock.set_ms((sealwire_testkit::desk::NOW + seconds) * 1000);
        let sealed = desk.service.handle(letter.delivery()).await.unwrap();
        assert!(sealed.headers().is_none() && text(&sealed) == sealwire_testkit::desk::HINTS[0], "{seconds}");
    }
    assert_eq!(desk.service.counters().refusals()["long_expired"], 2);
    desk.clock.set_ms((sealwire_testkit::desk::NOW + 3_600) * 1000);
    // Issued six seconds ahead of this clock, and then five, which is the allowed skew.
    let letter = desk.letter_claiming(&ann, &call("desk/echo", "[]"), |claims| {
        claims.iat += 6;
        claims.exp = claims.iat + 1;
    });
    assert_eq!(desk.offer(&letter).await, Some(-32011));
    assert_eq!((desk.burnt(), runs.count()), (0, 0));
    desk.clock.advance_ms(1_000);
    assert_eq!(desk.offer(&letter).await, Some(-32010), "the token has expired meanwhile");
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter_claiming(&ann, &call("desk/echo", "[]"), |claims| claims.iat += 5);
    assert!(desk.answer(&letter).await.unwrap().contains("result"));
}

/// SPEC.md §10.
#[tokio::test]
async fn signature_is_judged_before_the_window_and_the_window_before_the_token() {
    let desk = Desk::open(recording().0);
    let mut ann = desk.agent("ann", &["worker"]);
    let bad_signature = &spoilt(&desk, &ann, &desk.letter(&ann, &call("desk/echo", "[]")))[0].1;
    let genuine = {
        ann.token = "no.token.atall".to_owned();
        desk.letter(&ann, &call("desk/echo", "[]"))
    };
    assert_eq!(desk.offer(&genuine).await, Some(-32010));
    desk.clock.advance_ms(60_000);
    assert_eq!(desk.offer(bad_signature).await, Some(-32010));
    assert_eq!(desk.offer(&genuine).await, Some(-32011));
}

/// The window comes first: a copy of an old message is not worth a digest of its contents. A fresh message is.
/// SPEC.md §10.
#[tokio::test]
async fn window_is_judged_before_the_digests_and_these_before_anything_is_signed_to_a_fresh_message() {
    let desk = Desk::open(recording().0);
    let ann = desk.agent("ann", &["worker"]);
    let good = desk.letter(&ann, &call("desk/echo", "[]"));
    let other_payload = Letter { payload: vec![b'x'; 190_000], ..good.clone() };
    let other_token = good.with_credentials("no.token.atall", &good.credentials().1);
    for letter in [&other_payload, &other_token] {
        assert_eq!(desk.offer(letter).await, Some(-32010));
    }
    desk.clock.advance_ms(30_000);
    for letter in [&good, &other_payload, &other_token] {
        assert_eq!(desk.offer(letter).await, Some(-32011));
    }
}

/// Each refusal is signed, and anybody who has captured a message can provoke it.
/// SPEC.md §9.
#[tokio::test]
async fn signed_answers_to_one_owners_copies_are_limited_and_its_own_calls_and_others_are_not() {
    let (router, runs) = recording();
    let quota = QuotaLimits { per_second: 5, burst: 5, in_flight: 9 };
    let desk =
        Desk::open_with(router, sealwire_testkit::desk::POLICY, ServiceLimits { quota, ..ServiceLimits::default() });
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["worker"]));
    let letter = desk.letter(&ann, &call("desk/echo", "[1]"));
    assert!(desk.answer(&letter).await.unwrap().contains("result"));
    let started = std::time::Instant::now();
    let mut answered = 0;
    for _ in 0..5_000 {
        match desk.answer(&letter).await {
            Some(answer) => answered += usize::from(code(&answer) == Some(-32012)),
            None => continue,
        }
    }
    let most = 101 + 100 * usize::try_from(started.elapsed().as_secs() + 1).unwrap();
    assert!((100..=most).contains(&answered), "{answered} of 5,000, at most {most}");
    assert_eq!(desk.service.counters().refusals()["replayed"], 5_000, "all are counted");
    // Copies are not charged to the owner's rate of five.
    assert!(desk.ask(&ann, &call("desk/echo", "[2]")).await.unwrap().contains("result"));
    let of_bob = desk.letter(&bob, &call("desk/echo", "[3]"));
    assert!(desk.answer(&of_bob).await.unwrap().contains("result"));
    assert_eq!(desk.offer(&of_bob).await, Some(-32012));
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn copies_buy_no_more_answers_while_the_guard_cannot_say_that_they_are_copies() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", "[1]"));
    assert!(desk.answer(&letter).await.unwrap().contains("result"));
    desk.service.verifier().suspend(true);
    let started = std::time::Instant::now();
    let mut answered = 0;
    for _ in 0..3_000 {
        answered += usize::from(desk.answer(&letter).await.is_some());
    }
    let most = 101 + 100 * usize::try_from(started.elapsed().as_secs() + 1).unwrap();
    assert!((100..=most).contains(&answered), "{answered} of 3,000, at most {most}");
    // The caller's own next message is answered, with the reason.
    assert_eq!(desk.offer(&desk.letter(&ann, &call("desk/echo", "[2]"))).await, Some(-32014));
    assert_eq!(runs.count(), 1);
}

/// SPEC.md §10.
#[tokio::test]
async fn wrong_token_under_a_good_signature_is_refused_like_an_unknown_caller() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let now = sealwire_testkit::desk::NOW;
    let wrong = [
        ("expired", desk.agent_with("ann", |request| request.now_s = now - 1_000)),
        ("from the future", desk.agent_with("ann", |request| request.now_s = now + 1_000)),
        ("for another service", desk.agent_with("ann", |request| request.audiences = vec!["test/other".to_owned()])),
        ("for another environment", desk.agent_with("ann", |request| request.audiences = vec!["prod/desk".to_owned()])),
        ("of another agent", desk.agent_with("ann", |request| request.subject = "bob".to_owned())),
        ("of nobody in the key ring", desk.agent_with("ann", |request| request.subject = "zoe".to_owned())),
        ("delegated to another agent", desk.agent_with("ann", |request| request.actor = Some("bob".to_owned()))),
    ];
    for (what, agent) in &wrong {
        let letter = desk.letter(agent, &call("desk/echo", "[]"));
        let sealed = desk.service.handle(letter.delivery()).await.unwrap();
        assert!(sealed.headers().is_none(), "{what}: not signed");
        assert_eq!(text(&sealed), sealwire_testkit::desk::HINTS[0], "{what}");
    }
    assert_eq!((desk.burnt(), runs.count()), (0, 0));
}

/// SPEC.md §10.
#[tokio::test]
async fn denied_call_burns_its_nonce_and_never_runs_after_the_policy_allows_it() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("vault/open", "[]"));
    assert_eq!(desk.offer(&letter).await, Some(-32002));
    desk.change_policy("[role.worker]\nallow = [\"vault/open\"]\n");
    assert_eq!(desk.offer(&letter).await, Some(-32012));
    assert_eq!(runs.count(), 0);
    assert!(desk.ask(&ann, &call("vault/open", "[]")).await.unwrap().contains("gold"));
}

/// A message above the rate is refused before anything is stored: an agent cannot fill the memory of all replicas with
/// calls that it may not make.
/// SPEC.md §9.
#[tokio::test]
async fn message_above_the_rate_is_refused_before_the_guard_and_burns_nothing() {
    let (router, runs) = recording();
    let quota = QuotaLimits { per_second: 20, burst: 20, in_flight: 9 };
    let desk =
        Desk::open_with(router, sealwire_testkit::desk::POLICY, ServiceLimits { quota, ..ServiceLimits::default() });
    let ann = desk.agent("ann", &["worker"]);
    let (letter, answer) = super::limits::too_fast(&desk, &ann).await;
    assert!(answer.contains(r#""scope":"replica-rate""#), "{answer}");
    let (before, burnt) = (runs.count(), desk.burnt());
    assert_eq!(before, burnt, "nothing is kept for a refused message");
    // So the refusal is not final: once the rate allows it, the same message may still run.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(desk.offer(&letter).await, None);
    assert_eq!(desk.offer(&letter).await, Some(-32012));
    assert_eq!((runs.count(), desk.burnt()), (before + 1, burnt + 1));
    // Denied calls are charged as well.
    let mut codes = std::collections::BTreeMap::new();
    for _ in 0..200 {
        let answer = desk.ask(&ann, &call("vault/open", "[]")).await;
        *codes.entry(answer.and_then(|answer| code(&answer))).or_insert(0) += 1;
    }
    assert!(codes[&Some(-32013)] > 0, "{codes:?}");
    assert_eq!(desk.burnt(), burnt + 1 + codes.get(&Some(-32002)).copied().unwrap_or(0));
}

/// SPEC.md §10.
#[tokio::test]
async fn rate_is_judged_before_the_body() {
    let quota = QuotaLimits { per_second: 1, burst: 1, in_flight: 9 };
    let desk = Desk::open_with(
        recording().0,
        sealwire_testkit::desk::POLICY,
        ServiceLimits { quota, ..ServiceLimits::default() },
    );
    let ann = desk.agent("ann", &["worker"]);
    let mut codes = Vec::new();
    while codes.last() != Some(&-32013) && codes.len() < 100 {
        codes.push(code(&desk.ask(&ann, "{").await.unwrap()).unwrap());
    }
    assert_eq!(codes.pop(), Some(-32013));
    assert!(!codes.is_empty() && codes.iter().all(|code| *code == -32700), "{codes:?}");
}

/// SPEC.md §10.
#[tokio::test]
async fn unreadable_refused_and_late_messages_burn_their_nonces() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let inbox = format!("{}r1", desk.endpoint.inbox(&ann.name));
    let subject = desk.endpoint.subject(&ann.name);
    let on = |subject: &str, payload: &str| desk.letter_to(&ann, subject, &inbox, payload, None);
    let late =
        desk.letter_to(&ann, &subject, &inbox, &call("desk/echo", "[]"), Some(std::time::Duration::from_millis(10)));
    desk.clock.advance_ms(10);
    let cases = [
        (on(&subject, "{"), -32700),
        (on(&subject, "[]"), -32600),
        (on(&subject, r#"{"jsonrpc":"1.0","method":"desk/echo","id":1}"#), -32600),
        (on("rpc.v1.desk.ann.desk.note", &call("desk/echo", "[]")), -32600),
        (on("rpc.v1.desk.ann.desk.echo", &format!("[{}]", call("desk/echo", "[]"))), -32600),
        (on(&subject, &call("nowhere", "[]")), -32002),
        (on(&subject, &call("desk/nowhere", "[]")), -32601),
        (late, -32003),
    ];
    for (count, (letter, expected)) in cases.iter().enumerate() {
        assert_eq!(desk.offer(letter).await, Some(*expected));
        assert_eq!(desk.burnt(), count + 1);
        assert_eq!(desk.offer(letter).await, Some(-32012));
    }
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn nonce_is_kept_over_every_reload() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", "[]"));
    assert!(desk.answer(&letter).await.is_some());
    desk.change_policy(sealwire_testkit::desk::POLICY);
    assert_eq!(desk.offer(&letter).await, Some(-32012));
    desk.change_ring(|_| {});
    assert_eq!(desk.offer(&letter).await, Some(-32012));
    let tokens = desk.service.verifier().tokens();
    tokens.replace_keys(desk.issuer.key_set().unwrap());
    assert_eq!(desk.offer(&letter).await, Some(-32012));
    tokens.replace_denylist(Denylist::default().with_token("another", u64::MAX));
    assert_eq!(desk.offer(&letter).await, Some(-32012));
    assert_eq!(runs.count(), 1);
}

/// SPEC.md §9.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn captured_message_resent_a_thousand_times_runs_once() {
    let (router, runs) = recording();
    let desk = Arc::new(Desk::open(router));
    let ann = desk.agent("ann", &["worker"]);
    let letter = Arc::new(desk.letter(&ann, &call("desk/echo", "[]")));
    let copies: Vec<_> = (0..8)
        .map(|_| {
            let (desk, letter) = (Arc::clone(&desk), Arc::clone(&letter));
            tokio::spawn(async move {
                let mut results = 0;
                for _ in 0..125 {
                    // Above the rate at which copies are answered, there is silence.
                    match desk.answer(&letter).await.map(|answer| code(&answer)) {
                        Some(None) => results += 1,
                        Some(Some(code)) => assert_eq!(code, -32012),
                        None => {}
                    }
                }
                results
            })
        })
        .collect();
    let mut results = 0;
    for copy in copies {
        results += copy.await.unwrap();
    }
    assert_eq!((results, runs.count(), desk.burnt()), (1, 1, 1));
}

/// SPEC.md §9.
#[tokio::test]
async fn same_nonce_of_two_agents_is_two_messages() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let nonce = b64(&[7; 16]);
    for name in ["ann", "bob", "eve"] {
        let agent = desk.agent(name, &["worker"]);
        let letter = desk.letter_claiming(&agent, &call("desk/echo", "[]"), |claims| claims.jti.clone_from(&nonce));
        assert_eq!(part(&letter.credentials().1, 1)["jti"], nonce.as_str());
        assert!(desk.answer(&letter).await.unwrap().contains("result"));
        assert_eq!(desk.offer(&letter).await, Some(-32012));
    }
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn closed_guard_refuses_and_runs_nothing() {
    let (router, runs) = recording();
    let desk = Desk::open_as(Setup::default(), |service| service.methods(router));
    let ann = desk.agent("ann", &["worker"]);
    desk.service.verifier().guard().close().await;
    let answer = desk.ask(&ann, &call("desk/echo", "[]")).await.unwrap();
    assert_eq!(code(&answer), Some(-32014));
    assert!(answer.contains("retry_after_ms"), "{answer}");
    assert_eq!(runs.count(), 0);
}
