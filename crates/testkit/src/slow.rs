//! A broker behind a slow line: every piece that passes over it is held up for as long as was set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

pub struct SlowLine {
    port: u16,
    delay_ms: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl SlowLine {
    /// A line to the broker on this port; not slow yet.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let delay_ms = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&delay_ms);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                tokio::spawn(carry(near_in, far_out, Arc::clone(&delay)));
                tokio::spawn(carry(far_in, near_out, Arc::clone(&delay)));
            }
        });
        Self { port: own, delay_ms, accepting }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// From now on every piece, in either direction, takes this long.
    pub fn slow_down(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::Relaxed);
    }
}

impl Drop for SlowLine {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Carries bytes until either end closes.
pub(crate) async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay_ms: Arc<AtomicU64>) {
    let mut piece = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        // Even a sleep of no time takes a tick of the timer.
        let delay = delay_ms.load(Ordering::Relaxed);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}
