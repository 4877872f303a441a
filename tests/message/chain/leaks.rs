//! What gets out: answers from a closed set, log lines without secrets or raw control characters, and `Debug` output that
//! is safe to print anywhere.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Once;
use std::time::Duration;

use sealwire::internal::wire::Envelope;
use sealwire::serve::QuotaLimits;
use sealwire::{Ctx, Router, RpcError, ServiceLimits};
use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt as _;

use sealwire_testkit::desk::{Agent, Desk, Letter, POLICY, b64, call, jws, part, recording, text};

/// Everything that the service itself may say: code and text. A text that ends in `:` is followed by what the caller
/// sent or by the rule that the body breaks.
const SAID: &[(i64, &str)] = &[
    (-32700, "Parse error"),
    (-32700, "Parse error:"),
    (-32600, "Invalid Request"),
    (-32600, "Invalid Request:"),
    (-32601, "Method not found"),
    (-32602, "Invalid params:"),
    (-32603, "Internal error"),
    (-32002, "permission denied"),
    (-32003, "timeout"),
    (-32010, "unauthenticated"),
    (-32011, "stale"),
    (-32012, "replayed"),
    (-32013, "quota exceeded"),
    (-32014, "overloaded"),
    (-32015, "too large"),
];

fn in_closed_set(answer: &Value) -> bool {
    let members: Vec<&str> = answer["error"].as_object().unwrap().keys().map(String::as_str).collect();
    let (code, message) = (answer["error"]["code"].as_i64().unwrap(), answer["error"]["message"].as_str().unwrap());
    let data = answer["error"]["data"].as_object();
    let data_holds = data.is_none_or(|data| {
        data.iter().all(|(name, value)| match name.as_str() {
            "server_time" | "retry_after_ms" => value.is_u64(),
            "scope" => ["replica-rate", "replica-in-flight", "nonces"].contains(&value.as_str().unwrap()),
            _ => false,
        })
    });
    data_holds
        && members.iter().all(|member| ["code", "message", "data"].contains(member))
        && !message.chars().any(char::is_control)
        && SAID.iter().any(|(known, text)| {
            *known == code && (text == &message || text.strip_suffix(':').is_some_and(|_| message.starts_with(text)))
        })
}

/// A generator of small numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

/// Fragments from which messages, names and claims are made below.
const BITS: &[&str] = &[
    "desk/echo",
    "desk/nowhere",
    "vault/open",
    "no/such",
    "rpc.discover",
    "",
    "\u{1b}[31m",
    "a\r\nb",
    "\u{0}",
    "\u{202e}",
    "..",
    "*",
    ">",
    "../../etc/passwd",
    "'; drop table",
    "\\",
    "\"",
    "ann",
    "bob",
    "{",
    "[",
    "null",
    "1e999",
    "-32002",
];

/// Sends random combinations of the pieces of good messages, and collects the answers.
async fn noise(desk: &Desk, rounds: usize) -> Vec<Value> {
    let mut dice = Dice(1);
    let mut answers = Vec::new();
    let agents = ["ann", "bob", "eve"].map(|name| desk.agent(name, &["worker"]));
    for _ in 0..rounds {
        let agent = &agents[dice.below(3)];
        let bit = BITS[dice.below(BITS.len())];
        let quoted = json!(bit).to_string();
        let body = match dice.below(8) {
            0 => bit.to_owned(),
            1 => call(bit.replace(['"', '\\'], "").as_str(), "[]"),
            2 => format!(r#"{{"jsonrpc":"2.0","method":{quoted},"params":[{quoted}],"id":{quoted}}}"#),
            3 => format!(r#"{{"jsonrpc":{quoted},"method":{quoted},"id":1}}"#),
            4 => format!(r#"{{"jsonrpc":"2.0","method":"desk/add","params":{{{quoted}:{quoted}}},"id":1}}"#),
            5 => format!(r#"[{{"jsonrpc":"2.0","method":"desk/fail","params":[{quoted}],"id":1}},{quoted},{bit}]"#),
            6 => format!(r#"[{{"jsonrpc":"2.0","method":"desk/panic","params":[{quoted}],"id":1}},{quoted}]"#),
            _ => call("vault/open", &format!("[{quoted}]")),
        };
        let mut letter = desk.letter_claiming(agent, &body, |claims| match dice.below(12) {
            0 => claims.aud = bit.to_owned(),
            1 => {
                claims.iat -= 40;
                claims.exp -= 40;
            }
            2 => claims.exp += 1_000,
            3 => claims.idk = Some(bit.to_owned()),
            4 => claims.tmo = Some(bit.len() as u64),
            _ => {}
        });
        desk.clock.advance_ms(dice.below(30) as u64);
        match dice.below(16) {
            0 => letter.subject.push_str(&format!(".{bit}")),
            1 => letter.payload.push(b'!'),
            2 => letter.headers.insert("Authorization", bit.replace(['\r', '\n'], "")),
            3 => {
                let (token, proof) = letter.credentials();
                let header = json!({"alg": "HS256", "kid": bit, "typ": "nats-rpc-v1+jwt"}).to_string();
                let rest = proof.split_once('.').unwrap().1;
                letter = letter.with_credentials(&token, &format!("{}.{rest}", b64(header.as_bytes())));
            }
            4 => letter = letter.with_credentials(&b64(bit.as_bytes()), &letter.credentials().1),
            _ => {}
        }
        for _ in 0..=dice.below(2) {
            if let Some(sealed) = desk.service.handle(letter.delivery()).await {
                let answer: Value = serde_json::from_slice(sealed.payload()).unwrap();
                answers.extend(answer.as_array().cloned().unwrap_or_else(|| vec![answer]));
            }
        }
        if dice.below(20) == 0 {
            answers.extend(
                desk.service.shed(letter.delivery()).map(|sealed| serde_json::from_str(&text(&sealed)).unwrap()),
            );
        }
    }
    answers
}

/// Methods whose errors tell all they know.
pub(super) fn talkative() -> Router {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot reach postgres://user:hunter2@db: {0}")]
    struct Cause(String);
    #[derive(serde::Deserialize)]
    struct Add {
        a: i64,
        b: i64,
    }
    Router::new(())
        .method("desk/echo", |_: Ctx, p: Value| async move { Ok::<_, RpcError>(p) })
        .method("desk/add", |_: Ctx, p: Add| async move { Ok::<_, RpcError>(p.a + p.b) })
        .method("desk/fail", |_: Ctx, p: Value| async move { Err::<(), _>(RpcError::internal(Cause(p.to_string()))) })
        .method("desk/panic", |_: Ctx, p: Value| async move {
            // Not `panic!`: the default hook would write to the test's output.
            std::panic::resume_unwind(Box::new(format!("hunter2 {p}")));
            #[expect(unreachable_code, reason = "it gives the method its type")]
            Ok::<(), RpcError>(())
        })
        .method("vault/open", |_: Ctx, (): ()| async { Ok::<_, RpcError>("gold") })
}

fn patient() -> ServiceLimits {
    let quota = QuotaLimits { per_second: 200, burst: 600, in_flight: 9 };
    ServiceLimits { hints_per_second: 1_000_000, quota, ..ServiceLimits::default() }
}

/// SPEC.md §14, SPEC.md §14.1.
#[tokio::test]
async fn errors_come_from_a_closed_set_of_codes_and_texts() {
    let desk = Desk::open_with(talkative(), POLICY, patient());
    let mut seen = BTreeSet::new();
    for answer in noise(&desk, 1_500).await {
        if answer.get("error").is_some() {
            assert!(in_closed_set(&answer), "{answer}");
            assert!(!answer.to_string().contains("hunter2"), "{answer}");
            seen.insert(answer["error"]["code"].as_i64().unwrap());
        }
    }
    // The noise triggers every refusal that it is meant to trigger.
    for code in [-32700, -32600, -32601, -32602, -32603, -32002, -32003, -32010, -32011, -32012, -32014] {
        assert!(seen.contains(&code), "{code} is not among {seen:?}");
    }
}

thread_local! {
    /// What is logged on this thread, if a test asked for it.
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Writes to [`LOG`].
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.as_mut().map(|log| log.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs `work` and returns everything logged on this thread meanwhile, each line as plain text and as JSON.
pub(super) async fn logged<F: Future<Output = ()>>(work: impl FnOnce() -> F) -> String {
    // Installed globally: call sites that another thread reaches first would not learn of a scoped subscriber's
    // interest.
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER.call_once(|| {
        let plain = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| Log);
        let json = tracing_subscriber::fmt::layer().json().with_writer(|| Log);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(plain).with(json)).unwrap();
    });
    LOG.set(Some(Vec::new()));
    work().await;
    String::from_utf8(LOG.take().unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_a_method_repeats_of_its_caller_fills_no_log() {
    let desk = Desk::open_with(talkative(), POLICY, patient());
    let ann = desk.agent("ann", &["worker"]);
    let log = logged(|| async {
        let said = json!([format!("\u{202e}{}", "A".repeat(100_000))]);
        desk.ask(&ann, &call("desk/fail", &said.to_string())).await.unwrap();
    })
    .await;
    assert!(log.contains("cannot reach") && log.contains("AAA"), "{log}");
    assert!(log.lines().all(|line| line.len() < 4_096) && !log.contains('\u{202e}'), "{log}");
}

#[tokio::test(start_paused = true)]
async fn log_lines_hold_no_tokens_signatures_or_parameters_and_no_control_characters() {
    let desk = Desk::open_with(talkative(), POLICY, patient());
    let marker = "marker-of-a-parameter";
    let agents = ["ann", "eve"].map(|name| desk.agent(name, &["worker"]));
    let mut secrets: Vec<String> = Vec::new();
    let mut letters = Vec::new();
    for agent in &agents {
        for body in [
            call("desk/echo", &format!(r#"["{marker}"]"#)),
            call("vault/open", &format!(r#"["{marker}"]"#)),
            call("desk/add", &format!(r#"["{marker}"]"#)),
            call("desk/panic", &format!(r#"["{marker}"]"#)),
            call("desk/nowhere", &format!(r#"["{marker}"]"#)),
            format!(r#"{{"jsonrpc":"2.0","method":"a\r\nb\u001b[2J\u009b\u202e{}","id":1}}"#, "x".repeat(5_000)),
            format!("{{{marker}"),
        ] {
            let letter = desk.letter(agent, &body);
            let (token, proof) = letter.credentials();
            secrets.extend(token.split('.').skip(1).map(str::to_owned));
            secrets.extend(proof.split('.').skip(1).map(str::to_owned));
            let tampered = Letter { payload: b"x".to_vec(), ..letter.clone() };
            letters.extend([tampered, letter.clone(), letter]);
        }
    }
    // Texts read before the signature is checked, and texts in a token under a good signature.
    let hostile = desk.letter(&agents[0], "{}");
    for value in ["NatsRpc a\u{1b}[2J~b", "NatsRpc x~\u{202e}", "Bearer \u{9b}31m"] {
        let mut letter = hostile.clone();
        letter.headers.insert("Authorization", value);
        letters.push(letter);
    }
    let header = r#"{"alg":"HS256","kid":"ann.k1","typ":"nats-rpc-v1+jwt"}"#;
    let key = desk.derived(&agents[0]);
    for part in [r#"{"alg":"\r\n\u001b","kid":"k","typ":"at+jwt"}"#, r#"{"\u001b[2J":1}"#, "\u{1b}[2J"] {
        let token = format!("{}.{}.AAAA", b64(part.as_bytes()), b64(b"{}"));
        let mut claims = hostile.claims();
        claims.ath = sealwire_testkit::desk::digest(token.as_bytes());
        letters.push(hostile.with_credentials(&token, &jws(&key, header, &serde_json::to_string(&claims).unwrap())));
    }
    letters.push(Letter { subject: "rpc.v1.desk.a\u{1b}[2J\r\nb".to_owned(), ..hostile.clone() });
    letters.push(Letter { reply: "_INBOX.ann.\u{1b}[2J\r\nb".to_owned(), ..hostile.clone() });
    let odd_subject = desk.agent_with("ann", |request| {
        request.subject = "carol<script>%0a\\x1b".to_owned();
        request.actor = Some("ann".to_owned());
    });
    letters.push(desk.letter(&odd_subject, &call("desk/echo", "[]")));

    let log = logged(async || {
        for letter in &letters {
            // Unproved messages are logged once a second for each reason.
            let _ = desk.service.handle(letter.delivery()).await;
            tokio::time::advance(Duration::from_secs(1)).await;
            let _ = desk.service.shed(letter.delivery());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    })
    .await;
    assert!(log.lines().count() >= letters.len() * 4, "every message leaves a line");
    assert!(!log.contains(marker), "{log}");
    for secret in &secrets {
        assert!(!log.contains(secret.as_str()), "{secret}");
    }
    for line in log.lines() {
        assert!(line.chars().all(|c| (' '..='~').contains(&c)), "{line:?}");
        assert!(line.len() < 2_000, "{} bytes: {line}", line.len());
    }
    assert_eq!(log.matches("the method panicked").count(), 4, "{log}");
    for field in ["agent", "method", "decision", "rule", "revision", "message_id", "duration_us"] {
        assert!(log.contains(field), "{field}");
    }
}

/// Otherwise anyone who may publish could flood the log until older lines are rotated away.
#[tokio::test(start_paused = true)]
async fn a_flood_of_unproved_messages_writes_a_line_a_second_and_hides_none_of_a_proved_caller() {
    let desk = Desk::open_with(talkative(), POLICY, patient());
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["worker"]));
    let good = desk.letter(&ann, &call("desk/echo", "[]"));
    let (token, proof) = good.credentials();
    let other = if proof.ends_with('A') { "E" } else { "A" };
    let forged = good.with_credentials(&token, &format!("{}{other}", &proof[..proof.len() - 1]));
    let bare = Letter { headers: async_nats::HeaderMap::new(), ..good.clone() };
    let garbled = Letter { subject: "rpc.v1.desk.*".to_owned(), ..good.clone() };
    let log = logged(async || {
        let mut calls = 0;
        for second in 0..3 {
            for round in 0..400 {
                for letter in [&forged, &bare, &garbled, &good] {
                    let _ = desk.service.handle(letter.delivery()).await;
                }
                let _ = desk.service.shed(good.delivery());
                if round % 100 == second {
                    // Decided by the policy, or refused for its body: each reason has its line.
                    let _ = desk.ask(&bob, &call("vault/open", "[]")).await;
                    let _ = desk.ask(&bob, "{").await;
                    calls += 2;
                }
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(calls, 24);
    })
    .await;
    // The log has each line as plain text and as JSON; these patterns match only the plain text.
    let lines = |mark: &str| log.matches(mark).count();
    for label in ["signature", "no_authorization", "dropped_subject", "shed", "replayed"] {
        assert_eq!(lines(&format!("refusal=\"{label}\"")), 3, "{label}");
    }
    // In the second and third seconds, each line reports the 399 before it; the first of the copies was the original.
    assert_eq!((lines("suppressed=399"), lines("suppressed=398")), (8 + 1, 1));
    assert_eq!((lines("method=vault/open"), lines("refusal=\"invalid_body\"")), (3, 3));
    assert_eq!(lines("suppressed=3"), 2 + 2 + 8 + 1 + 1, "of four a second, and of the 399 and 398 above");
    assert_eq!(desk.service.counters().refusals()["no_authorization"], 1_200, "all are counted");
}

#[tokio::test]
async fn debug_output_shows_no_secret() {
    let desk = Desk::open(recording().0);
    let marker = "marker-of-a-parameter";
    for name in ["ann", "eve"] {
        let agent: Agent = desk.agent(name, &["worker"]);
        let letter = desk.letter(&agent, &call("desk/echo", &format!(r#"["{marker}"]"#)));
        let (token, proof) = letter.credentials();
        let derived = agent.key.derived(desk.endpoint.audience());
        let mut secrets: Vec<String> = vec![
            marker.to_owned(),
            token.clone(),
            token.rsplit('.').next().unwrap().to_owned(),
            proof.rsplit('.').next().unwrap().to_owned(),
        ];
        let mut keys: Vec<Vec<u8>> = vec![agent.key.expose().to_vec(), desk.service_key.expose().to_vec()];
        keys.extend(derived.as_ref().map(|key| key.expose().to_vec()));
        for key in keys {
            secrets.extend([b64(&key), format!("{key:?}"), key.iter().map(|byte| format!("{byte:02x}")).collect()]);
        }
        let signed = desk.signer(&agent).sign_claims(&letter.claims(), &token);
        let envelope = || Envelope::decode(letter.delivery(), &desk.endpoint).unwrap();
        let verifier = desk.service.verifier();
        let authentic = verifier.authenticate(envelope(), sealwire_testkit::desk::NOW).unwrap();
        let authentic_again = verifier.authenticate(envelope(), sealwire_testkit::desk::NOW).unwrap();
        let authentic_text = format!("{authentic:?}");
        let verified = verifier.admit(authentic).await.unwrap();
        let replayed = verifier.admit(authentic_again).await.unwrap_err();
        let other = Envelope::decode(desk.letter(&agent, "[]").delivery(), &desk.endpoint).unwrap();
        let stale = verifier.authenticate(other, sealwire_testkit::desk::NOW + 99).unwrap_err();
        let sealed =
            desk.service.handle(desk.letter(&agent, &call("desk/echo", &format!(r#"["{marker}"]"#))).delivery());
        let sealed = sealed.await.unwrap();
        let ring = sealwire_testkit::desk::ring_of(&desk.endpoint, |keys| {
            let text = format!("{keys:?}");
            assert!(secrets.iter().all(|secret| !text.contains(secret.as_str())), "{text}");
        });
        let shown = [
            ("delivery", format!("{:?}", letter.delivery())),
            ("envelope", format!("{:?}", envelope())),
            ("authentic", authentic_text),
            ("verified", format!("{verified:?}")),
            ("replayed", format!("{replayed:?} {}", replayed.error)),
            ("stale", format!("{stale:?} {}", stale.error)),
            ("signed request", format!("{signed:?}")),
            ("expectation", format!("{:?}", letter.expectation)),
            ("sealed", format!("{sealed:?}")),
            ("agent key", format!("{:?}", agent.key)),
            ("derived key", format!("{derived:?}")),
            ("service key", format!("{:?}", desk.service_key)),
            ("signer", format!("{:?}", desk.signer(&agent))),
            ("key ring", format!("{ring:?}")),
            ("verifier", format!("{verifier:?}")),
            ("tokens", format!("{:?}", verifier.tokens())),
            ("token issuer", format!("{:?}", desk.issuer)),
            ("service", format!("{:?}", desk.service)),
            ("counters", format!("{:?}", desk.service.counters())),
        ];
        for (what, shown) in shown {
            for secret in &secrets {
                assert!(!shown.contains(secret.as_str()), "{what} shows {secret}: {shown}");
            }
        }
        assert_eq!(part(&token, 1)["sub"], name);
    }
}
