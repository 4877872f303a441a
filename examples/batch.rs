//! How do several calls travel in one message? A batch is signed once, and each of its calls is judged on its own.

use std::time::Duration;

use sealwire::{Client, Config, Credentials, Ctx, Params, Router, RpcError, method};

#[derive(serde::Deserialize, Params)]
struct Divide {
    a: i64,
    b: i64,
}

async fn divide(_: Ctx, p: Divide) -> Result<i64, RpcError> {
    p.a.checked_div(p.b).ok_or_else(|| RpcError::validation("nothing can be divided by zero"))
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let service = Config::load("sealwire.toml")?.serve(Router::new(()).add("math/divide", method(divide)));
    tokio::select! {
        ended = service => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    let mut batch = client.batch("math");
    let calls = [batch.call("math/divide", (6, 2)), batch.call("math/divide", (1, 0))];
    let mut answers = batch.send().await?;
    for call in calls {
        match answers.take::<i64>(call) {
            Ok(quotient) => println!("{quotient}"),
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}
