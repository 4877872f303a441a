//! `batch = true`: one `POST` carries calls of one caller, and nobody else's.

use std::time::Duration;

use futures_util::future::{join, join_all};
use sealwire::Client;
use sealwire_testkit::python::python;
use sealwire_testkit::{free_port, within};
use serde_json::{Value, json};

use super::super::stage::{LONG, POLICY, Stage, code};
use super::application;

const TOOLS: [&str; 10] = ["expired", "add", "refuse", "lost", "twice", "garbled", "busy", "page", "slow", "report"];

struct Batched {
    stage: Stage,
    folder: tempfile::TempDir,
    _application: tokio::process::Child,
}

/// A `POST` that the application got.
#[derive(serde::Deserialize)]
struct Post {
    calls: usize,
    bytes: usize,
    params: Vec<Value>,
    agent: String,
    key: String,
    accept: String,
}

impl Batched {
    async fn new() -> Option<Self> {
        let python = python()?;
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let application = application(python, port, folder.path());
        let secret = folder.path().join("key.sh");
        std::fs::write(&secret, "echo key-of-$SEALWIRE_AGENT\n").unwrap();
        let mut text = format!(
            "[[backend]]\nname = \"w\"\nkind = \"http\"\nurl = \"http://127.0.0.1:{port}/rpc\"\nbatch = true\nin_flight = 256\n\
             send_caller = true\n[[backend.credential]]\nscheme = \"Bearer\"\nowner = \"agent\"\ncommand = [\"sh\", {:?}]\n",
            secret.to_str().unwrap()
        );
        for tool in TOOLS {
            text += &format!("[[backend.method]]\nname = \"w/{tool}\"\ntool = \"{tool}\"\n");
        }
        let stage = Stage::new(POLICY, &text).await;
        Some(Self { stage, folder, _application: application })
    }

    fn posts(&self) -> Vec<Post> {
        let text = std::fs::read_to_string(self.folder.path().join("posts")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Sends one message with these calls until they reach the application in one `POST`: on a busy machine they may not at first.
    async fn together(&self, methods: &[&str]) -> Vec<Result<Value, i32>> {
        let together = async {
            loop {
                let before = self.posts().len();
                let outcomes = within(LONG, all(&self.stage.client, methods)).await;
                if let [post] = &self.posts()[before..]
                    && post.calls == methods.len()
                {
                    break outcomes;
                }
            }
        };
        within(2 * LONG, together).await
    }
}

async fn all(client: &Client, methods: &[&str]) -> Vec<Result<Value, i32>> {
    let mut batch = client.batch("tools");
    let calls: Vec<_> =
        methods.iter().enumerate().map(|(n, method)| batch.call(&format!("w/{method}"), json!({ "n": n }))).collect();
    let mut answers = batch.send().await.unwrap();
    calls.into_iter().map(|call| answers.take::<Value>(call).map_err(|error| code(&error).unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_one_message_are_one_post_and_each_has_its_own_outcome() {
    let Some(batched) = Batched::new().await else { return };
    let outcomes = batched.together(&["add", "lost", "twice", "garbled", "refuse", "add"]).await;
    let n = |n: usize| Ok(json!({ "n": n }));
    assert_eq!(outcomes, [n(0), Err(-32004), Err(-32004), Err(-32004), Err(7), n(5)]);
    // What is said to all of them.
    assert_eq!(batched.together(&["add", "busy"]).await, [Err(7), Err(7)]);
    assert_eq!(batched.together(&["add", "page"]).await, [Err(-32004), Err(-32004)]);
    // A single call is not a batch, and an answer in parts arrives as such.
    let before = batched.posts().len();
    assert_eq!(batched.stage.call("w/add", json!({ "a": 2, "b": 3 })).await.unwrap(), json!(5));
    assert_eq!(batched.stage.call("w/report", json!({})).await.unwrap(), json!({ "halves": 2 }));
    assert_eq!(batched.posts().len(), before);
    batched.stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_were_answered_with_a_401_are_not_made_again() {
    let Some(batched) = Batched::new().await else { return };
    // Each time another one: a request that was refused as a whole is repeated with other credentials.
    std::fs::write(batched.folder.path().join("key.sh"), "echo key-$$\n").unwrap();
    assert_eq!(batched.stage.call("w/add", json!({ "a": 2, "b": 3 })).await.unwrap(), json!(5));
    // Credentials less than five seconds old are not fetched again.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let methods = ["add", "expired", "refuse"];
    let together = async {
        loop {
            let before = batched.posts().len();
            let outcomes = within(LONG, all(&batched.stage.client, &methods)).await;
            let posts = &batched.posts()[before..];
            let made: usize = posts.iter().map(|post| post.calls).sum();
            assert!(made <= methods.len(), "{made}");
            if posts.len() == 1 && made == methods.len() {
                break outcomes;
            }
        }
    };
    assert_eq!(within(2 * LONG, together).await, [Err(-32004), Err(-32004), Err(7)]);
    batched.stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_post_has_calls_of_two_callers_or_more_than_its_bounds() {
    let Some(batched) = Batched::new().await else { return };
    let other = batched.stage.agent("robot").await;
    let stage = &batched.stage;
    let calls = |client: Client, name: &'static str| async move {
        let (client, pad) = (&client, "x".repeat(100_000));
        let call = |n: usize| {
            // Some are long.
            let params = json!({ "of": name, "n": n, "pad": if n.is_multiple_of(5) { pad.as_str() } else { "" } });
            async move {
                let request = client.request("tools").deadline(LONG);
                assert_eq!(request.call::<Value>("w/slow", &params).await.unwrap(), params, "{name} {n}");
            }
        };
        join_all((0..100).map(call)).await;
    };
    std::fs::write(batched.folder.path().join("go"), "").unwrap();
    within(2 * LONG, join(calls(stage.client.clone(), "planner"), calls(other, "robot"))).await;
    let posts = batched.posts();
    assert!(posts.iter().any(|post| post.calls > 1));
    for post in posts {
        assert!((2..=32).contains(&post.calls) && post.bytes <= (1 << 20) + 2, "{} {}", post.calls, post.bytes);
        // A method that prefers a stream of events would have made the calls in vain.
        assert_eq!(post.accept, "application/json");
        assert_eq!(post.key, format!("Bearer key-of-{}", post.agent));
        assert!(post.params.iter().all(|params| params["of"] == *post.agent), "calls of somebody else: {}", post.agent);
    }
    batched.stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_given_up_costs_the_others_nothing_and_the_last_closes_the_connection() {
    let Some(batched) = Batched::new().await else { return };
    let client = &batched.stage.client;
    let slow = |deadline: Duration| async move {
        client.request("tools").deadline(deadline).call::<Value>("w/slow", json!({ "of": "us" })).await
    };
    let short = Duration::from_secs(1);
    // All give up: the application sees it.
    let cancelled = batched.folder.path().join("batch-cancelled");
    let given_up = async {
        while !cancelled.exists() {
            let _outcomes = join(slow(short), slow(short)).await;
        }
    };
    within(2 * LONG, given_up).await;
    // One gives up, and the other is answered.
    let go = batched.folder.path().join("go");
    let answered = async {
        loop {
            let before = batched.posts().len();
            let impatient = async {
                let outcome = slow(short).await;
                std::fs::write(&go, "").unwrap();
                outcome
            };
            let (patient, impatient) = join(slow(2 * LONG), impatient).await;
            std::fs::remove_file(&go).unwrap();
            assert_eq!(patient.unwrap(), json!({ "of": "us" }));
            if batched.posts().len() > before {
                break impatient.unwrap_err();
            }
        }
    };
    within(2 * LONG, answered).await;
    batched.stage.end().await;
}
