//! A service with one method. It needs `sealwire.toml` and the files that it names in the working directory: see README.md.

use std::io::{IsTerminal as _, Write as _};

use sealwire::Config;
use sealwire::rpc::RpcError;
use sealwire::service::{Ctx, Router};

#[derive(serde::Deserialize)]
struct Add {
    a: f64,
    b: f64,
}

async fn add(ctx: Ctx, p: Add) -> Result<f64, RpcError> {
    tracing::info!("{} may add, because of {:?}", ctx.caller().agent, ctx.permit().rule());
    Ok(p.a + p.b)
}

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        let _ = writeln!(std::io::stderr(), "error: {error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // Logs what the service waits for and does. The service goes on even if nobody reads the log.
    tracing_subscriber::fmt().with_ansi(colours).log_internal_errors(false).init();
    let config = Config::load("sealwire.toml")?;
    let (builder, options) = config.builder().await?;
    let service = builder.methods(Router::new(()).method("math/add", add)).build()?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    service.serve(&config.nats, options, |_running| (), stop).await?;
    Ok(())
}
