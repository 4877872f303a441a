//! Arguments larger than a message, over a real nats-server: complete or not at all, within their bounds, and complete even
//! if the broker was gone in between (SPEC.md §25.6).

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sealwire::call::Attachment;
use sealwire::errors::InvalidRequest;
use sealwire::internal::rpc::Request;
use sealwire::serve::{self, AttachmentLimits};
use sealwire::{BusConfig, Client, ClientError, Credentials, Ctx, Name, RequestBuilder, Router, RpcError};
use sealwire_testkit::site::{Answer, Served, Site, agent_key, write};
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, oneshot, watch};

/// How many attachments were handed to methods.
type Handed = Arc<AtomicU64>;

#[derive(serde::Deserialize)]
struct Store {
    document: serve::Attachment,
    #[serde(default)]
    second: Option<serve::Attachment>,
}

fn router(handed: Handed) -> Router<Handed> {
    Router::new(handed)
        .method("site/store", |ctx: Ctx<Handed>, p: Store| async move {
            let document = ctx.attachment(&p.document).await?;
            ctx.state().fetch_add(1, Ordering::SeqCst);
            let second = match &p.second {
                Some(second) => ctx.attachment(second).await?.len(),
                None => 0,
            };
            let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(&document));
            Ok::<_, RpcError>(json!({ "size": document.len() + second, "sha256": digest }))
        })
        .params("site/store", [serve::Attachment::param("document"), serve::Attachment::param("second").optional()])
        .method("site/hold", |ctx: Ctx<Handed>, p: Store| async move {
            let _document = ctx.attachment(&p.document).await?;
            ctx.state().fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<(), RpcError>>().await
        })
        .stream("site/lengths", |ctx: Ctx<Handed>, p: Store| async move {
            let document = ctx.attachment(&p.document).await?;
            Ok::<_, RpcError>(stream::iter([document.len(), 7].map(Ok::<_, RpcError>)))
        })
}

struct Stage {
    server: NatsServer,
    site: Site,
    served: Served,
    handed: Handed,
}

impl Stage {
    async fn open(policy: &str, limits: AttachmentLimits) -> Self {
        let server = NatsServer::start().await;
        let (site, handed) = (Site::new(&server.url()), Handed::default());
        if !policy.is_empty() {
            write(&site.path("policies/policy.toml"), policy);
        }
        let AttachmentLimits { each, in_all } = limits;
        site.write_config(&format!("[limits]\nattachment_bytes = {each}\nattachment_memory_bytes = {in_all}\n"));
        let served = site.serve(router(Arc::clone(&handed))).await;
        Self { server, site, served, handed }
    }

    async fn client(&self, agent: &str) -> Client {
        let name = |text: &str| Name::new(text).unwrap();
        let credentials =
            Credentials::new(name("test"), name(agent), agent_key(agent), BusConfig::open(&self.server.url()));
        within(SOON, Client::connect(credentials.token(self.site.token(agent, &["worker"])))).await.unwrap()
    }

    fn handed(&self) -> u64 {
        self.handed.load(Ordering::SeqCst)
    }
}

fn request(client: &Client) -> RequestBuilder {
    client.request("site").deadline(Duration::from_secs(100))
}

/// Bytes that are different for different `seed`s.
fn bytes(seed: u8, length: usize) -> Bytes {
    let mut state = u64::from(seed) + 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn reference(bytes: &[u8], size: usize) -> Value {
    json!({ "sha256": URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)), "size": size, "type": "text/plain" })
}

/// The part that a question asks for, or as much of it as exists.
fn part(bytes: &[u8], question: &Request) -> Vec<u8> {
    assert_eq!(question.method, "rpc.attachment");
    let question: Value = serde_json::from_str(question.params.as_ref().unwrap().raw().get()).unwrap();
    let number = |name: &str| usize::try_from(question[name].as_u64().unwrap()).unwrap();
    let (offset, length) = (number("offset"), number("length"));
    assert!((1..=96 * 1024).contains(&length), "{question}");
    bytes[offset.min(bytes.len())..(offset + length).min(bytes.len())].to_vec()
}

fn remote(answer: Result<Value, ClientError>) -> (i32, String) {
    match answer {
        Err(ClientError::Remote(error)) => (error.code(), error.message().to_owned()),
        other => panic!("{other:?}"),
    }
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, waited).await.is_ok(), "never: {what}");
}

/// SPEC.md §25.6.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_argument_of_5_mib_comes_whole() {
    let stage = Stage::open("", AttachmentLimits::default()).await;
    let client = stage.client("ann").await;
    let large = bytes(1, 5 << 20);
    let attached = Attachment::bytes("text/plain", large.clone());
    let began = Instant::now();
    let stored: Value =
        request(&client).attach(&attached).call("site/store", json!({ "document": attached })).await.unwrap();
    println!("5 MiB in {:?}", began.elapsed());
    assert_eq!(stored, json!({ "size": 5 << 20, "sha256": attached.sha256() }));

    // From a file, and two in one call; one of them is empty.
    let path = stage.site.path("large");
    std::fs::write(&path, &large).unwrap();
    let file = Attachment::file("text/plain", &path).await.unwrap();
    assert_eq!((file.sha256(), file.size()), (attached.sha256(), 5 << 20));
    let empty = Attachment::bytes("text/plain", Bytes::new());
    let both = request(&client).attach(&file).attach(&empty);
    let stored: Value = both.call("site/store", json!({ "document": empty, "second": file })).await.unwrap();
    assert_eq!(stored["size"], 5 << 20);

    // A stream, with the smallest window.
    let streamed = request(&client).attach(&file).window(1);
    let mut lengths = streamed.stream::<u64>("site/lengths", json!({ "document": file }));
    assert_eq!(within(4 * SOON, lengths.next()).await.unwrap().unwrap(), 5 << 20);
    assert_eq!(within(SOON, lengths.next()).await.unwrap().unwrap(), 7);
    drop(lengths);

    // A call that is stopped ends with the service's confirmation.
    let (stop, stopped) = oneshot::channel::<()>();
    let held = request(&client).attach(&file).cancel_on(async { drop(stopped.await) });
    let held = held.call::<Value>("site/hold", json!({ "document": file }));
    let handed = stage.handed();
    let stopping = async {
        eventually("the method has it", || stage.handed() > handed).await;
        drop(stop);
    };
    let (ended, ()) = within(4 * SOON, async { tokio::join!(held, stopping) }).await;
    assert_eq!(remote(ended).0, -32016);

    // A notification cannot be asked for its attachment.
    let refused = request(&client).attach(&file).notify("site/store", json!({ "document": file })).await;
    assert!(matches!(refused, Err(ClientError::Invalid(InvalidRequest::Attachments))), "{refused:?}");
    assert!(Attachment::file("text/plain", Path::new("/")).await.is_err(), "a folder");
    stage.served.stop().await.unwrap();
}

/// SPEC.md §25.6: the method gets the attachment exactly as announced, or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_what_was_announced_is_not_handed_on() {
    type Given = fn(&[u8], &Request) -> Value;
    let stage = Stage::open("", AttachmentLimits::default()).await;
    let client = stage.client("ann").await;
    let good = bytes(1, 300_000);
    let of = |text: &[u8]| Value::from(URL_SAFE_NO_PAD.encode(text));
    assert_eq!(of(b"ab"), "YWI");
    let liars: [(&str, usize, Given); 6] = [
        ("another digest", 300_000, |good, question| {
            let mut part = part(good, question);
            part[0] ^= 1;
            URL_SAFE_NO_PAD.encode(part).into()
        }),
        // The attachment is longer, then shorter, than announced.
        ("another digest", 299_999, |good, question| URL_SAFE_NO_PAD.encode(part(good, question)).into()),
        ("another size", 300_001, |good, question| URL_SAFE_NO_PAD.encode(part(good, question)).into()),
        ("another size", 300_000, |good, question| {
            let mut part = part(good, question);
            part.push(0);
            URL_SAFE_NO_PAD.encode(part).into()
        }),
        ("another size", 300_000, |_, _| "no base64url!".into()),
        ("another size", 300_000, |_, _| json!({ "bytes": [] })),
    ];
    for (reason, size, given) in liars {
        let bytes = good.clone();
        let lying = request(&client).on_ask(move |question| {
            let answer = given(&bytes, &question);
            async move { Ok(answer) }
        });
        let (code, text) = remote(lying.call_in_frames(&json!({ "document": reference(&good, size) })).await);
        assert_eq!(code, -32602, "{text}");
        assert!(text.ends_with(reason) || text.ends_with("a part of another size"), "{reason}: {text}");
    }
    // Nothing is attached, or something else.
    let other = Attachment::bytes("text/plain", bytes(2, 300_000));
    let announced = json!({ "document": reference(&good, 300_000) });
    for request in [request(&client), request(&client).attach(&other)] {
        let (code, text) = remote(request.call_in_frames(&announced).await);
        assert_eq!((code, text.as_str()), (-32602, "Invalid params: the caller did not give the attachment"));
    }
    // A file that changes after it was announced.
    let path = stage.site.path("changing");
    std::fs::write(&path, &good).unwrap();
    let file = Attachment::file("text/plain", &path).await.unwrap();
    std::fs::write(&path, bytes(3, 300_000)).unwrap();
    let changed = request(&client).attach(&file).call("site/store", json!({ "document": file })).await;
    assert_eq!(remote(changed).1, "Invalid params: the attachment is not what was announced: another digest");
    assert_eq!(stage.handed(), 0);

    // A caller that takes no frames cannot be asked.
    let answer = stage.site.caller("ann").await.call("site/store", &announced.to_string(), SOON).await;
    let Answer::Signed(text) = answer else { panic!("{answer:?}") };
    assert!(text.contains("-32602") && text.contains("takes no frames"), "{text}");
    stage.served.stop().await.unwrap();
}

/// Like `call` with attachments, for callers that answer questions themselves.
trait InFrames {
    async fn call_in_frames(self, params: &Value) -> Result<Value, ClientError>;
}

impl InFrames for RequestBuilder {
    async fn call_in_frames(self, params: &Value) -> Result<Value, ClientError> {
        within(4 * SOON, self.stream::<Value>("site/store", params).finish()).await
    }
}

/// SPEC.md §25.6: size, type and digest are judged before the service asks for a byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_asked_for_that_policy_or_bounds_forbid() {
    let (good, known) = (bytes(1, 1_000), bytes(2, 1_000));
    let policy = format!(
        "[role.worker]\n[rule.store]\nroles = [\"worker\"]\nallow = [\"site/store\"]\n\
         when.params.document.size = {{ max = 5000 }}\nwhen.params.document.type = {{ in = [\"text/plain\"] }}\n\
         when.params.document.sha256 = {{ not = {} }}\n",
        reference(&known, 0)["sha256"]
    );
    let stage = Stage::open(&policy, AttachmentLimits { each: 4_000, in_all: 1 << 20 }).await;
    let client = stage.client("ann").await;
    let asked = Arc::new(AtomicU64::new(0));
    let call = async |document: Value| {
        let (asked, good) = (Arc::clone(&asked), good.clone());
        let answering = request(&client).on_ask(move |question| {
            asked.fetch_add(1, Ordering::SeqCst);
            let answer = URL_SAFE_NO_PAD.encode(part(&good, &question));
            async move { Ok(answer) }
        });
        answering.call_in_frames(&json!({ "document": document })).await
    };
    let mut html = reference(&good, 1_000);
    html["type"] = "text/html".into();
    for (document, code) in [
        (reference(&good, 5_001), -32002),
        (html, -32002),
        (reference(&known, 1_000), -32002),
        // The service's own limit.
        (reference(&good, 4_001), -32602),
        // Another notation for the same, which the policy does not know.
        (json!([reference(&good, 0)["sha256"], 1_000, "text/plain"]), -32602),
    ] {
        let (told, text) = remote(call(document.clone()).await);
        assert_eq!(told, code, "{document}: {text}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    assert_eq!(call(reference(&good, 1_000)).await.unwrap()["size"], 1_000);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    stage.served.stop().await.unwrap();
}

/// SPEC.md §25.6: room is taken before the first question, shared among agents, and given back when the caller goes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_of_one_agent_leave_room_for_others() {
    // One question each: a call that waits for room is refused after half a minute, however busy the machine is.
    const EACH: usize = 64 << 10;
    let stage = Stage::open("", AttachmentLimits { each: EACH, in_all: 4 * EACH }).await;
    let (ann, bob) = (stage.client("ann").await, stage.client("bob").await);
    let asked: Arc<Mutex<BTreeSet<u8>>> = Arc::default();
    let begin = |seed: u8| {
        let asked = Arc::clone(&asked);
        let silent = request(&ann).on_ask(move |_| {
            asked.lock().unwrap().insert(seed);
            std::future::pending::<Result<Value, RpcError>>()
        });
        let document = reference(&bytes(seed, 10), EACH);
        tokio::spawn(async move {
            silent.stream::<Value>("site/store", json!({ "document": document })).finish::<Value>().await
        })
    };
    let count = || asked.lock().unwrap().len();
    let calls: Vec<_> = (0..4).map(begin).collect();
    eventually("half of the room is taken", || count() == 2).await;
    // The room for bob's attachments is given back when the method drops them.
    for seed in 10..13 {
        let attached = Attachment::bytes("text/plain", bytes(seed, EACH));
        let call = request(&bob).attach(&attached).call::<Value>("site/store", json!({ "document": attached }));
        assert_eq!(within(4 * SOON, call).await.unwrap()["size"], EACH);
    }
    assert_eq!(count(), 2, "the others wait for room");
    // Two callers go away, and so the next two get room.
    let first = asked.lock().unwrap().clone();
    for seed in first {
        calls[usize::from(seed)].abort();
    }
    eventually("the others have their turn", || count() == 4).await;
    for call in calls {
        call.abort();
    }
    stage.served.stop().await.unwrap();
}

/// SPEC.md §25.6: a caller that never answers holds its room until the deadline, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_never_given_ends_with_the_deadline() {
    let stage = Stage::open("", AttachmentLimits { each: 1 << 20, in_all: 2 << 20 }).await;
    let client = stage.client("ann").await;
    let good = bytes(1, 1 << 20);
    let silent = request(&client).deadline(Duration::from_secs(8));
    let silent = silent.on_ask(|_| std::future::pending::<Result<Value, RpcError>>());
    let ended = silent.call_in_frames(&json!({ "document": reference(&good, 1 << 20) })).await;
    assert_eq!(remote(ended).0, -32003);
    // Needs all the room there is.
    let attached = Attachment::bytes("text/plain", good);
    let call = request(&client).attach(&attached).call::<Value>("site/store", json!({ "document": attached }));
    assert_eq!(within(4 * SOON, call).await.unwrap()["size"], 1 << 20);
    stage.served.stop().await.unwrap();
}

/// SPEC.md §25.6: the service asks again for answers that were lost with a node of the broker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attachment_comes_whole_when_the_broker_was_gone() {
    let mut stage = Stage::open("", AttachmentLimits::default()).await;
    let client = stage.client("ann").await;
    let good = bytes(1, 3 << 20);
    let questions = Arc::new(AtomicU64::new(0));
    let reached = Arc::new(Notify::new());
    let (gone, is_gone) = watch::channel(false);
    let answering = {
        let (good, questions, reached) = (good.clone(), Arc::clone(&questions), Arc::clone(&reached));
        request(&client).on_ask(move |question| {
            let number = questions.fetch_add(1, Ordering::SeqCst) + 1;
            let answer = URL_SAFE_NO_PAD.encode(part(&good, &question));
            let (reached, mut is_gone) = (Arc::clone(&reached), is_gone.clone());
            async move {
                // From the tenth on, no answer leaves before the broker is dead, so one is lost for certain.
                if number >= 10 {
                    reached.notify_one();
                    drop(is_gone.wait_for(|gone| *gone).await);
                }
                if number == 13 { std::future::pending().await } else { Ok(answer) }
            }
        })
    };
    let document = reference(&good, good.len());
    let call = tokio::spawn(async move { answering.call_in_frames(&json!({ "document": document })).await });
    within(SOON, reached.notified()).await;
    stage.server.kill().await;
    eventually("the client has noticed", || !client.stats().connected).await;
    gone.send_replace(true);
    stage.server.restart().await;
    let stored = within(6 * SOON, call).await.unwrap().unwrap();
    assert_eq!(stored["sha256"], reference(&good, 0)["sha256"]);
    let parts = u64::try_from(good.len().div_ceil(96 * 1024)).unwrap();
    assert!(questions.load(Ordering::SeqCst) > parts, "some were asked twice");
    stage.served.stop().await.unwrap();
}
