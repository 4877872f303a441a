//! A dialect lets a request in itself.

use std::sync::Arc;

use crate::http::identity::Principal;
use crate::http::pipeline::admission::{Addressed, Admission, Service};
use crate::http::pipeline::authenticated::Authenticated;

fn let_in(call: Addressed) {
    let _ = call.admit();
}

fn without_charge(admission: &Admission, principal: &Principal) {
    let _ = admission.quota.take_request(principal, "demo");
}

fn around_the_route(admission: &Arc<Admission>, caller: Authenticated, expose: &Service) {
    let _ = Addressed::to(admission, caller, expose);
}
