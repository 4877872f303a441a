//! A dialect takes a head for checked that is not.

use hyper::http::request::Parts;

use crate::http::head::CheckedHead;

fn checked(parts: Parts) -> CheckedHead {
    CheckedHead { parts, origin: None }
}
