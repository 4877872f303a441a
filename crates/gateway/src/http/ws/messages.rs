//! Messages to the client of a socket.
//! Never waits for anything but room in its queue.

use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::frames::Outbox;

/// Several messages as a batch.
pub(super) fn array(texts: &[Vec<u8>]) -> Vec<u8> {
    [b"[".as_slice(), &texts.join(b",".as_slice()), b"]"].concat()
}

/// Queues a message as soon as there is room for it.
pub(super) async fn say(out: &Outbox, text: Vec<u8>) {
    // Cannot fail: serialized JSON is UTF-8.
    if let Ok(text) = Utf8Bytes::try_from(text) {
        out.send(text).await;
    }
}
