//! An answer is sent once.

use sealwire::nats::Session;
use sealwire::wire::Sealed;

async fn send_to_be_sure(bus: &Session, sealed: Sealed) {
    let _ = sealed.send(bus).await;
    let _ = sealed.send(bus).await;
}

fn main() {}
