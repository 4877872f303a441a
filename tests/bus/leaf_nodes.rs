//! Brokers joined by leaf nodes, and accounts joined by imports: what passes, and what is refused because it was changed on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealwire::internal::auth::{AdmitError, ReplayGuard as _, SharedConfig, SharedGuard, Window};
use sealwire::{BusConfig, Client, Credentials, Ctx, Name, Router, RpcError, SystemClock};
use sealwire_testkit::replay::Message;
use sealwire_testkit::site::{Site, agent_key, methods};
use sealwire_testkit::{NatsServer, SOON, free_port, within};
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A hub and a leaf, each with JetStream in a domain of its name.
async fn hub_and_leaf() -> [NatsServer; 2] {
    let port = free_port();
    let config = |name: &str, leaf_nodes: &str| {
        format!("server_name: {name}\njetstream {{ domain: {name} }}\nleafnodes {{ {leaf_nodes} }}\n")
    };
    let hub = NatsServer::start_with(&config("hub", &format!("listen: \"127.0.0.1:{port}\""))).await;
    let remote = format!("remotes: [ {{ url: \"nats-leaf://127.0.0.1:{port}\" }} ]");
    [hub, NatsServer::start_with(&config("leaf", &remote)).await]
}

async fn client(site: &Site, bus: BusConfig) -> Client {
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), bus);
    let client = Client::builder(credentials.token(site.token("ann", &["worker"]))).deadline(Duration::from_secs(2));
    within(SOON, client.connect()).await.unwrap()
}

/// Calls until it works: what one side subscribes to is known at the other a moment later.
async fn add(client: &Client) -> i64 {
    let working = async {
        loop {
            match client.call("site", "site/add", (1, 2)).await {
                Ok(sum) => return sum,
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    within(2 * SOON, working).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_at_a_leaf_calls_a_service_at_the_hub() {
    let [hub, leaf] = hub_and_leaf().await;
    let site = Site::new(&hub.url());
    let served = site.serve(methods()).await;
    let client = client(&site, BusConfig::open(&leaf.url())).await;
    assert_eq!(add(&client).await, 3);
    served.stop().await.unwrap();
}

/// A whole service at the leaf, and then a replica of its guard at the hub, which needs no domain there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_at_leaf_and_hub_share_the_memory_in_the_hub_s_domain() {
    let [hub, leaf] = hub_and_leaf().await;
    let site = Site::new(&leaf.url());
    site.write_config(&format!(
        "guard = \"shared\"\nanswer_within_ms = 1000\n[replay.nats]\nurls = [\"{}\"]\njetstream_domain = \"hub\"\n",
        leaf.url()
    ));
    let served = site.serve(methods()).await;
    let client = client(&site, BusConfig::open(&leaf.url())).await;
    assert_eq!(add(&client).await, 3);
    served.stop().await.unwrap();

    let mut config = SharedConfig::new(name("test"), name("site"));
    config.window = Window::new(30, 1).unwrap();
    config.answer_within = Duration::from_secs(1);
    let guard = async |bus: BusConfig| {
        let guard = within(SOON, SharedGuard::open(config.clone(), bus, Arc::new(SystemClock))).await.unwrap();
        let ready = async {
            while guard.not_ready().is_some() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        within(2 * SOON, ready).await;
        guard
    };
    let at_leaf = guard(BusConfig { jetstream_domain: Some("hub".to_owned()), ..BusConfig::open(&leaf.url()) }).await;
    let at_hub = guard(BusConfig::open(&hub.url())).await;
    let offer = async |guard: &SharedGuard, Message { nonce, iat }: Message| {
        within(SOON, guard.admit(&name("ann"), nonce, iat, iat + 30, Instant::now())).await
    };
    let admitted = async {
        loop {
            let message = Message::new();
            if offer(&at_leaf, message).await.is_ok() {
                return message;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let message = within(2 * SOON, admitted).await;
    // At first it vouches for nothing that was issued before it came.
    let judged = async {
        loop {
            match offer(&at_hub, message).await {
                // The stream may answer too late on a busy machine.
                Err(AdmitError::Unavailable(_)) => sleep(Duration::from_millis(50)).await,
                judged => return judged,
            }
        }
    };
    assert!(matches!(
        within(2 * SOON, judged).await,
        Err(AdmitError::Replayed | AdmitError::Stale | AdmitError::Fenced { .. })
    ));
    let other_way = async {
        loop {
            let message = Message::new();
            if offer(&at_hub, message).await.is_ok() {
                match offer(&at_leaf, message).await {
                    Err(AdmitError::Unavailable(_) | AdmitError::Stale | AdmitError::Fenced { .. }) => {}
                    judged => return judged,
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert_eq!(within(2 * SOON, other_way).await, Err(AdmitError::Replayed));

    let names = async |server: &NatsServer| {
        let answer = server.client().await.request("$JS.API.STREAM.NAMES", "".into()).await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        answer["streams"].as_array().map_or(0, Vec::len)
    };
    assert_eq!((names(&hub).await > 0, names(&leaf).await), (true, 0));
}

/// A broker with an account for agents and one for services, each of which takes this from the other.
async fn accounts(agents: &str, services: &str) -> NatsServer {
    let account = |name: &str, user: &str, what: &str| {
        format!("  {name} {{\n    users: [ {{ user: {user}, password: {user} }} ]\n    {what}\n  }}\n")
    };
    let config =
        format!("accounts {{\n{}{}}}\n", account("AGENTS", "ann", agents), account("SERVICES", "site", services));
    NatsServer::start_with(&config).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_pass_between_accounts_only_on_the_subjects_that_were_signed() {
    let answers = "imports: [ { stream: { account: SERVICES, subject: \"_INBOX.ann.>\" } } ]";
    let agents = format!("exports: [ {{ stream: \"rpc.v1.site.>\" }} ]\n    {answers}");
    let services = |import: &str| format!("exports: [ {{ stream: \"_INBOX.>\" }} ]\n    imports: [ {{ {import} }} ]");
    let of = |subject: &str| format!("stream: {{ account: AGENTS, subject: \"{subject}\" }}");
    let service_import = (
        "imports: [ { service: { account: SERVICES, subject: \"rpc.v1.site.>\" } } ]".to_owned(),
        "exports: [ { service: \"rpc.v1.site.>\" } ]".to_owned(),
    );
    for (passes, (agents, services)) in [
        (true, (agents.clone(), services(&of("rpc.v1.site.>")))),
        // The same agent, another method; and the call of another agent.
        (false, (agents.clone(), services(&format!("{}, to: \"rpc.v1.site.ann.other.>\"", of("rpc.v1.site.ann.>"))))),
        (false, (agents.clone(), services(&format!("{}, to: \"rpc.v1.site.bob.>\"", of("rpc.v1.site.ann.>"))))),
        (false, service_import),
    ] {
        let server = accounts(&agents, &services).await;
        let site = Site::logging_in_as(&server.url(), "site");
        let ran = Arc::new(AtomicU64::new(0));
        let router = Router::new(Arc::clone(&ran))
            .method("site/count", |ctx: Ctx<Arc<AtomicU64>>, (): ()| async move {
                Ok::<_, RpcError>(ctx.state().fetch_add(1, Ordering::SeqCst))
            });
        let served = site.serve(router).await;
        let password = Some(Zeroizing::new("ann".to_owned()));
        let bus = BusConfig { user: Some("ann".to_owned()), password, ..BusConfig::open(&server.url()) };
        let client = client(&site, bus).await;
        let calling = async {
            loop {
                let called = client.request("site").on_method_subject().call::<u64>("site/count", ()).await;
                if called.is_ok() || !passes {
                    return called;
                }
            }
        };
        let called = within(2 * SOON, calling).await;
        assert_eq!((called.is_ok(), ran.load(Ordering::SeqCst) > 0), (passes, passes), "{services}: {called:?}");
        served.stop().await.unwrap();
    }
}
