//! How long does a call take at most, and how is it cancelled? The service is told both, and stops the method.

use std::time::Duration;

use sealwire::{Client, Config, Credentials, Ctx, Router, RpcError, method};
use tokio::time::sleep;

async fn work(ctx: Ctx, (): ()) -> Result<(), RpcError> {
    tokio::select! {
        () = sleep(Duration::from_secs(60)) => Ok(()),
        () = ctx.cancelled() => {
            println!("cancelled: one second to clean up");
            Ok(())
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let service = Config::load("sealwire.toml")?.serve(Router::new(()).add("job/work", method(work)));
    tokio::select! {
        ended = service => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    // `Timeout`, or `Remote` if the service's own answer to that is faster.
    let late = client.request("math").deadline(Duration::from_millis(300)).call::<()>("job/work", ()).await;
    println!("{:?}", late.map_err(|error| error.kind()));
    // Dropping the future of a call cancels it as well; this also waits for what the service says to it.
    let signal = sleep(Duration::from_millis(300));
    let cancelled = client.request("math").cancel_on(signal).call::<()>("job/work", ()).await;
    println!("{:?}", cancelled.map_err(|error| error.kind()));
    Ok(())
}
