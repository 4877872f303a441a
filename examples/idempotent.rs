//! How does a payment happen once, however often it is sent? The method is declared idempotent, and the caller sends a key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealwire::{Client, Config, Credentials, Ctx, Params, Router, RpcError, method};

#[derive(Default)]
struct Bank {
    payments: AtomicU64,
}

#[derive(serde::Deserialize, Params)]
struct Payment {
    /// Cents.
    amount: u64,
}

async fn pay(ctx: Ctx<Bank>, p: Payment) -> Result<String, RpcError> {
    let number = ctx.state().payments.fetch_add(1, Ordering::Relaxed) + 1;
    Ok(format!("payment {number} of {} cents", p.amount))
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let service = Config::load("sealwire.toml")?.serve(
        // All replicas together run it once for each key, and keep the outcome for an hour.
        Router::new(Bank::default()).add("bank/pay", method(pay).idempotent(Duration::from_secs(3600))),
    );
    tokio::select! {
        ended = service => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    for _ in 0..2 {
        // `idempotent` lets the client repeat it by itself as well, for example when the broker goes away in between.
        let order = client.request("math").idempotency_key("order-7").idempotent();
        let paid: String = order.call("bank/pay", (500,)).await?;
        println!("{paid}");
    }
    Ok(())
}
