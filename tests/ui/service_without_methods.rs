//! A service has methods: without any, its policy would have nothing to govern.

use sealwire::internal::auth::Verifier;
use sealwire::Service;
use sealwire::internal::wire::Endpoint;

fn nothing_to_call(endpoint: Endpoint, verifier: Verifier) {
    let service = Service::builder().verifier(endpoint, verifier).policies("policies");
    let _ = service.build();
}

fn main() {}
