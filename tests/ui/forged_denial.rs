//! A denial comes from a policy, too: a call that was not judged cannot be reported as denied.

use sealwire::serve::Denied;

fn deny_without_asking() -> Denied {
    Denied(())
}

fn main() {}
