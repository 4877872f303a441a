//! Where frames leave. Knows nothing of their content.
//! Never changes their order.

use futures_util::future::BoxFuture;

use crate::name::Name;
use crate::wire::SealedFrame;

/// Where the frames of a replica's streams leave: the bus, or a test.
pub trait Outlet: Send + Sync {
    /// The replica that callers send control messages to. Not `all`, which names every replica.
    fn replica(&self) -> &Name;

    /// Publishes a frame. Frames of one call are handed in one after the other, and must leave in that order. While
    /// this waits, the method waits, too. If a frame gets lost, its caller asks for it again.
    ///
    /// Cancel safety: a dropped future may or may not have published the frame, which is then handed in again.
    fn send<'a>(&'a self, frame: &'a SealedFrame) -> BoxFuture<'a, ()>;
}
