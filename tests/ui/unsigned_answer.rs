//! Only sealed answers can be published, and only the pipeline seals.

use std::sync::OnceLock;

use async_nats::Subject;
use sealwire::rpc::Response;
use sealwire::wire::{HeaderBlock, Sealed};

fn pretend_to_seal(to: Subject, block: HeaderBlock, response: Response) -> Sealed {
    Sealed { to, block, headers: OnceLock::new(), payload: response.to_bytes().into() }
}

fn main() {}
