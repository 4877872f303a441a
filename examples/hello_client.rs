//! Calls `math/add` of the service `math` with `planner.creds.json` from the working directory: see README.md.

use std::io::Write as _;
use std::time::Duration;

use sealwire::client::{Client, Credentials};

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        let _ = writeln!(std::io::stderr(), "error: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(10)).await?; // it may have just been started
    let sum: f64 = client.call("math", "math/add", (2.0, 3.0)).await?;
    writeln!(std::io::stdout(), "{sum}")?;
    Ok(())
}
