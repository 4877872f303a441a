//! What one caller can have written to the log: its lines are bounded for each reason, and hide no other reason and no other caller.

use std::time::Duration;

use sealwire::internal::auth::Denylist;
use sealwire::serve::QuotaLimits;
use sealwire::{Ctx, RpcError, ServiceLimits};
use sealwire_testkit::desk::{Agent, Desk, Letter, NOW, POLICY, call, part};

use super::leaks::{logged, talkative};

/// Messages of each class in a second, and for how many seconds.
const EACH: usize = 300;
const SECONDS: usize = 2;

/// One class of lines: what causes them, how to find them in the log, and how many may come in a second.
struct Class {
    name: &'static str,
    mark: &'static str,
    a_second: usize,
}

const fn class(name: &'static str, mark: &'static str, a_second: usize) -> Class {
    Class { name, mark, a_second }
}

const CLASSES: [Class; 14] = [
    class("result", "method=desk/echo", 100),
    class("error", "method=desk/fail", 100),
    class("denied", "method=vault/open", 1),
    class("denied, any name", "method=other/x", 1),
    class("unknown, any name", "method=desk/x", 1),
    class("no JSON", "refusal=\"invalid_body\"", 1),
    class("no request", "refusal=\"invalid_request\"", 0),
    class("stale", "refusal=\"stale\"", 1),
    class("replayed", "refusal=\"replayed\"", 1),
    class("another payload", "proof claim `dig`", 1),
    class("token of another audience", "token is for another audience", 1),
    class("token that is no token", "not three parts", 1),
    class("token with a wrong signature", "token's signature", 1),
    class("revoked token", "token is revoked", 1),
];

fn letters(desk: &Desk, agent: &Agent, name: &str, round: usize) -> Vec<Letter> {
    let body = match name {
        "result" => call("desk/echo", "[]"),
        "error" => call("desk/fail", "[]"),
        "denied" => call("vault/open", "[]"),
        "denied, any name" => call(&format!("other/x{round}"), "[]"),
        "unknown, any name" => call(&format!("desk/x{round}"), "[]"),
        "no JSON" => "{".to_owned(),
        "no request" => "[1]".to_owned(),
        _ => call("desk/echo", "[1]"),
    };
    let letter = desk.letter(agent, &body);
    let resigned = |token: &str| {
        let mut claims = letter.claims();
        claims.ath = sealwire_testkit::desk::digest(token.as_bytes());
        let header = part(&letter.credentials().1, 0).to_string();
        let claims = serde_json::to_string(&claims).unwrap();
        letter.with_credentials(token, &sealwire_testkit::desk::jws(&desk.derived(agent), &header, &claims))
    };
    let token = letter.credentials().0;
    match name {
        "replayed" => vec![letter.clone(), letter],
        "another payload" => vec![Letter { payload: b"[]".to_vec(), ..letter }],
        "stale" => vec![desk.letter_claiming(agent, &body, |claims| {
            claims.iat -= 40;
            claims.exp -= 40;
        })],
        "token that is no token" => vec![resigned("no.token")],
        "token with a wrong signature" => {
            let other = if token.ends_with('A') { "Q" } else { "A" };
            vec![resigned(&format!("{}{other}", &token[..token.len() - 1]))]
        }
        _ => vec![letter],
    }
}

/// Thousands of methods are no way round the bounds.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_refused_at_every_method_of_a_service_has_few_lines() {
    const METHODS: usize = 1_000;
    let quota = QuotaLimits { per_second: 100_000, burst: 100_000, in_flight: 64 };
    let limits = ServiceLimits { quota, ..ServiceLimits::default() };
    let all = (0..METHODS).fold(talkative(), |router, n| {
        let name: &'static str = Box::leak(format!("vault/m{n}").into_boxed_str());
        router.method(name, |_: Ctx, (): ()| async { Ok::<_, RpcError>(1) })
    });
    let desk = Desk::open_with(all, POLICY, limits);
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["worker"]));
    let log = logged(async || {
        for _ in 0..2 {
            for n in (0..METHODS).flat_map(|n| [n, n]) {
                let _ = desk.ask(&ann, &call(&format!("vault/m{n}"), "[]")).await;
            }
            let _ = desk.ask(&bob, &call("vault/m0", "[]")).await;
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    })
    .await;
    let plain: Vec<&str> = log.lines().filter(|line| !line.starts_with('{')).collect();
    let of = |who: &str| plain.iter().filter(|line| line.contains(who) && line.contains("method=vault/m")).count();
    assert_eq!((of("agent=ann"), of("agent=bob")), (40, 2));
    assert!(plain.len() < 60, "{}", plain.join("\n"));
}

/// Every class at once, as fast as the agent's rate admits: each has its lines and no more.
#[tokio::test(start_paused = true)]
async fn every_reason_has_its_lines_and_no_more_however_often_one_agent_causes_all_of_them() {
    let quota = QuotaLimits { per_second: 100_000, burst: 100_000, in_flight: 64 };
    let limits = ServiceLimits { hints_per_second: 1_000_000, quota, ..ServiceLimits::default() };
    let desk = Desk::open_with(talkative(), POLICY, limits);
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["worker"]));
    let elsewhere = desk.agent_with("ann", |request| request.audiences = vec!["test/other".to_owned()]);
    let revoked = desk.agent("ann", &["worker"]);
    let jti = part(&revoked.token, 1)["jti"].as_str().unwrap().to_owned();
    desk.service.verifier().tokens().replace_denylist(Denylist::default().with_token(jti, NOW + 4_000));
    let log = logged(async || {
        for second in 0..SECONDS {
            for round in 0..EACH {
                for class in &CLASSES {
                    let agent = match class.name {
                        "token of another audience" => &elsewhere,
                        "revoked token" => &revoked,
                        _ => &ann,
                    };
                    for letter in letters(&desk, agent, class.name, round) {
                        let _ = desk.service.handle(letter.delivery()).await;
                    }
                }
            }
            // At the end of a second of noise, another caller's reasons are not hidden.
            if second == 1 {
                for body in [call("vault/open", "[]"), "{".to_owned(), call("desk/echo", "[]")] {
                    let _ = desk.ask(&bob, &body).await;
                }
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    })
    .await;
    // The log has each line as plain text and as JSON; these patterns match only the plain text.
    let plain: Vec<&str> = log.lines().filter(|line| !line.starts_with('{')).collect();
    let count = |mark: &str, who: &str| {
        let who = [format!("agent=\"{who}\""), format!("agent={who}")];
        plain.iter().filter(|line| line.contains(mark) && who.iter().any(|who| line.contains(who.as_str()))).count()
    };
    for Class { name, mark, a_second } in &CLASSES {
        assert_eq!(count(mark, "ann"), a_second * SECONDS, "{name}: {mark}");
    }
    for mark in ["method=vault/open", "refusal=\"invalid_body\"", "method=desk/echo"] {
        assert_eq!(count(mark, "bob"), 1, "{mark}");
    }
    // What was left out is told with the next line.
    assert!(count(&format!("suppressed={}", EACH - 1), "ann") >= 8, "{}", plain.join("\n"));
    let bytes: usize = plain.iter().map(|line| line.len() + 1).sum();
    println!("{} lines, {bytes} bytes for {} messages", plain.len(), CLASSES.len() * EACH * SECONDS);
    assert!(bytes < 200_000, "{bytes}");
}
