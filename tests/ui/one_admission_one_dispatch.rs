//! A message is admitted once and judged once: each step consumes what the step before it produced.

use sealwire::internal::auth::{Authentic, Verifier};
use sealwire::PolicySet;
use sealwire::serve::Call;

async fn admit_again(verifier: &Verifier, authentic: Authentic) {
    let first = verifier.admit(authentic).await;
    let second = verifier.admit(authentic).await;
    drop((first, second));
}

fn ask_two_policies(old: &PolicySet, new: &PolicySet, call: Call) {
    let first = old.authorize(call, 0);
    let second = new.authorize(call, 0);
    drop((first, second));
}

fn main() {}
