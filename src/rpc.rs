//! JSON-RPC 2.0: requests, batches, ids, responses and errors. Knows nothing of who asks or of NATS.

mod error;

pub use error::{RpcError, code};
