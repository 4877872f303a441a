//! A socket that notes what is read from it and written to it: when the head of a request begins, what is ambiguous in it, and since when its
//! client reads nothing.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::framing::{Flaw, Framing};

pub(super) struct WatchedSocket<S> {
    socket: S,
    activity: Arc<Activity>,
    framing: SharedFraming,
}

/// The framing of a connection, for its socket and its service.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedFraming(Arc<Mutex<Framing>>);

impl SharedFraming {
    fn lock(&self) -> MutexGuard<'_, Framing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong with the next request.
    pub(super) fn next(&self) -> Option<Flaw> {
        self.lock().next()
    }

    /// From now on the connection carries something else.
    pub(super) fn end(&self) {
        self.lock().end();
    }
}

impl<S> WatchedSocket<S> {
    pub(super) fn new(socket: S, activity: Arc<Activity>, framing: SharedFraming) -> Self {
        Self { socket, activity, framing }
    }

    fn note_write(&self, was_written: bool) {
        self.activity.note_write(was_written, self.framing.lock().is_http1());
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // hyper takes it for the end of what the client sends, in the middle of a body.
        if self.framing.lock().is_ambiguous() {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if let Some(some) = buffer.filled().get(before..).filter(|some| !some.is_empty()) {
            let mut framing = self.framing.lock();
            let good = framing.take(some);
            if framing.is_http1() {
                self.activity.note_read();
            }
            buffer.set_filled(before + good);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.note_write(written.is_ready());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, buffers);
        self.note_write(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
