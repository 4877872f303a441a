//! From the request to the run, and what must not count on the way.

use std::time::Duration;

use sealwire::configure::RecordConfig;
use sealwire::internal::auth::Denylist;
use sealwire::internal::record::record_files;
use sealwire::serve::Recorder;
use sealwire::{Clock as _, Idempotent};
use sealwire_testkit::desk::{Setup, call, recording};
use serde_json::{Value, json};

use super::*;

const MINUTE_MS: u64 = 60_000;

#[tokio::test]
async fn a_call_waits_for_two_people_and_runs_once() {
    let (desk, runs) = desk();
    let waits = echo(&desk, LARGE).await;
    let id = pending(&waits);
    let data = &waits["error"]["data"];
    let needs = json!([{ "approval": "two-treasurers", "roles": ["treasurer"], "count": 2, "have": 0 }]);
    assert_eq!((&data["needs"], &data["deadline"]), (&needs, &json!(desk.clock.now_s() + 1_800)), "{waits}");
    assert_eq!(pending(&echo(&desk, "{ \"amount\": 100, \"to\": \"al\" }").await), id, "the same call");
    assert_ne!(pending(&echo(&desk, r#"{"to":"al","amount":101}"#).await), id, "another amount");
    assert_ne!(pending(&echo(&desk, r#"["al",100]"#).await), id, "another spelling");

    assert_eq!(approve(&desk, "tess", &id).await["result"]["state"], "pending");
    assert_eq!(pending(&echo(&desk, LARGE).await), id, "one is not enough");
    assert_eq!(approve(&desk, "tess", &id).await["result"]["needs"][0]["have"], 1, "nobody counts twice");
    assert_eq!(runs.count(), 0);
    let other = pending(&echo(&desk, r#"{"to":"al","amount":101}"#).await);
    assert_eq!(approve(&desk, "tom", &id).await["result"]["state"], "approved");
    assert_eq!(pending(&echo(&desk, r#"{"to":"al","amount":101}"#).await), other, "the amount that was not approved");

    assert_eq!(echo(&desk, LARGE).await["result"], json!({"to":"al","amount":100}));
    for _ in 0..3 {
        let again = echo(&desk, LARGE).await;
        assert_eq!(
            (&again["error"]["code"], &again["error"]["data"]["state"]),
            (&json!(-32017), &json!("consumed")),
            "{again}"
        );
    }
    assert_eq!(runs.count(), 1);
    // The same call once more, on purpose.
    let ann = desk.agent("ann", &["worker"]);
    let on_purpose = send(&desk, &desk.keyed(&ann, "again", &call("desk/echo", LARGE))).await;
    assert_ne!(pending(&on_purpose), id);
    // Some time later it is a new call.
    desk.clock.advance_ms(31 * MINUTE_MS);
    pending(&echo(&desk, LARGE).await);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn small_amounts_and_plain_denials_know_nothing_of_approvals() {
    let (desk, runs) = desk();
    assert_eq!(echo(&desk, r#"{"to":"al","amount":99}"#).await["result"]["amount"], 99);
    let stranger = desk.agent("bob", &["nobody"]);
    let denied = json!({"jsonrpc": "2.0", "error": {"code": -32002, "message": "permission denied"}, "id": 1});
    assert_eq!(ask(&desk, &stranger, "desk/echo", LARGE).await, denied);
    assert_eq!(echo(&desk, r#"{"to":"al","amount":100,"more":1}"#).await["error"]["code"], -32602);
    // Nobody is there to tell a notification that it waits.
    let ann = desk.agent("ann", &["worker"]);
    let notification = format!(r#"{{"jsonrpc":"2.0","method":"desk/echo","params":{LARGE}}}"#);
    assert_eq!(desk.ask(&ann, &notification).await, None);
    assert_eq!(requests(&desk, "tess").await, 0);
    // Not even if the call is approved.
    approve_by_both(&desk, &pending(&echo(&desk, LARGE).await)).await;
    assert_eq!(desk.ask(&ann, &notification).await, None);
    assert_eq!(runs.count(), 1);
}

/// How many requests somebody sees.
async fn requests(desk: &Desk, name: &str) -> usize {
    let listed = ask(desk, &approver(desk, name), "rpc.approvals", "{}").await;
    listed["result"]["approvals"].as_array().unwrap_or_else(|| panic!("{listed}")).len()
}

#[tokio::test]
async fn each_entry_of_a_batch_has_a_request_of_its_own() {
    let (desk, runs) = desk();
    let ann = desk.agent("ann", &["worker"]);
    let batch = format!("[{},{},{}]", call("desk/echo", LARGE), call("desk/echo", LARGE), call("desk/note", "[1]"));
    let answers: Value = serde_json::from_str(&desk.ask(&ann, &batch).await.unwrap()).unwrap();
    let id = pending(&answers[0]);
    assert_eq!((pending(&answers[1]), &answers[2]["result"]), (id.clone(), &json!(null)));
    approve_by_both(&desk, &id).await;
    let answers: Value = serde_json::from_str(&desk.ask(&ann, &batch).await.unwrap()).unwrap();
    let ran = answers.as_array().unwrap().iter().filter(|answer| answer["result"]["amount"] == 100).count();
    assert_eq!((ran, runs.count()), (1, 3), "{answers}");
}

#[tokio::test]
async fn what_is_signed_is_the_digest_of_what_was_shown() {
    let (desk, runs) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    let tess = approver(&desk, "tess");
    let text = text(&desk, &tess, &id).await;
    let said: Value = serde_json::from_str(&text).unwrap();
    let about = (&said["agent"], &said["subject"], &said["audience"], &said["method"], &said["params"]);
    let expected =
        (json!("ann"), json!("ann"), json!("test/desk"), json!("desk/echo"), json!({"to":"al","amount":100}));
    assert_eq!(about, (&expected.0, &expected.1, &expected.2, &expected.3, &expected.4));
    for (digest, code) in [
        (digest(&text.replace("100", "101")), -32602),
        (sealwire_testkit::desk::digest(text.as_bytes()), -32602),
        (digest(&text).to_lowercase(), -32602),
    ] {
        let params = json!({ "id": id, "approval": "two-treasurers", "digest": digest, "decision": "approve" });
        assert_eq!(ask(&desk, &tess, "rpc.approve", &params.to_string()).await["error"]["code"], code);
    }
    let by_position = text_of(&desk, r#"["al",100]"#).await;
    assert!(by_position.contains(r#""names":["to","amount"],"params":["al",100]"#), "{by_position}");
    assert_eq!(runs.count(), 0);
}

async fn text_of(desk: &Desk, params: &str) -> String {
    let id = pending(&echo(desk, params).await);
    text(desk, &approver(desk, "tess"), &id).await
}

#[tokio::test]
async fn only_those_who_may_decide_see_and_decide_a_request() {
    let (desk, runs) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    let shown = digest(&text(&desk, &approver(&desk, "tess"), &id).await);
    let params = json!({ "id": id, "approval": "two-treasurers", "digest": shown, "decision": "approve" }).to_string();
    let officer = approver(&desk, "otto");
    let delegated = approver_with(&desk, "tess", |request| {
        request.subject = "carol".to_owned();
        request.actor = Some("tess".to_owned());
    });
    let roleless = approver_with(&desk, "tess", |request| request.roles = ["officer".to_owned()].into());
    let nothing = ask(&desk, &officer, "rpc.approval", r#"{"id":"ann.AAAAAAAAAAAAAAAAAAAAAAAAAAAA"}"#).await;
    for (agent, why) in [(&officer, "another role"), (&delegated, "on behalf of somebody"), (&roleless, "no role")] {
        for (method, params) in [("rpc.approval", json!({ "id": id }).to_string()), ("rpc.approve", params.clone())] {
            let answer = ask(&desk, agent, method, &params).await;
            assert_eq!(answer["error"], nothing["error"], "{why}: {method}");
        }
    }
    assert_eq!((requests(&desk, "otto").await, requests(&desk, "tess").await), (0, 1));
    // A key that the service has too proves nothing.
    let shared = desk.agent("bob", &["treasurer"]);
    let answer = ask(&desk, &shared, "rpc.approve", &params).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("Ed25519"), "{answer}");
    // A batch would be kept with what others asked for.
    let tess = approver(&desk, "tess");
    let batch = format!("[{}]", call("rpc.approve", &params));
    let answers: Value = serde_json::from_str(&desk.ask(&tess, &batch).await.unwrap()).unwrap();
    assert_eq!(answers[0]["error"]["code"], -32600, "{answers}");
    assert_eq!(pending(&echo(&desk, LARGE).await), id);
    assert_eq!(runs.count(), 0);
}

/// The agent, its subject, and whoever acted before it.
#[tokio::test]
async fn nobody_approves_a_call_of_their_own() {
    let (desk, runs) = desk();
    let as_role = |request: &mut IssueRequest| request.roles = ["worker".to_owned(), "treasurer".to_owned()].into();
    let own = approver_with(&desk, "tess", as_role);
    let id = pending(&ask(&desk, &own, "desk/echo", LARGE).await);
    let answer = decide(&desk, &own, &id, "two-treasurers", "approve").await;
    assert_eq!(answer["error"]["code"], -32002, "{answer}");

    let on_behalf = desk.agent_with("ann", |request| {
        request.subject = "tess".to_owned();
        request.actor = Some("ann".to_owned());
    });
    let id = pending(&ask(&desk, &on_behalf, "desk/echo", LARGE).await);
    let hidden = ask(&desk, &own, "rpc.approval", &json!({ "id": id }).to_string()).await;
    assert_eq!(hidden["error"]["code"], -32602, "{hidden}");
    assert_eq!(runs.count(), 0);
}

/// Bob has both roles; duties stay apart.
#[tokio::test]
async fn one_signature_is_for_one_approval_and_one_person_gives_one() {
    let (desk, runs) = desk();
    let abroad = r#"{"to":"abroad","amount":100}"#;
    let waits = echo(&desk, abroad).await;
    let id = pending(&waits);
    assert_eq!(waits["error"]["data"]["needs"].as_array().unwrap().len(), 2, "{waits}");
    let both =
        |name| approver_with(&desk, name, |request| request.roles = ["treasurer".into(), "officer".into()].into());
    assert_eq!(decide(&desk, &both("tess"), &id, "officer", "approve").await["result"]["state"], "pending");
    let again = decide(&desk, &both("tess"), &id, "two-treasurers", "approve").await;
    assert_eq!(again["error"]["code"], -32002, "{again}");
    assert_eq!(decide(&desk, &both("tess"), &id, "no-such", "approve").await["error"]["code"], -32602);
    for (name, state) in [("tom", "pending"), ("trudy", "approved")] {
        assert_eq!(approve(&desk, name, &id).await["result"]["state"], state);
    }
    assert_eq!(echo(&desk, abroad).await["result"]["to"], "abroad");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_denial_counts_until_the_call_begins_and_stays() {
    let (desk, runs) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    approve_by_both(&desk, &id).await;
    // Whoever has approved sees the mistake.
    assert_eq!(decide(&desk, &approver(&desk, "tess"), &id, "", "deny").await["result"]["state"], "denied");
    let denied = echo(&desk, LARGE).await;
    assert_eq!(
        (&denied["error"]["code"], &denied["error"]["data"]["state"]),
        (&json!(-32002), &json!("denied")),
        "{denied}"
    );
    let late = approve(&desk, "trudy", &id).await;
    assert_eq!((&late["error"]["code"], &late["error"]["data"]["state"]), (&json!(-32001), &json!("denied")), "{late}");
    desk.clock.advance_ms(29 * MINUTE_MS);
    assert_eq!(echo(&desk, LARGE).await["error"]["data"]["state"], "denied");
    desk.clock.advance_ms(MINUTE_MS);
    pending(&echo(&desk, LARGE).await);
    assert_eq!(runs.count(), 0);
}

/// The call could still have run then, although nothing waits that long.
#[tokio::test]
async fn a_denial_lasts_as_long_as_what_it_denies_could_have_run() {
    let (desk, runs) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    desk.clock.advance_ms(29 * MINUTE_MS);
    approve_by_both(&desk, &id).await;
    desk.clock.advance_ms(2 * MINUTE_MS);
    assert_eq!(decide(&desk, &approver(&desk, "tess"), &id, "", "deny").await["result"]["state"], "denied");
    desk.clock.advance_ms(3 * MINUTE_MS - 1_000);
    assert_eq!(echo(&desk, LARGE).await["error"]["data"]["state"], "denied");
    desk.clock.advance_ms(1_000);
    pending(&echo(&desk, LARGE).await);
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn a_caller_may_withdraw_its_own_request_and_no_other() {
    let (desk, _) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    let text = text(&desk, &approver(&desk, "tess"), &id).await;
    let params = json!({ "id": id, "digest": digest(&text), "decision": "deny" }).to_string();
    let other = ask(&desk, &desk.agent("bob", &["worker"]), "rpc.approve", &params).await;
    assert_eq!(other["error"]["code"], -32602, "{other}");
    let own = ask(&desk, &desk.agent("ann", &["worker"]), "rpc.approve", &params).await;
    assert_eq!(own["result"]["state"], "denied", "{own}");
}

#[tokio::test]
async fn requests_and_approvals_end_by_the_clock() {
    let (desk, runs) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    let first = text_of(&desk, LARGE).await;
    approve(&desk, "tess", &id).await;
    desk.clock.advance_ms(30 * MINUTE_MS);
    let late = decide(&desk, &approver(&desk, "tom"), &id, "two-treasurers", "approve").await;
    assert_eq!(late["error"]["data"]["state"], "expired", "{late}");
    // A new request: what was signed for the first does not count for it.
    assert_eq!(pending(&echo(&desk, LARGE).await), id, "of the same call");
    assert_ne!(text_of(&desk, LARGE).await, first);
    let old = json!({ "id": id, "approval": "two-treasurers", "digest": digest(&first), "decision": "approve" });
    let answer = ask(&desk, &approver(&desk, "tess"), "rpc.approve", &old.to_string()).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    approve_by_both(&desk, &id).await;
    desk.clock.advance_ms(5 * MINUTE_MS);
    let waits = echo(&desk, LARGE).await;
    pending(&waits);
    assert_eq!(waits["error"]["data"]["needs"][0]["have"], 0, "{waits}");
    assert_eq!(runs.count(), 0);
}

/// Everything is decided anew by the policy, the keys and the revocations in force when the call runs.
#[tokio::test]
async fn an_approval_counts_only_as_long_as_its_approver_could_give_it() {
    for (what, change) in [
        ("role", POLICY.replace("from = [\"treasurer\"]", "from = [\"officer\"]")),
        (
            "right to decide",
            POLICY.replace("[role.treasurer]\nallow = [\"rpc.*\"]", "[role.treasurer]\nallow = [\"rpc.can\"]"),
        ),
        ("count", POLICY.replace("count = 2", "count = 3")),
        ("another approval", POLICY.replace("{ is = \"abroad\" }", "{ is = \"al\" }")),
    ] {
        let (desk, runs) = desk();
        let id = pending(&echo(&desk, LARGE).await);
        approve_by_both(&desk, &id).await;
        assert_ne!(change, POLICY, "{what}");
        desk.change_policy(&change);
        let waits = echo(&desk, LARGE).await;
        assert_eq!(pending(&waits), id, "{what}");
        assert_eq!(runs.count(), 0, "{what}");
        desk.change_policy(POLICY);
        let ran = match what {
            // It needs the approvals that it was last asked for; a call asks again.
            "another approval" => {
                pending(&echo(&desk, LARGE).await);
                echo(&desk, LARGE).await
            }
            _ => echo(&desk, LARGE).await,
        };
        assert_eq!(ran["result"]["amount"], 100, "{what}: what was signed is still there: {ran}");
    }
    // A plain denial is one.
    let (desk, runs) = desk();
    approve_by_both(&desk, &pending(&echo(&desk, LARGE).await)).await;
    desk.change_policy(&format!("{POLICY}\n[rule.closed]\neveryone = true\ndeny = [\"desk/echo\"]\n"));
    assert_eq!(echo(&desk, LARGE).await["error"]["message"], "permission denied");
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn an_approval_ends_with_the_key_or_token_that_gave_it() {
    let retire = |desk: &Desk| with_approvers(desk, |keys| keys.retain(|key| key.kid != "tom.k1"));
    let deny = |desk: &Desk| {
        let list = r#"{ "subjects": [{ "sub": "tom", "before": 9999999999 }] }"#;
        desk.service.verifier().tokens().replace_denylist(Denylist::parse(list, "test").unwrap());
    };
    for what in ["key", "token"] {
        let (desk, runs) = desk();
        let id = pending(&echo(&desk, LARGE).await);
        approve_by_both(&desk, &id).await;
        if what == "key" {
            retire(&desk)
        } else {
            deny(&desk)
        }
        let waits = echo(&desk, LARGE).await;
        assert_eq!((pending(&waits), &waits["error"]["data"]["needs"][0]["have"]), (id.clone(), &json!(1)), "{what}");
        let shown = ask(&desk, &approver(&desk, "tess"), "rpc.approval", &json!({ "id": id }).to_string()).await;
        let decisions = &shown["result"]["decisions"];
        assert!(decisions[0].get("void").is_none() && decisions[1]["void"].is_string(), "{what}: {shown}");
        assert_ne!(decisions[1]["void"], "it does not hold", "{what}");
        // Its caller learns that, and not why.
        let ann = desk.agent("ann", &["worker"]);
        let shown = ask(&desk, &ann, "rpc.approval", &json!({ "id": id }).to_string()).await;
        assert_eq!(shown["result"]["decisions"][1]["void"], "it does not hold", "{what}: {shown}");
        // Somebody else can give it instead.
        assert_eq!(approve(&desk, "trudy", &id).await["result"]["state"], "approved");
        assert_eq!(echo(&desk, LARGE).await["result"]["amount"], 100, "{what}");
        assert_eq!(runs.count(), 1);
    }
}

/// What people are shown is what the replica that runs the call would judge.
#[tokio::test]
async fn an_approval_that_no_longer_holds_is_not_shown_as_one_and_starts_no_clock() {
    let (desk, runs) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    approve_by_both(&desk, &id).await;
    with_approvers(&desk, |keys| keys.retain(|key| key.kid != "tom.k1"));
    let tess = approver(&desk, "tess");
    let deadline = desk.clock.now_s() + 1_800;
    // With tom's approval, it would have lasted for five minutes.
    for _ in 0..2 {
        let shown = ask(&desk, &tess, "rpc.approval", &json!({ "id": id }).to_string()).await;
        let listed = ask(&desk, &tess, "rpc.approvals", "{}").await;
        let again = approve(&desk, "tess", &id).await;
        for seen in [&shown["result"], &listed["result"]["approvals"][0], &again["result"]] {
            let told = (&seen["state"], &seen["needs"][0]["have"], &seen["deadline"]);
            assert_eq!(told, (&json!("pending"), &json!(1), &json!(deadline)), "{seen}");
        }
        let waits = echo(&desk, LARGE).await;
        assert_eq!((pending(&waits), &waits["error"]["data"]["needs"][0]["have"]), (id.clone(), &json!(1)), "{waits}");
        desk.clock.advance_ms(6 * MINUTE_MS);
    }
    assert_eq!(approve(&desk, "trudy", &id).await["result"]["state"], "approved");
    assert_eq!(echo(&desk, LARGE).await["result"]["amount"], 100);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn the_record_names_those_whose_approvals_counted_and_nobody_else() {
    for (is_retired, expected) in [(true, ["tess", "trudy"]), (false, ["tess", "tom"])] {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("records");
        let recorder = Recorder::open(&RecordConfig::in_folder(folder.clone()), "test/desk", "s1").unwrap();
        let (router, _) = recording();
        let setup = Setup { policy: POLICY, ..Setup::default() };
        let desk = Desk::open_as(setup, |service| service.record(recorder).methods(router));
        with_approvers(&desk, |_| {});
        let id = pending(&echo(&desk, LARGE).await);
        approve_by_both(&desk, &id).await;
        if is_retired {
            with_approvers(&desk, |keys| keys.retain(|key| key.kid != "tom.k1"));
        }
        let third = approve(&desk, "trudy", &id).await;
        assert_eq!(third["result"]["state"] == "approved", is_retired, "{third}");
        assert_eq!(echo(&desk, LARGE).await["result"]["amount"], 100);
        desk.service.recorder().unwrap().finish();
        let files = record_files(&folder).unwrap();
        let text: String = files.into_iter().map(|file| std::fs::read_to_string(file.path).unwrap()).collect();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let ran: Vec<_> = lines.filter(|line| line["approval"]["state"] == "approved").collect();
        assert_eq!(ran.len(), 1, "{ran:?}");
        let given: Vec<_> =
            ran[0]["approval"]["given"].as_array().unwrap().iter().map(|given| given["agent"].clone()).collect();
        assert_eq!(given, expected);
        assert_eq!(
            (&ran[0]["approval"]["id"], &ran[0]["approval"]["given"][0]["approval"]),
            (&json!(id), &json!("two-treasurers"))
        );
        let now = json!(desk.clock.now_s());
        assert_eq!((&ran[0]["approval"]["asked_at"], &ran[0]["approval"]["given"][0]["at"]), (&now, &now));
    }
}

/// It would take the room of one that counts.
#[tokio::test]
async fn an_approval_that_is_not_needed_any_more_is_refused() {
    let (desk, runs) = desk();
    let abroad = r#"{"to":"abroad","amount":100}"#;
    let id = pending(&echo(&desk, abroad).await);
    for name in ["tess", "tom"] {
        assert_eq!(approve(&desk, name, &id).await["result"]["state"], "pending");
    }
    let third = approve(&desk, "trudy", &id).await;
    assert_eq!((&third["error"]["code"], &third["error"]["data"]["state"]), (&json!(-32001), &json!("pending")));
    assert!(third["error"]["message"].as_str().unwrap().contains("as often as the call needs it"), "{third}");
    assert_eq!(approve(&desk, "tess", &id).await["result"]["state"], "pending", "her own, once more");
    let otto = decide(&desk, &approver(&desk, "otto"), &id, "officer", "approve").await;
    assert_eq!(otto["result"]["state"], "approved", "{otto}");
    assert_eq!(approve(&desk, "trudy", &id).await["error"]["data"]["state"], "approved");
    let shown = ask(&desk, &approver(&desk, "tess"), "rpc.approval", &json!({ "id": id }).to_string()).await;
    assert_eq!(shown["result"]["decisions"].as_array().unwrap().len(), 3, "{shown}");
    assert_eq!(echo(&desk, abroad).await["result"]["to"], "abroad");
    assert_eq!(runs.count(), 1);
}

/// SPEC.md §6.3: whoever takes long to give one of several approvals does not make the others old.
#[tokio::test]
async fn the_last_approval_of_the_call_starts_the_clock_for_all_of_them() {
    let (desk, runs) = desk();
    let abroad = r#"{"to":"abroad","amount":100}"#;
    let id = pending(&echo(&desk, abroad).await);
    decide(&desk, &approver(&desk, "otto"), &id, "officer", "approve").await;
    desk.clock.advance_ms(10 * MINUTE_MS);
    for (name, state) in [("tess", "pending"), ("tom", "approved")] {
        assert_eq!(approve(&desk, name, &id).await["result"]["state"], state);
    }
    desk.clock.advance_ms(5 * MINUTE_MS - 1_000);
    assert_eq!(echo(&desk, abroad).await["result"]["to"], "abroad");
    assert_eq!(runs.count(), 1);
}

/// As far behind as its messages may be.
#[tokio::test]
async fn an_approver_whose_clock_is_behind_signs_what_counts_or_is_told_that_it_does_not() {
    let of_one = POLICY.replace("count = 2\n", "count = 1\n");
    for (policy, counts) in [(of_one.clone(), true), (of_one.replace("valid = \"5m\"", "valid = \"10s\""), false)] {
        let (desk, _) = desk();
        desk.change_policy(&policy);
        let id = pending(&echo(&desk, LARGE).await);
        let digest = digest(&text(&desk, &approver(&desk, "tess"), &id).await);
        let params = json!({ "id": id, "approval": "two-treasurers", "digest": digest, "decision": "approve" });
        let now_ms = desk.clock.now_ms();
        let by = approver_with(&desk, "tom", |request| request.now_s -= 100);
        desk.clock.set_ms(now_ms - 25_000);
        let behind = desk.letter(&by, &call("rpc.approve", &params.to_string()));
        desk.clock.set_ms(now_ms);
        let told = send(&desk, &behind).await;
        assert_eq!(told["result"]["state"] == "approved", counts, "{told}");
        if !counts {
            assert_eq!(told["error"]["code"], -32001, "{told}");
            assert!(told["error"]["message"].as_str().unwrap().contains("25 s behind"), "{told}");
            assert_eq!(approve(&desk, "trudy", &id).await["result"]["state"], "approved");
        }
        assert_eq!(echo(&desk, LARGE).await["result"]["amount"], 100);
    }
}

/// What is judged when the call runs is all that is asked of those who approve.
#[tokio::test]
async fn an_approval_without_the_reason_that_is_asked_for_now_does_not_count() {
    let (desk, runs) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    approve_by_both(&desk, &id).await;
    desk.change_policy(&POLICY.replace("count = 2\n", "count = 2\nreason = true\n"));
    let waits = echo(&desk, LARGE).await;
    assert_eq!((pending(&waits), &waits["error"]["data"]["needs"][0]["have"]), (id.clone(), &json!(0)), "{waits}");
    let bare = approve(&desk, "tess", &id).await;
    assert_eq!(bare["error"]["code"], -32602, "{bare}");
    let digest = digest(&text(&desk, &approver(&desk, "tess"), &id).await);
    for name in ["tess", "tom"] {
        let params = json!({ "id": id, "approval": "two-treasurers", "digest": digest, "decision": "approve", "reason": "invoice 7" });
        let answer = ask(&desk, &approver(&desk, name), "rpc.approve", &params.to_string()).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
    assert_eq!(echo(&desk, LARGE).await["result"]["amount"], 100);
    assert_eq!(runs.count(), 1);
}

/// Otherwise people would sign what the replica that runs the call does not take for that call.
#[tokio::test]
async fn a_request_that_shows_something_else_than_the_call_is_made_anew() {
    let by_position = r#"["al",100]"#;
    let (desk, runs) = desk();
    let id = pending(&echo(&desk, by_position).await);
    approve_by_both(&desk, &id).await;
    desk.change_policy(
        &POLICY.replace("name = \"to\"", "name = \"payee\"").replace("when.params.to", "when.params.payee"),
    );
    let waits = echo(&desk, by_position).await;
    assert_eq!((pending(&waits), &waits["error"]["data"]["needs"][0]["have"]), (id.clone(), &json!(0)), "{waits}");
    assert!(text_of(&desk, by_position).await.contains("payee"));
    approve_by_both(&desk, &id).await;
    assert_eq!(echo(&desk, by_position).await["result"], json!(["al", 100]));
    // What has run has run, whatever it would be called now.
    assert_eq!(echo(&desk, by_position).await["error"]["data"]["state"], "consumed");
    desk.change_policy(POLICY);
    assert_eq!(echo(&desk, by_position).await["error"]["data"]["state"], "consumed");
    assert_eq!(runs.count(), 1);
}

/// Whether there is such a request or not.
#[tokio::test]
async fn whoever_denies_under_a_shared_key_is_told_which_key_it_takes() {
    let (desk, _) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    let bob = desk.agent("bob", &["treasurer"]);
    for id in [id.as_str(), "ann.AAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
        let params = json!({ "id": id, "digest": "x", "decision": "deny" }).to_string();
        let answer = ask(&desk, &bob, "rpc.approve", &params).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("Ed25519"), "{answer}");
    }
}

/// Tokens end after minutes; what was signed with one while it was valid stays.
#[tokio::test]
async fn an_approval_outlives_the_token_that_it_was_signed_with() {
    let (desk, _) = desk();
    let id = pending(&echo(&desk, LARGE).await);
    let short = |name| approver_with(&desk, name, |request| request.ttl_s = 60);
    for name in ["tess", "tom"] {
        decide(&desk, &short(name), &id, "two-treasurers", "approve").await;
    }
    desk.clock.advance_ms(4 * MINUTE_MS);
    assert_eq!(echo(&desk, LARGE).await["result"]["amount"], 100);
}

/// A caller that got no answer asks again under its key, and no treasurer is asked twice.
#[tokio::test]
async fn a_kept_outcome_answers_without_a_new_approval() {
    let (router, runs) = recording();
    let router = router.idempotent("desk/echo", Idempotent::keep(Duration::from_secs(3600)));
    let desk = desk_with(router, Setup { policy: POLICY, ..Setup::default() });
    let ann = desk.agent("ann", &["worker"]);
    let keyed = || desk.keyed(&ann, "k", &call("desk/echo", LARGE));
    let id = pending(&send(&desk, &keyed()).await);
    approve_by_both(&desk, &id).await;
    let first = send(&desk, &keyed()).await;
    let again = send(&desk, &keyed()).await;
    assert_eq!((&first["result"], &again["result"]), (&json!({"to":"al","amount":100}), &first["result"]));
    assert_eq!((again["idempotent_replay"] == json!(true), runs.count()), (true, 1));
    // The key is asked before the approval: its conflict is the answer.
    let other = desk.keyed(&ann, "k", &call("desk/echo", r#"{"to":"al","amount":200}"#));
    assert_eq!(send(&desk, &other).await["error"]["data"]["idempotency"], "other_params");
}

#[tokio::test]
async fn requests_are_listed_to_those_whom_they_concern_page_by_page() {
    let (desk, _) = desk();
    for subject in 0..40 {
        let ann = desk.agent_with("ann", |request| {
            request.subject = format!("user-{subject}");
            request.actor = Some("ann".to_owned());
        });
        pending(&ask(&desk, &ann, "desk/echo", LARGE).await);
    }
    let one = desk.agent_with("ann", |request| {
        request.subject = "user-7".to_owned();
        request.actor = Some("ann".to_owned());
    });
    for (agent, expected) in [(approver(&desk, "tess"), 40), (one, 1), (desk.agent("ann", &["worker"]), 0)] {
        let (mut cursor, mut seen, mut pages) = (json!({}), 0, 0);
        loop {
            desk.clock.advance_ms(1_000);
            let page = ask(&desk, &agent, "rpc.approvals", &cursor.to_string()).await;
            seen += page["result"]["approvals"].as_array().unwrap_or_else(|| panic!("{page}")).len();
            pages += 1;
            match page["result"].get("next") {
                Some(next) => cursor = json!({ "cursor": next }),
                None => break,
            }
        }
        assert_eq!((seen, pages), (expected, 2));
    }
}

/// Tess has a second agent; the policy says so.
#[tokio::test]
async fn two_agents_of_one_person_are_one_approver() {
    let (desk, runs) = desk();
    desk.change_policy(&of_persons(&POLICY.replace("count = 2\n", "count = 2\ndistinct = \"person\"\n")));
    let id = pending(&echo(&desk, LARGE).await);
    assert_eq!(approve(&desk, "tess", &id).await["result"]["state"], "pending");
    let same = approve(&desk, "tom", &id).await;
    assert_eq!(same["error"]["code"], -32002, "{same}");
    assert_eq!(approve(&desk, "trudy", &id).await["result"]["state"], "approved");
    assert_eq!(echo(&desk, LARGE).await["result"]["amount"], 100);
    assert_eq!(runs.count(), 1);
}

/// The second approval of the call does not say `distinct`, but it is the same call.
#[tokio::test]
async fn one_person_does_not_give_both_approvals_whichever_of_them_tells_persons_apart() {
    let told_by_treasurers = POLICY.replace("count = 2\n", "count = 1\ndistinct = \"person\"\n");
    let told_by_officer = POLICY
        .replace("count = 2\n", "count = 1\n")
        .replace("from = [\"officer\"]\n", "from = [\"officer\"]\ndistinct = \"person\"\n");
    let of_role = |desk: &Desk, name: &str, role: &str| {
        approver_with(desk, name, |request| request.roles = [role.to_owned()].into())
    };
    for policy in [told_by_treasurers, told_by_officer] {
        let (desk, runs) = desk();
        desk.change_policy(&of_persons(&policy));
        let abroad = r#"{"to":"abroad","amount":100}"#;
        let id = pending(&echo(&desk, abroad).await);
        assert_eq!(approve(&desk, "tess", &id).await["result"]["state"], "pending");
        let same = decide(&desk, &of_role(&desk, "tom", "officer"), &id, "officer", "approve").await;
        assert_eq!(same["error"]["code"], -32002, "{same}");
        assert_eq!(pending(&echo(&desk, abroad).await), id);
        let other = decide(&desk, &of_role(&desk, "trudy", "officer"), &id, "officer", "approve").await;
        assert_eq!(other["result"]["state"], "approved", "{other}");
        assert_eq!(echo(&desk, abroad).await["result"]["amount"], 100);
        assert_eq!(runs.count(), 1);
    }
}

/// Tess calls, and it is the officer's approval that tells persons apart.
#[tokio::test]
async fn nobody_approves_their_own_call_as_another_agent_whichever_approval_tells_persons_apart() {
    let policy = POLICY
        .replace("count = 2\n", "count = 1\n")
        .replace("from = [\"officer\"]\n", "from = [\"officer\"]\ndistinct = \"person\"\n");
    let (desk, _) = desk();
    desk.change_policy(&of_persons(&policy));
    let own = approver_with(&desk, "tess", |request| request.roles = ["worker".to_owned()].into());
    let id = pending(&ask(&desk, &own, "desk/echo", r#"{"to":"abroad","amount":100}"#).await);
    let hidden = ask(&desk, &approver(&desk, "tom"), "rpc.approval", &json!({ "id": id }).to_string()).await;
    assert_eq!(hidden["error"]["code"], -32602, "{hidden}");
    assert_eq!(approve(&desk, "trudy", &id).await["result"]["needs"][0]["have"], 1);
    // Where no approval asks, they are two.
    let id = pending(&ask(&desk, &own, "desk/echo", LARGE).await);
    assert_eq!(approve(&desk, "tom", &id).await["result"]["state"], "approved");
}

/// The policy with agents of persons: `tom` is another agent of tess.
fn of_persons(policy: &str) -> String {
    let persons = [("ann", "ann"), ("tess", "tess"), ("tom", "tess"), ("trudy", "trudy")]
        .map(|(agent, person)| format!("[agent.{agent}]\nattributes = {{ person = \"{person}\" }}\n"));
    format!("[attributes]\nperson = \"string\"\n{policy}{}", persons.concat())
}
