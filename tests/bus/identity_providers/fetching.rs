//! When and how often keys are fetched, what is accepted, and what applies while they cannot be fetched.

use std::time::{Duration, Instant};

use sealwire::internal::auth::{
    KeyRules, KeySet, KeySource, KeySourceState, KeySourceStatus, TokenAlgorithm, TokenRules, TokenVerifier,
};
use serde_json::{Value, json};

use super::provider::{Manner, Provider};
use sealwire_testkit::desk::{Agent, Desk, Setup, call, code, recording, text};
use sealwire_testkit::idp::{Idp, NOW};

const ISSUER: &str = "https://idp.example";
const PATIENCE: Duration = Duration::from_secs(60);
const DENIED: Option<i64> = Some(-32010);

/// A desk whose issuer's keys are fetched from a provider.
struct Office {
    desk: Desk,
}

impl Office {
    async fn open(source: KeySource) -> Self {
        let tokens = TokenVerifier::new(TokenRules::new("test/desk"), KeySet::default()).fetch(vec![source]).await;
        let setup = Setup { tokens: Some(tokens), ..Setup::default() };
        Self { desk: Desk::open_as(setup, |service| service.methods(recording().0)) }
    }

    fn status(&self) -> KeySourceStatus {
        self.desk.service.verifier().tokens().key_sources().remove(0)
    }

    /// Calls as `ann` with this token. Returns the code of the refusal, if the call is refused.
    async fn call(&self, token: &str) -> Option<i64> {
        let agent = Agent { token: token.to_owned(), ..self.desk.agent("ann", &[]) };
        let letter = self.desk.letter(&agent, &call("desk/echo", "[1]"));
        let answer = self.desk.service.handle(letter.delivery()).await.expect("an answer");
        code(&text(&answer))
    }

    async fn until(&self, what: &str, holds: impl Fn(&KeySourceStatus) -> bool) {
        let began = Instant::now();
        while !holds(&self.status()) {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}", self.status());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A provider's key, by name.
struct Signer {
    idp: Idp,
    kid: &'static str,
}

impl Signer {
    fn new(kid: &'static str) -> Self {
        Self { idp: Idp::new(), kid }
    }

    fn jwk(&self) -> Value {
        let mut jwk = self.idp.jwk(TokenAlgorithm::Es256);
        jwk["kid"] = json!(self.kid);
        jwk
    }

    fn token(&self) -> String {
        self.token_named(self.kid)
    }

    fn token_named(&self, kid: &str) -> String {
        let header = json!({"alg": "ES256", "typ": "at+jwt", "kid": kid});
        let claims = json!({"iss": ISSUER, "sub": "ann", "aud": "test/desk", "iat": NOW - 10, "exp": NOW + 800,
                            "jti": "t-1", "roles": ["worker"]});
        self.idp.sign(TokenAlgorithm::Es256, &header, &claims)
    }
}

fn keys(of: &[&Signer]) -> Value {
    json!({ "keys": of.iter().map(|signer| signer.jwk()).collect::<Vec<_>>() })
}

/// A source at `/keys` whose keys do not expire by themselves.
fn source(provider: &Provider) -> KeySource {
    KeySource::jwks(KeyRules::new(ISSUER), &provider.url("/keys"), Some(&provider.anchors()), false).unwrap()
}

fn quick(mut source: KeySource) -> KeySource {
    source.refresh = Duration::from_millis(100);
    source.youngest = Duration::from_millis(100);
    source.pause = Duration::from_millis(400);
    source.timeout = Duration::from_secs(5);
    source
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_fetched_from_an_address_and_found_by_discovery() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let office = Office::open(source(&provider)).await;
    assert_eq!(office.call(&signer.token()).await, None);
    let status = office.status();
    assert_eq!((status.state, status.keys, status.fetched, status.failed), (KeySourceState::Current, 1, 1, 0));

    let document = json!({"issuer": ISSUER, "jwks_uri": provider.url("/keys"), "scopes_supported": ["openid"]});
    provider.page("/.well-known/openid-configuration", document);
    let url = provider.url("/.well-known/openid-configuration");
    let found = KeySource::discovery(KeyRules::new(ISSUER), Some(&url), Some(&provider.anchors()), false).unwrap();
    let office = Office::open(found).await;
    assert_eq!(office.call(&signer.token()).await, None);
    assert_eq!(provider.count("/keys"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_new_is_fetched_when_a_caller_brings_it() {
    let (provider, old, new) = (Provider::start().await, Signer::new("old"), Signer::new("new"));
    provider.page("/keys", keys(&[&old]));
    let mut source = source(&provider);
    source.pause = Duration::from_millis(200);
    let office = Office::open(source).await;
    assert_eq!(office.call(&old.token()).await, None);

    provider.page("/keys", keys(&[&new]));
    assert_eq!(office.call(&new.token()).await, DENIED, "the message is not held up");
    office.until("the second fetch", |status| status.fetched == 2).await;
    assert_eq!(office.call(&new.token()).await, None);
    assert_eq!(office.call(&old.token()).await, DENIED, "what the issuer has withdrawn is gone");
}

/// SPEC.md §16.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_unknown_key_ids_causes_one_fetch_per_pause() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let mut slow = source(&provider);
    assert_eq!(slow.pause, Duration::from_secs(30), "what is configured unless a test wants it shorter");
    slow.pause = Duration::from_secs(1);
    let began = Instant::now();
    let office = Office::open(slow).await;
    let mut sent = 0;
    while began.elapsed() < Duration::from_millis(3_500) || sent < 200 || provider.count("/keys") < 2 {
        assert!(began.elapsed() < PATIENCE, "never fetched again");
        let agent = Agent { token: signer.token_named(&format!("none-{sent}")), ..office.desk.agent("ann", &[]) };
        // Also silence, once the hints of this second are used up.
        let refused = office.desk.offer(&office.desk.letter(&agent, &call("desk/echo", "[1]"))).await;
        assert!(refused == DENIED || refused.is_none());
        assert_eq!(office.desk.burnt(), 0, "nothing was admitted");
        sent += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (count, seconds) = (provider.count("/keys"), usize::try_from(began.elapsed().as_secs()).unwrap());
    println!("{sent} messages with unknown key ids in {:?}: {count} fetches", began.elapsed());
    assert!((2..=seconds + 1).contains(&count), "{count} fetches in {seconds} s");
}

/// SPEC.md §16.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_not_proved_himself_causes_no_fetch() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let mut source = source(&provider);
    source.pause = Duration::from_millis(50);
    let office = Office::open(source).await;
    let agent = Agent { token: signer.token_named("none"), ..office.desk.agent("ann", &[]) };
    let letter = office.desk.letter(&agent, &call("desk/echo", "[1]"));
    let (token, proof) = letter.credentials();
    let (claims, _) = proof.rsplit_once('.').unwrap();
    let forged = letter.with_credentials(&token, &format!("{claims}.{}", sealwire_testkit::idp::b64([7; 32])));
    for _ in 0..20 {
        assert_eq!(office.desk.offer(&forged).await, DENIED);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(provider.count("/keys"), 1);
    // The same message with the right proof does.
    assert_eq!(office.desk.offer(&letter).await, DENIED);
    office.until("a fetch", |status| status.fetched == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_says_nothing_holds_up_no_message() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let mut quick = quick(source(&provider));
    quick.timeout = Duration::from_secs(1);
    quick.pause = Duration::from_millis(100);
    let office = Office::open(quick).await;
    provider.manner(Manner::Silent);
    // Each call that waits for a fetch is answered after it; on a busy machine, a fetch may happen to end in between.
    let mut quick = false;
    for _ in 0..10 {
        let asked = provider.count("/keys");
        let began = Instant::now();
        while provider.count("/keys") == asked {
            assert!(began.elapsed() < PATIENCE, "asked again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // A fetch is under way now, and will be for a second.
        let failed = office.status().failed;
        assert_eq!(office.call(&signer.token()).await, None);
        assert_eq!(office.call(&signer.token_named("none")).await, DENIED);
        quick = office.status().failed == failed;
        if quick {
            break;
        }
    }
    assert!(quick, "a message waits for the provider");
    office.until("the bound on a fetch", |status| status.failed > 0).await;
    assert!(office.status().error.unwrap().contains("no whole answer within"));
    assert_eq!((office.status().state, office.call(&signer.token()).await), (KeySourceState::Kept, None));
}

/// SPEC.md §16.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_good_keys_are_kept_for_a_bounded_time_and_then_refused() {
    let (mut provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let mut source = quick(source(&provider));
    // Long enough for a busy machine to look at what is kept.
    source.keep = Duration::from_secs(10);
    let office = Office::open(source).await;
    provider.die().await;
    office.until("a failure", |status| status.failed > 0).await;
    assert_eq!((office.status().state, office.call(&signer.token()).await), (KeySourceState::Kept, None));
    office.until("the end", |status| status.state == KeySourceState::Expired).await;
    let status = office.status();
    assert_eq!((status.keys, status.age_s), (0, None));
    assert!(status.error.is_some(), "{status:?}");
    assert_eq!(office.call(&signer.token()).await, DENIED, "also a token that was verified before");
    // The very same set is good again once the issuer serves it.
    provider.listen().await;
    office.until("the return", |status| status.state == KeySourceState::Current).await;
    assert_eq!(office.call(&signer.token()).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_is_not_there_at_the_start_is_asked_again() {
    let (mut provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    provider.die().await;
    let office = Office::open(quick(source(&provider))).await;
    assert_eq!((office.status().state, office.call(&signer.token()).await), (KeySourceState::Missing, DENIED));
    provider.listen().await;
    office.until("the first keys", |status| status.state == KeySourceState::Current).await;
    assert_eq!(office.call(&signer.token()).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_provider_may_not_answer_changes_nothing() {
    let (provider, signer, other) = (Provider::start().await, Signer::new("one"), Signer::new("two"));
    provider.page("/keys", keys(&[&signer]));
    let office = Office::open(quick(source(&provider))).await;
    let http = |head: &str, body: &str| {
        Manner::Say(format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
    };
    let mut leaked = keys(&[&signer, &other]);
    leaked["keys"][1]["d"] = json!("c2VjcmV0LXBhcnQtb2YtdGhlLWtleQ");
    let good = keys(&[&other]).to_string();
    let long = format!("{good}{}", " ".repeat(300 * 1024));
    for (manner, says) in [
        (http("302 Found\r\nLocation: http://127.0.0.1:1/", ""), "redirects are not followed"),
        (http("500 Oops", &good), "status 500"),
        (http("204 No Content", ""), "status 204"),
        (http("200 OK", "<html>"), "key set"),
        (http("200 OK", r#"{"keys":[]}"#), "empty"),
        (http("200 OK", r#"{"keys":[],"keys":[]}"#), "key set"),
        (http("200 OK", &leaked.to_string()), "refused as a whole"),
        (http("200 OK", &long), "longer than"),
        (Manner::Say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n".to_vec()), "keys`"),
        (Manner::Say(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{".to_vec()), "keys`"),
        (Manner::Say(vec![0xff; 5_000]), "keys`"),
        (Manner::Say([&b"HTTP/1.1 200 OK\r\nX: "[..], &[b'x'; 100_000]].concat()), "keys`"),
        (Manner::Say(Vec::new()), "keys`"),
    ] {
        provider.manner(manner);
        office.until(says, |status| status.error.as_deref().is_some_and(|error| error.contains(says))).await;
        let error = office.status().error.unwrap();
        assert!(error.len() < 600 && !error.contains("c2VjcmV0"), "{error}");
        assert_eq!((office.status().state, office.call(&signer.token()).await), (KeySourceState::Kept, None), "{says}");
        assert_eq!(office.call(&other.token()).await, DENIED, "{says}");
        provider.manner(Manner::Serve);
        office.until("good again", |status| status.state == KeySourceState::Current).await;
    }
}

/// What servers put around a key set, and in front of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_set_is_read_as_providers_send_it() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    let good = keys(&[&signer]).to_string();
    let marked = format!("\u{feff}{good}");
    let pretty = format!("{:#}\r\n", keys(&[&signer])).replace('\n', "\r\n");
    let wide: Vec<u8> = [0xfeff].into_iter().chain(good.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    for (head, body, fault) in [
        ("Content-Type: application/json\r\n", good.as_bytes(), None),
        ("Content-Type: application/jwk-set+json\r\n", good.as_bytes(), None),
        ("Content-Type: application/json; charset=utf-8\r\n", good.as_bytes(), None),
        ("Content-Type: text/plain\r\n", good.as_bytes(), None),
        ("Content-Type: application/octet-stream\r\n", good.as_bytes(), None),
        ("Content-Type: nonsense\r\n", good.as_bytes(), None),
        ("", good.as_bytes(), None),
        ("Content-Encoding: identity\r\n", good.as_bytes(), None),
        ("", marked.as_bytes(), None),
        ("", pretty.as_bytes(), None),
        ("Content-Encoding: gzip\r\n", b"\x1f\x8b\x08\0\0\0\0\0", Some("compressed (gzip)")),
        ("Content-Encoding: deflate\r\n", b"\x78\x9c\xab", Some("compressed (deflate)")),
        ("Content-Encoding: br\r\n", b"\x8b", Some("compressed (br)")),
        ("", b"\x1f\x8b\x08\xff\xff\xff", Some("not UTF-8")),
        ("", &wide, Some("UTF-16")),
        ("Content-Type: text/html\r\n", b" <!doctype html><title>Log in</title>", Some("a web page")),
        ("", b"", Some("is not valid JSON")),
    ] {
        let mut answer = format!("HTTP/1.1 200 OK\r\n{head}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
        answer.extend_from_slice(body);
        provider.manner(Manner::Say(answer));
        let office = Office::open(source(&provider)).await;
        let error = office.status().error;
        match fault {
            None => assert_eq!((error, office.call(&signer.token()).await), (None, None), "{head} {body:?}"),
            Some(fault) => {
                let error = error.unwrap();
                assert!(error.contains(fault) && error.contains("/keys`"), "{head} {body:?}: {error}");
                assert_eq!(office.call(&signer.token()).await, DENIED);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let (provider, other, signer) = (Provider::start().await, Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    for (url, ca) in [
        (provider.url("/keys"), Some(other.anchors())),
        (provider.url("/keys"), None),
        // The right certificate, used for another name.
        (provider.url("/keys").replace("localhost", "127.0.0.1"), Some(provider.anchors())),
    ] {
        let source = KeySource::jwks(KeyRules::new(ISSUER), &url, ca.as_deref(), false).unwrap();
        let office = Office::open(source).await;
        assert!(office.status().error.unwrap().contains("certificate"), "{url}");
        assert_eq!(office.call(&signer.token()).await, DENIED, "{url}");
    }
    assert_eq!(provider.count("/keys"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_discovery_document_is_the_issuers_own_and_leads_to_https() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let good = provider.url("/keys");
    for (document, says) in [
        (json!({"issuer": "https://idp.example/", "jwks_uri": good}), "is the document of the issuer"),
        (json!({"issuer": "https://other.example", "jwks_uri": good}), "is the document of the issuer"),
        (json!({ "jwks_uri": good }), "is the document of the issuer"),
        (json!({ "issuer": ISSUER }), "names no jwks_uri"),
        (json!({"issuer": ISSUER, "jwks_uri": ["a"]}), "names no jwks_uri"),
        (json!({"issuer": ISSUER, "jwks_uri": "http://127.0.0.1:1/keys"}), "is not https"),
        (json!({"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"}), "is not an address"),
        (json!([]), "is not a JSON object"),
    ] {
        provider.page("/doc", &document);
        let url = provider.url("/doc");
        let source = KeySource::discovery(KeyRules::new(ISSUER), Some(&url), Some(&provider.anchors()), false).unwrap();
        let office = Office::open(source).await;
        let error = office.status().error.unwrap();
        assert!(error.contains(says), "{document}: {error}");
        assert_eq!(office.call(&signer.token()).await, DENIED);
    }
    assert_eq!(provider.count("/keys"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_long_keys_are_current_is_the_issuers_word_within_bounds() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let source = source(&provider);
    let bounds = (source.refresh.as_secs(), source.youngest.as_secs(), source.oldest.as_secs(), source.keep.as_secs());
    assert_eq!(bounds, (600, 60, 86_400, 86_400));
    // An issuer that wants its keys fetched all the time, and one that never does.
    for (cache, youngest, oldest, least) in [
        ("max-age=0", Duration::from_millis(300), Duration::from_secs(60), 3),
        ("public, max-age=31536000", Duration::from_millis(1), Duration::from_millis(300), 3),
        ("max-age=3600", Duration::from_millis(1), Duration::from_secs(86_400), 1),
    ] {
        provider.cache(cache);
        let mut source = source.clone();
        (source.youngest, source.oldest, source.refresh) = (youngest, oldest, Duration::from_millis(1));
        let (before, began) = (provider.count("/keys"), Instant::now());
        let office = Office::open(source).await;
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        while provider.count("/keys") - before < least {
            assert!(began.elapsed() < PATIENCE, "{cache}: too seldom");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(office);
        let count = provider.count("/keys") - before;
        // Not before nine tenths of the time between two: on a busy machine, two seconds take longer.
        let most = if least == 1 { 1 } else { 2 + usize::try_from(began.elapsed().as_millis() / 270).unwrap() };
        assert!((least..=most).contains(&count), "{cache}: {count} fetches in {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetching_ends_with_the_service() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let office = Office::open(quick(source(&provider))).await;
    office.until("a few fetches", |status| status.fetched > 2).await;
    drop(office);
    // A request that is on its way may still arrive; otherwise, there would be one every 100 ms.
    let began = Instant::now();
    loop {
        let count = provider.count("/keys");
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        if provider.count("/keys") == count {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "it goes on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_files_are_exchanged_beside_fetched_ones() {
    let (provider, signer) = (Provider::start().await, Signer::new("one"));
    provider.page("/keys", keys(&[&signer]));
    let office = Office::open(source(&provider)).await;
    let own = office.desk.agent("ann", &[]).token;
    assert_eq!(office.call(&own).await, DENIED);
    let tokens = office.desk.service.verifier().tokens();
    tokens.replace_keys(office.desk.issuer.key_set().unwrap());
    let own = office.desk.agent("ann", &["worker"]).token;
    assert_eq!((office.call(&own).await, office.call(&signer.token()).await), (None, None));
    tokens.replace_keys(KeySet::default());
    assert_eq!((office.call(&own).await, office.call(&signer.token()).await), (DENIED, None));
}
