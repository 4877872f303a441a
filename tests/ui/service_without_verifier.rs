//! A service has a verifier. Its policies and methods cannot be given before it.

use sealwire::{Ctx, Router, RpcError, Service};

async fn ping(_ctx: Ctx, (): ()) -> Result<&'static str, RpcError> {
    Ok("pong")
}

fn main() {
    let _ = Service::builder().policies("policies");
    let _ = Service::builder().methods(Router::new(()).method("ping", ping));
    let _ = Service::builder().build();
}
