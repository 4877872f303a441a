#![allow(clippy::unwrap_used, reason = "tests")]
use sha2::{Digest as _, Sha256};

use super::*;
use crate::auth::{IssueRequest, TokenIssuer};

const NOW: u64 = 1_790_000_000;

struct Setup {
    issuer: TokenIssuer,
    verifier: TokenVerifier,
    token: String,
    digest: [u8; 32],
}

impl Setup {
    fn new() -> Self {
        let issuer = TokenIssuer::generate("https://idp.example").unwrap();
        let verifier = TokenVerifier::new(TokenRules::new("prod/math"), issuer.key_set().unwrap());
        let token = issuer.issue(&IssueRequest::new("planner", "prod/math", NOW)).unwrap();
        let digest = Sha256::digest(&token).into();
        Self { issuer, verifier, token, digest }
    }

    fn verify(&self, now_s: u64) -> Result<Arc<AccessToken>, TokenError> {
        self.verifier.verify(&self.token, &self.digest, now_s)
    }

    fn is_remembered(&self) -> bool {
        self.verifier.find(self.token.as_bytes()).is_some()
    }

    /// The token as it is remembered, under another text if need be.
    fn verified(&self, text: &str, generation: u64) -> Arc<VerifiedToken> {
        let token = Arc::new(self.verifier.check(&self.token, &self.verifier.keys()).unwrap());
        let (digest, until) = (sha256(text.as_bytes()), NOW + 60);
        Arc::new(VerifiedToken { text: text.into(), digest, token, generation, until, caller: OnceLock::new() })
    }
}

#[test]
fn verified_token_is_answered_from_the_cache() {
    let setup = Setup::new();
    let first = setup.verify(NOW).unwrap();
    assert!(setup.is_remembered());
    let second = setup.verify(NOW + 1).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    // A minute later it is verified again.
    let third = setup.verify(NOW + 60).unwrap();
    assert!(!Arc::ptr_eq(&first, &third));
    assert_eq!(first, third);
}

#[test]
fn refused_token_is_never_remembered() {
    let setup = Setup::new();
    assert_eq!(setup.verify(NOW + 10_000), Err(TokenError::Expired));
    assert!(!setup.is_remembered());
    setup.verifier.replace_denylist(Denylist::default().with_subject("planner", NOW + 1));
    assert_eq!(setup.verify(NOW), Err(TokenError::SubjectDenied("planner".into())));
    assert!(!setup.is_remembered());
    setup.verifier.replace_denylist(Denylist::default());

    let mut forged = setup.token.clone();
    let last = if forged.pop() == Some('A') { 'Q' } else { 'A' };
    forged.push(last);
    let digest = Sha256::digest(&forged).into();
    assert!(setup.verifier.verify(&forged, &digest, NOW).is_err());
    assert!(setup.verifier.find(forged.as_bytes()).is_none());
}

#[test]
fn another_text_with_the_end_of_a_remembered_token_is_judged_by_itself() {
    let setup = Setup::new();
    setup.verify(NOW).unwrap();
    let mut request = IssueRequest::new("planner", "prod/math", NOW);
    request.roles.insert("admin".to_owned());
    let other = setup.issuer.issue(&request).unwrap();
    let ((claims, _), (_, signature)) = (other.rsplit_once('.').unwrap(), setup.token.rsplit_once('.').unwrap());
    let forged = format!("{claims}.{signature}");
    assert_eq!(tail(forged.as_bytes()), tail(setup.token.as_bytes()));
    assert!(setup.verifier.find(forged.as_bytes()).is_none());
    assert_eq!(setup.verifier.present(forged.as_bytes()).digest(), &sha256(forged.as_bytes()));
    assert_eq!(setup.verifier.verify(&forged, &sha256(forged.as_bytes()), NOW), Err(TokenError::Signature));
    assert!(setup.is_remembered());
}

#[test]
fn a_remembered_token_makes_each_key_its_own_caller() {
    let setup = Setup::new();
    let agent = Name::new("planner").unwrap();
    let token = setup.token.as_bytes();
    let judge = || setup.verifier.judge(token, setup.verifier.present(token), NOW).unwrap();
    let first = judge().caller(&agent, "planner.k1", ProofAlgorithm::Hs256);
    assert!(Arc::ptr_eq(&first, &judge().caller(&agent, "planner.k1", ProofAlgorithm::Hs256)));
    let second = judge().caller(&agent, "planner.k2", ProofAlgorithm::EdDsa);
    assert_eq!((second.key.as_str(), second.algorithm), ("planner.k2", ProofAlgorithm::EdDsa));
    assert_eq!(*second, Caller { key: "planner.k2".to_owned(), algorithm: ProofAlgorithm::EdDsa, ..(*first).clone() });
    assert_eq!(*first, *judge().caller(&agent, "planner.k1", ProofAlgorithm::Hs256));
}

#[test]
fn check_in_flight_cannot_put_a_token_past_a_key_reload() {
    let setup = Setup::new();
    // A call has read the key set and checked the token; before it stores the result, the keys are replaced.
    let before = setup.verifier.keys.load_full();
    let checked = setup.verified(&setup.token, before.generation);
    let other = TokenIssuer::generate("https://idp.example").unwrap();
    setup.verifier.replace_keys(other.key_set().unwrap());
    setup.verifier.cache(&checked, NOW);
    assert!(setup.is_remembered());
    assert_eq!(setup.verify(NOW), Err(TokenError::UnknownKey(setup.issuer.kid().into())));
    // Nor does it help that the old key comes back: the entry is older than that set, so the signature is checked.
    setup.verifier.replace_keys(setup.issuer.key_set().unwrap());
    setup.verifier.cache(&checked, NOW);
    assert!(!Arc::ptr_eq(&setup.verify(NOW).unwrap(), &checked.token));
}

#[test]
fn token_about_to_expire_is_not_remembered_beyond_its_end() {
    let setup = Setup::new();
    let exp = setup.verify(NOW).unwrap().expires_at;
    setup.verifier.verified.invalidate_all();
    // Inside the leeway the token still holds, but each time by a full check.
    assert!(setup.verify(exp + 4).is_ok());
    assert!(!setup.is_remembered());
    assert_eq!(setup.verify(exp + 5), Err(TokenError::Expired));
}

#[test]
fn full_cache_costs_time_only() {
    let setup = Setup::new();
    // One of up to 1 KiB, and one four times as large.
    for length in [1_000, 4_000] {
        let known = setup.verified(&setup.token, 0);
        for index in 0..CACHE_CAPACITY + 500 {
            let (token, text) = (Arc::clone(&known.token), format!("{index:0length$}").into_boxed_str());
            let (digest, caller) = (known.digest, OnceLock::new());
            let other = VerifiedToken { text, digest, token, generation: 0, until: NOW + 60, caller };
            setup.verifier.cache(&known, NOW);
            setup.verifier.cache(&Arc::new(other), NOW);
        }
        setup.verifier.verified.run_pending_tasks();
        assert!(setup.verifier.verified.weighted_size() <= CACHE_CAPACITY);
        assert!(setup.verifier.verified.entry_count() <= CACHE_CAPACITY);
        assert!(setup.verify(NOW).is_ok());
    }
}
