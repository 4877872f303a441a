//! A response alone cannot be sent.

use sealwire::nats::Session;
use sealwire::rpc::Response;

async fn send_unsigned(bus: &Session, response: Response) {
    response.send(bus).await;
}

fn main() {}
