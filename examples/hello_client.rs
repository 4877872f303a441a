//! Calls `math/add` of the service `math`: `cargo run --example hello_client -- planner.creds.json`.

use sealwire::client::{Client, Credentials};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("name a credentials file")?;
    let client = Client::connect(Credentials::load(path)?).await?;
    let sum: f64 = client.call("math", "math/add", (2, 3)).await?;
    println!("{sum}");
    Ok(())
}
