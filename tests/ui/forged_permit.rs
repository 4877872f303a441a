//! A permit comes from a policy. A layer of the application cannot make one, nor a permitted call.

use sealwire::decide::Revision;
use sealwire::serve::{Call, Permit, Permitted};

fn let_it_through(call: Call, revision: Revision) -> Permitted {
    let permit = Permit { rule: None, revision };
    Permitted { call, permit }
}

fn main() {}
