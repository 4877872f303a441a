//! docs/identity-providers.md: each provider's configuration exactly as on the page, tokens and keys in the shapes that the
//! provider documents, and everything around them as an operator has it: files, HTTPS, discovery.

use std::path::Path;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use sealwire::configure::AgentKey;
use sealwire::internal::auth::{KeyEntry, KeyRingFile, TokenAlgorithm};
use sealwire::internal::files::write_secret;
use sealwire::internal::wire::{Endpoint, RequestSigner};
use sealwire::serve::Delivery;
use sealwire::{Clock as _, Config, Ctx, Name, Router, RpcError, Service, SystemClock};
use serde_json::{Value, json};

use super::provider::Provider;
use sealwire_testkit::desk::text;
use sealwire_testkit::idp::Idp;
use sealwire_testkit::page;
use sealwire_testkit::site::sign;

const PAGE: &str = include_str!("../../../docs/identity-providers.md");

/// The configuration under a heading of the page.
fn configuration(heading: &str) -> String {
    page::blocks(page::section(PAGE, heading)).find(|block| block.info == "toml").expect(heading).text()
}

/// What a provider's documentation shows, and the variants of it that must be refused.
struct Shape {
    shape: Value,
    idp: Idp,
    provider: Provider,
    /// The issuer's URL on this machine.
    issuer: String,
}

impl Shape {
    async fn of(shape: &str) -> Self {
        let (shape, idp, provider): (Value, _, _) =
            (serde_json::from_str(shape).unwrap(), Idp::new(), Provider::start().await);
        let issuer = shape["issuer"].as_str().unwrap();
        let host = issuer.strip_prefix("https://").unwrap().split('/').next().unwrap();
        let issuer = issuer.replace(host, &format!("localhost:{}", provider.port));
        let keys = shape["keys"].as_array().unwrap().iter().map(|key| public(&idp, key.clone())).collect::<Vec<_>>();
        provider.page("/keys", json!({ "keys": keys }));
        let path = issuer.trim_end_matches('/').strip_prefix(&provider.url("")).unwrap().to_owned();
        let document = json!({ "issuer": issuer, "jwks_uri": provider.url("/keys") });
        provider.page(&format!("{path}/.well-known/openid-configuration"), document);
        Self { shape, idp, provider, issuer }
    }

    /// The token of the documentation with the changes in `change`; `null` removes a member.
    fn token(&self, change: &Value) -> String {
        let merged = |name: &str| {
            let mut members = self.shape[name].as_object().unwrap().clone();
            for (name, value) in change[name].as_object().into_iter().flatten() {
                members.insert(name.clone(), value.clone());
            }
            members.retain(|_, value| !value.is_null());
            members
        };
        let (header, mut claims) = (merged("header"), merged("claims"));
        let lifetime = change["lifetime"].as_u64().or(self.shape["lifetime"].as_u64()).unwrap();
        let now = SystemClock.now_s();
        claims.insert("iss".into(), json!(self.issuer));
        claims.insert("iat".into(), json!(now));
        claims.insert("exp".into(), json!(now + lifetime));
        if self.shape["nbf"] == true {
            claims.insert("nbf".into(), json!(now));
        }
        let algorithm = match header["alg"].as_str().unwrap() {
            "RS256" => TokenAlgorithm::Rs256,
            "PS256" => TokenAlgorithm::Ps256,
            "ES256" => TokenAlgorithm::Es256,
            other => panic!("{other}"),
        };
        self.idp.sign(algorithm, &header.into(), &claims.into())
    }
}

/// A key of the shape, with the members of one of the test's public keys.
fn public(idp: &Idp, mut key: Value) -> Value {
    let Some(material) = key.as_object_mut().unwrap().remove("material") else { return key };
    let jwk = match material.as_str().unwrap() {
        "RS256" => idp.jwk(TokenAlgorithm::Rs256),
        "PS256" => idp.jwk(TokenAlgorithm::Ps256),
        "ES256" => idp.jwk(TokenAlgorithm::Es256),
        other => panic!("{other}"),
    };
    for member in ["kty", "crv", "x", "y", "n", "e"] {
        if let Some(value) = jwk.get(member) {
            key[member] = value.clone();
        }
    }
    key
}

fn agent() -> AgentKey {
    AgentKey::hmac("planner.k1", &[5; 32]).unwrap()
}

fn endpoint() -> Endpoint {
    Endpoint::new(Name::new("prod").unwrap(), Name::new("math").unwrap())
}

/// The service `prod/math` with this issuer.
async fn service(folder: &Path, issuer: &str, policy: &str) -> Service {
    let text = format!(
        "environment = \"prod\"\nservice = \"math\"\n[nats]\nurls = [\"nats://127.0.0.1:1\"]\n[keys]\nring = \"ring.json\"\n\
         {issuer}\n[policy]\nfolder = \"policies\"\n[replay]\nskew_s = 1\n"
    );
    write_secret(&folder.join("sealwire.toml"), &text, true).unwrap();
    let key = agent();
    let entry = KeyEntry::hmac(key.kid(), Name::new("planner").unwrap(), &key.derived(endpoint().audience()).unwrap());
    let ring = KeyRingFile { audience: "prod/math".to_owned(), keys: vec![entry] };
    write_secret(&folder.join("ring.json"), &serde_json::to_string(&ring).unwrap(), true).unwrap();
    std::fs::create_dir_all(folder.join("policies")).unwrap();
    std::fs::write(folder.join("policies/policy.toml"), format!("[role.calc]\nallow = [\"math/*\"]\n{policy}"))
        .unwrap();
    let config = Config::load(folder.join("sealwire.toml")).unwrap_or_else(|error| panic!("{error}"));
    config.check().unwrap_or_else(|error| panic!("{error}"));
    let (builder, _) = config.builder().await.unwrap_or_else(|error| panic!("{error}"));
    let add = |_: Ctx, (a, b): (i64, i64)| async move { Ok::<_, RpcError>(a + b) };
    builder.methods(Router::new(()).method("math/add", add)).build().unwrap_or_else(|error| panic!("{error}"))
}

/// Calls `math/add` as `planner` with this token, and returns the answer; an answer that must be signed is verified.
async fn call(service: &Service, token: &str) -> Value {
    let (subject, reply) = ("rpc.v1.math.planner", "_INBOX.planner.test.1");
    let payload = r#"{"jsonrpc":"2.0","method":"math/add","params":[2,3],"id":1}"#;
    let signer = RequestSigner::new(&agent(), endpoint().audience().clone(), vec![]).unwrap();
    let signed = sign(&signer, subject, reply, payload, token);
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", signed.authorization.as_str());
    let answer = service.handle(Delivery::new(subject, reply, headers, payload)).await.expect("an answer");
    let json: Value = serde_json::from_str(&text(&answer)).unwrap();
    if json["error"]["code"] != -32010 {
        signed
            .expectation
            .accept(answer.to(), answer.headers().unwrap_or(&HeaderMap::new()), answer.payload())
            .unwrap_or_else(|error| panic!("{error}: {json}"));
    }
    json
}

/// The provider's configuration works for its token, and refuses what must be refused.
async fn walk(heading: &str, shape: &str) {
    let shape = Shape::of(shape).await;
    let written = configuration(heading);
    let original = shape.shape["issuer"].as_str().unwrap();
    assert!(written.contains(&format!("issuer = \"{original}\"")), "{heading}: the page has the shape's issuer");
    let here = written.replace(original, &shape.issuer);
    let issuer = here.replacen(
        "discovery = true",
        &format!("discovery = true\ntls_ca = \"{}\"", shape.provider.ca.display()),
        1,
    );
    assert_ne!(here, issuer, "{heading}: by discovery");
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path(), &issuer, shape.shape["policy"].as_str().unwrap_or_default()).await;
    let status = service.verifier().tokens().key_sources().remove(0);
    assert_eq!((status.error, status.left_out as u64), (None, shape.shape["left_out"].as_u64().unwrap()), "{heading}");

    // The guard vouches for messages issued at least a second after its start.
    let (token, began) = (shape.token(&Value::Null), Instant::now());
    let answer = loop {
        let answer = call(&service, &token).await;
        if answer["error"]["code"] != -32011 && answer["error"]["code"] != -32014 {
            break answer;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{heading}: {answer}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(answer["result"], 5, "{heading}: {answer}");
    let refused = shape.shape["refused"].as_array().unwrap();
    assert!(refused.len() >= 5);
    for change in refused {
        let token = shape.token(change);
        assert_ne!(token, shape.token(&Value::Null), "{change}");
        let answer = call(&service, &token).await;
        assert_eq!(answer["error"]["code"], -32010, "{heading}: {change}: {answer}");
    }
    assert_eq!(call(&service, &shape.token(&Value::Null)).await["result"], 5, "{heading}: still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keycloak_works_as_its_page_says() {
    walk("Keycloak", include_str!("keycloak.json")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entra_id_works_as_its_page_says() {
    walk("Microsoft Entra ID", include_str!("entra.json")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth0_works_as_its_page_says() {
    walk("Auth0", include_str!("auth0.json")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spiffe_works_as_its_page_says() {
    walk("SPIFFE", include_str!("spire.json")).await;
}

/// What `Config::check` says about this issuer, in a folder with everything else.
async fn complaint(issuer: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let jwks = json!({"keys": [Idp::shared().jwk(TokenAlgorithm::EdDsa)]}).to_string();
    std::fs::write(folder.path().join("jwks.json"), jwks).unwrap();
    drop(service(folder.path(), "[[tokens.issuer]]\nissuer = \"https://a.example\"\njwks = \"jwks.json\"", "").await);
    let path = folder.path().join("sealwire.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (front, rest) = text.split_once("[[tokens.issuer]]").unwrap();
    let (_, rest) = rest.split_once("[policy]").unwrap();
    write_secret(&path, &format!("{front}{issuer}\n[policy]{rest}"), true).unwrap();
    match Config::load(&path) {
        Ok(config) => config.check().err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_that_is_described_badly_does_not_load() {
    let one = |more: &str| format!("[[tokens.issuer]]\nissuer = \"https://a.example\"\n{more}\n");
    let file = |more: &str| one(&format!("jwks = \"jwks.json\"\n{more}"));
    assert_eq!(complaint(&file("")).await, None);
    assert_eq!(complaint(&one("discovery = true\nrefresh_s = 60\nkeep_s = 60")).await, None);
    let bounded = "may = { agents = [\"*\"], roles = [\"*\"] }";
    let two = format!("{}{}", file(bounded), one(bounded).replace("a.example", "b.example") + "discovery = true");
    assert_eq!(complaint(&two).await, None);
    for (issuer, says) in [
        (one(""), "exactly one of"),
        (file("discovery = true"), "exactly one of"),
        (one("jwks_url = \"https://a.example/k\"\ndiscovery = true"), "exactly one of"),
        (file("keep_s = 60"), "for keys that are fetched"),
        (one("discovery = true\nrefresh_s = 59"), "refresh_s` is 59: write 60 to 86400"),
        (one("discovery = true\nkeep_s = 604801"), "keep_s` is 604801: write 60 to 604800"),
        (one("jwks_url = \"http://a.example/k\""), "is not https"),
        (one("jwks_url = \"http://127.0.0.1:1/k\""), "is not https"),
        (one("jwks_url = \"https://me:hunter2@a.example/k\""), "user name"),
        (one("discovery = true\ntls_ca = \"jwks.json\""), "no certificate"),
        (one("discovery = true\ntls_ca = \"none.pem\""), "`tls_ca` names a file that is not there"),
        (file("typ = []"), "accepts nothing"),
        (file("typ = [\"jwt\"]"), "typ"),
        (file("header = [\"jku\"]"), "header"),
        (file("header = [\"crit\"]"), "header"),
        (file("algorithm = \"none\""), "algorithm"),
        (file("roles = { claim = \"a..b\" }"), "issuer[0].roles.claim"),
        (file("roles = { map = { a = \"not a role\" } }"), "cannot be a role"),
        (file("may = { agents = [\"*-a\"] }"), "issuer[0].may.agents"),
        (file("may = { agent = [\"a\"] }"), "agent"),
        (format!("{}{}", file(""), file("")), "twice"),
        (two.replace(bounded, ""), "say for whom each may speak"),
    ] {
        let said = complaint(&issuer).await.unwrap_or_else(|| panic!("{issuer} loads"));
        assert!(said.contains(says) && !said.contains("hunter2"), "{issuer}: {said}");
    }
}
