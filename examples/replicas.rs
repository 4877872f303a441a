//! How do several replicas serve one service? They are started; each call goes to one of them, and is run once.

use std::collections::BTreeSet;
use std::time::Duration;

use sealwire::{Client, Config, Credentials, Ctx, Router, RpcError, method};

struct Replica(u32);

async fn which(ctx: Ctx<Replica>, (): ()) -> Result<u32, RpcError> {
    Ok(ctx.state().0)
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    // Usually processes of their own. `[replay] guard = "shared"` lets them refuse each other's copies.
    let config = Config::load("sealwire.toml")?;
    let serve = |number| config.clone().serve(Router::new(Replica(number)).add("site/which", method(which)));
    tokio::select! {
        ended = serve(1) => ended,
        ended = serve(2) => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    let mut served = BTreeSet::new();
    while served.len() < 2 {
        let which: usize = client.call("math", "site/which", ()).await?;
        if served.insert(which) {
            println!("replica {which}");
        }
    }
    Ok(())
}
