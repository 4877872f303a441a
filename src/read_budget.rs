//! Bounds how many bytes a peer may send towards one message, whatever it wraps the message in: an empty frame adds nothing to a message,
//! and so never makes it too long.
//! Never knows what a message is.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a peer may still send until its next message is whole.
#[derive(Debug)]
pub struct ReadBudget {
    used: AtomicUsize,
    most: usize,
}

/// A connection that is read within a budget. A read beyond it is an error.
#[derive(Debug)]
pub struct BudgetedStream<S> {
    inner: S,
    budget: Arc<ReadBudget>,
}

impl ReadBudget {
    /// A budget of `most` bytes a message.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), most })
    }

    /// A message is whole.
    pub fn restart(&self) {
        self.used.store(0, Ordering::Relaxed);
    }

    /// So many bytes were no part of a message, and are bounded in another way.
    pub fn refund(&self, bytes: usize) {
        // One task reads, and nobody else changes it.
        self.used.store(self.used.load(Ordering::Relaxed).saturating_sub(bytes), Ordering::Relaxed);
    }

    /// Whether it was too much.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.most
    }
}

impl<S> BudgetedStream<S> {
    /// Reads `inner` within this budget.
    pub fn new(inner: S, budget: &Arc<ReadBudget>) -> Self {
        Self { inner, budget: Arc::clone(budget) }
    }

    /// The connection, without a bound.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BudgetedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.budget.is_spent() {
            return Poll::Ready(Err(io::Error::other("too many bytes for one message")));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.budget.used.fetch_add(buffer.filled().len().saturating_sub(before), Ordering::Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BudgetedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
