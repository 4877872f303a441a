//! How does a service push to those who listen? A topic is a subscription with a queue for each subscriber.

use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::{Client, Config, Credentials, Router, Topic, WhenFull};

#[derive(serde::Serialize, serde::Deserialize)]
struct Price {
    product: String,
    cents: u32,
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let prices = Topic::by_key(|price: &Price| price.product.clone());
    // A slow subscriber loses the oldest price, and is told how many it lost.
    let methods = Router::new(()).topic("shop/prices", &prices, 100, WhenFull::DropOldest);
    let publish = async {
        for cents in 1.. {
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(prices.publish(&Price { product: "lamp".to_owned(), cents }));
        }
    };
    tokio::select! {
        ended = Config::load("sealwire.toml")?.serve(methods) => ended,
        () = publish => Ok(()),
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    let mut prices = client.subscribe::<Price>("math", "shop/prices", ());
    for _ in 0..3 {
        if let Some(price) = prices.next().await.transpose()? {
            println!("{} costs {}", price.product, price.cents);
        }
    }
    prices.cancel().await;
    Ok(())
}
