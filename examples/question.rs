//! How does a method ask its caller something while it runs? `Ctx::ask` waits for what the caller's `on_ask` answers.

use std::time::Duration;

use sealwire::call::Request;
use sealwire::{Client, Config, Credentials, Ctx, Params, Router, RpcError, method};
use serde_json::{Value, json};

#[derive(serde::Deserialize, Params)]
struct Order {
    product: String,
}

async fn order(ctx: Ctx, p: Order) -> Result<String, RpcError> {
    let is_sure: bool = ctx.ask("order/confirm", &json!({ "product": p.product })).await?;
    Ok(if is_sure { format!("ordered: {}", p.product) } else { "nothing ordered".to_owned() })
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let service = Config::load("sealwire.toml")?.serve(Router::new(()).add("order/place", method(order)));
    tokio::select! {
        ended = service => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    let request = client.request("math").on_ask(|question: Request| async move {
        println!("{}?", question.method);
        Ok(true)
    });
    // Only a caller that accepts frames can be asked: that is what a stream does, whether or not parts come.
    let placed: String = request.stream::<Value>("order/place", ("lamp",)).finish().await?;
    println!("{placed}");
    Ok(())
}
