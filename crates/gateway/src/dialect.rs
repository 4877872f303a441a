//! What a dialect in a package of its own stands on: requests that were let in, and what they are answered with. Nothing here lets a request
//! in, reads a body or reaches the bus without the gateway's own pipeline.

pub use crate::approval::in_words as approval_in_words;
pub use crate::bus::BusLink;
pub use crate::http::authority::authority_name;
pub use crate::http::connections::{AnswerDeadline, Body};
pub use crate::http::dialect::{Dialect, Route};
pub use crate::http::events::data;
pub use crate::http::fields::single;
pub use crate::http::head::CheckedHead;
pub use crate::http::identity::{METADATA, Principal};
pub use crate::http::pipeline::admission::{Admitted, Service};
pub use crate::http::pipeline::quota::Permit;
pub use crate::http::refusal::{Outcome, Refusal, require_method};
pub use crate::http::response::{response, with_permit};
pub use crate::http::rpc::{discover, failed};
pub use crate::http::task_modes::TaskModes;
pub use crate::revocation::{Hold, Loss};
pub use crate::seal::unlike_any;
pub use crate::tasks::{
    BeginError, CANCELLED, Pauses, TaskEnd, TaskHandle, TaskIds, TaskReport, TaskRequest, is_no_task, is_task_only,
    until_ended,
};

/// Reads JSON objects, and accepts nothing else in their place.
pub mod json {
    pub use sealwire_mcp::json::{items, member, object, optional};
}
