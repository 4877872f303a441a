//! A dialect reaches the bus for a request that was not admitted, or for a message that is not a request yet.

use crate::bus::Bus;
use crate::http::pipeline::admission::{Addressed, Admission, AdmittedMessage, AdmittedSocket, ServiceSet};

async fn addressed(call: &Addressed) {
    let _ = call.request().await;
}

fn unread(message: &AdmittedMessage<ServiceSet>) {
    let _ = message.caller();
}

async fn socket(socket: &AdmittedSocket) {
    let _ = socket.request().await;
}

async fn beside(admission: &Admission) {
    let _ = admission.bus.connect().await;
}

async fn client(bus: &Bus) {
    let _ = bus.client().await;
}
