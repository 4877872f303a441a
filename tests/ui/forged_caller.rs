//! Only the checks of a message establish its caller: knowing a caller's name does not make a verified message.

use std::sync::Arc;

use sealwire::internal::auth::{Authentic, Verified};
use sealwire::Caller;

fn pretend(caller: Arc<Caller>) -> Verified {
    Verified { caller }
}

fn undo_the_admission(message: Verified) -> Authentic {
    Authentic { message }
}

fn main() {}
