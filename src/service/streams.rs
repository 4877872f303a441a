//! Calls under way: who may stop them, and the frames that some of them answer with (SPEC.md §25).
//! Never lets a call hold more than its bounds, and never lets one caller touch the call of another.

mod ending;
mod memory;
mod open_call;
mod open_calls;
mod outlet;
mod resends;
mod task;
mod together;
mod writer;

pub use ending::Ending;
pub(super) use ending::subscription_end;
pub(super) use memory::FrameMemory;
pub(super) use open_call::{Asked, Controlled, OpenCall};
pub use open_calls::StreamLimits;
pub(super) use open_calls::{CallKey, OpenCalls, OpenSlot, Refused};
pub use outlet::Outlet;
pub(super) use task::Progress;
pub(super) use together::Together;
pub use writer::FrameError;
pub(super) use writer::{Finished, FrameWriter, Start};
