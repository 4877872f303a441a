//! A service has methods: without any, its policy would have nothing to govern.

use sealwire::auth::Verifier;
use sealwire::service::Service;
use sealwire::wire::Endpoint;

fn nothing_to_call(endpoint: Endpoint, verifier: Verifier) {
    let service = Service::builder().verifier(endpoint, verifier).policies("policies");
    let _ = service.build();
}

fn main() {}
