//! Control of a call that is under way, through the service's entry for it.
//!
//! The input is a sequence of steps. The first byte of a step says what arrives: a control message of the vectors, a changed one, the
//! claims of one changed and signed again, or the fuzzer's own header and claims under the caller's key.
#![no_main]

use std::future::{Future, poll_fn};
use std::os::unix::fs::DirBuilderExt as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;

use async_nats::HeaderMap;
use libfuzzer_sys::fuzz_target;
use sealwire::internal::auth::{AdmitError, GuardIdentity, GuardStats, ReplayGuard};
use sealwire::internal::wire::{FrameKind, Nonce, SealedFrame};
use sealwire::serve::{Delivery, Outlet};
use sealwire::{Ctx, ManualClock, Name, Router, RpcError, Service, Sink};
use sealwire_fuzz::{self as shared, NOW, byte, digest, member, members, sign, some, unb64, unhex};
use serde_json::Value;
use tokio::time::Instant;

const REPLICA: &str = "r1";
const CALL: &str = "V9";

/// What the running method has seen.
#[derive(Debug, Default)]
struct Seen {
    answered: AtomicBool,
    cancelled: AtomicBool,
}

struct Setting {
    /// The key under which the caller signs.
    key: [u8; 32],
    /// The digest of the request's proof.
    request: String,
    /// The tokens that are valid for this caller.
    tokens: Vec<String>,
    /// The control messages of the vectors.
    vectors: Vec<Value>,
    /// The digest that a valid answer of the vectors names; the real question has another.
    asked: String,
}

/// Admits everything: the same request begins the call of every input.
#[derive(Debug)]
struct Always;

impl ReplayGuard for Always {
    fn fence(&self) -> u64 {
        0
    }

    fn admit<'a>(
        &'a self,
        _: &'a Name,
        _: Nonce,
        _: u64,
        _: u64,
        _: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<(), AdmitError>> + Send + 'a>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn kind(&self) -> &'static str {
        "local"
    }

    fn identity(&self) -> GuardIdentity {
        GuardIdentity::new("local", shared::window())
    }

    fn not_ready(&self) -> Option<String> {
        None
    }

    fn stats(&self) -> GuardStats {
        GuardStats::default()
    }
}

/// What has left the service.
struct Out {
    replica: Name,
    frames: Mutex<Vec<SealedFrame>>,
}

impl Outlet for Out {
    fn replica(&self) -> &Name {
        &self.replica
    }

    fn send<'a>(&'a self, frame: &'a SealedFrame) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.frames.lock().unwrap().push(frame.clone());
        Box::pin(std::future::ready(()))
    }
}

fn setting() -> &'static Setting {
    static SETTING: OnceLock<Setting> = OnceLock::new();
    SETTING.get_or_init(|| {
        let shared = shared::Service::get();
        let all = shared.vectors["vectors"].as_array().unwrap();
        let vectors: Vec<Value> = all.iter().filter(|vector| vector["kind"] == "control").cloned().collect();
        let request = shared.vector(CALL)["headers"]["Authorization"].as_str().unwrap();
        let good = |vector: &&Value| vector["expect"] == "accept" && vector["controls"] == shared.vector(CALL)["name"];
        let mut tokens: Vec<String> = vectors.iter().filter(good).map(|vector| credentials(vector).0).collect();
        tokens.sort();
        tokens.dedup();
        Setting {
            key: unhex(shared.vectors["agent_keys"][0]["service_key_hex"].as_str().unwrap()),
            request: digest(request.split_once('~').unwrap().1.as_bytes()),
            tokens,
            asked: shared.vector("C6")["proof_claims"]["ask"].as_str().unwrap().to_owned(),
            vectors,
        }
    })
}

/// A service for one input: the last frames of a call are kept for a while, and its request is refused for as long.
fn service(seen: &Arc<Seen>) -> Service {
    let (endpoint, verifier) = shared::verifier(&shared::Service::get().vectors, Arc::new(Always));
    let router = Router::new(Arc::clone(seen)).method_with_sink(
        "math/add",
        |ctx: Ctx<Arc<Seen>>, _: (f64, f64), sink: Sink<u64>| async move {
            for item in 1..=3 {
                sink.send(&item).await.map_err(RpcError::internal)?;
            }
            if ctx.ask::<Value>("confirm", &["go on?"]).await.is_ok() {
                ctx.state().answered.store(true, Ordering::SeqCst);
            }
            ctx.cancelled().await;
            ctx.state().cancelled.store(true, Ordering::SeqCst);
            Ok::<_, RpcError>(())
        },
    );
    // Removed again at once: the fuzzer may end its process anywhere.
    let folder = std::env::temp_dir().join(format!("sealwire-fuzz-control-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
    std::fs::write(folder.join("policy.toml"), "[role.calc]\nallow = [\"math/*\"]\n").unwrap();
    let clock = Arc::new(ManualClock::at(NOW));
    let builder = Service::builder().verifier(endpoint, verifier).policies(&folder).methods(router).clock(clock);
    let service = builder.build().unwrap_or_else(|error| panic!("{error}"));
    std::fs::remove_dir_all(&folder).unwrap();
    service
}

/// Token and proof of a vector.
fn credentials(vector: &Value) -> (String, String) {
    let value = match vector["header_list"].as_array() {
        Some(list) => list[0][1].as_str(),
        None => vector["headers"]["Authorization"].as_str(),
    };
    let (token, proof) = value.unwrap().strip_prefix("NatsRpc ").unwrap().split_once('~').unwrap();
    (token.to_owned(), proof.to_owned())
}

/// A control message as it arrives.
struct Arrival {
    subject: String,
    lines: Vec<(String, String)>,
    payload: Vec<u8>,
}

/// The next message; `asked` is the digest by which an answer names the question that is really open.
fn arrival(setting: &Setting, steps: &mut &[u8], asked: &str) -> Option<Arrival> {
    let (op, which) = (byte(steps)?, byte(steps)?);
    let vector = &setting.vectors[usize::from(which) % setting.vectors.len()];
    let (token, proof) = credentials(vector);
    let mut subject = vector["subject"].as_str()?.to_owned();
    let mut payload = vector["payload"].as_str()?.as_bytes().to_vec();
    let mut value = format!("NatsRpc {token}~{proof}");
    let mut twice = vector["header_list"].is_array();
    match op % 7 {
        0 | 1 => {}
        2 => {
            let at = usize::from(u16::from_le_bytes([byte(steps)?, byte(steps)?])) % value.len();
            let mut bytes = value.into_bytes();
            bytes[at] ^= byte(steps)? & 0x7f;
            value = String::from_utf8(bytes).ok()?;
        }
        3 => subject = String::from_utf8(some(steps)?.to_vec()).ok()?,
        4 => payload = some(steps)?.to_vec(),
        // A member of the claims, changed and signed again.
        5 => {
            let mut parts = proof.split('.');
            let (header, claims) = (unb64(parts.next()?)?, unb64(parts.next()?)?);
            let mut claims: serde_json::Map<String, Value> = serde_json::from_slice(&claims).ok()?;
            if claims.get("ask").is_some_and(|ask| *ask == setting.asked.as_str()) {
                claims.insert("ask".to_owned(), asked.into());
            }
            let names = ["ctr", "op", "ack", "win", "tmo", "ask", "iat", "exp", "to", "req", "aud", "more"];
            let name = names[usize::from(byte(steps)?) % names.len()];
            match some(steps)? {
                [] => {}
                b"-" => drop(claims.remove(name)),
                [number] => drop(claims.insert(name.to_owned(), Value::from(*number))),
                text => {
                    let text = serde_json::from_slice(text).unwrap_or_else(|_| String::from_utf8_lossy(text).into());
                    claims.insert(name.to_owned(), text);
                }
            }
            value = format!("NatsRpc {token}~{}", sign(&setting.key, &header, &serde_json::to_vec(&claims).ok()?));
        }
        // Any header and any claims, signed.
        _ => {
            let text = some(steps)?;
            let end = text.iter().position(|byte| *byte == b'\n')?;
            value = format!("NatsRpc {token}~{}", sign(&setting.key, &text[..end], &text[end + 1..]));
        }
    }
    twice &= op & 0x80 == 0;
    let mut lines = vec![("Authorization".to_owned(), value)];
    lines.extend(twice.then(|| ("authorization".to_owned(), lines[0].1.clone())));
    Some(Arrival { subject, lines, payload })
}

/// What a message asks for, if the specification allows it: judged with another parser and another MAC.
struct Good {
    op: String,
    counter: u64,
    ask: Option<String>,
    /// It moves the deadline, perhaps into the past.
    is_lease: bool,
}

fn judge(setting: &Setting, arrival: &Arrival, counter: u64) -> Option<Good> {
    let nonce = shared::Service::get().vector(CALL)["proof_claims"]["jti"].as_str().unwrap().to_owned();
    let is_ours = [REPLICA, "all"].map(|replica| format!("rpc.v1-ctl.math.agent-7f3a.{replica}.{nonce}"));
    let [(_, value)] = &arrival.lines[..] else { return None };
    let (token, proof) = value.strip_prefix("NatsRpc ")?.split_once('~')?;
    let [header, claims, _] = proof.split('.').collect::<Vec<_>>()[..] else { return None };
    let (header, claims) = (unb64(header)?, unb64(claims)?);
    if !is_ours.contains(&arrival.subject) || sign(&setting.key, &header, &claims) != proof {
        return None;
    }
    let header = members(&header)?;
    let is_header = header.len() == 3
        && member(&header, "alg") == "HS256"
        && member(&header, "kid") == "agent-7f3a.k1"
        && member(&header, "typ") == "nats-rpc-v1-ctl+jwt";
    // No number with a fraction, an exponent or a sign: another parser would take `1.0` for 1.
    let written = String::from_utf8(claims.clone()).ok()?;
    let claims = members(&claims)?;
    let number = |name: &str| member(&claims, name).as_u64().filter(|number| *number < 1 << 53);
    let text = |name: &str| member(&claims, name).as_str().map(str::to_owned);
    let has = |name: &str| claims.iter().any(|(found, _)| found == name);
    let within = |name: &str, most: u64| !has(name) || number(name).is_some_and(|number| (1..=most).contains(&number));
    let op = text("op")?;
    let (required, optional): (&[&str], &[&str]) = match op.as_str() {
        "ack" => (&["ack"], &["win", "tmo"]),
        "again" => (&[], &["ack"]),
        "cancel" => (&[], &[]),
        "answer" => (&["ask"], &[]),
        _ => return None,
    };
    let common = ["aud", "to", "iat", "exp", "ath", "dig", "req", "ctr", "op"];
    let known = |name: &str| common.contains(&name) || required.contains(&name) || optional.contains(&name);
    let is_exact = claims.iter().all(|(name, _)| known(name))
        && common.iter().chain(required).all(|name| has(name))
        && (!has("ack") || number("ack").is_some())
        && (!has("ask") || text("ask").is_some())
        && within("win", 1024)
        && within("tmo", 600_000);
    let (iat, exp, ctr) = (number("iat")?, number("exp")?, number("ctr")?);
    let holds = is_header
        && is_exact
        && !written.trim_start().starts_with('[')
        && setting.tokens.iter().any(|good| good == token)
        && text("aud")? == "prod/math"
        && text("to")? == arrival.subject
        && text("req")? == setting.request
        && text("ath")? == digest(token.as_bytes())
        && text("dig")? == digest(&arrival.payload)
        && (1..=30).contains(&exp.saturating_sub(iat))
        && iat <= NOW + 5
        && NOW < exp
        && ctr > counter
        && (op == "answer" || arrival.payload.is_empty());
    holds.then(|| Good { op, counter: ctr, ask: text("ask"), is_lease: has("tmo") })
}

/// Lets the call go as far as it can without time passing.
async fn settle(call: &mut Option<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    for _ in 0..8 {
        if let Some(running) = call {
            let done = poll_fn(|context| Poll::Ready(running.as_mut().poll(context).is_ready())).await;
            if done {
                *call = None;
            }
        }
        tokio::task::yield_now().await;
    }
}

fuzz_target!(|input: &[u8]| {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    // Time stands still, so that no deadline passes however busy the machine is.
    let paused = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let runtime = RUNTIME.get_or_init(paused);
    runtime.block_on(run(setting(), input));
});

async fn run(setting: &Setting, mut steps: &[u8]) {
    let request = shared::Service::get().vector(CALL);
    let text = |name: &str| request[name].as_str().unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", request["headers"]["Authorization"].as_str().unwrap());
    let delivery = Delivery::new(text("subject"), text("reply"), headers, text("payload").to_owned());
    let seen = Arc::<Seen>::default();
    let service = service(&seen);
    let out = Arc::new(Out { replica: Name::new(REPLICA).unwrap(), frames: Mutex::default() });
    let outlet: Arc<dyn Outlet> = out.clone();
    let mut call: Option<Pin<Box<dyn Future<Output = ()> + '_>>> = Some(Box::pin(async {
        let answer = service.handle_with_frames(delivery, &outlet).await;
        let answer = answer.map(|sealed| String::from_utf8_lossy(sealed.payload()).into_owned());
        assert_eq!(answer, None, "an ordinary answer");
    }));
    settle(&mut call).await;
    let question = out.frames.lock().unwrap().iter().find(|frame| frame.kind() == FrameKind::Ask).cloned().unwrap();
    let block = String::from_utf8(question.headers().as_bytes().to_vec()).unwrap();
    let asked = digest(block.trim_end().rsplit_once(' ').unwrap().1.as_bytes());

    let (mut counter, mut is_cancelled, mut is_leased) = (0, false, false);
    while let Some(arrival) = arrival(setting, &mut steps, &asked) {
        let good = judge(setting, &arrival, counter);
        let mut headers = HeaderMap::new();
        for (name, value) in &arrival.lines {
            let Ok(value) = value.parse::<async_nats::HeaderValue>() else { return };
            headers.append(name.as_str(), value);
        }
        let refused = || {
            let refusals = service.counters().refusals();
            ["control_unknown", "control_refused"].iter().filter_map(|label| refusals.get(label)).sum::<u64>()
        };
        let (sent, was) = (out.frames.lock().unwrap().len(), refused());
        let was_answered = seen.answered.load(Ordering::SeqCst);
        service.control(Delivery::new(&arrival.subject, "", headers, arrival.payload.clone())).await;
        settle(&mut call).await;

        let is_answered = seen.answered.load(Ordering::SeqCst);
        match &good {
            None => {
                assert_eq!(refused(), was + 1, "taken: {} {:?}", arrival.subject, arrival.lines);
                let more: Vec<FrameKind> = out.frames.lock().unwrap()[sent..].iter().map(SealedFrame::kind).collect();
                assert!(more.is_empty(), "it had an effect: {more:?}");
                assert_eq!(is_answered, was_answered);
            }
            Some(good) => {
                counter = good.counter;
                assert!(is_answered == was_answered || good.ask.as_deref() == Some(asked.as_str()), "another question");
                is_leased |= good.is_lease;
                if good.op == "cancel" && !is_cancelled && !is_leased {
                    assert_eq!(refused(), was, "a good one was refused: {:?}", arrival.lines);
                    is_cancelled = true;
                }
            }
        }
        if !is_leased {
            assert_eq!(seen.cancelled.load(Ordering::SeqCst), is_cancelled);
            assert_eq!(call.is_none(), is_cancelled, "ended by a cancel and by nothing else");
        }
    }
    if is_cancelled {
        let frames = out.frames.lock().unwrap();
        let end = frames.iter().find(|frame| frame.kind() == FrameKind::End).expect("an end");
        let response: Value = serde_json::from_slice(end.payload()).unwrap();
        assert_eq!(response["error"]["code"], -32016);
    }
}
