//! What `sealwire setup cluster` writes, and how far each of its users gets at a real broker: the second gate, which holds
//! without the checks on messages. The service and the other commands run from the same files, without TLS.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "support/cli.rs"]
mod cli;
mod support;

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions};
use cli::Shell;
use futures_util::StreamExt as _;
use sealwire::auth::{IssueRequest, TokenIssuer};
use sealwire::client::Credentials;
use sealwire::wire::{Audience, RequestSigner, Signed};
use sealwire::{Clock as _, Name, SystemClock};
use serde_json::Value;
use support::raw::RawConnection;
use support::{NatsServer, SOON, settle, within};

/// A set-up, and one broker that has its users.
struct Gate {
    shell: Shell,
    server: NatsServer,
}

impl Gate {
    async fn open() -> Self {
        let shell = Shell::new();
        shell.run("setup cluster --out .").ok();
        let server = NatsServer::start_with(&shell.read("nats-1/users.conf")).await;
        Self { shell, server }
    }

    /// The nkey seed of a broker user.
    fn seed(&self, user: &str) -> String {
        let agent = |folder: &str| {
            let credentials = self.shell.read_json(&format!("{folder}/{user}.creds.json"));
            credentials["nats"]["nkey_seed"].as_str().unwrap().to_owned()
        };
        match user {
            "service" | "guard" => self.shell.read(&format!("service/{user}.nkey")),
            "tools" => self.shell.read("operator/tools.nkey"),
            "planner" => agent("planner"),
            _ => agent("operator"),
        }
    }

    async fn raw(&self, user: &str) -> RawConnection {
        RawConnection::connect_as(&self.server.url(), &self.seed(user)).await.unwrap()
    }

    /// A client whose inboxes are where its permissions say.
    async fn client(&self, user: &str) -> Client {
        let inbox = if user == "service" { "_INBOX.svc:demo".to_owned() } else { format!("_INBOX.{user}") };
        let options = ConnectOptions::with_nkey(self.seed(user)).custom_inbox_prefix(inbox);
        within(SOON, options.connect(self.server.url())).await.unwrap()
    }

    /// What the broker lets a user do, of subjects to publish to and to subscribe.
    async fn may(&self, user: &str, publish: &[&str], subscribe: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut raw = self.raw(user).await;
        let (mut publishes, mut subscribes) = (Vec::new(), Vec::new());
        for subject in publish {
            raw.publish(subject, None, b"{}").await;
            if is_permitted(&raw.flush().await, subject) {
                publishes.push((*subject).to_owned());
            }
        }
        for subject in subscribe {
            raw.subscribe(subject, None).await;
            if is_permitted(&raw.flush().await, subject) {
                subscribes.push((*subject).to_owned());
            }
        }
        (publishes, subscribes)
    }

    /// The service from its own configuration, with this broker in place of the three. Ready when this returns.
    fn serve(&self, state: &str) -> Served {
        let cluster = r#"["tls://nats-1:4222", "tls://nats-2:4222", "tls://nats-3:4222"]"#;
        let config = self.shell.read("service/sealwire.toml");
        let config =
            config.replace(cluster, &format!("[\"{}\"]", self.server.url())).replace("tls_ca = \"ca.pem\"\n", "");
        self.shell.write("service/here.toml", &config.replace("replicas = 3", "replicas = 1"));
        for policy in std::fs::read_dir("policies").unwrap().map(|entry| entry.unwrap().path()) {
            let name = policy.file_name().unwrap().to_str().unwrap().to_owned();
            self.shell.write(&format!("policies/{name}"), &std::fs::read_to_string(&policy).unwrap());
        }
        let mut command = self.shell.command(&["serve", "--config", "service/here.toml", "--state-file", state]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let served = Served(child);
        let ping = format!("ping --config service/here.toml --own {state}");
        let deadline = Instant::now() + 3 * SOON;
        while self.shell.run(&ping).code != 0 {
            assert!(Instant::now() < deadline, "not ready: {:?}", self.shell.run(&ping));
            std::thread::sleep(Duration::from_millis(100));
        }
        served
    }

    /// The planner's credentials, for this broker.
    fn planner(&self) -> String {
        let mut credentials = self.shell.read_json("planner/planner.creds.json");
        credentials["nats"]["urls"] = serde_json::json!([self.server.url()]);
        credentials["nats"].as_object_mut().unwrap().remove("tls_ca");
        self.shell.write("planner/here.creds.json", &credentials.to_string());
        self.shell.set_mode("planner/here.creds.json", 0o600);
        "planner/here.creds.json".to_owned()
    }
}

/// A running service, which gets a SIGTERM when it is dropped, if not before.
struct Served(Child);

impl Served {
    fn terminate(&mut self) {
        // By the process's own id, while it is ours: it has not been waited for.
        let pid = self.0.id().to_string();
        assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
        assert!(self.0.wait().unwrap().success(), "drained");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn is_permitted(errors: &[String], what: &str) -> bool {
    match errors {
        [] => true,
        [error] if error.contains("Permissions Violation") => false,
        errors => panic!("{what}: {errors:?}"),
    }
}

fn owned(subjects: &[&str]) -> Vec<String> {
    subjects.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn an_agent_publishes_only_its_own_requests() {
    let gate = Gate::open().await;
    let own = ["rpc.v1.demo.planner", "rpc.v1.demo.planner.math.add", "rpc.v1.other.planner"];
    let forbidden = [
        // As another agent, or as none.
        "rpc.v1.demo.teller",
        "rpc.v1.demo.teller.bank.transfer",
        "rpc.v1.demo",
        "rpc.v1.planner",
        // Forged answers, also to itself, to the service and to the guard.
        "_INBOX.teller.x",
        "_INBOX.planner.x",
        "_INBOX.svc:demo.x",
        "_INBOX.svc:demo.guard.x",
        // Nonces, streams, acknowledgements, buckets, discovery, the system.
        "rg.dev.demo.planner",
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.DELETE.RG_dev_demo_x",
        "$JS.ACK.a.b.1.1.1.1.1",
        "$KV.policies.math",
        "$SRV.PING",
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.USER.AUTH",
    ];
    let (publishes, _) = gate.may("planner", &[&own[..], &forbidden].concat(), &[]).await;
    assert_eq!(publishes, owned(&own));
}

#[tokio::test]
async fn an_agent_hears_only_its_own_inbox() {
    let gate = Gate::open().await;
    let own = ["_INBOX.planner.>", "_INBOX.planner.c1.7"];
    let forbidden = [
        ">",
        "_INBOX.>",
        "_INBOX.*.>",
        "_INBOX.*",
        "_INBOX.teller.>",
        "_INBOX.svc:demo.>",
        "rpc.>",
        "rpc.v1.demo.>",
        "rpc.v1.demo.planner",
        "rg.>",
        "$SRV.>",
        "$SYS.>",
        "$JS.EVENT.>",
        "$JS.API.>",
    ];
    let (_, subscribes) = gate.may("planner", &[], &[&own[..], &forbidden].concat()).await;
    assert_eq!(subscribes, owned(&own));
}

#[tokio::test]
async fn an_agent_steals_no_request_by_joining_the_queue_group() {
    let gate = Gate::open().await;
    let (service, teller) = (gate.client("service").await, gate.client("teller").await);
    let mut requests = within(SOON, service.queue_subscribe("rpc.v1.demo.>", "q".to_owned())).await.unwrap();
    settle(&service).await;
    let mut thief = gate.raw("planner").await;
    for subject in ["rpc.v1.demo.>", "rpc.v1.demo.teller.>", "rpc.v1.demo.teller"] {
        thief.subscribe(subject, Some("q")).await;
        assert!(!is_permitted(&thief.flush().await, subject), "{subject}");
    }
    for _ in 0..20 {
        within(SOON, teller.publish("rpc.v1.demo.teller", "{}".into())).await.unwrap();
    }
    for _ in 0..20 {
        within(SOON, requests.next()).await.unwrap();
    }
}

#[tokio::test]
async fn an_agent_that_keeps_the_default_inbox_prefix_hears_no_answer() {
    let gate = Gate::open().await;
    let service = gate.client("service").await;
    let mut requests = within(SOON, service.subscribe("rpc.v1.demo.>")).await.unwrap();
    settle(&service).await;
    let (told, mut tells) = tokio::sync::mpsc::channel(4);
    let options = ConnectOptions::with_nkey(gate.seed("planner")).event_callback(move |event| {
        let told = told.clone();
        async move { drop(told.try_send(event.to_string())) }
    });
    let client = within(SOON, options.connect(gate.server.url())).await.unwrap();
    let request = tokio::time::timeout(Duration::from_millis(500), client.request("rpc.v1.demo.planner", "{}".into()));
    assert!(request.await.is_err(), "not even an error: only an event tells");
    let violation = within(SOON, async {
        loop {
            let event = tells.recv().await.unwrap();
            if event.to_lowercase().contains("permissions violation") {
                return event;
            }
        }
    });
    assert!(violation.await.contains("_INBOX."));
    assert!(within(SOON, requests.next()).await.is_some(), "the request itself was permitted");
}

/// Each reply subject that an agent might name in a request that is otherwise in perfect order. The broker refuses some
/// by itself; for the others it relies on the service, whose user it stops in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_published_to_a_reply_subject_that_is_not_the_callers() {
    let gate = Gate::open().await;
    let _served = gate.serve("state.json");
    let credentials = Credentials::load(gate.shell.path(&gate.planner())).unwrap();
    let issuer = TokenIssuer::load(gate.shell.path("issuer/token-key.json")).unwrap();
    let audience = Audience::new(&Name::new("dev").unwrap(), &Name::new("demo").unwrap());
    let mut request = IssueRequest::new("planner", audience.as_str(), SystemClock.now_s());
    request.roles = ["calculator".to_owned()].into();
    let token = issuer.issue(&request).unwrap();
    let signer = RequestSigner::new(credentials.key(), audience, Vec::new()).unwrap();
    let payload = br#"{"jsonrpc":"2.0","method":"math/add","params":[2,3],"id":1}"#;

    let (planner, teller) = (gate.client("planner").await, gate.client("teller").await);
    let mut own = within(SOON, planner.subscribe("_INBOX.planner.t.*")).await.unwrap();
    let mut others = within(SOON, teller.subscribe("_INBOX.teller.t.*")).await.unwrap();
    for (client, name) in [(&planner, "planner"), (&teller, "teller")] {
        // Agents may not publish to their own inboxes. An answer of the broker itself shows that it has the subscription.
        let nobody = within(SOON, client.request(format!("rpc.v1.none.{name}"), "".into())).await;
        assert_eq!(nobody.unwrap_err().kind(), async_nats::RequestErrorKind::NoResponders);
    }
    let mut raw = gate.raw("planner").await;
    let mut send = async |reply: &str| {
        let signed = signer.sign(&Signed {
            subject: "rpc.v1.demo.planner",
            reply,
            payload,
            token: &token,
            now_ms: SystemClock.now_ms(),
            valid_s: 30,
            timeout_ms: None,
            idempotency_key: None,
        });
        let headers = format!("NATS/1.0\r\nAuthorization: {}\r\n\r\n", signed.authorization);
        raw.hpub_raw("rpc.v1.demo.planner", Some(reply), headers.as_bytes(), payload).await;
        is_permitted(&raw.flush().await, reply)
    };

    assert!(send("_INBOX.planner.t.x").await);
    let answer = within(SOON, own.next()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer["result"], 5);

    // Passed on by the broker, dropped by the service.
    for reply in
        ["_INBOX.teller.t.x", "$JS.API.STREAM.NAMES", "$SYS.REQ.USER.AUTH", "rg.dev.demo.x", "rpc.v1.demo.planner"]
    {
        assert!(send(reply).await, "{reply}");
    }
    // Refused by the broker.
    for reply in ["$JS.ACK.a.b.1.1.1.1.1", "_R_.x"] {
        assert!(!send(reply).await, "{reply}");
    }
    // The last one shows that all before it were dealt with.
    assert!(send("_INBOX.planner.t.y").await);
    assert_eq!(within(SOON, own.next()).await.unwrap().subject.as_str(), "_INBOX.planner.t.y");
    let heard = tokio::time::timeout(Duration::from_millis(200), others.next()).await;
    assert!(heard.is_err(), "{heard:?}");
}

#[tokio::test]
async fn an_agent_cannot_have_its_messages_traced_to_other_subjects() {
    let gate = Gate::open().await;
    let service = gate.client("service").await;
    let mut requests = within(SOON, service.subscribe("rpc.v1.demo.>")).await.unwrap();
    settle(&service).await;
    let mut raw = gate.raw("planner").await;
    for destination in ["_INBOX.teller.x", "$JS.API.STREAM.NAMES"] {
        let headers = format!("NATS/1.0\r\nNats-Trace-Dest: {destination}\r\n\r\n");
        raw.hpub_raw("rpc.v1.demo.planner", None, headers.as_bytes(), b"{}").await;
        assert!(!is_permitted(&raw.flush().await, destination));
    }
    raw.publish("rpc.v1.demo.planner", None, b"last").await;
    raw.flush().await;
    assert_eq!(&within(SOON, requests.next()).await.unwrap().payload[..], b"last", "the traced ones did not arrive");
}

/// There is no `allow_responses`: answers go to inboxes because the service's user may publish there, whoever asked.
#[tokio::test]
async fn the_service_publishes_only_answers() {
    let gate = Gate::open().await;
    let own = ["_INBOX.planner.x", "_INBOX.svc:demo.x", "$SRV.PING.demo"];
    let forbidden = [
        "rpc.v1.demo.planner",
        "rpc.v1.other.demo",
        "rg.dev.demo.planner",
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.DELETE.RG_dev_demo_x",
        "$SRV.PING",
        "$SRV.PING.other",
        "$SYS.REQ.USER.AUTH",
    ];
    let hears = ["rpc.v1.demo.>", "$SRV.PING", "$SRV.STATS.demo", "_INBOX.svc:demo.>"];
    let deaf = [">", "rpc.>", "rpc.v1.other.>", "_INBOX.>", "_INBOX.planner.>", "rg.>", "$JS.>"];
    let may = gate.may("service", &[&own[..], &forbidden].concat(), &[&hears[..], &deaf].concat()).await;
    assert_eq!(may, (owned(&own), owned(&hears)));

    // A request with a reply subject does not widen it.
    let service = gate.client("service").await;
    let mut requests = within(SOON, service.subscribe("rpc.v1.demo.>")).await.unwrap();
    settle(&service).await;
    let mut planner = gate.raw("planner").await;
    planner.publish("rpc.v1.demo.planner", Some("rg.dev.demo.x"), b"{}").await;
    planner.flush().await;
    assert_eq!(within(SOON, requests.next()).await.unwrap().reply.unwrap().as_str(), "rg.dev.demo.x");
    assert_eq!(gate.may("service", &["rg.dev.demo.x"], &[]).await.0, owned(&[]));
}

#[tokio::test]
async fn guard_and_tools_reach_only_what_they_are_for() {
    let gate = Gate::open().await;
    let own = ["rg.dev.demo.planner", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.x", "$JS.API.STREAM.CREATE.x"];
    let forbidden = [
        "rg.dev.other.planner",
        "rg.prod.demo.planner",
        "$JS.API.STREAM.DELETE.x",
        "$JS.API.STREAM.PURGE.x",
        "$JS.API.STREAM.UPDATE.x",
        "$JS.API.STREAM.MSG.DELETE.x",
        "_INBOX.planner.x",
        "rpc.v1.demo.planner",
    ];
    let deaf = [">", "rpc.>", "rg.>", "_INBOX.>", "_SVC.>", "_SVC.demo.x", "_SVC.other.guard.>"];
    let hears = ["_SVC.demo.guard.>"];
    let may = gate.may("guard", &[&own[..], &forbidden].concat(), &[&hears[..], &deaf].concat()).await;
    assert_eq!(may, (owned(&own), owned(&hears)));

    let may = gate.may(
        "tools",
        &["$SRV.PING", "$SRV.STATS.demo", "rpc.v1.demo.tools", "_INBOX.planner.x", "$JS.API.INFO"],
        &["_INBOX.tools.>", "_INBOX.>", "rpc.>", "$SRV.>"],
    );
    assert_eq!(may.await, (owned(&["$SRV.PING", "$SRV.STATS.demo"]), owned(&["_INBOX.tools.>"])));
}

#[tokio::test]
async fn nobody_connects_without_the_key_of_a_user() {
    let gate = Gate::open().await;
    let url = gate.server.url();
    let stranger = nkeys::KeyPair::new_user().seed().unwrap();
    let errors = RawConnection::connect_as(&url, &stranger).await.unwrap_err();
    assert!(errors[0].contains("Authorization Violation"), "{errors:?}");
    assert!(within(SOON, async_nats::connect(&url)).await.is_err());
    let guessed = ConnectOptions::with_user_and_password("planner".to_owned(), "planner".to_owned());
    assert!(within(SOON, guessed.connect(&url)).await.is_err());
}

/// Every file, with its text.
fn files(shell: &Shell) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for folder in shell.files() {
        for entry in std::fs::read_dir(shell.path(&folder)).unwrap() {
            let name = format!("{folder}/{}", entry.unwrap().file_name().to_str().unwrap());
            files.insert(name.clone(), shell.read(&name));
        }
    }
    files
}

/// The secret texts in a file, by the names that they have there.
fn secrets(name: &str, text: &str) -> Vec<String> {
    let json = || serde_json::from_str::<Value>(text).unwrap();
    let at = |pointers: &[&str]| -> Vec<String> {
        let found = pointers.iter().filter_map(|pointer| Some(json().pointer(pointer)?.as_str()?.to_owned()));
        found.collect()
    };
    let name = name.rsplit('/').next().unwrap();
    match name {
        "key.pem" => vec![text.lines().nth(1).unwrap().to_owned()],
        "service.nkey" | "guard.nkey" | "tools.nkey" => vec![text.trim().to_owned()],
        "token-key.json" => at(&["/d"]),
        "service-key.json" => at(&["/seed"]),
        "planner.jwt" => vec![text.trim().to_owned()],
        "ring.json" => {
            json()["keys"].as_array().unwrap().iter().filter_map(|key| Some(key["key"].as_str()?.to_owned())).collect()
        }
        name if name.ends_with(".creds.json") => at(&["/key/secret", "/key/seed", "/nats/nkey_seed"]),
        _ => Vec::new(),
    }
}

#[test]
fn every_secret_is_in_one_file_that_only_its_owner_can_read() {
    let shell = Shell::new();
    shell.run("setup cluster --out .").ok();
    let files = files(&shell);
    let mut count = 0;
    for (name, text) in &files {
        for secret in secrets(name, text) {
            count += 1;
            assert!(secret.len() > 20, "{name}");
            let holders: Vec<&String> =
                files.iter().filter(|(_, text)| text.contains(&secret)).map(|(name, _)| name).collect();
            assert_eq!(holders, [name]);
            assert_eq!(shell.mode(name), 0o600, "{name}");
            shell.never_said(&secret);
        }
    }
    // Three brokers' keys; two users of the service, its key and three derived keys; four agents with a user each; the
    // tools; the issuer; one token.
    assert_eq!(count, 3 + (2 + 1 + 3) + 4 * 2 + 1 + 1 + 1);
    let users = &files["nats-1/users.conf"];
    assert!(!users.contains(" SU") && users.matches("nkey: U").count() == 7, "public keys only");
    assert!(!users.contains("allow_responses"));
    assert_eq!(users, &files["nats-3/users.conf"]);
    assert!(
        !files.values().any(|text| text.contains("BEGIN") && text.contains("PRIVATE") && text.contains("authority"))
    );
}

#[test]
fn a_whole_set_up_stays_and_a_broken_one_is_made_anew() {
    let shell = Shell::new();
    let made = |shell: &Shell| shell.run("setup cluster --out . --json").ok().json()["made"] == true;
    assert!(made(&shell));
    let first = files(&shell);
    assert!(!made(&shell), "nothing to do");
    let again = files(&shell);
    let changed: Vec<&String> = first.keys().filter(|name| first[*name] != again[*name]).collect();
    assert_eq!(changed, ["tokens/planner.jwt"], "a fresh token, for a start after a long pause");

    // A volume that was lost.
    std::fs::remove_dir_all(shell.path("service")).unwrap();
    assert!(made(&shell));
    let anew = files(&shell);
    assert_eq!(anew.keys().collect::<Vec<_>>(), first.keys().collect::<Vec<_>>());
    assert!(
        first.keys().all(|name| name.ends_with("denylist.json")
            || name.ends_with("sealwire.toml")
            || anew[name] != first[name])
    );

    // Certificates that end soon.
    let mark: Value = shell.read_json("nats-1/set-up.json");
    let now = SystemClock.now_s();
    for folder in shell.files() {
        let mark = serde_json::json!({ "id": mark["id"], "until": now + 29 * 86_400 });
        shell.write(&format!("{folder}/set-up.json"), &mark.to_string());
    }
    assert!(made(&shell));
    assert!(shell.read_json("nats-1/set-up.json")["until"].as_u64().unwrap() > now + 300 * 86_400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_listed_and_a_health_check_follows_its_own() {
    let gate = Gate::open().await;
    let (one, mut two) = (gate.serve("one.json"), gate.serve("two.json"));
    let listed = gate.shell.run("ping --config service/here.toml --at-least 2 --json").ok().json();
    assert_eq!((&listed["audience"], &listed["ready"]), (&"dev/demo".into(), &2.into()));
    let instance = |state: &str| gate.shell.read_json(state)["instance"].as_str().unwrap().to_owned();
    let mut expected = [instance("one.json"), instance("two.json")];
    let mut found: Vec<&str> =
        listed["replicas"].as_array().unwrap().iter().map(|r| r["instance"].as_str().unwrap()).collect();
    expected.sort();
    found.sort_unstable();
    assert_eq!(found, expected);
    let replica = &listed["replicas"][0];
    assert_eq!((&replica["state"], &replica["guard"]), (&"ready".into(), &"shared".into()));

    let creds = gate.planner();
    let calls = ["call", "--creds", &creds, "demo", "math/add", "[2, 3]", "--every", "10ms", "--times", "20", "--json"];
    let ran = gate.shell.run_args(&calls).ok();
    let results = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(results.filter(|line| line["result"] == 5 && line["ms"].is_f64()).count(), 20);

    two.terminate();
    assert!(!gate.shell.path("two.json").exists(), "gone with the replica");
    gate.shell.run("ping --config service/here.toml --own two.json").fails(20, &["no replica keeps its state"]);
    gate.shell.write("gone.json", r#"{"instance":"AAAA"}"#);
    let ran = gate.shell.run("ping --config service/here.toml --own gone.json");
    assert!(ran.code == 20 && ran.stderr.contains("does not take messages"), "{ran:?}");
    gate.shell.run("ping --config service/here.toml --own one.json").ok();
    let ran = gate.shell.run("ping --config service/here.toml --at-least 2");
    assert!(ran.code == 20 && ran.stderr.contains("1 replicas of dev/demo take messages, not 2"), "{ran:?}");

    drop(one);
    let calls = ["call", "--creds", &creds, "demo", "math/add", "[2, 3]", "--every", "10ms", "--times", "2"];
    let ran = gate.shell.run_args(&calls);
    assert_eq!(ran.code, 20, "{ran:?}");
    assert!(ran.stderr.contains("2 calls: 0 with a result, 2 without"), "{ran:?}");
}

#[test]
fn tokens_are_issued_again_and_again_until_told_to_stop() {
    let shell = Shell::new();
    shell.run("keys new-token-key https://issuer.example").ok();
    let issue = "token issue --key token-key.json --subject planner --audience dev/demo --out planner.jwt";
    let line = format!("{issue} --ttl 10s --every 10s");
    shell.run(&line).fails(30, &["a token would end before the next one is issued"]);
    let args: Vec<&str> = issue.split(' ').chain(["--every", "50ms"]).collect();
    let mut issuing = Served(shell.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let mut seen = std::collections::BTreeSet::new();
    let deadline = Instant::now() + SOON;
    while seen.len() < 3 {
        assert!(Instant::now() < deadline, "{seen:?}");
        seen.extend(std::fs::read_to_string(shell.path("planner.jwt")).ok());
        std::thread::sleep(Duration::from_millis(10));
    }
    issuing.terminate();
}
