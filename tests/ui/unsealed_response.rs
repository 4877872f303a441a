//! A response alone cannot be sent.

use async_nats::Client;
use sealwire::rpc::Response;

async fn send_unsigned(client: &Client, response: Response) {
    response.send(client).await;
}

fn main() {}
