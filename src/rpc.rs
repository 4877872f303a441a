//! JSON-RPC 2.0: requests, batches, ids, responses and errors. Knows nothing of the caller or of NATS.
//!
//! This is the pure protocol: text in, text out. [`Body::parse`] reads what a client sends and [`Responses::parse`]
//! what a server answers; both must withstand hostile bytes, and the fuzz targets call them. A parsed [`Request`] is
//! not yet permitted to run.

mod canonical;
mod error;
mod id;
mod json;
mod limits;
mod params;
mod request;
mod response;

pub use crate::strict_json::{Flaw, MAX_DEPTH, MAX_VALUE_DEPTH, strict_text, strict_value};
pub use canonical::{CanonicalError, canonical};
pub(crate) use error::one_line;
pub use error::{RpcError, code};
pub use id::Id;
pub use limits::{Limits, MAX_BATCH};
pub use params::{Params, ParamsError};
pub use request::{Body, Entry, Request};
pub use response::{Outcome, Response, ResponseError, Responses};
