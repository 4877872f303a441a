//! Methods take permitted calls. A call that no policy has seen, or that one has denied, is another type.

use sealwire::PolicySet;
use sealwire::serve::{Call, Permitted};
use tower::{Service, ServiceExt};

async fn skip_the_policy<S: Service<Permitted>>(methods: S, call: Call) {
    let _ = methods.oneshot(call).await;
}

async fn ignore_the_denial<S: Service<Permitted>>(methods: S, policy: &PolicySet, call: Call) {
    let (answer, _decision) = policy.authorize(call, 0);
    if let Err((call, _denied)) = answer {
        let _ = methods.oneshot(call).await;
    }
}

fn main() {}
