//! Where frames leave. Knows nothing of what is in them.
//! Never changes their order.

use futures_util::future::BoxFuture;

use crate::name::Name;
use crate::wire::SealedFrame;

/// Where the frames of a replica's streams leave: the bus, or a test.
pub trait Outlet: Send + Sync {
    /// The replica: where callers send control to. Not `all`, which names every replica.
    fn replica(&self) -> &Name;

    /// Publishes a frame. Those of one call are handed in one after the other, and have to leave in that order. It may
    /// wait: then the method waits, too. A frame that got lost is asked for again by its caller.
    ///
    /// Cancel safety: a dropped future may or may not have published it; the frame is handed in again then.
    fn send<'a>(&'a self, frame: &'a SealedFrame) -> BoxFuture<'a, ()>;
}
