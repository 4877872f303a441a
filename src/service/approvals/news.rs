//! What those who may decide are told of requests as things happen to them.
//! Never says more of a call than lists do, and never waits: what finds no room is not told.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use serde::Serialize;

use super::summary::Summary;
use super::unapproved::Needed;
use crate::auth::OutcomeKey;
use crate::name::Name;
use crate::wire::{ApprovalNews, Endpoint, HeaderBlock, ServiceKey};

/// Publishes on a subject, if there is room for it now.
pub(in crate::service) type Outlet = Arc<dyn Fn(&str, &HeaderBlock, &[u8]) + Send + Sync>;

/// What is published, and where. Without an outlet, nothing is kept.
pub(super) struct News {
    outlet: Mutex<Option<Outlet>>,
    /// By the agent that calls.
    rate: DefaultKeyedRateLimiter<Name>,
    /// Until when the requests of which this replica has told wait, or may run, in seconds since the Unix epoch.
    due: Mutex<HashMap<OutcomeKey, u64>>,
}

/// The payload.
#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    service: &'a Name,
    state: &'a str,
    agent: &'a Name,
    method: &'a str,
    asked_at: u64,
    deadline: u64,
    needs: &'a [Needed],
}

impl News {
    pub(super) fn new() -> Self {
        let positive = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(positive(PER_SECOND)).allow_burst(positive(BURST));
        Self { outlet: Mutex::default(), rate: RateLimiter::dashmap(quota), due: Mutex::default() }
    }

    /// Publishes there from now on.
    pub(super) fn publish_by(&self, outlet: Outlet) {
        *lock(&self.outlet) = Some(outlet);
    }

    /// Tells those whose roles the request needs.
    pub(super) fn tell(&self, key: &OutcomeKey, now: &Summary, endpoint: &Endpoint, by: (&ServiceKey, u64)) {
        let Some(outlet) = lock(&self.outlet).clone() else { return };
        self.schedule(key, now);
        if self.rate.check_key(key.agent()).is_err() {
            return;
        }
        let Summary { id, state, agent, method, asked_at, deadline, needs, .. } = now;
        let (service, asked_at, deadline) = (endpoint.service(), *asked_at, *deadline);
        let message = Message { id, service, state, agent, method, asked_at, deadline, needs };
        let Ok(payload) = serde_json::to_vec(&message) else { return };
        let roles: BTreeSet<&String> = needs.iter().flat_map(|need| &need.roles).collect();
        for subject in roles.into_iter().filter_map(|role| endpoint.approvals_subject(role)).take(MAX_ROLES) {
            let news = ApprovalNews { audience: endpoint.audience(), subject: &subject, payload: &payload };
            outlet(&subject, &news.sign(by.0, by.1), &payload);
        }
    }

    /// Takes note of when it ends by itself.
    pub(super) fn schedule(&self, key: &OutcomeKey, now: &Summary) {
        let mut due = lock(&self.due);
        if !matches!(now.state, "pending" | "approved") {
            due.remove(key);
        } else if due.len() < MAX_DUE || due.contains_key(key) {
            due.insert(key.clone(), now.deadline);
        }
    }

    /// Those whose time is over, and when it was. Each is returned once.
    pub(super) fn over(&self, now_s: u64) -> Vec<(OutcomeKey, u64)> {
        lock(&self.due).extract_if(|_, deadline| *deadline <= now_s).collect()
    }

    pub(super) fn tidy(&self) {
        self.rate.retain_recent();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("News").field("due", &lock(&self.due).len()).finish_non_exhaustive()
    }
}

/// How much is told of one agent's requests, sustained and at once: all that happens to ten of them, each approved by several.
const PER_SECOND: u32 = 4;
const BURST: u32 = 64;
/// To how many roles a message goes: each is one signature.
const MAX_ROLES: usize = 16;
/// The ends of how many requests are watched: of as many as there are.
const MAX_DUE: usize = 512;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn key(agent: &str, digest: &str) -> OutcomeKey {
        OutcomeKey::approval(Name::new(agent).unwrap(), digest).unwrap()
    }

    fn summary(state: &'static str, roles: &[String]) -> Summary {
        let needs = vec![Needed { approval: "two".to_owned(), roles: roles.to_vec(), count: 2, have: 1 }];
        let agent = Name::new("ann").unwrap();
        let (id, subject, method) = ("ann.x".to_owned(), "user-42".to_owned(), "bank/transfer".to_owned());
        Summary { id, state, agent, subject, method, asked_at: 10, deadline: 20, needs }
    }

    /// What was published of `times` events, as subjects and payloads.
    fn told(news: &News, of: &OutcomeKey, now: &Summary, times: usize) -> Vec<(String, String)> {
        let endpoint = Endpoint::new(Name::new("prod").unwrap(), Name::new("bank").unwrap());
        let own = ServiceKey::new("svc:prod/bank:1", endpoint.audience(), [1; 32]).unwrap();
        let published: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let to = Arc::clone(&published);
        news.publish_by(Arc::new(move |subject, headers, payload| {
            let audience = endpoint_audience();
            let this = ApprovalNews { audience: &audience, subject, payload };
            this.accept(headers, &[ServiceKey::new("svc:prod/bank:1", &audience, [1; 32]).unwrap().public()]).unwrap();
            to.lock().unwrap().push((subject.to_owned(), String::from_utf8(payload.to_vec()).unwrap()));
        }));
        for _ in 0..times {
            news.tell(of, now, &endpoint, (&own, 15));
        }
        std::mem::take(&mut published.lock().unwrap())
    }

    fn endpoint_audience() -> crate::wire::Audience {
        crate::wire::Audience::parse("prod/bank").unwrap()
    }

    #[test]
    fn each_role_is_told_once_and_neither_parameters_nor_the_subject() {
        let roles = ["officer", "treasurer", "no subject", "treasurer"].map(str::to_owned);
        let told = told(&News::new(), &key("ann", "x"), &summary("pending", &roles), 1);
        let subjects: Vec<&str> = told.iter().map(|(subject, _)| subject.as_str()).collect();
        assert_eq!(subjects, ["rpc.v1-approvals.bank.officer", "rpc.v1-approvals.bank.treasurer"]);
        let expected = concat!(
            r#"{"id":"ann.x","service":"bank","state":"pending","agent":"ann","method":"bank/transfer","asked_at":10,"#,
            r#""deadline":20,"needs":[{"approval":"two","roles":["officer","treasurer","no subject","treasurer"],"#,
            r#""count":2,"have":1}]}"#
        );
        assert_eq!(told[0].1, expected);
    }

    #[test]
    fn an_agent_that_floods_is_told_of_to_a_bound_and_others_are_not_held_back() {
        let news = News::new();
        let roles: Vec<String> = (0..40).map(|role| format!("role-{role}")).collect();
        let flooded = told(&news, &key("ann", "x"), &summary("pending", &roles[..1]), 1_000);
        assert!((64..80).contains(&flooded.len()), "{}", flooded.len());
        assert_eq!(told(&news, &key("bob", "x"), &summary("pending", &roles), 1).len(), MAX_ROLES);
    }

    #[test]
    fn the_end_of_a_request_is_due_once_and_not_if_it_is_decided() {
        let news = News::new();
        let roles = ["treasurer".to_owned()];
        told(&news, &key("ann", "x"), &summary("pending", &roles), 1);
        told(&news, &key("ann", "y"), &summary("pending", &roles), 1);
        told(&news, &key("ann", "y"), &summary("denied", &roles), 1);
        assert!(news.over(19).is_empty());
        assert_eq!(news.over(20), [(key("ann", "x"), 20)]);
        assert!(news.over(30).is_empty());
        for digest in 0..2 * MAX_DUE {
            news.schedule(&key("ann", &digest.to_string()), &summary("approved", &roles));
        }
        assert_eq!(news.over(20).len(), MAX_DUE);
        // Nobody listens.
        let silent = News::new();
        let endpoint = Endpoint::new(Name::new("prod").unwrap(), Name::new("bank").unwrap());
        let own = ServiceKey::new("svc:prod/bank:1", endpoint.audience(), [1; 32]).unwrap();
        silent.tell(&key("ann", "x"), &summary("pending", &roles), &endpoint, (&own, 15));
        assert!(silent.over(20).is_empty());
    }
}
