//! A dialect reads a body before its sender was charged and has a permit.

use hyper::http::request::Parts;

use crate::http::pipeline::admission::{Addressed, Admission};
use crate::http::pipeline::body::UnreadBody;

async fn early(call: Addressed, head: &Parts, body: UnreadBody) {
    let _ = call.receive(head, body, Ok).await;
}

async fn alone(admission: &Admission, head: &Parts, body: UnreadBody) {
    let _ = body.read(head, &admission.bodies, "ann".into()).await;
}

fn raw(body: UnreadBody) {
    let _ = body.0;
}
