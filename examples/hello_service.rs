//! A service with one method. It needs `sealwire.toml` and the files that it names in the working directory: see README.md.

use sealwire::{Config, Ctx, Router, RpcError};

#[derive(serde::Deserialize)]
struct Add {
    a: f64,
    b: f64,
}

async fn add(_: Ctx, p: Add) -> Result<f64, RpcError> {
    Ok(p.a + p.b)
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    tracing_subscriber::fmt().with_ansi(false).log_internal_errors(false).init();
    Config::load("sealwire.toml")?.serve(Router::new(()).method("math/add", add)).await
}
