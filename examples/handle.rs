//! How do I test policy and methods without a broker? `Service::handle` needs none; a client in the process signs and verifies.

use sealwire::call::InProcessClient;
use sealwire::configure::GuardKind;
use sealwire::errors::code;
use sealwire::{ClientError, Config, Credentials, Ctx, Params, Router, RpcError, method};

#[derive(serde::Deserialize, Params)]
struct Add {
    a: f64,
    b: f64,
}

async fn add(_: Ctx, p: Add) -> Result<f64, RpcError> {
    Ok(p.a + p.b)
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let mut config = Config::load("sealwire.toml")?;
    // The memory of used nonces of one process needs no broker.
    config.replay.guard = GuardKind::Local;
    config.replay.stream_messages = None;
    let (builder, _) = config.builder().await?;
    let service = builder.methods(Router::new(()).add("math/add", method(add))).build()?;

    let planner = InProcessClient::new(&service, Credentials::load("planner.creds.json")?);
    let sum: f64 = planner.call("math/add", (2, 3)).await?;
    println!("{sum}");
    let denied = planner.call::<f64>("rpc.explain", ()).await;
    println!("{}", matches!(denied, Err(ClientError::Remote(error)) if error.code() == code::PERMISSION_DENIED));
    Ok(())
}
