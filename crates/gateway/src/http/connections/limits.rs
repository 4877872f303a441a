//! The bounds of connections: docs/bounds.md.

use std::time::Duration;

/// How long a connection may be idle between two requests. Longer than clients keep an idle connection.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// How long the head of a request may take, from its first byte, and a TLS handshake.
pub(super) const HEAD: Duration = Duration::from_secs(10);
/// How long an answer may wait for its client to read some of it.
pub(super) const UNREAD: Duration = Duration::from_secs(60);
/// HTTP/1.1: how much is read ahead, and how much of an answer is written ahead. So a head has at most as many bytes, in HTTP/2 too.
pub(super) const BUFFER: usize = 16 << 10;
/// How long a connection that was told to close may be idle, or take to do so.
pub(super) const LEAVING: Duration = Duration::from_secs(1);
/// HTTP/2: concurrent requests. The same as the default for one caller; further requests wait at the client.
pub(super) const REQUESTS: u32 = 128;
/// HTTP/2: how much a client may send before the gateway reads it: of one body, and on the whole connection.
pub(super) const BODY_WINDOW: u32 = 64 << 10;
pub(super) const WINDOW: u32 = 256 << 10;
/// HTTP/2: how much of an answer is buffered before more of it is polled, and how much is handed over at once.
pub(super) const ANSWER_BYTES: usize = 16 << 10;
/// HTTP/2: how much of an answer may wait for its client unwatched. hyper is done with an answer as soon as its last piece can begin to be
/// sent; h2 keeps the rest. So the last byte of a larger answer is handed over by itself, once everything before it has gone out.
pub(super) const UNWATCHED: usize = 1 << 10;
/// HTTP/2: how often a client is pinged, and how long it may take to answer.
pub(super) const PING: Duration = Duration::from_secs(20);
/// HTTP/2: the most bytes of an unread body to discard, and for how long.
pub(super) const DRAIN: usize = 64 << 10;
pub(super) const DRAIN_FOR: Duration = Duration::from_secs(2);
