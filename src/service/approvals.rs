//! Calls that people must approve first: which request a call belongs to, who has approved it, and that it runs once for that.
//! Never takes the store's word for an approval: what counts is what approvers signed, judged again by the replica that runs the call.
//!
//! A request is found by what its call is: audience, agent, subject, method, parameters and idempotency key. It is one entry in the store,
//! changed by compare-and-set: asked for, denied, or run. Whether it is approved is never stored but read from the signatures in it, under
//! the policy, the keys and the revocations in force. So whoever can write the store can remove approvals, and deny, but not approve.
//!
//! The entry says "run" before the method begins. What it said before is not accepted by this process again even if somebody writes it back;
//! by other replicas, once its time is over.

mod deciding;
mod decision;
mod entry;
mod news;
mod over;
mod standing;
mod summary;
mod text;
mod unapproved;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;

use super::calls::{APPROVE, Call, MAX_KEPT};
use super::entry_key::EntryKey;
use crate::auth::{Caller, Claimed, Evidence, OutcomeKey, OutcomeStore, OutcomeStoreError, Verifier};
use crate::jose::b64;
use crate::log_limiter::KeyedLogLimiter;
use crate::name::Name;
use crate::policy::{Approval, ApprovalRecord, GivenRecord, Param, PolicySet, Question, RuleId};
use crate::rpc::Params;
use crate::wire::{Endpoint, HmacKey, Nonce, ServiceKey};

pub(super) use decision::Approve;
use decision::{Verdict, signed_params};
use entry::{Entry, Given, ROOM, Ran, Who};
use news::News;
pub(super) use news::Outlet;
use over::{End, Over};
use standing::{Need, Standing, Vote, standing};
use summary::{Summary, state};
use text::{Wanted, digest, plain};
pub use unapproved::{Needed, Pending, Unapproved};

/// The requests for approval of a service, and where they are kept.
pub(super) struct Approvals {
    store: Arc<dyn OutcomeStore>,
    endpoint: Endpoint,
    entry_key: EntryKey,
    is_enabled: AtomicBool,
    over: Over,
    news: News,
    /// The requests whose calls have begun, here or elsewhere, as far as this process has seen, and until when they are kept.
    spent: Mutex<HashMap<OutcomeKey, u64>>,
    /// When all requests may be looked at again to find more of these.
    next_look: Mutex<u64>,
    /// Whoever makes a request counts those of its agent first: one at a time.
    turns: Mutex<HashMap<Name, Arc<tokio::sync::Mutex<()>>>>,
    /// Limits the log lines that callers can cause, by agent.
    lines: KeyedLogLimiter<Name>,
}

/// What requests are judged by.
#[derive(Clone, Copy)]
pub(super) struct InForce<'a> {
    pub(super) policy: &'a PolicySet,
    pub(super) verifier: &'a Verifier,
    /// Seconds since the Unix epoch.
    pub(super) now_s: u64,
}

/// An approved request. Its call runs once the entry says so; see [`Approvals::begin`].
#[derive(Debug)]
pub(super) struct Ticket {
    key: OutcomeKey,
    revision: u64,
    entry: Entry,
    /// As which it is told of.
    summary: Summary,
    /// The approvals that were given.
    names: Vec<String>,
    /// The approvals that count.
    given: Vec<GivenRecord>,
    /// Seconds since the Unix epoch.
    until: u64,
    /// For how long the same call is then told that it has run.
    within_s: u64,
    /// The second of the Unix epoch from which on no approval of this request counts, whoever gives it when.
    void_at: u64,
}

impl Ticket {
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// What the record says of it.
    pub(super) fn record(&self) -> ApprovalRecord {
        let (id, asked_at) = (Some(id(&self.key)), Some(self.entry.asked_at));
        ApprovalRecord { id, asked_at, state: "approved".to_owned(), given: self.given.clone() }
    }
}

impl Approvals {
    pub(super) fn new(store: Arc<dyn OutcomeStore>, endpoint: Endpoint, own: [u8; 32]) -> Self {
        Self {
            store,
            endpoint,
            entry_key: EntryKey::new(ServiceKey::approval_key, own),
            is_enabled: AtomicBool::new(false),
            over: Over::default(),
            news: News::new(),
            spent: Mutex::default(),
            next_look: Mutex::default(),
            turns: Mutex::default(),
            lines: KeyedLogLimiter::default(),
        }
    }

    /// Prepares the store if a policy needs it.
    pub(super) fn prepare(&self, policy: &PolicySet) {
        if policy.has_approvals() && !self.is_enabled.swap(true, Ordering::Relaxed) {
            self.store.enable();
        }
    }

    /// Forgets what can no longer matter.
    pub(super) fn tidy(&self, now_s: u64) {
        self.over.tidy(now_s);
        self.news.tidy();
        lock(&self.spent).retain(|_, until| *until > now_s);
        lock(&self.turns).retain(|_, turn| Arc::strong_count(turn) > 1);
        for (agent, suppressed) in self.lines.tidy() {
            tracing::warn!(target: "sealwire::call", %agent, suppressed, "left out before: an approval does not hold");
        }
    }

    /// The approvals of a call that needs `needs`, or what it waits for. `rule` asks for the first of them.
    ///
    /// Cancel safety: a dropped future may have made a request.
    pub(super) async fn ask(
        &self,
        call: &Call,
        needs: &[String],
        rule: Option<&RuleId>,
        in_force: InForce<'_>,
    ) -> Result<Ticket, Unapproved> {
        let mac = self.mac(in_force.verifier).ok_or(Unapproved::Store(OutcomeStoreError::Unavailable))?;
        if call.params().is_some_and(|params| params.raw().get().len() > MAX_PARAMS) {
            return Err(Unapproved::TooLarge);
        }
        let who = Who::of(call.caller());
        let declared = in_force.policy.methods().params(call.method()).unwrap_or_default();
        let wanted = Wanted {
            audience: self.endpoint.audience().as_str(),
            who: &who,
            method: call.method(),
            names: declared.iter().map(Param::name).collect(),
            params: plain(call.params()),
            idempotency_key: call.message.idempotency_key.as_deref(),
        };
        let key = place(&mac, &wanted).ok_or(Unapproved::Store(OutcomeStoreError::Unavailable))?;
        for _ in 0..ATTEMPTS {
            let found = self.store.read(&key).await.map_err(Unapproved::Store)?;
            let revision = found.as_ref().map_or(0, |(revision, _)| *revision);
            // What is not ours is as good as nothing: a request is made in its place.
            let entry = found.and_then(|(_, content)| Entry::open(&mac, &key, &content));
            let made = match entry {
                Some(entry) if self.lasts(&key, &entry, in_force) && (entry.is_over() || wanted.is_of(&entry)) => {
                    match self.found(&key, revision, entry, &wanted, needs, in_force)? {
                        Ok(ticket) => return Ok(ticket),
                        // The policy asks for other approvals now.
                        Err(mut entry) => {
                            describe(&mut entry, needs, rule, in_force.policy);
                            self.put(&mac, &key, revision, entry, in_force).await
                        }
                    }
                }
                _ => {
                    let ask = Nonce::random().to_text();
                    let text = wanted.text(&ask, in_force.now_s);
                    let mut entry = Entry::new(text, ask, in_force.now_s, who.clone(), call.method().to_owned());
                    describe(&mut entry, needs, rule, in_force.policy);
                    let turn = self.turn(&key);
                    let _turn = turn.lock().await;
                    self.make_room(&mac, &key, in_force).await.map_err(Unapproved::Store)?;
                    self.put(&mac, &key, revision, entry, in_force).await
                }
            };
            match made {
                Ok(entry) => {
                    let standing = standing_of(&entry, in_force, &entry.given);
                    self.tell(&key, &summary(&key, &entry, in_force, &standing), in_force);
                    return Err(pending(&key, &entry, in_force, &standing));
                }
                Err(OutcomeStoreError::Taken) => {}
                Err(error) => return Err(Unapproved::Store(error)),
            }
        }
        Err(Unapproved::Store(OutcomeStoreError::Taken))
    }

    /// What a request means for its call: a ticket, or the request itself if it asks for other approvals than `needs`.
    fn found(
        &self,
        key: &OutcomeKey,
        revision: u64,
        entry: Entry,
        wanted: &Wanted<'_>,
        needs: &[String],
        in_force: InForce<'_>,
    ) -> Result<Result<Ticket, Entry>, Unapproved> {
        let id = id(key);
        if entry.denied.is_some() {
            return Err(Unapproved::Denied { id });
        }
        if let Some(Ran { at, message, .. }) = &entry.ran {
            return Err(Unapproved::Run { id, at: *at, message: message.clone() });
        }
        if entry.needs != needs {
            return Ok(Err(entry));
        }
        // Signatures are only worth checking if enough are said to be there.
        let claimed = standing_of(&entry, in_force, &entry.given);
        if matches!(claimed.0, Standing::Pending { .. }) {
            return Err(pending(key, &entry, in_force, &claimed));
        }
        match self.over.end(key.agent(), &entry.ask, in_force.now_s) {
            Some(End::Ran(Ran { at, message, .. })) => return Err(Unapproved::Run { id, at, message }),
            Some(End::Denied) => return Err(Unapproved::Denied { id }),
            None => {}
        }
        // The text is made of this very call: what the store says that it is about does not count.
        let digest = digest(&wanted.text(&entry.ask, entry.asked_at));
        let holds = |given: &&Given| {
            let verdict = self.judge(given, (&id, &digest), (wanted.who, needs), in_force);
            if let Err(reason) = &verdict
                && let Some(suppressed) = self.lines.check(key.agent())
            {
                let (agent, approver) = (key.agent(), &given.agent);
                tracing::warn!(
                    target: "sealwire::call", %agent, approval = id, %approver, reason, suppressed, "an approval does not hold"
                );
            }
            verdict.is_ok()
        };
        let judged = standing_of(&entry, in_force, entry.given.iter().filter(holds));
        match judged.0 {
            Standing::Approved { until } => {
                let given = |vote: &Vote<'_>| {
                    let (agent, approval) = (vote.agent.to_owned(), vote.approval.to_owned());
                    GivenRecord { agent, approval, at: vote.at }
                };
                let given = judged.2.iter().map(given).collect();
                let (within_s, void_at) = (longest(&entry, in_force).0, void_at(&entry, in_force));
                let (key, names) = (key.clone(), needs.to_vec());
                let summary = Summary { state: "consumed", ..summary(&key, &entry, in_force, &judged) };
                Ok(Ok(Ticket { key, revision, entry, summary, names, given, until, within_s, void_at }))
            }
            // Not written anywhere: another replica may have keys that this one does not have yet.
            Standing::Pending { .. } | Standing::Expired => Err(pending(key, &entry, in_force, &judged)),
        }
    }

    /// Takes note that the call of this approved request begins now. Only after `Ok` may it.
    ///
    /// Cancel safety: if the future is dropped, the approval may be used up.
    pub(super) async fn begin(
        &self,
        ticket: Ticket,
        message: &str,
        verifier: &Verifier,
        now_s: u64,
    ) -> Result<(), Unapproved> {
        let Ticket { key, revision, mut entry, summary, until, within_s, void_at, .. } = ticket;
        let mac = self.mac(verifier).ok_or(Unapproved::Store(OutcomeStoreError::Unavailable))?;
        // Asked again, it is a new request.
        if now_s >= until {
            return Err(Unapproved::Store(OutcomeStoreError::Taken));
        }
        if !self.over.has_room(key.agent()) {
            return Err(Unapproved::Store(OutcomeStoreError::AgentFull));
        }
        let ran = Ran { message: message.to_owned(), at: now_s, until: now_s.saturating_add(within_s) };
        entry.ran = Some(ran.clone());
        let content = entry.seal(&mac, &key);
        // An unanswered change may be stored: then nothing runs, and the approval is lost.
        self.store.replace(&key, revision, content, Duration::from_secs(within_s)).await.map_err(Unapproved::Store)?;
        self.note_spent(&key, &ran);
        if let Some(own) = verifier.service_key() {
            self.news.tell(&key, &summary, &self.endpoint, (&own, now_s));
        }
        match self.over.note(key.agent(), entry.ask, (void_at, now_s), End::Ran(ran)) {
            None => Ok(()),
            // The store said yes twice.
            Some(_) => Err(Unapproved::Run { id: id(&key), at: now_s, message: message.to_owned() }),
        }
    }

    /// Tells those who may decide how a request stands, from now on: as it changes, and as it ends without them.
    pub(super) fn publish_by(&self, outlet: Outlet) {
        self.news.publish_by(outlet);
    }

    fn tell(&self, key: &OutcomeKey, now: &Summary, in_force: InForce<'_>) {
        if let Some(own) = in_force.verifier.service_key() {
            self.news.tell(key, now, &self.endpoint, (&own, in_force.now_s));
        }
    }

    /// Tells of the requests that have come to their end by the clock, as far as this replica has told of them before.
    ///
    /// Cancel safety: those that were being read are not told of.
    pub(super) async fn tell_expired(&self, in_force: InForce<'_>) {
        for (key, deadline) in self.news.over(in_force.now_s) {
            let (Some(mac), Ok(found)) = (self.mac(in_force.verifier), self.store.read(&key).await) else { continue };
            let Some(entry) = found.and_then(|(_, content)| Entry::open(&mac, &key, &content)) else { continue };
            let now = summary(&key, &entry, in_force, &self.judged(&key, &entry, in_force));
            match now.state {
                "expired" => self.tell(&key, &Summary { deadline, ..now }, in_force),
                // Another replica has told of what became of it, or it is a later request of the same call.
                _ => self.news.schedule(&key, &now),
            }
        }
    }

    /// Whether this is what an approver signed, and the approver may approve it, as far as this replica can tell now.
    fn judge(
        &self,
        given: &Given,
        about: (&str, &str),
        of: (&Who, &[String]),
        in_force: InForce<'_>,
    ) -> Result<(), String> {
        let signer = self.signer(&given.evidence, in_force)?;
        Self::judge_signed(given, &signer, about, of, in_force.policy)
    }

    /// Who signed this, and when.
    fn signer(&self, evidence: &Evidence, in_force: InForce<'_>) -> Result<(Caller, u64), String> {
        let attested = in_force.verifier.attest(evidence, &self.endpoint, APPROVE, in_force.now_s);
        attested.map_err(|error| error.to_string())
    }

    fn judge_signed(
        given: &Given,
        (approver, at): &(Caller, u64),
        (id, digest): (&str, &str),
        (who, needs): (&Who, &[String]),
        policy: &PolicySet,
    ) -> Result<(), String> {
        let params = signed_params(&given.evidence).ok_or("it is another message")?;
        let signed: Approve = Params::decode(Some(&params)).map_err(|error| error.to_string())?;
        if policy.approval(&given.approval).is_some_and(Approval::needs_reason) && signed.reason.is_none() {
            return Err("it gives no reason".to_owned());
        }
        let is_this = (signed.id.as_str(), signed.digest.as_str(), signed.approval.as_deref())
            == (id, digest, Some(given.approval.as_str()))
            && signed.decision == Verdict::Approve;
        let is_who = (&approver.agent, &approver.subject, *at) == (&given.agent, &given.subject, given.at);
        if !is_this || !is_who || signed.reason != given.reason {
            return Err("it approves something else".to_owned());
        }
        policy.may_decide(&given.approval, needs, approver, &who.requester()).map_err(|error| error.to_string())?;
        // Whoever may no longer decide anything has not decided this either.
        let now_ms = at.saturating_mul(1000);
        let question = Question { caller: approver, method: APPROVE, params: Some(params.raw()), now_ms };
        if policy.decide(&question).is_allow() { Ok(()) } else { Err(format!("its approver may not call {APPROVE}")) }
    }

    /// Whether the same call belongs to this request, and not to a new one.
    fn lasts(&self, key: &OutcomeKey, entry: &Entry, in_force: InForce<'_>) -> bool {
        let now = in_force.now_s;
        match (&entry.ran, &entry.denied) {
            (Some(ran), _) => now < ran.until,
            (None, Some(denied)) => now < denied.until,
            // An approval that no longer holds has started no clock.
            (None, None) => {
                standing_of(entry, in_force, &entry.given).0 != Standing::Expired
                    || self.judged(key, entry, in_force).0 != Standing::Expired
            }
        }
    }

    /// The standing by the approvals that hold, for what the entry says that it is about.
    fn judged<'a>(&self, key: &OutcomeKey, entry: &'a Entry, in_force: InForce<'a>) -> Judged<'a> {
        let (id, digest) = (id(key), digest(&entry.text));
        let holds = |given: &&Given| self.judge(given, (&id, &digest), (&entry.who, &entry.needs), in_force).is_ok();
        standing_of(entry, in_force, entry.given.iter().filter(holds))
    }

    /// Stores a request; `revision` is that of what it replaces, 0 for nothing.
    async fn put(
        &self,
        mac: &HmacKey,
        key: &OutcomeKey,
        revision: u64,
        mut entry: Entry,
        in_force: InForce<'_>,
    ) -> Result<Entry, OutcomeStoreError> {
        let (within_s, valid_s) = longest(&entry, in_force);
        let end = entry.asked_at.saturating_add(within_s).saturating_add(valid_s);
        let end = entry.denied.as_ref().map_or(end, |denied| denied.until);
        let keep = Duration::from_secs(end.saturating_sub(in_force.now_s).saturating_add(MARGIN_S));
        let content = entry.seal(mac, key);
        if revision > 0 {
            return self.store.replace(key, revision, content, keep).await.map(|_| entry);
        }
        match self.store.claim(key, content, keep).await? {
            Claimed::New { .. } => Ok(entry),
            Claimed::Held { .. } => Err(OutcomeStoreError::Taken),
        }
    }

    /// Whether one more request fits: of this agent, of this agent and subject, and at all. Those that have run take no place.
    async fn make_room(&self, mac: &HmacKey, key: &OutcomeKey, in_force: InForce<'_>) -> Result<(), OutcomeStoreError> {
        let mut keys = self.store.approvals().await?;
        keys.retain(|known| known != key && lock(&self.spent).get(known).is_none_or(|until| *until <= in_force.now_s));
        if fits(&keys, key).is_ok() {
            return Ok(());
        }
        // What other replicas have run is only known from the entries.
        let (own, others): (Vec<_>, Vec<_>) = keys.into_iter().partition(|known| is_of_same(known, key));
        let own = self.open(mac, &own, in_force).await;
        let mut keys = [&own[..], &others].concat();
        if fits(&keys, key).is_err() && self.may_look(in_force.now_s) {
            keys = [own, self.open(mac, &others, in_force).await].concat();
        }
        fits(&keys, key)
    }

    /// Those of the requests that have not run or ended. What cannot be read counts.
    async fn open(&self, mac: &HmacKey, keys: &[OutcomeKey], in_force: InForce<'_>) -> Vec<OutcomeKey> {
        let mut open = Vec::new();
        for some in keys.chunks(READS) {
            let read = join_all(some.iter().map(|key| self.store.read(key))).await;
            for (key, found) in some.iter().zip(read) {
                let is_open = match found.map(|found| found.and_then(|(_, content)| Entry::open(mac, key, &content))) {
                    Err(_) => true,
                    Ok(None) => false,
                    Ok(Some(entry)) => match &entry.ran {
                        Some(ran) => {
                            self.note_spent(key, ran);
                            false
                        }
                        None => self.lasts(key, &entry, in_force),
                    },
                };
                open.extend(is_open.then(|| key.clone()));
            }
        }
        open
    }

    /// Takes note of a call that has begun.
    fn note_spent(&self, key: &OutcomeKey, ran: &Ran) {
        let mut spent = lock(&self.spent);
        if spent.len() < MAX_SPENT {
            spent.insert(key.clone(), ran.until);
        }
    }

    /// Whether all requests may be read to count them: that is a lot of work for a call that is refused.
    fn may_look(&self, now_s: u64) -> bool {
        let mut next = lock(&self.next_look);
        let is_due = now_s >= *next;
        if is_due {
            *next = now_s.saturating_add(LOOK_EVERY_S);
        }
        is_due
    }

    fn turn(&self, key: &OutcomeKey) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(lock(&self.turns).entry(key.agent().clone()).or_default())
    }

    /// The key of the entries' MACs.
    fn mac(&self, verifier: &Verifier) -> Option<HmacKey> {
        self.entry_key.of(&*self.store, verifier, self.endpoint.audience())
    }
}

impl fmt::Debug for Approvals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Approvals").field("store", &self.store).finish_non_exhaustive()
    }
}

/// How far a request has come, how many approvals count for each need, and which these are.
type Judged<'a> = (Standing, Vec<usize>, Vec<Vote<'a>>);

/// The standing of a request if these of its approvals hold.
fn standing_of<'a>(entry: &'a Entry, in_force: InForce<'a>, given: impl IntoIterator<Item = &'a Given>) -> Judged<'a> {
    let needs: Vec<_> = needs(entry, in_force).collect();
    let votes = given.into_iter().map(|given| given.vote(&entry.needs, in_force.policy));
    let judged = standing(&needs, votes, entry.asked_at, in_force.now_s, in_force.verifier.window());
    // One that the policy no longer has can never be given.
    if needs.len() < entry.needs.len() { (Standing::Expired, judged.1, judged.2) } else { judged }
}

fn pending(key: &OutcomeKey, entry: &Entry, in_force: InForce<'_>, (standing, have, _): &Judged<'_>) -> Unapproved {
    Unapproved::Pending(Pending {
        id: id(key),
        state: "pending",
        needs: needed(entry, in_force, have),
        deadline: deadline(*standing, entry),
        retry_after_ms: RETRY_AFTER_MS,
        asked_at: entry.asked_at,
    })
}

/// As lists have it.
fn summary(key: &OutcomeKey, entry: &Entry, in_force: InForce<'_>, (standing, have, _): &Judged<'_>) -> Summary {
    Summary {
        id: id(key),
        state: state(*standing, entry),
        agent: entry.who.agent.clone(),
        subject: entry.who.subject.clone(),
        method: entry.method.clone(),
        asked_at: entry.asked_at,
        deadline: deadline(*standing, entry),
        needs: needed(entry, in_force, have),
    }
}

fn needs<'a>(entry: &'a Entry, in_force: InForce<'a>) -> impl Iterator<Item = Need<'a>> {
    entry.needs.iter().filter_map(move |name| in_force.policy.approval(name)).map(Need::from)
}

/// For how long this request may wait, and for how long it may then be good, in seconds.
fn longest(entry: &Entry, in_force: InForce<'_>) -> (u64, u64) {
    let longest = |of: fn(&Need<'_>) -> u64| needs(entry, in_force).map(|need| of(&need)).max().unwrap_or_default();
    (longest(|need| need.within_s), longest(|need| need.valid_s))
}

/// The second of the Unix epoch from which on no approval of this request counts, by any clock that is not further off than permitted.
fn void_at(entry: &Entry, in_force: InForce<'_>) -> u64 {
    let (within_s, valid_s) = longest(entry, in_force);
    [within_s, valid_s, 2 * in_force.verifier.window().skew_s].into_iter().fold(entry.asked_at, u64::saturating_add)
}

/// Whether both are of one agent and subject.
fn is_of_same(one: &OutcomeKey, other: &OutcomeKey) -> bool {
    one.agent() == other.agent() && one.digest().get(..WHO) == other.digest().get(..WHO)
}

/// Whether `key` fits beside these.
fn fits(keys: &[OutcomeKey], key: &OutcomeKey) -> Result<(), OutcomeStoreError> {
    let free = MAX_REQUESTS.saturating_sub(keys.len());
    let of_agent = keys.iter().filter(|known| known.agent() == key.agent()).count();
    let of_subject = keys.iter().filter(|known| is_of_same(known, key)).count();
    match free {
        0 => Err(OutcomeStoreError::Full),
        // As in the store's own ledger: greedy agents settle at equal shares, and leave one for the next.
        _ if of_agent >= free || of_subject >= MAX_OPEN => Err(OutcomeStoreError::AgentFull),
        _ => Ok(()),
    }
}

/// What it needs, and how much of that there is.
fn needed(entry: &Entry, in_force: InForce<'_>, have: &[usize]) -> Vec<Needed> {
    let needed = |(need, have): (Need<'_>, &usize)| Needed {
        approval: need.name.to_owned(),
        roles: need.roles.to_vec(),
        count: need.count,
        have: *have,
    };
    needs(entry, in_force).zip(have).map(needed).collect()
}

/// When this standing ends.
fn deadline(standing: Standing, entry: &Entry) -> u64 {
    match standing {
        Standing::Pending { deadline } => deadline,
        Standing::Approved { until } => until,
        Standing::Expired => entry.asked_at,
    }
}

fn describe(entry: &mut Entry, needs: &[String], rule: Option<&RuleId>, policy: &PolicySet) {
    entry.needs = needs.to_vec();
    entry.rule = rule.map(ToString::to_string);
    entry.revision = policy.revision().to_string();
}

/// Where the request of a call is: first its agent and subject, then the call. Keyed, since parameters can be guessed.
fn place(mac: &HmacKey, wanted: &Wanted<'_>) -> Option<OutcomeKey> {
    let Wanted { audience, who, method, params, idempotency_key, .. } = wanted;
    let whose = [audience, who.agent.as_str(), who.issuer.as_deref().unwrap_or_default(), &who.subject];
    let what = [*method, idempotency_key.unwrap_or_default(), params.as_ref().map_or("", |params| params.get())];
    let short = |bytes: [u8; 32], characters: usize| b64(bytes).chars().take(characters).collect::<String>();
    let sign = |domain: &[u8], parts: &[&str]| mac.sign(&[domain, &OutcomeKey::scope(parts)].concat());
    let mut digest = short(sign(b"whose\0", &whose), WHO);
    digest += &short(sign(b"what\0", &[&whose[..], &what].concat()), WHAT);
    OutcomeKey::approval(who.agent.clone(), &digest)
}

/// The name by which people know it.
fn id(key: &OutcomeKey) -> String {
    format!("{}.{}", key.agent(), key.digest())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest parameters that wait for approval, in bytes: people have to read them.
const MAX_PARAMS: usize = 32 * 1024;
/// How many requests of one agent and subject wait, are approved, or are denied.
const MAX_OPEN: usize = 10;
/// How many requests there are in all, besides those that have run.
const MAX_REQUESTS: usize = 512;
/// How many of those that have run are known. What is not known to have run takes a place.
const MAX_SPENT: usize = 8_192;
/// How often all requests are read to find those that other replicas have run, at most, in seconds.
const LOOK_EVERY_S: u64 = 10;
/// How many requests are read at a time.
const READS: usize = 8;
/// How many requests a page of `rpc.approvals` looks at, and as how many further calls that is charged.
const PAGE: usize = 32;
pub(super) const CALLS_PER_PAGE: usize = PAGE;
/// How often a request is looked at again because another replica has changed it.
const ATTEMPTS: usize = 8;
/// For how long an entry is kept after it has lost its meaning, in seconds.
const MARGIN_S: u64 = 60;
/// When it may be worth calling again.
const RETRY_AFTER_MS: u64 = 2_000;
/// Characters of a key that say whose request it is, and which.
const WHO: usize = 6;
const WHAT: usize = 22;

/// The parameters and ten approvals fit into an entry of the shared store, even if each character of a JSON text is escaped and each
/// approver's token is as long as it can be (8 KiB with its proof).
const _: () = assert!(2 * MAX_PARAMS + 10 * (2 * MAX_KEPT + 8 * 1024 + 1024) + ROOM + 8 * 1024 <= 208 * 1024 - 512);
