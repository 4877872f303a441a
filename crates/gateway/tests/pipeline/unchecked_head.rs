//! A caller is authenticated by a head that was not checked.

use hyper::http::request::Parts;

use crate::http::identity::Callers;

async fn unchecked(callers: &Callers, parts: &Parts) {
    let _ = callers.authenticate(parts).await;
}
