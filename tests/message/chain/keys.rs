//! Keys and tokens that change while a service runs: rotation, retirement, revocation, confirmation, delegation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sealwire::configure::AgentKey;
use sealwire::internal::auth::{Confirmation, Denylist, KeyEntry, KeyStatus, TokenIssuer};
use sealwire::internal::wire::Envelope;
use sealwire::{Ctx, Router, RpcError, ServiceLimits};
use serde_json::json;
use tokio::sync::Notify;

use sealwire_testkit::desk::{Agent, Desk, Letter, NOW, POLICY, Setup, call, code, jws, part, recording};

/// The second key of ann.
fn new_key() -> AgentKey {
    AgentKey::hmac("ann.k2", &[4; 32]).unwrap()
}

fn with_new_key(desk: &Desk, keys: &mut Vec<KeyEntry>) {
    let key = new_key();
    keys.push(KeyEntry::hmac(key.kid(), desk.agent("ann", &[]).name, &key.derived(desk.endpoint.audience()).unwrap()));
}

/// SPEC.md §16.
#[tokio::test]
async fn two_keys_of_one_agent_overlap_between_their_dates() {
    let (router, _) = recording();
    let desk = Desk::open(router);
    desk.change_ring(|keys| {
        with_new_key(&desk, keys);
        let (old, new) = (keys.iter().position(|key| key.kid == "ann.k1").unwrap(), keys.len() - 1);
        keys[new].not_before = Some(NOW + 100);
        keys[old].not_after = Some(NOW + 200);
    });
    let outcome = async |key: AgentKey| {
        let ann = Agent { key, ..desk.agent("ann", &["worker"]) };
        desk.offer(&desk.letter(&ann, &call("desk/echo", "[]"))).await
    };
    let old = || AgentKey::hmac("ann.k1", &[1; 32]).unwrap();
    for (at, old_code, new_code) in [
        (NOW, None, Some(-32010)),
        (NOW + 99, None, Some(-32010)),
        (NOW + 100, None, None),
        (NOW + 199, None, None),
        (NOW + 200, Some(-32010), None),
        (NOW + 9_999, Some(-32010), None),
    ] {
        desk.clock.set_ms(at * 1000);
        assert_eq!((outcome(old()).await, outcome(new_key()).await), (old_code, new_code), "{at}");
    }
}

/// SPEC.md §16.
#[tokio::test]
async fn retired_revoked_and_removed_keys_verify_nothing_new() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let eve = desk.agent("eve", &["worker"]);
    for agent in [&ann, &eve] {
        let signed_before = desk.letter(agent, &call("desk/echo", "[]"));
        let change = |status| {
            desk.change_ring(|keys| {
                keys.iter_mut().filter(|key| key.owner == agent.name).for_each(|key| key.status = status)
            });
        };
        for status in [KeyStatus::Retired, KeyStatus::Revoked] {
            change(status);
            assert_eq!(desk.offer(&signed_before).await, Some(-32010), "{status:?}");
        }
        desk.change_ring(|keys| keys.retain(|key| key.owner != agent.name));
        assert_eq!(desk.offer(&signed_before).await, Some(-32010));
        assert_eq!(runs.count(), 0);
    }
    desk.change_ring(|_| {});
    assert!(desk.ask(&ann, &call("desk/echo", "[]")).await.unwrap().contains("result"));
}

#[tokio::test]
async fn call_under_way_is_answered_although_its_key_is_revoked_meanwhile() {
    let started = Arc::new((Notify::new(), Notify::new()));
    let router =
        Router::new(Arc::clone(&started)).method("desk/wait", |ctx: Ctx<Arc<(Notify, Notify)>>, (): ()| async move {
            ctx.state().0.notify_one();
            ctx.state().1.notified().await;
            Ok::<_, RpcError>("done")
        });
    let desk = Desk::open(router);
    for name in ["ann", "eve"] {
        let agent = desk.agent(name, &["worker"]);
        let letter = desk.letter(&agent, &call("desk/wait", "[]"));
        let (answer, ()) = tokio::join!(desk.answer(&letter), async {
            started.0.notified().await;
            desk.change_ring(|keys| keys.iter_mut().for_each(|key| key.status = KeyStatus::Revoked));
            started.1.notify_one();
        });
        assert!(answer.unwrap().contains("done"), "{name}");
        assert_eq!(desk.offer(&desk.letter(&agent, &call("desk/wait", "[]"))).await, Some(-32010));
        desk.change_ring(|_| {});
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn ring_replaced_under_load_never_half_applies() {
    let (router, runs) = recording();
    let desk =
        Desk::open_with(router, POLICY, ServiceLimits { hints_per_second: 1_000_000, ..ServiceLimits::default() });
    let desk = Arc::new(desk);
    let stop = Arc::new(AtomicBool::new(false));
    let results = Arc::new(AtomicUsize::new(0));
    let agents = ["ann.k1", "ann.k2"].map(|kid| (kid, desk.agent("ann", &["worker"])));
    let callers: Vec<_> = agents
        .into_iter()
        .map(|(kid, agent)| {
            let (desk, stop, results) = (Arc::clone(&desk), Arc::clone(&stop), Arc::clone(&results));
            tokio::spawn(async move {
                let key = if kid == "ann.k2" { new_key() } else { AgentKey::hmac("ann.k1", &[1; 32]).unwrap() };
                let agent = Agent { key, ..agent };
                let mut rounds = 0;
                while !stop.load(Ordering::SeqCst) || rounds < 50 {
                    let letter = desk.letter(&agent, &call("desk/echo", "[]"));
                    // Either an answer that verifies under this very key, or the hint.
                    let sealed = desk.service.handle(letter.delivery()).await.unwrap();
                    if let Some(headers) = sealed.headers() {
                        letter.expectation.accept(sealed.to(), headers, sealed.payload()).unwrap();
                        assert_eq!(code(&sealwire_testkit::desk::text(&sealed)), None);
                        results.fetch_add(1, Ordering::SeqCst);
                    } else {
                        assert_eq!(code(&sealwire_testkit::desk::text(&sealed)), Some(-32010));
                    }
                    rounds += 1;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for _ in 0..50 {
        desk.change_ring(|keys| with_new_key(&desk, keys));
        tokio::task::yield_now().await;
        desk.change_ring(|_| {});
        tokio::task::yield_now().await;
        desk.change_ring(|keys| {
            with_new_key(&desk, keys);
            keys.retain(|key| key.kid != "ann.k1");
        });
        tokio::task::yield_now().await;
    }
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(runs.count(), results.load(Ordering::SeqCst));
    // The last key ring holds only the new key.
    let last = runs.count();
    assert_eq!(desk.offer(&desk.letter(&desk.agent("ann", &["worker"]), &call("desk/echo", "[]"))).await, Some(-32010));
    assert_eq!(runs.count(), last);
}

/// Every way to reach a method, with and without a reply subject.
fn every_way(desk: &Desk, agent: &Agent) -> Vec<Letter> {
    let subject = desk.endpoint.subject(&agent.name);
    let inbox = format!("{}r1", desk.endpoint.inbox(&agent.name));
    let notification = r#"{"jsonrpc":"2.0","method":"desk/note"}"#;
    let (echo, open) = (call("desk/echo", "[]"), call("vault/open", "[]"));
    vec![
        desk.letter(agent, &echo),
        desk.letter(agent, &open),
        desk.letter(agent, &format!("[{echo},{notification}]")),
        desk.letter(agent, &format!("[{notification}]")),
        desk.letter_to(agent, &subject, "", notification, None),
        desk.letter_to(agent, &subject, &inbox, notification, None),
        desk.letter_to(agent, &format!("{subject}.desk.echo"), &inbox, &echo, None),
        desk.letter_to(agent, &format!("{subject}.desk.note"), "", notification, None),
        desk.letter(agent, "{"),
        desk.letter(agent, &call("no/such", "[]")),
    ]
}

/// SPEC.md §16.
#[tokio::test]
async fn revocation_precedes_everything_for_every_method_on_cached_tokens_too() {
    let (router, runs) = recording();
    let policy = "[role.worker]\nallow = [\"desk/*\", \"vault/*\"]\n";
    let limits = ServiceLimits { hints_per_second: 1_000_000, ..ServiceLimits::default() };
    let desk = Desk::open_with(router, policy, limits);
    for name in ["ann", "eve"] {
        let agent = desk.agent(name, &["worker"]);
        let jti = part(&agent.token, 1)["jti"].as_str().unwrap().to_owned();
        let lists = [
            Denylist::default().with_token(jti, NOW + 900),
            Denylist::default().with_subject(name, NOW + 1),
            Denylist::default().with_key(desk.issuer.kid()),
            Denylist::default().with_key(agent.key.kid()),
        ];
        for list in lists {
            let tokens = desk.service.verifier().tokens();
            tokens.replace_denylist(Denylist::default());
            // Now the token is in the cache.
            assert!(desk.ask(&agent, &call("vault/open", "[]")).await.unwrap().contains("gold"));
            let (before, burnt) = (runs.count(), desk.burnt());
            tokens.replace_denylist(list.clone());
            for letter in every_way(&desk, &agent) {
                let code = desk.offer(&letter).await;
                assert_eq!(code, (!letter.reply.is_empty()).then_some(-32010), "{list:?}");
            }
            assert_eq!((runs.count(), desk.burnt()), (before, burnt), "{list:?}");
        }
        desk.service.verifier().tokens().replace_denylist(Denylist::default());
    }
}

/// SPEC.md §7.
#[tokio::test]
async fn tokens_issued_after_a_subject_was_revoked_are_good_again() {
    let (router, _) = recording();
    let desk = Desk::open(router);
    let old = desk.agent("ann", &["worker"]);
    desk.service.verifier().tokens().replace_denylist(Denylist::default().with_subject("ann", NOW + 1));
    assert_eq!(desk.offer(&desk.letter(&old, &call("desk/echo", "[]"))).await, Some(-32010));
    desk.clock.advance_ms(1_000);
    let new = desk.agent("ann", &["worker"]);
    assert_eq!(desk.offer(&desk.letter(&new, &call("desk/echo", "[]"))).await, None);
    assert_eq!(desk.offer(&desk.letter(&old, &call("desk/echo", "[]"))).await, Some(-32010));
}

/// SPEC.md §16.
#[tokio::test]
async fn exchanged_token_keys_end_cached_tokens_of_the_old_ones() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    assert!(desk.ask(&ann, &call("desk/echo", "[]")).await.is_some());
    let other = TokenIssuer::generate("https://issuer.test").unwrap();
    desk.service.verifier().tokens().replace_keys(other.key_set().unwrap());
    for letter in every_way(&desk, &ann) {
        assert!(matches!(desk.offer(&letter).await, None | Some(-32010)));
    }
    assert_eq!(runs.count(), 1);
}

/// SPEC.md §7.
#[tokio::test]
async fn token_bound_to_a_key_is_useless_with_any_other() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    desk.change_ring(|keys| with_new_key(&desk, keys));
    let eve_thumbprint = {
        let x = desk.agent("eve", &[]).key.public().unwrap();
        sealwire_testkit::desk::digest(format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#).as_bytes())
    };
    let other_thumbprint = sealwire_testkit::desk::digest(b"another key");
    let cnf =
        |kid: Option<&str>, jkt: Option<&str>| Confirmation { kid: kid.map(Into::into), jkt: jkt.map(Into::into) };
    let cases = [
        ("ann", cnf(Some("ann.k1"), None), true),
        ("ann", cnf(Some("ann.k2"), None), false),
        ("ann", cnf(Some("bob.k1"), None), false),
        // An HMAC key has no thumbprint that may be public.
        ("ann", cnf(None, Some(&eve_thumbprint)), false),
        ("ann", cnf(Some("ann.k1"), Some(&eve_thumbprint)), false),
        ("eve", cnf(Some("eve.k1"), None), true),
        ("eve", cnf(None, Some(&eve_thumbprint)), true),
        ("eve", cnf(Some("eve.k1"), Some(&eve_thumbprint)), true),
        ("eve", cnf(None, Some(&other_thumbprint)), false),
        ("eve", cnf(Some("eve.k2"), Some(&eve_thumbprint)), false),
        ("eve", cnf(Some("eve.k1"), Some(&other_thumbprint)), false),
    ];
    for (name, cnf, good) in cases {
        let agent = desk.agent_with(name, |request| request.cnf = Some(cnf.clone()));
        let before = runs.count();
        let code = desk.offer(&desk.letter(&agent, &call("desk/echo", "[]"))).await;
        assert_eq!((code, runs.count() - before), if good { (None, 1) } else { (Some(-32010), 0) }, "{name} {cnf:?}");
    }
    // The second key of the same agent, with a token bound to it.
    let rotated = desk.agent_with("ann", |request| request.cnf = Some(cnf(Some("ann.k2"), None)));
    let rotated = Agent { key: new_key(), ..rotated };
    assert_eq!(desk.offer(&desk.letter(&rotated, &call("desk/echo", "[]"))).await, None);
}

/// SPEC.md §7.
#[tokio::test]
async fn hardened_mode_refuses_tokens_that_name_no_key() {
    let (router, runs) = recording();
    let desk = Desk::open_as(Setup { require_cnf: true, ..Setup::default() }, |service| service.methods(router));
    let bare = desk.agent("ann", &["worker"]);
    assert_eq!(desk.offer(&desk.letter(&bare, &call("desk/echo", "[]"))).await, Some(-32010));
    let bound =
        desk.agent_with("ann", |request| request.cnf = Some(Confirmation { kid: Some("ann.k1".into()), jkt: None }));
    assert_eq!(desk.offer(&desk.letter(&bound, &call("desk/echo", "[]"))).await, None);
    assert_eq!(runs.count(), 1);
}

/// SPEC.md §7.
#[tokio::test]
async fn delegated_call_needs_the_actors_key_and_the_policys_leave() {
    let router = Router::new(()).method("desk/who", |ctx: Ctx, (): ()| async move {
        let caller = ctx.caller();
        Ok::<_, RpcError>(json!([caller.agent.as_str(), caller.subject, caller.delegated]))
    });
    let desk = Desk::open(router);
    let ann_for_carol = desk.agent_with("ann", |request| {
        request.subject = "carol".to_owned();
        request.actor = Some("ann".to_owned());
    });
    let body = call("desk/who", "[]");
    // Refused unless the policy allows delegated calls.
    assert_eq!(desk.offer(&desk.letter(&ann_for_carol, &body)).await, Some(-32002));
    desk.change_policy("[role.worker]\nallow = [\"desk/*\"]\ndelegated = \"also\"\n");
    assert!(desk.ask(&ann_for_carol, &body).await.unwrap().contains(r#""result":["ann","carol",true]"#));
    // The actor's token under another agent's key, and a token that names ann only as its subject.
    let bob = Agent { token: ann_for_carol.token.clone(), ..desk.agent("bob", &["worker"]) };
    assert_eq!(desk.offer(&desk.letter(&bob, &body)).await, Some(-32010));
    let bob_for_ann = desk.agent_with("ann", |request| request.actor = Some("bob".to_owned()));
    assert_eq!(desk.offer(&desk.letter(&bob_for_ann, &body)).await, Some(-32010));
    // Revoking a subject also stops everyone who acts for it.
    desk.service.verifier().tokens().replace_denylist(Denylist::default().with_subject("carol", NOW + 1));
    assert_eq!(desk.offer(&desk.letter(&ann_for_carol, &body)).await, Some(-32010));
}

/// SPEC.md §5.1.
#[tokio::test]
async fn public_key_does_not_serve_as_an_hmac_secret() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let eve = desk.agent("eve", &["worker"]);
    let good = desk.letter(&eve, &call("desk/echo", "[]"));
    let (token, proof) = good.credentials();
    let public: [u8; 32] = sealwire_testkit::desk::unb64(&eve.key.public().unwrap()).try_into().unwrap();
    for alg in ["HS256", "EdDSA"] {
        let header = format!(r#"{{"alg":"{alg}","kid":"eve.k1","typ":"nats-rpc-v1+jwt"}}"#);
        let forged = jws(&sealwire::internal::wire::HmacKey::new(public), &header, &part(&proof, 1).to_string());
        assert_eq!(desk.offer(&good.with_credentials(&token, &forged)).await, Some(-32010));
    }
    // And an HMAC key's bytes do not serve as an Ed25519 seed.
    let ann = desk.agent("ann", &["worker"]);
    let good = desk.letter(&ann, &call("desk/echo", "[]"));
    let (token, proof) = good.credentials();
    let header = r#"{"alg":"EdDSA","kid":"ann.k1","typ":"nats-rpc-v1+jwt"}"#;
    let forged = sealwire_testkit::desk::jws_ed25519(desk.derived(&ann).expose(), header, &part(&proof, 1).to_string());
    assert_eq!(desk.offer(&good.with_credentials(&token, &forged)).await, Some(-32010));
    assert_eq!((runs.count(), desk.burnt()), (0, 0));
}

/// SPEC.md §13.1.
#[tokio::test]
async fn unknown_and_known_key_ids_are_told_apart_by_nothing_in_the_answer() {
    let desk = Desk::open(recording().0);
    let ann = desk.agent("ann", &["worker"]);
    let good = desk.letter(&ann, &call("desk/echo", "[]"));
    let (token, proof) = good.credentials();
    let wrong = sealwire::internal::wire::HmacKey::new([0; 32]);
    desk.change_ring(|keys| {
        with_new_key(&desk, keys);
        keys.last_mut().unwrap().status = KeyStatus::Revoked;
    });
    let mut answers = std::collections::BTreeSet::new();
    for kid in ["ann.k1", "ann.k2", "ann.k9", "bob.k1", "eve.k1"] {
        for alg in ["HS256", "EdDSA"] {
            let header = format!(r#"{{"alg":"{alg}","kid":"{kid}","typ":"nats-rpc-v1+jwt"}}"#);
            let forged = good.with_credentials(&token, &jws(&wrong, &header, &part(&proof, 1).to_string()));
            let sealed = desk.service.handle(forged.delivery()).await.unwrap();
            answers.insert((sealwire_testkit::desk::text(&sealed), sealed.headers().is_none()));
        }
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
}

/// SPEC.md §5.3.
#[tokio::test]
async fn naming_anothers_ed25519_key_takes_none_of_its_turns() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let (ann, eve) = (desk.agent("ann", &["worker"]), desk.agent("eve", &["worker"]));
    let own = Envelope::decode(desk.letter(&eve, "[]").delivery(), &desk.endpoint).unwrap();
    let verifier = desk.service.verifier();
    let both_permits = [verifier.verify_permit(&own).await.unwrap(), verifier.verify_permit(&own).await.unwrap()];
    // Ann, on her own subject, names eve's key; then HMAC and unknown keys, which take no turns at all.
    let letter = desk.letter(&ann, &call("desk/echo", "[]"));
    let (token, proof) = letter.credentials();
    for kid in ["eve.k1", "ann.k1", "eve.k9"] {
        let header = format!(r#"{{"alg":"EdDSA","kid":"{kid}","typ":"nats-rpc-v1+jwt"}}"#);
        let forged = jws(&desk.derived(&ann), &header, &part(&proof, 1).to_string());
        let letter = letter.with_credentials(&token, &forged);
        let answer = tokio::time::timeout(Duration::from_secs(60), desk.offer(&letter)).await;
        assert_eq!(answer.expect("it is refused without a turn"), Some(-32010), "{kid}");
    }
    // Eve's own message waits for its turn, and is answered once there is one.
    let letter = desk.letter(&eve, &call("desk/echo", "[]"));
    assert!(tokio::time::timeout(Duration::from_millis(40), desk.offer(&letter)).await.is_err());
    drop(both_permits);
    assert_eq!(desk.offer(&letter).await, None);
    assert_eq!(runs.count(), 1);
}
