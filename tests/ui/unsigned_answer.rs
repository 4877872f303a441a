//! Only sealed answers can be published, and only the pipeline seals.

use std::sync::OnceLock;

use async_nats::Subject;
use sealwire::internal::rpc::Response;
use sealwire::internal::wire::HeaderBlock;
use sealwire::serve::Sealed;

fn pretend_to_seal(to: Subject, block: HeaderBlock, response: Response) -> Sealed {
    Sealed { to, block, headers: OnceLock::new(), payload: response.to_bytes().into() }
}

fn main() {}
