//! The client against a real nats-server, with a service behind it, with nobody behind it, and with forgers in between.

mod answers;
mod approvals;
mod broker;
mod calls;
mod configured;
mod frames;
mod observed;
#[cfg(feature = "metrics")]
mod reported;
mod stopped;
mod streams;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::Message;
use futures_util::{FutureExt as _, StreamExt as _};
use sealwire::call::ClientBuilder;
use sealwire::errors::ErrorKind;
use sealwire::serve::{Delivery, QuotaLimits};
use sealwire::{BusConfig, Client, ClientError, Credentials, Ctx, Name, Router, RpcError, ServiceLimits};
use sealwire_testkit::desk::Desk;
use sealwire_testkit::{NatsServer, SOON, publish, within};
use tokio::task::AbortHandle;

/// A server, a service `desk` behind it, and agents that may call that service.
struct Stage {
    server: NatsServer,
    desk: Desk,
    /// How often `desk/count` was executed.
    executed: Arc<AtomicU64>,
}

#[derive(serde::Deserialize)]
struct Pair {
    a: i64,
    b: i64,
}

impl Stage {
    async fn open() -> Self {
        Self::open_on(NatsServer::start().await)
    }

    fn open_on(server: NatsServer) -> Self {
        let executed = Arc::new(AtomicU64::new(0));
        let router = Router::new(Arc::clone(&executed))
            .method("desk/add", |_: Ctx<Arc<AtomicU64>>, p: Pair| async move { Ok::<_, RpcError>(p.a + p.b) })
            .method("desk/count", |ctx: Ctx<Arc<AtomicU64>>, (): ()| async move {
                Ok::<_, RpcError>(ctx.state().fetch_add(1, Ordering::SeqCst) + 1)
            })
            .method("desk/fail", |_: Ctx<Arc<AtomicU64>>, (): ()| async {
                Err::<(), _>(RpcError::application(7, "on purpose").with_data(&[1]))
            })
            .method("desk/key", |ctx: Ctx<Arc<AtomicU64>>, (): ()| async move {
                Ok::<_, RpcError>(ctx.idempotency_key().map(str::to_owned))
            })
            .method("desk/sleep", |_: Ctx<Arc<AtomicU64>>, (ms,): (u64,)| async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok::<_, RpcError>(ms)
            })
            .method("vault/open", |_: Ctx<Arc<AtomicU64>>, (): ()| async { Ok::<_, RpcError>("open") });
        let policy = "[role.worker]\nallow = [\"desk/*\"]\n";
        let quota = QuotaLimits { per_second: 100_000, burst: 100_000, in_flight: 10_000 };
        let limits = ServiceLimits { quota, ..ServiceLimits::default() };
        Self { server, desk: Desk::open_with(router, policy, limits), executed }
    }

    /// Puts the service on the bus.
    async fn serve(&self) -> Serving {
        self.serve_as(None).await
    }

    async fn serve_as(&self, user: Option<(&str, &str)>) -> Serving {
        let service = self.desk.service.clone();
        self.answer_with(user, move |bus, message| {
            let service = service.clone();
            async move {
                if let Some(sealed) = service.handle(Delivery::from(message)).await {
                    publish(&bus, sealed).await;
                }
            }
        })
        .await
    }

    /// Lets `answer` deal with every message to the service.
    async fn answer_with<F, A>(&self, user: Option<(&str, &str)>, answer: F) -> Serving
    where
        F: Fn(async_nats::Client, Message) -> A + Send + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        let mut options = async_nats::ConnectOptions::new();
        if let Some((name, password)) = user {
            options = options.user_and_password(name.to_owned(), password.to_owned());
        }
        let bus = within(SOON, options.connect(self.server.url())).await.unwrap();
        let subject = self.desk.endpoint.subscription();
        let mut messages = within(SOON, bus.queue_subscribe(subject, "q".to_owned())).await.unwrap();
        fence(&bus).await;
        let task = tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                tokio::spawn(answer(bus.clone(), message));
            }
        });
        Serving(task.abort_handle())
    }

    /// Everything that is sent to any service from now on.
    async fn overhear(&self) -> async_nats::Subscriber {
        let bus = self.server.client().await;
        let messages = within(SOON, bus.subscribe("rpc.v1.>")).await.unwrap();
        fence(&bus).await;
        messages
    }

    /// The credentials of a known agent with the role that allows everything but the vault.
    fn credentials(&self, agent: &str) -> Credentials {
        let agent = self.desk.agent(agent, &["worker"]);
        let service = Name::new("desk").unwrap();
        Credentials::new(Name::new("test").unwrap(), agent.name, agent.key, BusConfig::open(&self.server.url()))
            .token(agent.token)
            .service_keys(service, vec![self.desk.service_key.public()])
    }

    fn builder(&self, agent: &str) -> ClientBuilder {
        Client::builder(self.credentials(agent)).clock(self.desk.clock.clone())
    }

    async fn client(&self, agent: &str) -> Client {
        within(SOON, self.builder(agent).connect()).await.unwrap()
    }

    fn executed(&self) -> u64 {
        self.executed.load(Ordering::SeqCst)
    }
}

/// A service on the bus, until it is dropped.
struct Serving(AbortHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A message that comes back from the server proves that the server has all earlier subscriptions.
async fn fence(bus: &async_nats::Client) {
    let mut fence = within(SOON, bus.subscribe("_INBOX.fence.1")).await.unwrap();
    within(SOON, bus.publish("_INBOX.fence.1", "".into())).await.unwrap();
    within(SOON, fence.next()).await.unwrap();
}

/// Waits until `condition` holds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, waited).await.is_ok(), "never: {what}");
}

/// The error of a call that fails only at its deadline, for what came before. If nothing came in time, as on a machine that stands
/// still for a moment, it is called again with twice the time.
async fn at_deadline<T: std::fmt::Debug>(call: impl AsyncFn(Duration) -> Result<T, ClientError>) -> ClientError {
    let mut deadline = Duration::from_millis(300);
    loop {
        let error = within(3 * SOON, call(deadline)).await.unwrap_err();
        if error.kind() != ErrorKind::Timeout || deadline > SOON {
            return error;
        }
        deadline *= 2;
    }
}

/// The next message on a plain subscription to the service, if it is there at once.
fn at_once(messages: &mut async_nats::Subscriber) -> Option<Message> {
    messages.next().now_or_never().flatten()
}
