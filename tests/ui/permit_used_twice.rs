//! One permit, one dispatch: a layer that tries to retry a call has nothing left to retry it with.

use sealwire::serve::Permitted;
use tower::{Service, ServiceExt};

async fn retry<S: Service<Permitted> + Clone>(methods: S, permitted: Permitted) {
    if methods.clone().oneshot(permitted).await.is_err() {
        let _ = methods.oneshot(permitted).await;
    }
}

fn main() {}
