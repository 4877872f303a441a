//! Calls that are charged to budgets: SPEC.md §6.4.

use futures_util::future::join_all;
use futures_util::poll;
use sealwire::internal::auth::LocalOutcomes;
use sealwire::serve::BudgetCounters;
use sealwire::{Idempotent, Router};
use sealwire_testkit::desk::{Agent, Desk, Setup, call, recording};
use serde_json::{Value, json};

use super::approvals::model::Dice;
use super::approvals::stores::{Fault, Replicas};
use super::approvals::{approve_by_both, pending, with_approvers};

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 3_600_000;

const POLICY: &str = r#"
[method."desk/echo"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }]

[role.worker]
allow = ["desk/*", "rpc.can", "rpc.explain"]
delegated = "also"

[budget.daily]
methods = ["desk/echo"]
per = "agent"
sum = "amount"
at_most = "100/d"
shared = true

[budget.rate]
methods = ["desk/note"]
per = "subject"
calls = "3/h"
"#;

/// Its steps are shorter than the difference between clocks.
const MINUTELY: &str = r#"
[method."desk/echo"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }]
[role.worker]
allow = ["desk/*"]
[budget.daily]
methods = ["desk/echo"]
per = "agent"
sum = "amount"
at_most = "100/m"
shared = true
"#;

/// The subject's budget comes first by its name.
const SUBJECTS: &str = r#"
[method."desk/echo"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }]
[role.worker]
allow = ["desk/*"]
delegated = "also"
[budget.all]
methods = ["desk/echo"]
per = "subject"
sum = "amount"
at_most = "200/d"
shared = true
[budget.own]
methods = ["desk/echo"]
per = "agent"
sum = "amount"
at_most = "100/d"
shared = true
"#;

/// The methods that the replicas have.
fn replicas() -> Replicas {
    Replicas::over(LocalOutcomes::default(), POLICY.split_once("[budget.rate]").unwrap().0)
}

/// An agent that acts for a subject.
fn acting(desk: &Desk, agent: &str, subject: &str) -> Agent {
    desk.agent_with(agent, |request| {
        request.subject = subject.to_owned();
        request.actor = Some(agent.to_owned());
    })
}

/// What the second replica, or the first, answers to a payment. Its letter is the first one's.
async fn pay_at(replicas: &Replicas, replica: usize, agent: &Agent, amount: u64) -> Value {
    let letter = replicas.desks[0].letter(agent, &call("desk/echo", &format!(r#"["al",{amount}]"#)));
    serde_json::from_str(&replicas.desks[replica].answer(&letter).await.unwrap()).unwrap()
}

fn desk() -> (Desk, std::sync::Arc<sealwire_testkit::desk::Runs>) {
    let (router, runs) = recording();
    (open(router, POLICY), runs)
}

fn open<S: Send + Sync + 'static>(router: Router<S>, policy: &'static str) -> Desk {
    Desk::open_as(Setup { policy, ..Setup::default() }, |service| service.methods(router))
}

async fn ask(desk: &Desk, agent: &Agent, payload: &str) -> Value {
    serde_json::from_str(&desk.answer(&desk.letter(agent, payload)).await.unwrap()).unwrap()
}

/// Ann transfers this much.
async fn pay(desk: &Desk, amount: impl std::fmt::Display) -> Value {
    let params = format!(r#"{{"to":"al","amount":{amount}}}"#);
    ask(desk, &desk.agent("ann", &["worker"]), &call("desk/echo", &params)).await
}

/// How long the caller is told to wait because this budget is used up.
#[track_caller]
fn spent(answer: &Value, budget: &str) -> u64 {
    let (error, data) = (&answer["error"], &answer["error"]["data"]);
    let told = (&error["code"], &data["scope"], &data["budget"]);
    assert_eq!(told, (&json!(-32013), &json!("budget"), &json!(budget)), "{answer}");
    data["retry_after_ms"].as_u64().unwrap()
}

fn counted(desk: &Desk, budget: &str) -> (u64, u64) {
    let BudgetCounters { charged, refused } =
        desk.service.counters().budgets().get(budget).copied().unwrap_or_default();
    (charged, refused)
}

#[tokio::test]
async fn a_sum_stays_within_its_limit_and_the_caller_is_told_when_there_is_room() {
    let (desk, runs) = desk();
    assert_eq!(pay(&desk, 60).await["result"]["amount"], 60);
    desk.clock.advance_ms(3_600_000);
    let wait = spent(&pay(&desk, 41).await, "daily");
    assert!(wait > DAY_MS - 3_600_000 - 1 && wait < DAY_MS, "{wait}");
    assert_eq!(pay(&desk, 40).await["result"]["amount"], 40);
    spent(&pay(&desk, 1).await, "daily");
    assert_eq!((runs.count(), counted(&desk, "daily")), (2, (2, 2)));

    desk.clock.advance_ms(wait - 1);
    spent(&pay(&desk, 41).await, "daily");
    desk.clock.advance_ms(1);
    assert_eq!(pay(&desk, 60).await["result"]["amount"], 60);
    spent(&pay(&desk, 1).await, "daily");
    assert_eq!(runs.count(), 3);
    // Another agent has a budget of its own.
    let bob = desk.agent("bob", &["worker"]);
    assert_eq!(ask(&desk, &bob, &call("desk/echo", r#"["al",100]"#)).await["result"][1], 100);
}

#[tokio::test]
async fn what_cannot_be_counted_does_not_run() {
    let (desk, runs) = desk();
    let ann = desk.agent("ann", &["worker"]);
    for params in [
        r#"{"to":"al"}"#,
        r#"{"to":"al","amount":null}"#,
        r#"{"to":"al","amount":-1}"#,
        r#"["al",-1]"#,
        r#"{"to":"al","amount":1.0}"#,
        r#"{"to":"al","amount":1e0}"#,
        r#"{"to":"al","amount":"1"}"#,
        r#"{"to":"al","amount":9223372036854775808}"#,
        r#"{"to":"al","amount":1,"amount":1}"#,
        r#"{"to":"al","amount":1,"am\u006funt":100}"#,
        r#"{"to":"al","amount":1,"more":1}"#,
        r#"["al",1,1]"#,
        r#"["al"]"#,
    ] {
        let answer = ask(&desk, &ann, &call("desk/echo", params)).await;
        // A text that names a member twice is no request at all.
        assert!([-32602, -32600].contains(&answer["error"]["code"].as_i64().unwrap()), "{params}: {answer}");
    }
    // More than there ever is: waiting would not help.
    let above = pay(&desk, 101).await;
    assert_eq!((&above["error"]["code"], &above["error"]["data"]), (&json!(-32002), &json!({"budget": "daily"})));
    assert_eq!((runs.count(), counted(&desk, "daily")), (0, (0, 1)));
    // None of them has taken anything. Nothing costs nothing.
    for params in [r#"{"am\u006funt":100,"to":"al"}"#, r#"["al",0]"#] {
        let answer = ask(&desk, &ann, &call("desk/echo", params)).await;
        assert!(answer["error"].is_null(), "{answer}");
    }
    spent(&ask(&desk, &ann, &call("desk/echo", r#"["al",1]"#)).await, "daily");
}

#[tokio::test]
async fn calls_count_for_the_subject_whichever_agent_acts_for_it() {
    let (desk, runs) = desk();
    let note = call("desk/note", "[]");
    for agent in ["ann", "bob", "ann"] {
        assert!(ask(&desk, &acting(&desk, agent, "user-1"), &note).await["error"].is_null());
    }
    for agent in ["ann", "bob"] {
        spent(&ask(&desk, &acting(&desk, agent, "user-1"), &note).await, "rate");
    }
    // Another subject, and the agent itself, even under the subject's name.
    assert!(ask(&desk, &acting(&desk, "ann", "user-2"), &note).await["error"].is_null());
    for _ in 0..3 {
        assert!(ask(&desk, &desk.agent("ann", &["worker"]), &note).await["error"].is_null());
    }
    spent(&ask(&desk, &desk.agent("ann", &["worker"]), &note).await, "rate");
    assert!(ask(&desk, &acting(&desk, "bob", "ann"), &note).await["error"].is_null(), "a subject is no agent");
    assert_eq!(runs.count(), 8);
}

#[tokio::test]
async fn each_entry_and_each_notification_is_charged_and_questions_are_not() {
    let (desk, runs) = desk();
    let ann = desk.agent("ann", &["worker"]);
    for (method, asked) in [
        ("rpc.can", json!({ "method": "desk/note", "params": [] })),
        ("rpc.explain", json!({ "agent": "ann", "roles": ["worker"], "method": "desk/note", "params": [] })),
    ] {
        let answer = ask(&desk, &ann, &call(method, &asked.to_string())).await;
        assert!(answer["error"].is_null(), "{answer}");
    }
    assert_eq!(counted(&desk, "rate"), (0, 0));
    let notification = r#"{"jsonrpc":"2.0","method":"desk/note","params":[]}"#;
    assert_eq!(desk.ask(&ann, notification).await, None);
    let note = call("desk/note", "[]");
    let answers = ask(&desk, &ann, &format!("[{note},{note},{note},{notification}]")).await;
    let refused: Vec<_> = answers.as_array().unwrap().iter().filter(|answer| !answer["error"].is_null()).collect();
    assert_eq!((runs.count(), counted(&desk, "rate")), (3, (3, 2)), "{answers}");
    for answer in refused {
        spent(answer, "rate");
    }
}

#[tokio::test]
async fn a_repetition_is_answered_and_not_charged_and_a_refusal_gives_its_key_back() {
    let (router, runs) = recording();
    let desk =
        open(router.idempotent("desk/echo", Idempotent::keep(std::time::Duration::from_secs(DAY_MS / 500))), POLICY);
    let keyed = async |key: &str, amount: u64| -> Value {
        let payload = call("desk/echo", &format!(r#"["al",{amount}]"#));
        let letter = desk.keyed(&desk.agent("ann", &["worker"]), key, &payload);
        serde_json::from_str(&desk.answer(&letter).await.unwrap()).unwrap()
    };
    for _ in 0..3 {
        assert_eq!(keyed("a", 70).await["result"][1], 70);
    }
    let wait = spent(&keyed("b", 40).await, "daily");
    assert_eq!((runs.count(), counted(&desk, "daily")), (1, (1, 1)));
    desk.clock.advance_ms(wait);
    assert_eq!(keyed("b", 40).await["result"][1], 40);
}

#[tokio::test]
async fn a_call_that_waits_for_people_is_charged_when_it_runs() {
    const WAITING: &str = r#"
        [method."desk/echo"]
        params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }]
        [role.worker]
        allow = ["desk/*"]
        [role.treasurer]
        allow = ["rpc.*"]
        [approval.two-treasurers]
        from = ["treasurer"]
        count = 2
        [rule.all]
        everyone = true
        deny = ["desk/echo"]
        unless_approved = "two-treasurers"
        [budget.once]
        methods = ["desk/*"]
        per = "agent"
        calls = "1/m"
    "#;
    let (router, runs) = recording();
    let desk = open(router, WAITING);
    with_approvers(&desk, |_| {});
    let ids = [pending(&pay(&desk, 1).await), pending(&pay(&desk, 1).await), pending(&pay(&desk, 2).await)];
    assert_eq!((&ids[0], counted(&desk, "once")), (&ids[1], (0, 0)));
    approve_by_both(&desk, &ids[0]).await;
    approve_by_both(&desk, &ids[2]).await;
    assert_eq!(pay(&desk, 1).await["result"]["amount"], 1);
    // Without room, the approval is not used up.
    let wait = spent(&pay(&desk, 2).await, "once");
    desk.clock.advance_ms(wait);
    assert_eq!(pay(&desk, 2).await["result"]["amount"], 2);
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn a_budget_keeps_its_count_when_its_limit_changes_and_begins_anew_under_another_name() {
    let (desk, _) = desk();
    assert!(pay(&desk, 60).await["error"].is_null());
    desk.change_policy(&POLICY.replace("100/d", "80/d"));
    spent(&pay(&desk, 21).await, "daily");
    desk.change_policy(&POLICY.replace("100/d", "120/d"));
    spent(&pay(&desk, 61).await, "daily");
    assert!(pay(&desk, 20).await["error"].is_null());
    desk.change_policy(POLICY);
    spent(&pay(&desk, 21).await, "daily");
    desk.change_policy(&POLICY.replace("[budget.daily]", "[budget.weekly]"));
    assert!(pay(&desk, 100).await["error"].is_null());
}

/// Of several budgets, one that has no room keeps the others from being charged.
#[tokio::test]
async fn all_budgets_of_a_call_must_have_room() {
    let (desk, runs) = desk();
    desk.change_policy(&format!(
        "{POLICY}\n[budget.twice]\nmethods = [\"desk/*\"]\nagents = [\"ann\"]\nper = \"agent\"\ncalls = \"2/m\"\n"
    ));
    assert!(pay(&desk, 50).await["error"].is_null());
    spent(&pay(&desk, 60).await, "daily");
    assert_eq!(counted(&desk, "twice"), (1, 0));
    assert!(pay(&desk, 10).await["error"].is_null());
    spent(&pay(&desk, 10).await, "twice");
    assert_eq!(counted(&desk, "daily"), (2, 1));
    // Of two without room, the caller is told of the one that takes longer.
    assert!(spent(&pay(&desk, 60).await, "daily") > DAY_MS / 2);
    desk.clock.advance_ms(75_000);
    assert!(pay(&desk, 40).await["error"].is_null());
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn replicas_charge_one_count_and_use_all_of_it() {
    let replicas = replicas();
    let ann = replicas.desks[0].agent("ann", &["worker"]);
    let letters: Vec<_> = (0..60).map(|_| replicas.desks[0].letter(&ann, &call("desk/echo", r#"["al",3]"#))).collect();
    let calls = letters.iter().enumerate().map(|(number, letter)| replicas.desks[number % 2].answer(letter));
    let answers = join_all(calls).await;
    let refused = answers.iter().flatten().map(|answer| serde_json::from_str::<Value>(answer).unwrap());
    let waits: Vec<_> =
        refused.filter(|answer| !answer["error"].is_null()).map(|answer| spent(&answer, "daily")).collect();
    assert_eq!((waits.len(), replicas.runs()), (27, 33));
}

/// What the store does not confirm does not run, and what it loses is not charged once more.
#[tokio::test]
async fn a_count_that_is_lost_or_written_back_or_forged_is_not_believed() {
    let replicas = replicas();
    let [first, second] = &replicas.desks;
    let pay = async |desk: &Desk, amount: u64| -> Value {
        let ann = replicas.desks[0].agent("ann", &["worker"]);
        let payload = call("desk/echo", &format!(r#"["al",{amount}]"#));
        serde_json::from_str(&desk.answer(&first.letter(&ann, &payload)).await.unwrap()).unwrap()
    };
    for (fault, left) in [(Fault::LostInSilence, 80), (Fault::StoredInSilence, 40)] {
        replicas.store.fail(&[fault]);
        assert_eq!(pay(second, 20).await["error"]["code"], -32014, "{fault:?}");
        assert!(pay(first, 20).await["error"].is_null());
        // What may have been charged and did not run stays charged.
        spent(&pay(second, left + 1).await, "daily");
    }
    assert_eq!(replicas.runs(), 2);
    let (_, _, before) = replicas.store.latest().await;
    assert!(pay(first, 30).await["error"].is_null());
    let (_, _, now) = replicas.store.latest().await;
    for content in [before, "forged".into(), now.iter().map(|byte| byte ^ 1).collect()] {
        replicas.store.replace_latest(content).await;
        assert_eq!(pay(first, 1).await["error"]["code"], -32014);
    }
    assert_eq!(first.service.counters().refusals().get("budget_unknown"), Some(&3));
    replicas.store.replace_latest(now).await;
    assert!(pay(first, 10).await["error"].is_null());
    spent(&pay(second, 1).await, "daily");
    assert_eq!(replicas.runs(), 4);
}

#[tokio::test]
async fn a_call_that_the_agents_own_budget_refuses_costs_its_subject_nothing() {
    let replicas = Replicas::over(LocalOutcomes::default(), SUBJECTS);
    let agent = |name| acting(&replicas.desks[0], name, "user-1");
    let ann = agent("ann");
    let answers = join_all((0..10).map(|number| pay_at(&replicas, number % 2, &ann, 100))).await;
    assert_eq!(answers.iter().filter(|answer| answer["error"].is_null()).count(), 1);
    let answer = pay_at(&replicas, 0, &agent("bob"), 100).await;
    assert!(answer["error"].is_null(), "{answer}");
    spent(&pay_at(&replicas, 0, &agent("eve"), 1).await, "all");
}

#[tokio::test]
async fn the_subjects_of_one_agent_leave_most_of_the_store_to_others() {
    let replicas = Replicas::over(LocalOutcomes::new(80, 1 << 20), SUBJECTS);
    let pay = async |agent: &str, subject: usize| -> Value {
        pay_at(&replicas, 0, &acting(&replicas.desks[0], agent, &format!("user-{subject}")), 1).await
    };
    for subject in 0..10 {
        assert!(pay("bob", subject).await["error"].is_null());
    }
    let refused = pay("bob", 10).await;
    assert_eq!((&refused["error"]["code"], &refused["error"]["data"]["scope"]), (&json!(-32013), &json!("budgets")));
    // It may go on with those, and with one whose count is there already.
    assert!(pay("ann", 10).await["error"].is_null());
    for subject in [0, 10] {
        assert!(pay("bob", subject).await["error"].is_null());
    }
}

/// Lost counts are missed by those that knew them, until nothing of these counts any more, whatever revisions the others' have.
#[tokio::test]
async fn a_count_that_is_lost_closes_a_budget_for_one_window_at_most() {
    let replicas = replicas();
    let ann = replicas.desks[0].agent("ann", &["worker"]);
    for _ in 0..5 {
        assert!(pay_at(&replicas, 0, &ann, 2).await["error"].is_null());
    }
    replicas.store.lose_all();
    assert!(pay_at(&replicas, 1, &ann, 1).await["error"].is_null());
    let refused = pay_at(&replicas, 0, &ann, 1).await;
    let wait = refused["error"]["data"]["retry_after_ms"].as_u64().unwrap();
    assert!(refused["error"]["code"] == -32014 && wait > DAY_MS - 3_600_000, "{refused}");
    // The others go on, and each question reminds the first replica of what it knows.
    replicas.advance_ms(wait - 1);
    let ann = replicas.desks[0].agent("ann", &["worker"]);
    assert!(pay_at(&replicas, 1, &ann, 60).await["error"].is_null());
    assert_eq!(pay_at(&replicas, 0, &ann, 1).await["error"]["code"], -32014);
    replicas.advance_ms(1);
    assert!(pay_at(&replicas, 0, &ann, 10).await["error"].is_null());
    spent(&pay_at(&replicas, 0, &ann, 40).await, "daily");
}

#[tokio::test]
async fn a_revision_that_another_stream_gave_is_not_mistaken_for_the_known_one() {
    let replicas = replicas();
    let ann = replicas.desks[0].agent("ann", &["worker"]);
    assert!(pay_at(&replicas, 0, &ann, 10).await["error"].is_null());
    let (_, known, _) = replicas.store.latest().await;
    replicas.store.lose_all();
    assert!(pay_at(&replicas, 1, &ann, 60).await["error"].is_null());
    let (_, revision, content) = replicas.store.latest().await;
    assert_eq!(known, revision);
    assert_eq!(pay_at(&replicas, 0, &ann, 10).await["error"]["code"], -32014);
    assert_eq!(replicas.store.latest().await.2, content);
    spent(&pay_at(&replicas, 1, &ann, 41).await, "daily");
}

/// A budget that becomes shared, or no longer is.
#[tokio::test]
async fn what_one_replica_counted_alone_is_not_what_all_have_charged() {
    let replicas = replicas();
    let shared = POLICY.split_once("[budget.rate]").unwrap().0;
    let change = |policy: &str| replicas.desks.iter().for_each(|desk| desk.change_policy(policy));
    let ann = replicas.desks[0].agent("ann", &["worker"]);
    let pay = async |replica, amount| pay_at(&replicas, replica, &ann, amount).await;
    assert!(pay(1, 30).await["error"].is_null());
    change(&shared.replace("shared = true", "shared = false"));
    for replica in [0, 1] {
        assert!(pay(replica, 100).await["error"].is_null());
        spent(&pay(replica, 1).await, "daily");
    }
    change(shared);
    assert!(pay(0, 40).await["error"].is_null());
    assert!(pay(1, 30).await["error"].is_null());
    spent(&pay(0, 1).await, "daily");
}

/// What is told as final is so: those that come after a call which was not charged had room.
#[tokio::test]
async fn only_what_was_charged_uses_a_budget_up() {
    let replicas = replicas();
    let ann = replicas.desks[0].agent("ann", &["worker"]);
    replicas.store.fail(&[Fault::None, Fault::LostInSilence]);
    let answers = join_all([1, 90, 20].map(|amount| pay_at(&replicas, 0, &ann, amount))).await;
    let codes: Vec<_> = answers.iter().map(|answer| answer["error"]["code"].as_i64()).collect();
    assert_eq!(codes, [None, Some(-32014), Some(-32014)]);
    assert!(pay_at(&replicas, 0, &ann, 99).await["error"].is_null());
}

/// Calls that are charged together do not depend on the one that makes the change.
#[tokio::test]
async fn a_caller_that_goes_takes_no_other_along() {
    let replicas = replicas();
    let ann = replicas.desks[0].agent("ann", &["worker"]);
    let [mut first, mut leader, mut other] = [10, 20, 30].map(|amount| Box::pin(pay_at(&replicas, 0, &ann, amount)));
    while replicas.store.begun() < 1 {
        assert!(poll!(&mut first).is_pending());
    }
    // No other task runs meanwhile, so the first change is under way, and both wait for it.
    for waiting in [&mut leader, &mut other] {
        for _ in 0..100 {
            assert!(poll!(&mut *waiting).is_pending());
        }
    }
    assert!(first.await["error"].is_null());
    while replicas.store.begun() < 2 {
        assert!(poll!(&mut leader).is_pending());
        tokio::task::yield_now().await;
    }
    drop(leader);
    assert_eq!(other.await["result"][1], 30);
    spent(&pay_at(&replicas, 0, &ann, 41).await, "daily");
    assert!(pay_at(&replicas, 0, &ann, 40).await["error"].is_null());
}

/// Two replicas, clocks that differ, a store that is silent, calls at once and one after the other: the sum of what ran, in any window.
#[tokio::test]
async fn whatever_fails_no_window_has_more_than_the_budget() {
    let (mut paid, mut silent, mut full) = (0, 0, 0);
    for seed in 0..12 {
        let replicas = Replicas::over(LocalOutcomes::default(), MINUTELY);
        let mut dice = Dice(seed);
        replicas.desks[1].clock.advance_ms(dice.roll(5) * 1_000);
        let (mut now, mut ran) = (0_u64, Vec::<(u64, u64)>::new());
        for _ in 0..40 {
            let faults: Vec<_> = (0..dice.roll(4))
                .map(|_| {
                    [Fault::None, Fault::StoredInSilence, Fault::LostInSilence][usize::try_from(dice.roll(3)).unwrap()]
                })
                .collect();
            replicas.store.fail(&faults);
            let ann = replicas.desks[0].agent("ann", &["worker"]);
            let calls: Vec<_> = (0..=dice.roll(6))
                .map(|_| {
                    let amount = 1 + dice.roll(40);
                    let letter = replicas.desks[0].letter(&ann, &call("desk/echo", &format!(r#"["al",{amount}]"#)));
                    (usize::from(dice.roll(2) == 1), amount, letter)
                })
                .collect();
            let answers =
                join_all(calls.iter().map(|(replica, _, letter)| replicas.desks[*replica].answer(letter))).await;
            for ((_, amount, _), answer) in calls.iter().zip(answers) {
                let answer: Value = serde_json::from_str(&answer.unwrap()).unwrap();
                match answer["error"]["code"].as_i64() {
                    None => ran.push((now, *amount)),
                    Some(-32014) => silent += 1,
                    Some(-32013) => full += 1,
                    Some(_) => panic!("{answer}"),
                }
            }
            let sum: u64 = ran.iter().filter(|(at, _)| at + MINUTE_MS >= now).map(|(_, amount)| amount).sum();
            assert!(sum <= 100, "{seed}: {sum}");
            let passed = [0, 1_000, 20_000, 58_000][usize::try_from(dice.roll(4)).unwrap()];
            now += passed;
            replicas.advance_ms(passed);
        }
        paid += ran.len();
        assert_eq!(replicas.runs(), ran.len());
    }
    // Each happens often enough to mean something.
    assert!(paid > 100 && silent > 50 && full > 100, "{paid} ran, {silent} were not confirmed, {full} had no room");
}
