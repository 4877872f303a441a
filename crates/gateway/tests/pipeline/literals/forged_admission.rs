//! A dialect makes an admission itself, or what leads to one.

use std::sync::Arc;
use std::time::Instant;

use crate::http::identity::Principal;
use crate::http::pipeline::admission::{Addressed, Admission, Admitted, Service};
use crate::http::pipeline::authenticated::Authenticated;
use crate::http::pipeline::quota::Permit;

fn admitted(addressed: Addressed, permit: Permit) -> Admitted {
    Admitted { addressed, permit }
}

fn addressed(admission: Arc<Admission>, principal: Principal, target: Service) -> Addressed {
    Addressed { admission, principal, target, since: Instant::now() }
}

fn authenticated(principal: Principal) -> Authenticated {
    Authenticated { 0: principal }
}
