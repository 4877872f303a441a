//! Everything that a man in the middle, or somebody with a key of their own, can change about a good message.
//! Whatever it is, nothing runs.

use sealwire::ServiceLimits;
use sealwire::internal::wire::RequestSigner;
use serde_json::{Value, json};

use sealwire_testkit::desk::{Agent, Desk, Letter, POLICY, b64, call, digest, jws, part, recording};

fn patient() -> ServiceLimits {
    ServiceLimits { hints_per_second: 1_000_000, ..ServiceLimits::default() }
}

/// The proof with one of its parts replaced but not signed again.
fn with_part(proof: &str, position: usize, value: &Value) -> String {
    let mut parts: Vec<String> = proof.split('.').map(str::to_owned).collect();
    parts[position] = b64(value.to_string().as_bytes());
    parts.join(".")
}

/// Every field of a message, changed one at a time by somebody without a key.
fn mutations(good: &Letter, broader_token: &str, other: &Letter) -> Vec<(String, Letter)> {
    let (token, proof) = good.credentials();
    let mut all = Vec::new();
    let mut add = |what: &str, change: &dyn Fn(&mut Letter)| {
        let mut letter = good.clone();
        change(&mut letter);
        all.push((what.to_owned(), letter));
    };
    for subject in
        ["rpc.v1.desk.bob", "rpc.v1.desk.ann.desk.echo", "rpc.v1.other.ann", "rpc.v2.desk.ann", "rpc.v1.desk"]
    {
        add("subject", &|letter| letter.subject = subject.to_owned());
    }
    for reply in ["", "_INBOX.ann.r2", "_INBOX.bob.r1", "$JS.API.STREAM.DELETE.x", "rpc.v1.desk.ann", "_INBOX.ann.r1.x"]
    {
        add("reply", &|letter| letter.reply = reply.to_owned());
    }
    for at in 0..good.payload.len() {
        add("payload byte", &|letter| letter.payload[at] ^= 1);
    }
    add("payload white space", &|letter| letter.payload.push(b' '));
    add("payload cut", &|letter| letter.payload.truncate(letter.payload.len() - 1));
    add("payload as a batch", &|letter| letter.payload = [b"[".as_slice(), &good.payload, b"]"].concat());
    add("payload of another message", &|letter| letter.payload.clone_from(&other.payload));
    add("second authorization", &|letter| {
        letter.headers.append("authorization", good.headers.get("Authorization").unwrap().as_str());
    });
    add("header of another message", &|letter| letter.headers = other.headers.clone());
    let mut add = |what: String, token: &str, proof: &str| all.push((what, good.with_credentials(token, proof)));
    add("broader token".to_owned(), broader_token, &proof);
    add("no token".to_owned(), "", &proof);
    add("proof as token".to_owned(), &proof, &proof);
    add("token as proof".to_owned(), &token, &token);
    add("two proofs".to_owned(), &token, &format!("{proof}~{proof}"));
    for (member, value) in [
        ("alg", json!("EdDSA")),
        ("alg", json!("none")),
        ("alg", json!("hs256")),
        ("kid", json!("bob.k1")),
        ("kid", json!("eve.k1")),
        ("kid", json!("../ann.k1")),
        ("typ", json!("nats-rpc-v1-reply+jwt")),
        ("typ", json!("JWT")),
        ("typ", json!("nats-rpc-v0+jwt")),
        ("crit", json!(["x"])),
        ("jwk", json!({})),
    ] {
        let mut header = part(&proof, 0);
        if header[member] == value {
            continue;
        }
        header[member] = value;
        add(format!("header {member}"), &token, &with_part(&proof, 0, &header));
    }
    for (claim, value) in claims_otherwise() {
        let mut claims = part(&proof, 1);
        claims[claim] = value;
        add(format!("claim {claim}"), &token, &with_part(&proof, 1, &claims));
    }
    let (input, signature) = proof.rsplit_once('.').unwrap();
    let other_signature = other.credentials().1.rsplit_once('.').unwrap().1.to_owned();
    for signature in
        ["", &signature[..42], &signature[..22], &format!("{signature}AAAA"), &other_signature, &b64(&[0; 32])]
    {
        add("signature".to_owned(), &token, &format!("{input}.{signature}"));
    }
    all
}

/// Claims that differ from those of the good message, of the right type and of wrong ones.
fn claims_otherwise() -> Vec<(&'static str, Value)> {
    vec![
        ("aud", json!("test/other")),
        ("aud", json!("prod/desk")),
        ("aud", json!(["test/desk"])),
        ("aud", Value::Null),
        ("to", json!("rpc.v1.desk.bob")),
        ("to", json!("rpc.v1.desk.ann.desk.echo")),
        ("to", json!("")),
        ("rto", json!("_INBOX.ann.r2")),
        ("rto", json!("")),
        ("rto", Value::Null),
        ("dig", json!(digest(b"something else"))),
        ("dig", json!("")),
        ("ath", json!(digest(b"another token"))),
        ("ath", json!(5)),
        ("jti", json!("AAECAwQFBgcICQoLDA0OD")),
        ("jti", json!("AAECAwQFBgcICQoLDA0ODx")),
        ("jti", json!("AAECAwQFBgcICQoLDA0ODw==")),
        ("jti", json!("")),
        ("iat", json!("1790000000")),
        ("iat", json!(1_790_000_000.0)),
        ("iat", json!(-1)),
        ("iat", json!(1_789_999_999)),
        ("exp", json!(1_790_000_031)),
        ("exp", json!(1_790_000_000)),
        ("exp", json!(9_007_199_254_740_991_u64)),
        ("exp", json!(u64::MAX)),
        ("exp", Value::Null),
        ("tmo", json!(0)),
        ("tmo", json!(600_001)),
        ("tmo", Value::Null),
        ("tmo", json!("5000")),
        ("idk", json!("")),
        ("idk", json!("k".repeat(129))),
        ("idk", json!("a\nb")),
        ("idk", Value::Null),
        ("nbf", json!(0)),
        ("sub", json!("ann")),
        ("", json!(1)),
    ]
}

/// SPEC.md §6, SPEC.md §17.
#[tokio::test]
async fn man_in_the_middle_changing_any_field_of_a_message_runs_nothing() {
    let (router, runs) = recording();
    let desk = Desk::open_with(router, POLICY, patient());
    let ann = desk.agent("ann", &["worker"]);
    let broader = desk.agent("ann", &["worker", "keeper"]);
    let good = desk.letter(&ann, &call("desk/echo", "[1]"));
    let other = desk.letter(&ann, &call("desk/note", "[2]"));
    for (what, letter) in mutations(&good, &broader.token, &other) {
        assert!(matches!(desk.offer(&letter).await, None | Some(-32010)), "{what}");
        assert_eq!((runs.count(), desk.burnt()), (0, 0), "{what}");
    }
    assert!(desk.answer(&good).await.unwrap().contains("result"));
    assert_eq!(runs.count(), 1);
}

/// SPEC.md §6.
#[tokio::test]
async fn man_in_the_middle_gains_nothing_with_an_ed25519_message_either() {
    let (router, runs) = recording();
    let desk = Desk::open_with(router, POLICY, patient());
    let eve = desk.agent("eve", &["worker"]);
    let mut good = desk.letter(&eve, &call("desk/echo", "[1]"));
    let other = desk.letter(&eve, &call("desk/note", "[2]"));
    for (what, letter) in mutations(&good, &desk.agent("eve", &["worker", "keeper"]).token, &other) {
        assert!(matches!(desk.offer(&letter).await, None | Some(-32010)), "{what}");
        assert_eq!((runs.count(), desk.burnt()), (0, 0), "{what}");
    }
    // Ed25519 signatures are 64 bytes, and their two halves are not interchangeable.
    let (token, proof) = good.credentials();
    let (input, signature) = proof.rsplit_once('.').unwrap();
    let mut bytes = sealwire_testkit::desk::unb64(signature);
    bytes.rotate_left(32);
    good = good.with_credentials(&token, &format!("{input}.{}", b64(&bytes)));
    assert_eq!(desk.offer(&good).await, Some(-32010));
    good = good.with_credentials(&token, &proof);
    assert!(desk.answer(&good).await.unwrap().contains("result"));
}

#[tokio::test]
async fn batch_cannot_be_split_nor_calls_merged() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let (one, two) = (call("desk/echo", "[1]"), call("desk/note", "[2]"));
    let batch = desk.letter(&ann, &format!("[{one},{two}]"));
    for payload in [&one, &two, &format!("[{one}]"), &format!("[{two},{one}]"), &format!("[{one},{two},{two}]")] {
        let letter = Letter { payload: payload.clone().into_bytes(), ..batch.clone() };
        assert_eq!(desk.offer(&letter).await, Some(-32010), "{payload}");
    }
    let (first, second) = (desk.letter(&ann, &one), desk.letter(&ann, &two));
    for letter in [&first, &second] {
        let merged = Letter { payload: batch.payload.clone(), ..letter.clone() };
        assert_eq!(desk.offer(&merged).await, Some(-32010));
    }
    assert_eq!(runs.count(), 0);
    assert!(desk.answer(&batch).await.is_some());
    assert_eq!(runs.count(), 2);
}

/// SPEC.md §6.
#[tokio::test]
async fn notification_cannot_be_given_a_reply_subject_nor_a_call_lose_its_own() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let notification = r#"{"jsonrpc":"2.0","method":"desk/note"}"#;
    let mut letter = desk.letter_to(&ann, "rpc.v1.desk.ann", "", notification, None);
    letter.reply = "_INBOX.ann.r1".to_owned();
    assert_eq!(desk.offer(&letter).await, Some(-32010));
    letter.reply.clear();
    assert_eq!(desk.offer(&letter).await, None);
    assert_eq!(runs.count(), 1);
    // A call that its own sender sent without a reply subject is not executed either.
    for payload in [call("desk/note", "[]"), format!("[{notification}]")] {
        assert_eq!(desk.offer(&desk.letter_to(&ann, "rpc.v1.desk.ann", "", &payload, None)).await, None);
    }
    assert_eq!((runs.count(), desk.service.counters().refusals()["invalid_body"]), (1, 2));
}

/// SPEC.md §6, SPEC.md §6.2.
#[tokio::test]
async fn claims_that_do_not_fit_are_refused_also_when_the_keys_owner_signed_them() {
    let (router, runs) = recording();
    let desk = Desk::open_with(router, POLICY, patient());
    let ann = desk.agent("ann", &["worker"]);
    let header = r#"{"alg":"HS256","kid":"ann.k1","typ":"nats-rpc-v1+jwt"}"#;
    let good = desk.letter(&ann, &call("desk/echo", "[1]"));
    let (token, proof) = good.credentials();
    let key = desk.derived(&ann);
    let resigned = |claims: &str| good.with_credentials(&token, &jws(&key, header, claims));
    for (claim, value) in claims_otherwise() {
        let mut claims = part(&proof, 1);
        claims[claim] = value;
        let what = format!("{claim} {}", claims[claim]);
        assert_eq!(desk.offer(&resigned(&claims.to_string())).await, Some(-32010), "{what}");
    }
    for claim in ["aud", "to", "rto", "iat", "exp", "jti", "ath", "dig"] {
        let mut claims = part(&proof, 1);
        claims.as_object_mut().unwrap().remove(claim);
        assert_eq!(desk.offer(&resigned(&claims.to_string())).await, Some(-32010), "without {claim}");
        let claims = part(&proof, 1);
        let twice = claims.to_string().replacen('{', &format!("{{\"{claim}\":{},", claims[claim]), 1);
        assert_eq!(desk.offer(&resigned(&twice)).await, Some(-32010), "{claim} twice");
        let escaped = format!("\\u{:04x}{}", claim.as_bytes()[0], &claim[1..]);
        let twice = claims.to_string().replacen('{', &format!("{{\"{escaped}\":{},", claims[claim]), 1);
        assert_eq!(desk.offer(&resigned(&twice)).await, Some(-32010), "{claim} twice, once escaped");
    }
    assert_eq!((runs.count(), desk.burnt()), (0, 0));
}

/// SPEC.md §4.
#[tokio::test]
async fn proof_parts_that_are_no_objects_are_refused() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let good = desk.letter(&ann, &call("desk/echo", "[1]"));
    let (token, proof) = good.credentials();
    let key = desk.derived(&ann);
    let header = r#"{"alg":"HS256","kid":"ann.k1","typ":"nats-rpc-v1+jwt"}"#;
    let claims = part(&proof, 1);
    // The same values, in the order of the table of claims: a lenient reader accepts an array for the object.
    let values = ["aud", "to", "rto", "iat", "exp", "jti", "ath", "dig"].map(|claim| claims[claim].clone());
    let claims_array = json!(values).to_string();
    let full_array = {
        let mut values = values.to_vec();
        values.extend([json!(5000), json!("key")]);
        json!(values).to_string()
    };
    let header_array = r#"["HS256","ann.k1","nats-rpc-v1+jwt"]"#;
    let claims = claims.to_string();
    for (header, claims) in [
        (header_array, claims.as_str()),
        (header, &claims_array),
        (header, &full_array),
        (header, "null"),
        ("5", &claims),
    ] {
        let letter = good.with_credentials(&token, &jws(&key, header, claims));
        assert_eq!(desk.offer(&letter).await, Some(-32010), "{header} {claims}");
    }
    assert_eq!((runs.count(), desk.burnt()), (0, 0));
    assert!(desk.answer(&good).await.unwrap().contains("result"));
}

/// SPEC.md §5.2.
#[tokio::test]
async fn key_of_one_service_signs_for_no_other() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let good = desk.letter(&ann, &call("desk/echo", "[1]"));
    // What an attacker who broke into the service `test/other`, or into the staging environment, has of ann's key.
    for audience in ["test/other", "stage/desk"] {
        let audience = sealwire::internal::wire::Audience::parse(audience).unwrap();
        let signer = RequestSigner::new(&ann.key, audience.clone(), Vec::new()).unwrap();
        let as_is = signer.sign_claims(&good.claims(), &ann.token);
        let mut letter = good.clone();
        letter.headers.insert("Authorization", as_is.authorization.as_str());
        assert_eq!(desk.offer(&letter).await, Some(-32010), "{audience}");
        // And a whole message for that service, delivered to this one.
        let mut claims = good.claims();
        claims.aud = audience.as_str().to_owned();
        let elsewhere = signer.sign_claims(&claims, &ann.token);
        letter.headers.insert("Authorization", elsewhere.authorization.as_str());
        assert_eq!(desk.offer(&letter).await, Some(-32010), "{audience}");
    }
    assert_eq!(runs.count(), 0);
}

/// SPEC.md §3.1.
#[tokio::test]
async fn agents_cannot_act_as_each_other() {
    let (router, runs) = recording();
    let desk = Desk::open_with(router, POLICY, patient());
    for (me, victim) in [("ann", "bob"), ("bob", "eve"), ("eve", "ann")] {
        let (mine, theirs) = (desk.agent(me, &["worker"]), desk.agent(victim, &["worker"]));
        let body = call("desk/echo", "[]");
        let my_key_their_token = Agent { name: mine.name.clone(), key: again(me), token: theirs.token.clone() };
        let their_subject_my_key = Agent { name: theirs.name.clone(), key: again(me), token: mine.token.clone() };
        let their_subject_and_token = Agent { name: theirs.name.clone(), key: again(me), token: theirs.token.clone() };
        for agent in [my_key_their_token, their_subject_my_key, their_subject_and_token] {
            assert_eq!(desk.offer(&desk.letter(&agent, &body)).await, Some(-32010));
        }
        // My message with their inbox as reply subject: dropped.
        let subject = desk.endpoint.subject(&mine.name);
        let reply = format!("{}r1", desk.endpoint.inbox(&theirs.name));
        assert_eq!(desk.offer(&desk.letter_to(&mine, &subject, &reply, &body, None)).await, None);
    }
    assert_eq!((runs.count(), desk.burnt()), (0, 0));
}

fn again(name: &str) -> sealwire::configure::AgentKey {
    sealwire_testkit::desk::agents().into_iter().find(|(known, _)| known.as_str() == name).unwrap().1
}

/// SPEC.md §3, SPEC.md §3.1.
#[tokio::test]
async fn nothing_is_published_outside_the_callers_inbox() {
    let (router, runs) = recording();
    let desk = Desk::open_with(router, POLICY, patient());
    let ann = desk.agent("ann", &["worker"]);
    let replies = [
        "$JS.API.STREAM.DELETE.orders",
        "$SYS.REQ.SERVER.PING",
        "rpc.v1.desk.ann",
        "rpc.v1.desk.bob",
        "admin.delete",
        "_INBOX.bob.r1",
        "_INBOX.ann",
        "_INBOX.ann.",
        "_INBOX.ann..r1",
        "_INBOX.ann.*",
        "_INBOX.ann.r.*.1",
        "_INBOX.ann.>",
        "_INBOX.ann.r\r\nPUB x 0",
        "_INBOX.ann.r 1",
        "_INBOX.ann.r\u{e9}",
        "_INBOX.anna.r1",
        "_inbox.ann.r1",
        "_INBOX.ann.r1.",
        "x._INBOX.ann.r1",
    ];
    for reply in replies {
        // Signed by its owner, so that only the reply rule is violated; and without any signature.
        for payload in [call("desk/echo", "[]"), "{".to_owned()] {
            let letter = desk.letter_to(&ann, "rpc.v1.desk.ann", reply, &payload, None);
            assert!(desk.service.handle(letter.delivery()).await.is_none(), "{reply:?}");
            let bare = Letter { headers: async_nats::HeaderMap::new(), ..letter };
            assert!(desk.service.handle(bare.delivery()).await.is_none(), "{reply:?}");
            assert!(desk.service.shed(bare.delivery()).is_none(), "{reply:?}");
        }
    }
    assert_eq!((runs.count(), desk.burnt()), (0, 0));
    assert_eq!(desk.service.counters().refusals()["dropped_reply"], replies.len() as u64 * 6);
}

/// SPEC.md §3.1.
#[tokio::test]
async fn subject_outside_the_grammar_is_dropped() {
    let (router, runs) = recording();
    let desk = Desk::open_with(router, POLICY, patient());
    let ann = desk.agent("ann", &["worker"]);
    for subject in [
        "rpc.v1.desk",
        "rpc.v1.desk.",
        "rpc.v1..ann",
        "rpc.v1.desk.*",
        "rpc.v1.desk.>",
        "rpc.v1.desk.ann.",
        "rpc.v1.desk.ann.desk..echo",
        "rpc.v1.desk.ann.*",
        "rpc.v1.desk.a b",
        "rpc.v1.desk.a\nb",
        "rpc.v1.desk.ann\u{202e}",
        "xrpc.v1.desk.ann",
        "desk.ann",
        "",
    ] {
        let letter = desk.letter_to(&ann, subject, "_INBOX.ann.r1", &call("desk/echo", "[]"), None);
        assert!(desk.service.handle(letter.delivery()).await.is_none(), "{subject:?}");
    }
    assert_eq!((runs.count(), desk.service.counters().refusals()["dropped_subject"]), (0, 14));
}

/// SPEC.md §3.1.
#[tokio::test]
async fn method_subject_carries_exactly_its_method() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let on = |subject: &str, payload: &str| desk.letter_to(&ann, subject, "_INBOX.ann.r1", payload, None);
    let echo = call("desk/echo", "[]");
    assert!(desk.answer(&on("rpc.v1.desk.ann.desk.echo", &echo)).await.unwrap().contains("result"));
    assert_eq!(runs.count(), 1);
    // An allowed subject with the body of another method, the other way round, and near misses of the name.
    for (subject, body) in [
        ("rpc.v1.desk.ann.desk.echo", call("vault/open", "[]")),
        ("rpc.v1.desk.ann.desk.echo", call("desk/note", "[]")),
        ("rpc.v1.desk.ann.vault.open", echo.clone()),
        ("rpc.v1.desk.ann.desk/echo", echo.clone()),
        ("rpc.v1.desk.ann.desk.echo.x", echo.clone()),
        ("rpc.v1.desk.ann.desk", echo.clone()),
        ("rpc.v1.desk.ann.Desk.echo", echo.clone()),
        ("rpc.v1.desk.ann.desk.echo", format!("[{echo}]")),
        ("rpc.v1.desk.ann.desk.echo", call("no/such\\u0000name", "[]")),
    ] {
        assert_eq!(desk.offer(&on(subject, &body)).await, Some(-32600), "{subject} {body}");
    }
    // The same as notifications: the refusal of a whole message is answered, but nothing is executed.
    let notification = r#"{"jsonrpc":"2.0","method":"desk/note"}"#;
    assert_eq!(desk.offer(&on("rpc.v1.desk.ann.desk.echo", notification)).await, Some(-32600));
    assert_eq!(desk.offer(&on("rpc.v1.desk.ann.desk.note", notification)).await, None);
    assert_eq!(runs.count(), 2);
}
