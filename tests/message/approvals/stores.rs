//! Several replicas, and stores that are late, silent, full, or lie.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use sealwire::internal::auth::{
    Claimed, LocalOutcomes, OutcomeKey, OutcomeStore, OutcomeStoreError, TokenRules, TokenVerifier,
};
use sealwire::serve::QuotaLimits;
use sealwire::{Ctx, RpcError, ServiceLimits};
use sealwire_testkit::admits::Admits;
use sealwire_testkit::desk::{Setup, call};
use serde_json::{Value, json};

use super::*;

/// What happens to a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It is made, and nobody is told.
    StoredInSilence,
    /// It is not made, and nobody is told.
    LostInSilence,
}

/// What all replicas see, with faults.
#[derive(Debug, Default)]
pub(crate) struct Store {
    entries: Mutex<Arc<LocalOutcomes>>,
    /// How often all entries were lost.
    losses: AtomicUsize,
    /// How many changes have been begun.
    begun: AtomicUsize,
    faults: Mutex<VecDeque<Fault>>,
    /// Nothing of this agent can be read.
    unreadable: Mutex<Option<Name>>,
    /// The last entry that was made.
    latest: Mutex<Option<OutcomeKey>>,
    /// No list is ever answered.
    is_silent: AtomicBool,
    /// How many entries are being read, and how many have been at once.
    reading: AtomicUsize,
    most_reading: AtomicUsize,
    at_next_claim: Hook,
}

/// What happens once.
#[derive(Default)]
struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl Store {
    fn entries(&self) -> Arc<LocalOutcomes> {
        Arc::clone(&self.entries.lock().unwrap())
    }

    /// All brokers have restarted: revisions begin anew.
    pub(crate) fn lose_all(&self) {
        *self.entries.lock().unwrap() = Arc::default();
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    /// What happens to the next changes.
    pub(crate) fn fail(&self, faults: &[Fault]) {
        *self.faults.lock().unwrap() = faults.iter().copied().collect();
    }

    /// What happens while an idempotency key is claimed.
    pub(super) fn at_next_claim(&self, what: impl FnOnce() + Send + 'static) {
        *self.at_next_claim.0.lock().unwrap() = Some(Box::new(what));
    }

    /// Whoever gives up a call does so at one of these.
    async fn next(&self) -> Fault {
        self.begun.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.faults.lock().unwrap().pop_front().unwrap_or(Fault::None)
    }

    /// The only request, as stored.
    pub(super) async fn content(&self) -> Option<(OutcomeKey, u64, Bytes)> {
        let key = self.entries().approvals().await.unwrap().pop()?;
        let (revision, content) = self.entries().read(&key).await.unwrap()?;
        Some((key, revision, content))
    }

    /// The entry that was made last, as stored.
    pub(crate) async fn latest(&self) -> (OutcomeKey, u64, Bytes) {
        let key = self.latest.lock().unwrap().clone().unwrap();
        let (revision, content) = self.entries().read(&key).await.unwrap().unwrap();
        (key, revision, content)
    }

    /// What somebody with access to the store does with that one.
    pub(crate) async fn replace_latest(&self, content: impl Into<Bytes>) {
        let (key, revision, _) = self.latest().await;
        self.entries().replace(&key, revision, content.into(), Duration::from_secs(3_600)).await.unwrap();
    }

    /// What somebody with access to the store does.
    pub(super) async fn write(&self, content: impl Into<Bytes>) {
        let (key, revision, _) = self.content().await.unwrap();
        self.entries().replace(&key, revision, content.into(), Duration::from_secs(3_600)).await.unwrap();
    }
}

impl OutcomeStore for Store {
    fn held(&self) -> (usize, usize) {
        self.entries().held()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn era(&self) -> String {
        self.losses.load(Ordering::SeqCst).to_string()
    }

    fn room_for_subjects(&self) -> usize {
        self.entries().room_for_subjects()
    }

    fn claim<'a>(
        &'a self,
        key: &'a OutcomeKey,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<Claimed, OutcomeStoreError>> {
        let changed = async move {
            *self.latest.lock().unwrap() = Some(key.clone());
            if !key.is_approval()
                && let Some(what) = self.at_next_claim.0.lock().unwrap().take()
            {
                what();
            }
            match self.next().await {
                Fault::None => self.entries().claim(key, content, keep).await,
                Fault::StoredInSilence => {
                    drop(self.entries().claim(key, content, keep).await);
                    Err(OutcomeStoreError::Unanswered)
                }
                Fault::LostInSilence => Err(OutcomeStoreError::Unanswered),
            }
        };
        changed.boxed()
    }

    fn replace<'a>(
        &'a self,
        key: &'a OutcomeKey,
        revision: u64,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<u64, OutcomeStoreError>> {
        let changed = async move {
            let fault = self.next().await;
            let replaced = match fault {
                Fault::None | Fault::StoredInSilence => self.entries().replace(key, revision, content, keep).await,
                Fault::LostInSilence => Err(OutcomeStoreError::Unanswered),
            };
            tokio::task::yield_now().await;
            if fault == Fault::None { replaced } else { Err(OutcomeStoreError::Unanswered) }
        };
        changed.boxed()
    }

    fn read<'a>(&'a self, key: &'a OutcomeKey) -> BoxFuture<'a, Result<Option<(u64, Bytes)>, OutcomeStoreError>> {
        async move {
            if self.unreadable.lock().unwrap().as_ref() == Some(key.agent()) {
                return Err(OutcomeStoreError::Unavailable);
            }
            let reading = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_reading.fetch_max(reading, Ordering::SeqCst);
            tokio::task::yield_now().await;
            self.reading.fetch_sub(1, Ordering::SeqCst);
            self.entries().read(key).await
        }
        .boxed()
    }

    fn approvals(&self) -> BoxFuture<'_, Result<Vec<OutcomeKey>, OutcomeStoreError>> {
        match self.is_silent.load(Ordering::SeqCst) {
            true => std::future::pending().boxed(),
            false => async { self.entries().approvals().await }.boxed(),
        }
    }
}

/// Two replicas of one service. What is signed for the first, the second takes.
pub(crate) struct Replicas {
    pub(crate) desks: [Desk; 2],
    pub(crate) store: Arc<Store>,
    policy: &'static str,
    runs: [Arc<AtomicUsize>; 2],
}

impl Replicas {
    pub(super) fn new() -> Self {
        Self::over(LocalOutcomes::default(), POLICY)
    }

    pub(crate) fn over(entries: LocalOutcomes, policy: &'static str) -> Self {
        let (store, runs) = (
            Arc::new(Store { entries: Mutex::new(Arc::new(entries)), ..Store::default() }),
            <[Arc<AtomicUsize>; 2]>::default(),
        );
        let first = replica(&store, &runs[0], policy, None);
        let second = replica(&store, &runs[1], policy, Some(&first));
        Self { desks: [first, second], store, policy, runs }
    }

    /// The second one dies, and another takes its place.
    pub(super) fn restart_second(&mut self) {
        let now_ms = self.desks[1].clock.now_ms();
        self.desks[1] = replica(&self.store, &self.runs[1], self.policy, Some(&self.desks[0]));
        self.desks[1].clock.set_ms(now_ms);
    }

    /// How many calls each has run.
    pub(super) fn runs_of_each(&self) -> [usize; 2] {
        self.runs.each_ref().map(|runs| runs.load(Ordering::SeqCst))
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs_of_each().iter().sum()
    }

    /// A call of the method that needs approval.
    pub(super) fn letter(&self) -> Letter {
        let ann = self.desks[0].agent("ann", &["worker"]);
        self.desks[0].letter(&ann, &call("desk/echo", LARGE))
    }

    pub(super) async fn echo(&self, replica: usize) -> Value {
        send(&self.desks[replica], &self.letter()).await
    }

    /// Makes a request, and has it approved.
    async fn approved(&self) -> String {
        let id = pending(&self.echo(0).await);
        approve_by_both(&self.desks[0], &id).await;
        id
    }

    pub(crate) fn advance_ms(&self, ms: u64) {
        self.desks.iter().for_each(|desk| desk.clock.advance_ms(ms));
    }
}

/// Tokens are those of the first one's issuer.
fn replica(store: &Arc<Store>, runs: &Arc<AtomicUsize>, policy: &'static str, first: Option<&Desk>) -> Desk {
    let router = Router::new(Arc::clone(runs)).method("desk/echo", |ctx: Ctx<Arc<AtomicUsize>>, p: Value| async move {
        ctx.state().fetch_add(1, Ordering::SeqCst);
        Ok::<_, RpcError>(p)
    });
    let guard = Some(Admits::over(Arc::clone(store) as Arc<dyn OutcomeStore>));
    let keys = first.map(|first| first.issuer.key_set().unwrap());
    let tokens = keys.map(|keys| TokenVerifier::new(TokenRules::new("test/desk"), keys));
    // Listing is charged as many calls, and a quick machine lists a hundred times within a second.
    let quota = QuotaLimits { per_second: 1_000_000, burst: 1_000_000, ..QuotaLimits::default() };
    let limits = ServiceLimits { quota, ..ServiceLimits::default() };
    let desk = desk_with(router, Setup { policy, guard, tokens, limits, ..Setup::default() });
    if let Some(first) = first {
        desk.clock.set_ms(first.clock.now_ms());
    }
    desk
}

fn state(answer: &Value) -> &Value {
    &answer["error"]["data"]["state"]
}

#[tokio::test]
async fn an_approval_given_at_one_replica_serves_one_call_at_all_of_them() {
    let replicas = Replicas::new();
    replicas.approved().await;
    let letters: Vec<_> = (0..20).map(|_| replicas.letter()).collect();
    let calls = letters.iter().enumerate().map(|(number, letter)| send(&replicas.desks[number % 2], letter));
    let answers = join_all(calls).await;
    let ran = answers.iter().filter(|answer| answer["result"]["amount"] == 100).count();
    let refused =
        answers.iter().filter(|answer| state(answer) == "consumed" || answer["error"]["code"] == -32014).count();
    assert_eq!((ran, refused, replicas.runs()), (1, 19, 1), "{answers:?}");
    assert_eq!(
        (state(&replicas.echo(0).await), state(&replicas.echo(1).await)),
        (&json!("consumed"), &json!("consumed"))
    );
}

/// What the store does not confirm has not happened, as far as the call is concerned.
#[tokio::test]
async fn a_call_whose_approval_is_not_certainly_used_up_does_not_run() {
    for (fault, runs_later) in [(Fault::StoredInSilence, 0), (Fault::LostInSilence, 1)] {
        let replicas = Replicas::new();
        replicas.approved().await;
        replicas.store.fail(&[fault]);
        let answer = replicas.echo(0).await;
        assert_eq!((&answer["error"]["code"], replicas.runs()), (&json!(-32014), 0), "{fault:?}: {answer}");
        replicas.echo(1).await;
        assert_eq!(replicas.runs(), runs_later, "{fault:?}");
    }
}

#[tokio::test]
async fn a_request_or_an_approval_that_is_stored_in_silence_is_found_again() {
    let replicas = Replicas::new();
    replicas.store.fail(&[Fault::StoredInSilence]);
    assert_eq!(replicas.echo(0).await["error"]["code"], -32014);
    let id = pending(&replicas.echo(1).await);
    let tess = approver(&replicas.desks[0], "tess");
    replicas.store.fail(&[Fault::StoredInSilence]);
    let silent = decide(&replicas.desks[0], &tess, &id, "two-treasurers", "approve").await;
    assert_eq!(silent["error"]["code"], -32014, "{silent}");
    let again = decide(&replicas.desks[0], &tess, &id, "two-treasurers", "approve").await;
    assert_eq!(again["result"]["needs"][0]["have"], 1, "{again}");
}

/// Whoever can write the store can take approvals away, and not make any.
#[tokio::test]
async fn approvals_that_are_written_back_serve_no_second_call() {
    let replicas = Replicas::new();
    replicas.approved().await;
    let (_, _, approved) = replicas.store.content().await.unwrap();
    assert_eq!(replicas.echo(0).await["result"]["amount"], 100);
    replicas.store.write(approved.clone()).await;
    for _ in 0..3 {
        assert_eq!(state(&replicas.echo(0).await), "consumed", "the replica that ran it");
    }
    // Any other, once the approvals are too old.
    replicas.advance_ms(5 * 60_000);
    pending(&replicas.echo(1).await);
    // Nor do they serve the request that was made since: what is signed names one request.
    replicas.store.write(approved).await;
    replicas.advance_ms(1_000);
    pending(&replicas.echo(1).await);
    assert_eq!(replicas.runs(), 1);
}

/// One of two approvals is written back, and somebody gives the other once more.
#[tokio::test]
async fn what_has_run_stays_so_as_long_as_somebody_could_complete_its_approvals_anew() {
    let replicas = Replicas::new();
    let desk = &replicas.desks[0];
    let id = pending(&replicas.echo(0).await);
    approve(desk, "tess", &id).await;
    let (_, _, half) = replicas.store.content().await.unwrap();
    approve(desk, "tom", &id).await;
    assert_eq!(replicas.echo(0).await["result"]["amount"], 100);
    replicas.advance_ms(29 * 60_000);
    replicas.store.write(half).await;
    assert_eq!(approve(desk, "trudy", &id).await["result"]["state"], "approved");
    for _ in 0..2 {
        assert_eq!(state(&replicas.echo(0).await), "consumed");
        replicas.advance_ms(4 * 60_000);
    }
    assert_eq!(replicas.runs(), 1);
}

/// The replica that was told of the denial remembers it.
#[tokio::test]
async fn a_denial_is_not_undone_by_what_was_stored_before_it() {
    let replicas = Replicas::new();
    let id = replicas.approved().await;
    let (_, _, approved) = replicas.store.content().await.unwrap();
    let trudy = approver(&replicas.desks[0], "trudy");
    decide(&replicas.desks[0], &trudy, &id, "", "deny").await;
    replicas.store.write(approved).await;
    assert_eq!(state(&replicas.echo(0).await), "denied");
    replicas.advance_ms(5 * 60_000);
    pending(&replicas.echo(1).await);
    assert_eq!(replicas.runs(), 0);
}

#[tokio::test]
async fn what_the_service_did_not_write_is_no_request() {
    let replicas = Replicas::new();
    replicas.approved().await;
    let (_, _, approved) = replicas.store.content().await.unwrap();
    for position in [0, 40, approved.len() - 2] {
        let mut changed = approved.to_vec();
        changed[position] ^= 1;
        replicas.store.write(changed).await;
        let waits = replicas.echo(0).await;
        pending(&waits);
        assert_eq!(waits["error"]["data"]["needs"][0]["have"], 0, "asked anew: {waits}");
    }
    replicas.store.write(&b"nonsense"[..]).await;
    pending(&replicas.echo(1).await);
    assert_eq!(replicas.runs(), 0);
}

/// A replica that has not read the newest key ring yet takes no approval away.
#[tokio::test]
async fn a_replica_that_cannot_verify_an_approval_leaves_it_to_the_others() {
    let replicas = Replicas::new();
    with_approvers(&replicas.desks[1], |keys| keys.retain(|key| key.kid != "tom.k1"));
    let id = replicas.approved().await;
    let waits = replicas.echo(1).await;
    assert_eq!((pending(&waits), &waits["error"]["data"]["needs"][0]["have"]), (id, &json!(1)), "{waits}");
    assert_eq!(replicas.echo(0).await["result"]["amount"], 100);
    assert_eq!(replicas.runs(), 1);
}

/// The caller's own outcomes, of whatever size, take nobody's veto, nor its own approved call.
#[tokio::test]
async fn a_caller_that_has_used_up_its_share_can_be_denied_and_may_run_what_was_approved() {
    let longest = "\u{1d54f}".repeat(300);
    for is_denied in [true, false] {
        let replicas = Replicas::over(LocalOutcomes::new(1_000, 64 * 1024), POLICY);
        let id = replicas.approved().await;
        let (mut number, mut bytes) = (0_u32, 16 * 1024);
        while bytes > 0 {
            let key = OutcomeKey::new(Name::new("ann").unwrap(), &number.to_be_bytes());
            let content = Bytes::from(vec![b'x'; bytes]);
            match replicas.store.entries().claim(&key, content, Duration::from_secs(3_600)).await {
                Ok(_) => number += 1,
                Err(error) => {
                    assert_eq!(error, OutcomeStoreError::AgentFull);
                    bytes /= 2;
                }
            }
        }
        if is_denied {
            let trudy = approver(&replicas.desks[0], "trudy");
            let digest = digest(&text(&replicas.desks[0], &trudy, &id).await);
            let params = json!({ "id": id, "digest": digest, "decision": "deny", "reason": longest }).to_string();
            let denied = ask(&replicas.desks[0], &trudy, "rpc.approve", &params).await;
            assert_eq!(denied["result"]["state"], "denied", "{denied}");
        }
        replicas.echo(1).await;
        assert_eq!(replicas.runs(), usize::from(!is_denied));
    }
}

/// However many calls of one agent wait for a silent store, one behind the other.
#[tokio::test(start_paused = true)]
async fn a_call_that_asks_for_approval_is_answered_by_its_deadline() {
    let replicas = Replicas::new();
    let desk = &replicas.desks[0];
    replicas.store.is_silent.store(true, Ordering::SeqCst);
    let letter = |amount| {
        let ann = desk.agent("ann", &["worker"]);
        let reply = format!("{}r1", desk.endpoint.inbox(&ann.name));
        let (subject, echo) = (desk.endpoint.subject(&ann.name), call("desk/echo", &large(amount)));
        desk.letter_to(&ann, &subject, &reply, &echo, Some(Duration::from_secs(2)))
    };
    let letters = [letter(100), letter(101), letter(102)];
    let all = join_all(letters.iter().map(|letter| send(desk, letter)));
    for answer in tokio::time::timeout(Duration::from_secs(4), all).await.unwrap() {
        assert_eq!(answer["error"]["code"], -32003, "{answer}");
    }
    replicas.store.is_silent.store(false, Ordering::SeqCst);
    pending(&echo(desk, &large(100)).await);
}

/// SPEC.md §6.3: ten of one agent and subject, and as many of an agent as leave as much room for others.
#[tokio::test]
async fn callers_wait_with_few_requests_and_leave_room_for_others() {
    let (desk, _) = desk();
    for amount in 0..10 {
        pending(&echo(&desk, &large(100 + amount)).await);
    }
    let full = echo(&desk, &large(110)).await;
    assert_eq!(
        (&full["error"]["code"], &full["error"]["data"]["scope"]),
        (&json!(-32013), &json!("approvals")),
        "{full}"
    );
    let known = pending(&echo(&desk, &large(100)).await);
    // A denied one keeps its place, so that nobody asks on and on; one that has run does not.
    decide(&desk, &approver(&desk, "tess"), &known, "", "deny").await;
    assert_eq!(echo(&desk, &large(110)).await["error"]["code"], -32013);
    let second = pending(&echo(&desk, &large(101)).await);
    approve_by_both(&desk, &second).await;
    assert_eq!(echo(&desk, &large(101)).await["result"]["amount"], 101);
    pending(&echo(&desk, &large(110)).await);
    assert_eq!(echo(&desk, &large(111)).await["error"]["code"], -32013);

    let mut made = 11;
    let refused = loop {
        desk.clock.advance_ms(20);
        let answer = ask(&desk, &on_behalf(&desk, made), "desk/echo", LARGE).await;
        if answer["error"]["code"] != -32018 {
            break answer;
        }
        made += 1;
    };
    assert_eq!((&refused["error"]["data"]["scope"], made), (&json!("approvals"), 257), "{refused}");
    pending(&ask(&desk, &desk.agent("bob", &["worker"]), "desk/echo", LARGE).await);
}

fn large(amount: usize) -> String {
    json!({ "to": "al", "amount": amount }).to_string()
}

/// What has run is kept for half an hour, and whoever pays often has many of these.
#[tokio::test]
async fn requests_that_have_run_take_no_place_at_any_replica() {
    let replicas = Replicas::new();
    let [first, second] = &replicas.desks;
    for amount in 100..400 {
        replicas.advance_ms(200);
        approve_by_both(first, &pending(&echo(first, &large(amount)).await)).await;
        assert_eq!(echo(first, &large(amount)).await["result"]["amount"], amount);
    }
    // More than half of all places, if they had any; and this replica has run none of them.
    replicas.store.most_reading.store(0, Ordering::SeqCst);
    pending(&ask(second, &first.agent("ann", &["worker"]), "desk/echo", &large(1_000)).await);
    assert!(replicas.store.most_reading.load(Ordering::SeqCst) <= 8);
    pending(&echo(first, &large(1_001)).await);
}

#[tokio::test]
async fn what_cannot_be_read_keeps_nobody_from_seeing_the_rest() {
    let replicas = Replicas::new();
    let desk = &replicas.desks[0];
    for number in 0..12 {
        pending(&ask(desk, &on_behalf(desk, number), "desk/echo", LARGE).await);
    }
    let bob = pending(&ask(desk, &desk.agent("bob", &["worker"]), "desk/echo", LARGE).await);
    let listed = async || ask(desk, &approver(desk, "tess"), "rpc.approvals", "{}").await["result"].clone();
    replicas.store.most_reading.store(0, Ordering::SeqCst);
    let all = listed().await;
    assert_eq!((all["approvals"].as_array().unwrap().len(), all.get("unread")), (13, None), "{all}");
    assert!(replicas.store.most_reading.load(Ordering::SeqCst) <= 8);
    *replicas.store.unreadable.lock().unwrap() = Some(Name::new("ann").unwrap());
    let some = listed().await;
    assert_eq!((some["approvals"].as_array().unwrap().len(), &some["unread"]), (1, &json!(12)), "{some}");
    assert_eq!(some["approvals"][0]["id"], bob);
}

fn on_behalf(desk: &Desk, subject: usize) -> Agent {
    desk.agent_with("ann", |request| {
        request.subject = format!("user-{subject}");
        request.actor = Some("ann".to_owned());
    })
}

/// SPEC.md §6.3: what people cannot read is not approved.
#[tokio::test]
async fn parameters_that_nobody_would_read_are_refused_at_once_and_the_longest_are_shown_and_run() {
    let (desk, runs) = desk();
    // Each quotation mark takes two characters in the text, and four where the text is quoted.
    let note = |length: usize| json!({ "to": "\"".repeat(length), "amount": 100 }).to_string();
    let longest = (0..).map(|less| note(16_384 - less)).find(|params| params.len() <= 32 * 1024).unwrap();
    let answer = echo(&desk, &note(16_384)).await;
    assert_eq!(answer["error"]["code"], -32015, "{answer}");
    let id = pending(&echo(&desk, &longest).await);
    approve_by_both(&desk, &id).await;
    assert_eq!(echo(&desk, &longest).await["result"]["amount"], 100);
    assert_eq!(runs.count(), 1);
    // Nor is a message of any length kept.
    let id = pending(&echo(&desk, LARGE).await);
    let tess = approver(&desk, "tess");
    let digest = digest(&text(&desk, &tess, &id).await);
    for (reason, code) in [("x".repeat(301), -32602), ("a\nb".to_owned(), -32602), (" ".to_owned(), -32602)] {
        let params = json!({ "id": id, "approval": "two-treasurers", "digest": digest, "decision": "approve", "reason": reason });
        assert_eq!(ask(&desk, &tess, "rpc.approve", &params.to_string()).await["error"]["code"], code);
    }
    let spaced = format!(
        r#"{{"id":"{id}","approval":"two-treasurers","digest":"{digest}","decision":"approve"{}}}"#,
        " ".repeat(2_048)
    );
    assert_eq!(ask(&desk, &tess, "rpc.approve", &spaced).await["error"]["code"], -32600);
}
