//! What ends a call under way: whatever takes back the key of its request, or what its caller showed last (SPEC.md §25.5).

use sealwire::configure::AgentKey;
use sealwire::internal::auth::{Denylist, KeyEntry, KeyStatus};
use sealwire_testkit::desk::NOW;

use super::*;

/// What is taken back, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Taken {
    Retired,
    Revoked,
    Expired,
    NotYetValid,
    Removed,
    /// Another key under the same id.
    Replaced,
    OfAnotherAgent,
    KeyDenied,
    SubjectDenied,
    TokenDenied,
    TokenExpired,
}

const ALL: [Taken; 11] = [
    Taken::Retired,
    Taken::Revoked,
    Taken::Expired,
    Taken::NotYetValid,
    Taken::Removed,
    Taken::Replaced,
    Taken::OfAnotherAgent,
    Taken::KeyDenied,
    Taken::SubjectDenied,
    Taken::TokenDenied,
    Taken::TokenExpired,
];

/// Those of a key.
const KEYS: [Taken; 8] = [
    Taken::Retired,
    Taken::Revoked,
    Taken::Expired,
    Taken::NotYetValid,
    Taken::Removed,
    Taken::Replaced,
    Taken::OfAnotherAgent,
    Taken::KeyDenied,
];

/// Takes it back from the agent, and has the service look.
fn take(desk: &Desk, what: Taken, kid: &str, (name, token): (&Name, &str), more: &[KeyEntry]) {
    let denied = match what {
        Taken::KeyDenied => Denylist::default().with_key(kid),
        Taken::SubjectDenied => Denylist::default().with_subject(name.as_str(), NOW + 1),
        Taken::TokenDenied => Denylist::default().with_token(part_of(token, "jti"), NOW + 4_000),
        _ => Denylist::default(),
    };
    desk.service.verifier().tokens().replace_denylist(denied);
    if what == Taken::TokenExpired {
        desk.clock.advance_ms(3_606_000);
    }
    let (other, now_s) = (desk.agent("bob", &[]).name, desk.clock.now_s());
    desk.change_ring(|keys| {
        keys.extend(more.iter().cloned());
        if what == Taken::Removed {
            keys.retain(|key| key.kid != kid);
        }
        let Some(key) = keys.iter_mut().find(|key| key.kid == kid) else { return };
        match what {
            Taken::Retired => key.status = KeyStatus::Retired,
            Taken::Revoked => key.status = KeyStatus::Revoked,
            Taken::Expired => key.not_after = Some(now_s),
            Taken::NotYetValid => key.not_before = Some(now_s + 60),
            Taken::Replaced if key.key.is_some() => key.key = Some(sealwire_testkit::desk::b64(&[9; 32])),
            Taken::Replaced => key.x = AgentKey::ed25519(kid, [9; 32]).unwrap().public(),
            Taken::OfAnotherAgent => key.owner = other,
            _ => {}
        }
    });
    desk.service.review();
}

fn part_of(token: &str, claim: &str) -> String {
    sealwire_testkit::desk::part(token, 1)[claim].as_str().unwrap().to_owned()
}

/// Everything as it was.
fn give_back(desk: &Desk) {
    desk.service.verifier().tokens().replace_denylist(Denylist::default());
    desk.change_ring(|_| {});
}

/// What is under way.
const CALLS: [(&str, &str, Option<u64>); 5] = [
    ("stream", "desk/count", Some(900)),
    ("subscription", "desk/ticks", Some(900)),
    ("question", "desk/ask", Some(8)),
    ("call that takes frames", "desk/sleep", Some(8)),
    ("plain call", "desk/sleep", None),
];

/// SPEC.md §25.5: 110 cases.
#[tokio::test(start_paused = true)]
async fn whatever_is_taken_back_ends_what_may_be_answered_with_frames_under_a_signature() {
    for (name, kid) in [("ann", "ann.k1"), ("eve", "eve.k1")] {
        for what in ALL {
            let (desk, _) = desk();
            for (kind, method, window) in CALLS {
                let agent = desk.agent(name, &["worker"]);
                let (who, token) = (agent.name.clone(), agent.token.clone());
                let params = if method == "desk/count" { "[800]" } else { "[]" };
                let mut caller = Caller::call_for(&desk, agent, &call(method, params), window, 600_000);
                caller.settled_for(30).await;
                desk.service.review();
                caller.settled_for(30).await;
                assert!(!caller.task.is_finished(), "{name} {kind} {what:?}: it runs");
                take(&desk, what, kid, (&who, &token), &[]);
                let frames = caller.settled_for(60).await;
                if window.is_none() {
                    // It is answered whatever becomes of its key, until its deadline.
                    assert!(!caller.task.is_finished(), "{name} {kind} {what:?}: it goes on");
                    caller.task.abort();
                } else {
                    assert!(caller.task.is_finished(), "{name} {kind} {what:?}: it has ended");
                    let (answer, more) = caller.finished().await;
                    // Both verify under the key of the request.
                    let code = match answer {
                        Some(answer) => {
                            let expectation = &caller.letter.expectation;
                            let headers = answer.headers().unwrap().clone();
                            expectation.accept(answer.to(), headers, answer.payload()).unwrap();
                            code(&text(&answer))
                        }
                        None => end(&[frames, more].concat())["error"]["code"].as_i64(),
                    };
                    assert_eq!(code, Some(-32010), "{name} {kind} {what:?}");
                }
                give_back(&desk);
                if what == Taken::TokenExpired {
                    desk.clock.set_ms(NOW * 1000);
                }
            }
        }
    }
}

/// SPEC.md §25.5: a stream that was begun under one key and whose caller has changed over to another: each of the two ends it.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_key_of_its_request_and_with_the_key_that_was_shown_last() {
    for kid in ["ann.k1", "ann.k2"] {
        for what in KEYS {
            let (desk, _) = desk();
            let ann = desk.agent("ann", &["worker"]);
            let (who, token) = (ann.name.clone(), ann.token.clone());
            let second = AgentKey::hmac("ann.k2", &[4; 32]).unwrap();
            let derived = second.derived(desk.endpoint.audience()).unwrap();
            let more = [KeyEntry::hmac("ann.k2", who.clone(), &derived)];
            desk.change_ring(|keys| keys.extend(more.iter().cloned()));
            let mut caller = Caller::call_for(&desk, ann, &call("desk/ticks", "[]"), Some(900), 600_000);
            caller.settled_for(30).await;
            // The caller shows its token again, under its second key.
            let first = std::mem::replace(&mut caller.agent.key, second);
            caller.ack(1).await;
            caller.receiver.allow(1_000);
            caller.agent.key = first;
            desk.service.review();
            caller.settled_for(30).await;
            assert!(!caller.task.is_finished() && caller.refused("control_refused") == 0, "{kid} {what:?}");
            take(&desk, what, kid, (&who, &token), &more);
            let (_, frames) = caller.finished().await;
            assert_eq!(end(&frames)["error"]["code"], -32010, "{kid} {what:?}");
        }
    }
}

/// SPEC.md §25.5: what has ended says so once, and a rotation that is complete ends nothing new.
#[tokio::test(start_paused = true)]
async fn a_stream_under_the_new_key_goes_on_when_the_old_one_is_retired() {
    let (desk, _) = desk();
    let ann = desk.agent("ann", &["worker"]);
    let second = AgentKey::hmac("ann.k2", &[4; 32]).unwrap();
    let derived = second.derived(desk.endpoint.audience()).unwrap();
    let more = [KeyEntry::hmac("ann.k2", ann.name.clone(), &derived)];
    desk.change_ring(|keys| keys.extend(more.iter().cloned()));
    let agent = Agent { key: second, name: ann.name.clone(), token: ann.token.clone() };
    let mut caller = Caller::call_for(&desk, agent, &call("desk/ticks", "[]"), Some(900), 600_000);
    caller.settled_for(30).await;
    take(&desk, Taken::Retired, "ann.k1", (&ann.name, &ann.token), &more);
    caller.settled_for(60).await;
    assert!(!caller.task.is_finished());
}

/// SPEC.md §25.2: only an answer has content.
#[tokio::test(start_paused = true)]
async fn control_with_content_where_there_is_none_has_no_effect() {
    for op in
        [ControlOp::Cancel, ControlOp::Ack { ack: 1, window: None, timeout_ms: None }, ControlOp::Again { ack: None }]
    {
        let (desk, _) = desk();
        let ann = desk.agent("ann", &["worker"]);
        let mut caller = Caller::call(&desk, ann, &call("desk/count", "[20]"), 4);
        caller.settled().await;
        let refused = caller.refused("control_refused");
        caller.control_with(op.clone(), b"{}").await;
        let more = caller.settled().await;
        assert!(!caller.task.is_finished() && more.is_empty(), "{op:?}: {more:?}");
        assert_eq!(caller.refused("control_refused"), refused + 1, "{op:?}");
        caller.control(ControlOp::Cancel).await;
        assert_eq!(end(&caller.finished().await.1)["error"]["code"], -32016);
    }
}
