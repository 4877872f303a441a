//! How do I put something around every method? A `tower` layer sees each permitted call, and its result.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sealwire::serve::{MethodService, Permitted};
use sealwire::{Client, Config, Credentials, Ctx, Params, Router, RpcError, method};
use serde_json::value::RawValue;
use tower::Service;

/// Prints how long each call took.
#[derive(Clone)]
struct Timed(MethodService);

impl Service<Permitted> for Timed {
    type Response = Box<RawValue>;
    type Error = RpcError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, RpcError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RpcError>> {
        Service::poll_ready(&mut self.0, context)
    }

    fn call(&mut self, permitted: Permitted) -> Self::Future {
        let (method, started) = (permitted.call().method().to_owned(), Instant::now());
        let running = Service::call(&mut self.0, permitted);
        Box::pin(async move {
            let result = running.await;
            println!("{method}: {} in {:?}", if result.is_ok() { "ok" } else { "failed" }, started.elapsed());
            result
        })
    }
}

#[derive(serde::Deserialize, Params)]
struct Add {
    a: f64,
    b: f64,
}

async fn add(_: Ctx, p: Add) -> Result<f64, RpcError> {
    Ok(p.a + p.b)
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let config = Config::load("sealwire.toml")?;
    let (builder, options) = config.builder().await?;
    let methods = Router::new(()).add("math/add", method(add));
    let service = builder.methods(methods).layer(tower::layer::layer_fn(Timed)).build()?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    tokio::select! {
        ended = service.serve(&config.nats, options, |_running| (), stop) => Ok(ended?),
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    let sum: f64 = client.call("math", "math/add", (2, 3)).await?;
    println!("{sum}");
    Ok(())
}
