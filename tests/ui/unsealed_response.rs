//! A response alone cannot be sent.

use sealwire::internal::nats::Session;
use sealwire::internal::rpc::Response;

async fn send_unsigned(bus: &Session, response: Response) {
    response.send(bus).await;
}

fn main() {}
