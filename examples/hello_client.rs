//! Calls `math/add` of the service `math` with `planner.creds.json` from the working directory: see README.md.

use sealwire::{Client, Credentials};

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", std::time::Duration::from_secs(10)).await?; // it may have just been started
    let sum: f64 = client.call("math", "math/add", (2.0, 3.0)).await?;
    println!("{sum}");
    Ok(())
}
