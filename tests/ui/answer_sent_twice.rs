//! An answer is sent once.

use sealwire::internal::nats::Session;
use sealwire::serve::Sealed;

async fn send_to_be_sure(bus: &Session, sealed: Sealed) {
    let _ = sealed.send(bus).await;
    let _ = sealed.send(bus).await;
}

fn main() {}
