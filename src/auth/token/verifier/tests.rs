#![allow(clippy::unwrap_used, reason = "tests")]
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
        self.verifier.verified.contains_key(&self.digest)
    }
}

#[test]
fn verified_token_is_answered_from_the_cache() {
    let setup = Setup::new();
    let first = setup.verify(NOW).unwrap();
    assert!(setup.is_remembered());
    let second = setup.verify(NOW + 1).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    // A minute later it is read again.
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
    assert!(!setup.verifier.verified.contains_key(&digest));
}

#[test]
fn check_in_flight_cannot_put_a_token_past_a_key_reload() {
    let setup = Setup::new();
    // A call has read the key set and checked the token; before it stores the result, the keys are replaced.
    let before = setup.verifier.keys.load_full();
    let checked = Arc::new(setup.verifier.check(&setup.token, &before.set).unwrap());
    let other = TokenIssuer::generate("https://idp.example").unwrap();
    setup.verifier.replace_keys(other.key_set().unwrap());
    setup.verifier.remember(setup.digest, &checked, before.generation, NOW);
    assert!(setup.is_remembered());
    assert_eq!(setup.verify(NOW), Err(TokenError::UnknownKey(setup.issuer.kid().into())));
    // Nor does it help that the old key comes back: the entry is older than that set, so the signature is checked.
    setup.verifier.replace_keys(setup.issuer.key_set().unwrap());
    setup.verifier.remember(setup.digest, &checked, before.generation, NOW);
    assert!(!Arc::ptr_eq(&setup.verify(NOW).unwrap(), &checked));
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
    for index in 0..MAX_REMEMBERED + 500 {
        let token = setup.verifier.verified.get(&setup.digest).map_or_else(
            || Arc::new(setup.verifier.check(&setup.token, &setup.verifier.keys()).unwrap()),
            |known| known.token,
        );
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&index.to_be_bytes());
        setup.verifier.remember(setup.digest, &token, 0, NOW);
        setup.verifier.remember(digest, &token, 0, NOW);
    }
    setup.verifier.verified.run_pending_tasks();
    assert!(setup.verifier.verified.entry_count() <= MAX_REMEMBERED);
    assert!(setup.verify(NOW).is_ok());
}
