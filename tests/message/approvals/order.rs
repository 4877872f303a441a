//! What is looked at before people are asked, and again before what they said is used up.

use std::sync::Arc;
use std::time::Duration;

use sealwire::configure::{FileTrust, RevocationConfig};
use sealwire::internal::auth::{
    OperatorKey, OutcomeStore, Revocation, RevocationKind as Kind, RevocationList, Revocations, SignedList, TokenRules,
    TokenVerifier,
};
use sealwire::{Clock as _, Idempotent};
use sealwire_testkit::admits::Admits;
use sealwire_testkit::desk::{Runs, Setup, call, recording};
use serde_json::{Value, json};

use super::stores::Store;
use super::*;

/// A service whose operator can revoke methods, and what it keeps.
struct Site {
    /// Its issuer's desk.
    issuer: Desk,
    desk: Desk,
    runs: Arc<Runs>,
    store: Arc<Store>,
    key: OperatorKey,
    list: RevocationList,
    _folder: tempfile::TempDir,
}

impl Site {
    fn open() -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), OperatorKey::generate("op-1").unwrap());
        let list = RevocationList::first(Name::new("test").unwrap(), 0);
        let state = folder.path().join("state");
        let config = json!({
            "operator": [{ "kid": "op-1", "x": key.x() }],
            "serve_stale": true,
            "state": state,
            "nats": { "urls": ["nats://127.0.0.1:1"] },
        });
        let config: RevocationConfig = serde_json::from_value(config).unwrap();
        // What is in the file at the start holds without a bucket.
        std::fs::write(&state, SignedList::new(&list).signed(&key).to_text().unwrap()).unwrap();
        let revocations = Revocations::open(&config, &Name::new("test").unwrap(), &FileTrust::default()).unwrap();
        let (issuer, _) = super::desk();
        let tokens = TokenVerifier::new(TokenRules::new("test/desk"), issuer.issuer.key_set().unwrap());
        let tokens = tokens.with_revocations(Arc::new(revocations));
        let (router, runs) = recording();
        let router = router.idempotent("desk/echo", Idempotent::keep(Duration::from_secs(3_600)));
        let store = Arc::<Store>::default();
        let guard = Admits::over(Arc::clone(&store) as Arc<dyn OutcomeStore>);
        let desk =
            desk_with(router, Setup { policy: POLICY, guard: Some(guard), tokens: Some(tokens), ..Setup::default() });
        issuer.clock.set_ms(desk.clock.now_ms());
        Self { issuer, desk, runs, store, key, list, _folder: folder }
    }

    fn put(&mut self, list: RevocationList) {
        self.list = list;
        let text = SignedList::new(&self.list).signed(&self.key).to_text().unwrap();
        self.desk.service.verifier().revocations().offer(text.as_bytes());
    }

    fn revoke(&mut self) {
        let (kind, name) = (Kind::Method, "desk/echo".to_owned());
        self.put(self.list.revoke(Revocation { kind, name, until: None, at_ms: 0, reason: String::new() }).unwrap());
    }

    fn restore(&mut self) {
        self.put(self.list.restore(Kind::Method, "desk/echo", 0).unwrap());
    }

    fn ann(&self) -> Agent {
        self.issuer.agent("ann", &["worker"])
    }

    async fn echo(&self) -> Value {
        ask(&self.desk, &self.ann(), "desk/echo", LARGE).await
    }

    async fn keyed(&self) -> Value {
        send(&self.desk, &self.desk.keyed(&self.ann(), "k", &call("desk/echo", LARGE))).await
    }

    async fn requests(&self) -> usize {
        let listed = ask(&self.desk, &approver(&self.issuer, "tess"), "rpc.approvals", "{}").await;
        listed["result"]["approvals"].as_array().unwrap_or_else(|| panic!("{listed}")).len()
    }

    async fn approve(&self, id: &str) {
        for name in ["tess", "tom"] {
            let answer = decide(&self.desk, &approver(&self.issuer, name), id, "two-treasurers", "approve").await;
            assert!(answer["result"].is_object(), "{answer}");
        }
    }
}

#[tokio::test]
async fn nobody_is_asked_about_a_call_that_cannot_run() {
    let mut site = Site::open();
    let ann = site.ann();
    // Too late: it may not start any more.
    let (desk, reply) = (&site.desk, format!("{}r1", site.desk.endpoint.inbox(&ann.name)));
    let echo = call("desk/echo", LARGE);
    let late = desk.letter_to(&ann, &desk.endpoint.subject(&ann.name), &reply, &echo, Some(Duration::from_secs(2)));
    desk.clock.advance_ms(2_000);
    assert_eq!(send(desk, &late).await["error"]["code"], -32003);
    // A key covers one call, so none of a batch.
    let batch = desk.keyed(&ann, "k", &format!("[{echo},{echo}]"));
    let answers = send(desk, &batch).await;
    assert_eq!((&answers[0]["error"]["code"], &answers[1]["error"]["code"]), (&json!(-32600), &json!(-32600)));
    site.revoke();
    let revoked = site.echo().await;
    assert_eq!(revoked["error"]["code"], -32002, "{revoked}");
    assert!(revoked["error"]["message"].as_str().unwrap().contains("revoked"), "{revoked}");
    assert_eq!((site.requests().await, site.runs.count()), (0, 0));
    site.restore();
    pending(&site.echo().await);
}

#[tokio::test]
async fn a_revoked_method_does_not_answer_with_what_it_did_before() {
    let mut site = Site::open();
    site.approve(&pending(&site.keyed().await)).await;
    assert_eq!(site.keyed().await["result"]["amount"], 100);
    site.revoke();
    assert_eq!(site.keyed().await["error"]["code"], -32002);
    site.restore();
    assert_eq!(site.keyed().await["idempotent_replay"], true);
    assert_eq!(site.runs.count(), 1);
}

/// Its idempotency key is claimed first, and that takes a while.
#[tokio::test]
async fn a_call_that_may_no_longer_start_leaves_its_approval_to_the_next() {
    for is_revoked in [true, false] {
        let mut site = Site::open();
        site.approve(&pending(&site.keyed().await)).await;
        let (clock, revocations) =
            (Arc::clone(&site.desk.clock), Arc::clone(site.desk.service.verifier().revocations()));
        let (before, now_ms) = (site.list.clone(), clock.now_ms());
        if is_revoked {
            // Prepared here, and in force while the key is claimed.
            let (kind, name) = (Kind::Method, "desk/echo".to_owned());
            site.list = before.revoke(Revocation { kind, name, until: None, at_ms: 0, reason: String::new() }).unwrap();
            let text = SignedList::new(&site.list).signed(&site.key).to_text().unwrap();
            site.store.at_next_claim(move || drop(revocations.offer(text.as_bytes())));
        } else {
            site.store.at_next_claim(move || clock.advance_ms(31_000));
        }
        let refused = site.keyed().await;
        let code = if is_revoked { -32002 } else { -32003 };
        assert_eq!(refused["error"]["code"], code, "{refused}");
        if is_revoked {
            site.restore();
        } else {
            site.desk.clock.set_ms(now_ms);
        }
        assert_eq!(site.runs.count(), 0);
        assert_eq!(site.keyed().await["result"]["amount"], 100);
        assert_eq!(site.runs.count(), 1);
    }
}
