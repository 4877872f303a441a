//! An answer is sent once.

use async_nats::Client;
use sealwire::wire::Sealed;

async fn send_to_be_sure(client: &Client, sealed: Sealed) {
    let _ = sealed.send(client).await;
    let _ = sealed.send(client).await;
}

fn main() {}
