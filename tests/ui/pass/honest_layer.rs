//! What an application does: a layer that looks at permitted calls, and a service built in the one possible order.

use std::task::{Context, Poll};

use sealwire::internal::auth::Verifier;
use sealwire::internal::nats::Session;
use sealwire::{Ctx, Router, RpcError, Service};
use sealwire::serve::{Delivery, Permitted, Sealed};
use sealwire::internal::wire::Endpoint;

#[derive(Clone)]
struct Watch<S>(S);

impl<S: tower::Service<Permitted>> tower::Service<Permitted> for Watch<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, permitted: Permitted) -> S::Future {
        println!("{} calls {}", permitted.call().caller().agent, permitted.call().method());
        self.0.call(permitted)
    }
}

async fn ping(_ctx: Ctx, (): ()) -> Result<&'static str, RpcError> {
    Ok("pong")
}

fn build(endpoint: Endpoint, verifier: Verifier) -> Service {
    let service = Service::builder().verifier(endpoint, verifier).policies("policies");
    let service = service.methods(Router::new(()).method("ping", ping)).layer(tower::layer::layer_fn(Watch));
    service.build().expect("the policies are in order")
}

async fn serve_one(service: &Service, bus: &Session, delivery: Delivery) {
    let answer: Option<Sealed> = service.handle(delivery).await;
    if let Some(sealed) = answer {
        let _ = sealed.send(bus).await;
    }
}

fn main() {}
