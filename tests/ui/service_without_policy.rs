//! A service has a policy, if only an empty folder that denies everything. Its methods cannot be given before it.

use sealwire::internal::auth::Verifier;
use sealwire::{Ctx, Router, RpcError, Service};
use sealwire::internal::wire::Endpoint;

async fn ping(_ctx: Ctx, (): ()) -> Result<&'static str, RpcError> {
    Ok("pong")
}

fn open_gateway(endpoint: Endpoint, verifier: Verifier) {
    let service = Service::builder().verifier(endpoint, verifier);
    let _ = service.methods(Router::new(()).method("ping", ping));
}

fn no_methods_either(endpoint: Endpoint, verifier: Verifier) {
    let _ = Service::builder().verifier(endpoint, verifier).build();
}

fn main() {}
