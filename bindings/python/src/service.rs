//! A service whose methods are handlers in Python: the library decides, answers and drains, and hands over only what a policy allowed.
//! Never lets a handler hold up anything but its own answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sealwire::internal::service::with_builtin_methods;
use sealwire::metrics::Telemetry;
use sealwire::serve::State;
use sealwire::{Config, Error, MethodName, PolicySet, Router, RpcError, Running, Sink};
use serde_json::value::RawValue;
use tokio::sync::watch;

use crate::declared::{Answers, Declared, DeclaredParam};
use crate::event::{Event, ToObject};
use crate::failure::Failure;
use crate::mailbox::{Mailbox, Shared};
use crate::outbox::{Disarm as _, Outbox, Outgoing};
use crate::runtime::Owned;
use crate::served::{Arriving, Context, Counter, unanswered};
use crate::topic::Topic;

/// Ends a service: it drains.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct Stop(Owned<watch::Sender<bool>>);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self(Owned::new(watch::Sender::new(false)))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get(py)?.send_replace(true);
        Ok(())
    }
}

/// What a service reports of itself, as `(state, text)`.
struct Reported(&'static str, Option<String>);

impl ToObject for Reported {
    fn to_object(self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok((self.0, self.1).into_pyobject(py)?.into_any())
    }
}

/// Serves methods, each as JSON, under a configuration until `stop`. Calls, numbers of calls that are over, and states arrive under
/// `listener`; what remains under `id` is nothing, or why it failed.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "each is one thing that a service has")]
pub(crate) fn serve(
    py: Python<'_>,
    mailbox: &Mailbox,
    id: u64,
    listener: u64,
    config: PathBuf,
    methods: Vec<String>,
    topics: Vec<PyRef<'_, Topic>>,
    about: (Option<String>, Option<String>),
    stop: &Stop,
) -> PyResult<()> {
    let shared = mailbox.shared(py)?;
    let counter = Arc::new(Counter { mailbox: Arc::clone(&shared), listener });
    let mut router = router(counter, &methods)?;
    for topic in &topics {
        router = topic.register(py, router)?;
    }
    let stopped = stopped(stop.0.get(py)?.subscribe());
    mailbox.begin(py, id, 0, async move {
        match run(config, router, about, stopped, (shared, listener)).await {
            Ok(()) => Event::Nothing,
            Err(error) => Failure::of_service(kind(&error), &error).into(),
        }
    })
}

/// What is wrong with the name of a method, if anything is.
#[pyfunction]
pub(crate) fn name_fault(name: &str) -> Option<String> {
    match MethodName::new(name) {
        Ok(name) if name.is_reserved() => Some(format!("method `{name}`: names that begin with `rpc` are reserved")),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Checks configuration, files and policies against the methods, and connects to nothing. Returns the policies' warnings.
#[pyfunction]
pub(crate) fn check(
    py: Python<'_>,
    config: PathBuf,
    methods: Vec<String>,
    topics: Vec<PyRef<'_, Topic>>,
) -> PyResult<Vec<String>> {
    let mut router = router_of(&methods)?;
    for topic in &topics {
        router = topic.register(py, router)?;
    }
    let checked = py.detach(|| {
        let config = Config::load(config)?;
        config.check()?;
        let methods = with_builtin_methods(router.policy_methods());
        let loaded = PolicySet::load(&config.policy.folder, &methods);
        loaded
            .map(|(_, warnings)| warnings.iter().map(ToString::to_string).collect())
            .map_err(|errors| Error::Build(errors.into()))
    });
    checked.map_err(|error: Error| Failure::of_service(kind(&error), &error).to_error(py))
}

async fn run(
    config: PathBuf,
    router: Router<Arc<Counter>>,
    (version, description): (Option<String>, Option<String>),
    stopped: impl Future<Output = ()> + Send,
    to: (Arc<Shared>, u64),
) -> Result<(), Error> {
    let mut stopped = std::pin::pin!(stopped);
    let config = Config::load(config)?;
    // Before anything that may take long, so that `/livez` is there.
    let telemetry = Telemetry::start(&config.telemetry).await?;
    // A shared replay guard waits for the broker here.
    let (builder, mut options) = tokio::select! {
        biased;
        () = &mut stopped => return Ok(()),
        built = config.builder() => built?,
    };
    options.version = version.unwrap_or(options.version);
    options.description = description.unwrap_or(options.description);
    let service = builder.methods(router).build()?;
    let started = |running: Running| {
        if let Some(telemetry) = &telemetry {
            telemetry.show(&service, running.clone());
        }
        drop(tokio::spawn(report(running, to)));
    };
    Ok(service.serve(&config.nats, options, started, stopped).await?)
}

/// Tells Python each state that a service is in.
async fn report(running: Running, (mailbox, listener): (Arc<Shared>, u64)) {
    let mut states = running.state();
    drop(running);
    loop {
        let state = states.borrow_and_update().clone();
        let why = match &state {
            State::Starting(why) | State::Interrupted(why) => Some(why.clone()),
            _ => None,
        };
        mailbox.leave(listener, Event::Other(Box::new(Reported(state.as_str(), why))));
        if state == State::Stopped || states.changed().await.is_err() {
            return;
        }
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // Whoever could stop it is gone: it goes on until it is dropped.
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending().await
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Config(_) | Error::Build(_) => "config",
        _ => "serve",
    }
}

/// For checks only: nothing is called.
fn router_of(methods: &[String]) -> PyResult<Router<()>> {
    let mut router = Router::new(());
    for declared in read(methods)? {
        let name = declared.name.as_str();
        router = router.method(name, |_, (): ()| async { Ok::<_, RpcError>(()) });
        router = described(router, &declared);
    }
    Ok(router)
}

fn router(counter: Arc<Counter>, methods: &[String]) -> PyResult<Router<Arc<Counter>>> {
    let mut router = Router::new(counter);
    for (place, declared) in read(methods)?.into_iter().enumerate() {
        let name = declared.name.as_str();
        router = match declared.answers {
            Answers::Result => {
                router.method_with_sink(name, move |ctx, params, sink| answered(place, ctx, params, sink))
            }
            Answers::Stream => router.stream(name, move |ctx, params| in_parts(place, ctx, params)),
            Answers::Subscription => router.subscription(name, move |ctx, params| in_parts(place, ctx, params)),
        };
        router = described(router, &declared);
    }
    Ok(router)
}

fn read(methods: &[String]) -> PyResult<Vec<Declared>> {
    let read = methods.iter().map(|text| serde_json::from_str(text));
    read.collect::<Result<_, _>>().map_err(|error| PyValueError::new_err(error.to_string()))
}

fn described<S: Send + Sync + 'static>(mut router: Router<S>, declared: &Declared) -> Router<S> {
    let name = declared.name.as_str();
    if !router.names().any(|known| known == name) {
        // What is wrong with the name is reported once.
        return router;
    }
    if let Some(params) = &declared.params {
        let params = params.iter().map(DeclaredParam::param);
        router = if declared.by_name { router.named_params(name, params) } else { router.params(name, params) };
    }
    router = if declared.hidden {
        router.describe_with(name, || None)
    } else {
        router.describe(name, declared.description())
    };
    match declared.idempotent() {
        Some(idempotent) => router.idempotent(name, idempotent),
        None => router,
    }
}

async fn answered(
    method: usize,
    ctx: Context,
    params: Option<Box<RawValue>>,
    sink: Sink<Box<RawValue>>,
) -> Result<Box<RawValue>, RpcError> {
    let (arriving, answer) = Arriving::once(next(), method, ctx, params, sink);
    let gone = arriving.leave();
    let answer = answer.await.unwrap_or_else(|_| Err(unanswered()));
    gone.disarm();
    answer
}

async fn in_parts(
    method: usize,
    ctx: Context,
    params: Option<Box<RawValue>>,
) -> Result<impl futures_util::Stream<Item = Result<Box<RawValue>, RpcError>> + Send, RpcError> {
    let outbox = Arc::new(Outbox::default());
    let gone = Arriving::in_parts(next(), method, ctx, params, Arc::clone(&outbox)).leave();
    Ok(Outgoing::new(outbox, gone))
}

fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
