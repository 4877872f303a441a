//! Responses with a text, and what is held until their client has read them.
//! Never hands over a whole text at once.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use super::connections::{Body, PermitBody};

/// A response with this text.
pub fn response(status: StatusCode, kind: &'static str, text: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut answer = Response::new(Sliced(text.into()).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// A text handed over in slices, so that most of an answer that its client does not read stays visible as waiting.
struct Sliced(bytes::Bytes);

impl Sliced {
    const SLICE: usize = 16 << 10;
}

impl hyper::body::Body for Sliced {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let size = self.0.len().min(Self::SLICE);
        let slice = self.0.split_to(size);
        Poll::Ready((size > 0).then_some(Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.0.len() as u64)
    }
}

/// The response, which keeps its permit until its client has room for the last piece.
pub fn with_permit(response: Response<Body>, permit: impl Send + Unpin + 'static) -> Response<Body> {
    response.map(|body| PermitBody::new(body, permit).boxed_unsync())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;

    use hyper::body::Body as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_handed_over_in_slices_and_holds_its_place_to_the_last() {
        let text: Vec<u8> = (0..40_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let held = Arc::new(());
        let mut body =
            PermitBody::new(response(StatusCode::OK, "text/plain", text.clone()).into_body(), Arc::clone(&held));
        assert_eq!(body.size_hint().exact(), Some(40_000), "its length is said");
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let slice = frame.unwrap().into_data().unwrap();
            assert!(slice.len() <= Sliced::SLICE && Arc::strong_count(&held) == 2);
            read.extend_from_slice(&slice);
        }
        assert!(read == text && body.is_end_stream());
        assert!(response(StatusCode::OK, "text/plain", "").into_body().is_end_stream());
    }
}
