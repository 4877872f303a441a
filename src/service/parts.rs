//! What a method sends while it runs: parts of its result, notifications, questions.
//! Never sends anything to a caller that did not say that it accepts frames.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use super::streams::{FrameError, OpenCall, Progress as Told, Together};
use crate::rpc::{Id, Limits, Request, Response, Responses, RpcError};
use crate::wire::FrameKind;

/// The way from a running method to its caller.
#[derive(Clone)]
pub(super) struct Parts {
    open: Arc<OpenCall>,
    id: Id,
}

/// Sends parts of a result while the method runs; see
/// [`Router::method_with_sink`](super::Router::method_with_sink). Clones share it.
pub struct Sink<T> {
    parts: Parts,
    items: PhantomData<fn(T)>,
}

/// A question to the caller got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The caller accepts no questions: its call has no window for frames.
    #[error("the caller cannot be asked: its call takes no frames")]
    NoFrames,
    /// This call already has as many open questions as it may.
    #[error("too many questions of one call are open")]
    TooMany,
    /// The question was not sent.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The caller refused, or does not know the question.
    #[error("the caller refused: {0}")]
    Refused(RpcError),
    /// The caller's answer is not a JSON-RPC response to the question, or its result is of another type.
    #[error("the caller's answer cannot be read: {0}")]
    Malformed(String),
}

impl From<FrameError> for RpcError {
    fn from(error: FrameError) -> Self {
        Self::internal(error)
    }
}

impl From<AskError> for RpcError {
    fn from(error: AskError) -> Self {
        Self::internal(error)
    }
}

#[derive(Serialize)]
struct Progress<'a> {
    progress: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

impl Parts {
    pub(super) fn new(open: Arc<OpenCall>, id: Option<Id>) -> Self {
        Self { open, id: id.unwrap_or_else(Id::null) }
    }

    /// One part of the result, as a response of its own.
    fn item(&self, item: &impl Serialize) -> Result<Vec<u8>, RpcError> {
        let result = to_raw_value(item).map_err(RpcError::internal)?;
        Ok(Response::new(self.id.clone(), Ok(result)).to_bytes())
    }

    async fn send(&self, kind: FrameKind, mut payload: Vec<u8>) -> Result<(), FrameError> {
        // The payload is kept until it is acknowledged, but counted by its length.
        payload.shrink_to_fit();
        let sent = match self.open.frames() {
            Some(_) if self.open.is_over() => Err(FrameError::Ended),
            Some(frames) => frames.send(kind, Bytes::from(payload)).await,
            None => Ok(()),
        };
        if matches!(sent, Err(FrameError::Ended)) {
            self.open.notice();
        }
        sent
    }

    /// Whether the caller accepts questions.
    pub(super) fn can_ask(&self) -> bool {
        self.open.frames().is_some()
    }

    pub(super) fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        if self.open.has_no_caller() {
            Told::new(progress, total, message).into_iter().for_each(|told| self.open.say(told));
            return;
        }
        let Some(frames) = self.open.frames().filter(|_| !self.open.is_over()) else { return };
        if let Ok(note) = note("rpc.progress", &Progress { progress, total, message }) {
            frames.offer(note);
        }
    }

    /// Serializes before anything waits, so `params` need not live on.
    pub(super) fn notify<T: Serialize + ?Sized>(
        self,
        method: &str,
        params: &T,
    ) -> impl Future<Output = Result<(), FrameError>> + Send + use<T> {
        let note = self.open.frames().map(|_| note(method, params));
        async move {
            match note {
                None => Ok(()),
                Some(note) => self.send(FrameKind::Note, note?).await,
            }
        }
    }

    pub(super) async fn ask<R: DeserializeOwned>(
        &self,
        method: &str,
        params: &(impl Serialize + ?Sized),
    ) -> Result<R, AskError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Some(frames) = self.open.frames() else { return Err(AskError::NoFrames) };
        // Held while waiting for room, too: a question too many must not be asked.
        let _place = self.open.may_ask().ok_or(AskError::TooMany)?;
        let id = Id::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let question = Request::new(method, params, Some(id.clone()));
        let question = question.map_err(|error| FrameError::Json(error.to_string()))?;
        let ended = || {
            self.open.notice();
            FrameError::Ended
        };
        let answer = frames.ask(Bytes::from(question.to_bytes()), |proof| self.open.ask(proof)).await?;
        let answer = answer.ok_or_else(ended)?.await.map_err(|_| ended())?;
        let malformed = |error: &dyn fmt::Display| AskError::Malformed(error.to_string());
        match Responses::parse(&answer, &Limits::default()).map_err(|error| malformed(&error))? {
            Responses::Single(response) if response.id == id => {
                let result = response.outcome.map_err(AskError::Refused)?;
                serde_json::from_str(result.get()).map_err(|error| malformed(&error))
            }
            _ => Err(malformed(&"it answers something else")),
        }
    }

    /// Sends all items, or puts them into one array for a caller that accepts no frames. Returns the result of the
    /// call.
    pub(super) async fn all<T: Serialize + Send>(
        self,
        items: impl Stream<Item = Result<T, RpcError>> + Send,
    ) -> Result<Box<RawValue>, RpcError> {
        if self.open.frames().is_some() { self.send_all(items).await } else { self.collect(items).await }
    }

    async fn send_all<T: Serialize + Send>(
        &self,
        items: impl Stream<Item = Result<T, RpcError>> + Send,
    ) -> Result<Box<RawValue>, RpcError> {
        let texts = items.map(|item| item.and_then(|item| self.item(&item)));
        self.send_joined(FrameKind::Item, texts).await?;
        to_raw_value(&()).map_err(RpcError::internal)
    }

    /// Sends each item as a notification.
    pub(super) async fn notify_all(
        &self,
        notes: impl Stream<Item = Result<Vec<u8>, RpcError>> + Send,
    ) -> Result<(), RpcError> {
        self.send_joined(FrameKind::Note, notes).await
    }

    /// Sends these texts up to the first error. Texts that arrive meanwhile go together: a writer under pressure has fewer frames to sign,
    /// and holds no more than one frame and the text behind it.
    async fn send_joined(
        &self,
        kind: FrameKind,
        texts: impl Stream<Item = Result<Vec<u8>, RpcError>> + Send,
    ) -> Result<(), RpcError> {
        let mut texts = std::pin::pin!(texts.fuse());
        let mut behind = None;
        loop {
            let first = match behind.take() {
                Some(text) => text,
                None => match texts.next().await {
                    Some(text) => text?,
                    None => return Ok(()),
                },
            };
            let mut together = Together::new(&first);
            let mut failed = None;
            while !together.is_full() && behind.is_none() && failed.is_none() {
                match texts.next().now_or_never().flatten() {
                    None => break,
                    Some(Err(error)) => failed = Some(error),
                    Some(Ok(text)) if together.has_room_for(&text) => together.push(&text),
                    Some(Ok(text)) => behind = Some(text),
                }
            }
            drop(first);
            self.send(kind, together.into_payload()).await?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    async fn collect<T: Serialize + Send>(
        &self,
        items: impl Stream<Item = Result<T, RpcError>> + Send,
    ) -> Result<Box<RawValue>, RpcError> {
        let mut items = std::pin::pin!(items);
        let mut all = String::from("[");
        while let Some(item) = items.next().await {
            let text = to_raw_value(&item?).map_err(RpcError::internal)?;
            if all.len() > 1 {
                all.push(',');
            }
            all.push_str(text.get());
            // More would be refused just as this is: an answer above the limit becomes an error that says so.
            if all.len() > self.open.answer_limit() {
                break;
            }
        }
        all.push(']');
        RawValue::from_string(all).map_err(RpcError::internal)
    }
}

/// The text of a notification.
pub(super) fn note<T: Serialize + ?Sized>(method: &str, params: &T) -> Result<Vec<u8>, FrameError> {
    let note = Request::new(method, params, None).map_err(|error| FrameError::Json(error.to_string()))?;
    Ok(note.to_bytes())
}

impl<T: Serialize> Sink<T> {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts, items: PhantomData }
    }

    /// Sends a part of the result. Waits while the caller has no room. Does nothing if the caller accepts no frames.
    ///
    /// # Errors
    /// [`FrameError`]; nothing is sent. [`FrameError::Ended`] is not the method's fault.
    ///
    /// Cancel safety: a dropped future has sent nothing.
    pub fn send<'a>(&'a self, item: &T) -> impl Future<Output = Result<(), FrameError>> + Send + use<'a, T> {
        let text = self.parts.open.frames().map(|_| self.parts.item(item));
        let parts = &self.parts;
        async move {
            match text {
                None => Ok(()),
                Some(Err(error)) => Err(FrameError::Json(error.to_string())),
                Some(Ok(text)) => parts.send(FrameKind::Item, text).await,
            }
        }
    }

    /// Sends several parts of the result, in as few frames as they fit in. Waits while the caller has no room. Does nothing if the caller
    /// accepts no frames.
    ///
    /// # Errors
    /// As of [`send`](Self::send), as an error for the caller; those ahead may have been sent.
    ///
    /// Cancel safety: a dropped future may have sent some of them, from the first on.
    pub async fn send_all(&self, items: impl IntoIterator<Item = T>) -> Result<(), RpcError> {
        if self.parts.open.frames().is_none() {
            return Ok(());
        }
        let texts: Vec<_> = items.into_iter().map(|item| self.parts.item(&item)).collect();
        self.parts.send_joined(FrameKind::Item, futures_util::stream::iter(texts)).await
    }
}

impl<T> Clone for Sink<T> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), items: PhantomData }
    }
}

impl<T> fmt::Debug for Sink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").finish_non_exhaustive()
    }
}
