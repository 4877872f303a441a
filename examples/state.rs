//! How do methods share state? `Router::new` takes it, and `Ctx::state` lends it to every method.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealwire::{Client, Config, Credentials, Ctx, Params, Router, RpcError, method};

/// One for all calls, of whatever agent.
#[derive(Default)]
struct Counter(AtomicU64);

#[derive(serde::Deserialize, Params)]
struct Step {
    /// How far to count.
    by: u64,
}

async fn count(ctx: Ctx<Counter>, step: Step) -> Result<u64, RpcError> {
    Ok(ctx.state().0.fetch_add(step.by, Ordering::Relaxed) + step.by)
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let service =
        Config::load("sealwire.toml")?.serve(Router::new(Counter::default()).add("counter/count", method(count)));
    tokio::select! {
        ended = service => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    for by in [2, 3] {
        let total: u64 = client.call("math", "counter/count", (by,)).await?;
        println!("{total}");
    }
    Ok(())
}
