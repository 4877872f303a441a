//! Answers to the questions of a method: made, and sent again if they may be lost.
//! Never assumes that the service has one: only the end of the call shows that for sure.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;

use super::parts::requests;
use crate::client::stream_options::Asked;
use crate::rpc::{Id, Limits, Response, Responses, RpcError, code};
use crate::wire::Received;

/// The answers of one stream.
#[derive(Default)]
pub(super) struct Answers {
    /// Answers being made; `None` until something is asked, as hardly any method does.
    making: Option<FuturesUnordered<BoxFuture<'static, AskAnswer>>>,
    /// Answers that the service may not have, oldest first.
    kept: VecDeque<Kept>,
}

/// An answer to one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AskAnswer {
    /// The digest of the question's proof.
    pub(super) ask: String,
    /// The response.
    pub(super) payload: Bytes,
}

#[derive(Debug)]
struct Kept {
    answer: AskAnswer,
    /// The last frame that had arrived when it was first sent.
    after: Option<u64>,
    /// When it was last sent.
    sent: Instant,
    times: u32,
    /// When it is sent again.
    due: Option<Instant>,
    /// The connection may have lost it, so frames that came since prove nothing.
    is_suspect: bool,
}

impl Answers {
    /// Begins to answer a question.
    pub(super) fn begin(&mut self, ask: Received, on_ask: Asked) {
        let name = ask.ask.unwrap_or_default();
        let request = requests(&ask.payload).and_then(|requests| requests.into_iter().next());
        let id = request.as_ref().and_then(|request| request.id.clone());
        self.making.get_or_insert_default().push(Box::pin(async move {
            let outcome = match request {
                None => Err(RpcError::with_code(code::INVALID_REQUEST, "Invalid Request")),
                Some(request) => {
                    let answering = AssertUnwindSafe(async move { on_ask(request).await }).catch_unwind();
                    let outcome = answering.await.unwrap_or_else(|_| Err(RpcError::internal("the handler panicked")));
                    outcome.map_err(RpcError::of_layer)
                }
            };
            AskAnswer { ask: name, payload: Response::new(id.unwrap_or_else(Id::null), outcome).to_bytes().into() }
        }));
    }

    /// The next finished answer; `None` if none is being made.
    ///
    /// Cancel safety: nothing is lost.
    pub(super) async fn made(&mut self) -> Option<AskAnswer> {
        self.making.as_mut()?.next().await
    }

    /// Keeps an answer that was sent, or could not be. `last` is the last frame so far.
    pub(super) fn keep(&mut self, answer: AskAnswer, is_sent: bool, last: Option<u64>, now: Instant) {
        let due = now + if is_sent { UNHEARD } else { SOON };
        let times = u32::from(is_sent);
        self.kept.push_back(Kept { answer, after: last, sent: now, times, due: Some(due), is_suspect: !is_sent });
        while self.kept.len() > 1 && (self.kept.len() > MOST_KEPT || self.bytes() > MOST_BYTES) {
            self.kept.pop_front();
        }
    }

    /// Answers that were sent may be lost: frames were, or the connection was.
    pub(super) fn suspect(&mut self, now: Instant) {
        for kept in self.kept.iter_mut().filter(|kept| kept.times < MOST_TIMES) {
            kept.is_suspect = true;
            let soon = now.max(kept.sent + BETWEEN);
            kept.due = Some(kept.due.map_or(soon, |due| due.min(soon)));
        }
    }

    /// An answer to send again now. `last` is the last frame so far: a frame that follows an answer shows that the answer most likely
    /// arrived.
    pub(super) fn due(&mut self, last: Option<u64>, now: Instant) -> Option<AskAnswer> {
        for kept in &mut self.kept {
            if !kept.is_suspect && last > kept.after {
                kept.due = None;
            }
        }
        let due = self.kept.iter_mut().find(|kept| kept.due.is_some_and(|due| due <= now))?;
        due.due = Some(now + SOON);
        Some(due.answer.clone())
    }

    /// An answer that was due was sent.
    pub(super) fn resent(&mut self, answer: &AskAnswer, now: Instant) {
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.answer.ask == answer.ask) {
            kept.times += 1;
            (kept.sent, kept.is_suspect) = (now, false);
            kept.due = (kept.times < MOST_UNHEARD).then(|| now + UNHEARD * 2);
        }
    }

    /// When to ask [`Answers::due`] again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.kept.iter().filter_map(|kept| kept.due).min()
    }

    fn bytes(&self) -> usize {
        self.kept.iter().map(|kept| kept.answer.payload.len()).sum()
    }
}

impl AskAnswer {
    /// What is sent in its place if it does not fit a message.
    pub(super) fn too_large(&self) -> Self {
        let id = match Responses::parse(&self.payload, &Limits::default()) {
            Ok(Responses::Single(response)) => response.id,
            _ => Id::null(),
        };
        let error = RpcError::with_code(code::TOO_LARGE, "too large: the answer does not fit a message");
        Self { ask: self.ask.clone(), payload: Response::new(id, Err(error)).to_bytes().into() }
    }
}

/// The most answers that are kept: as many as a service may have questions open for one call.
const MOST_KEPT: usize = 16;

/// The most bytes of them, unless the newest alone has more.
const MOST_BYTES: usize = 2 << 20;

/// An answer that no frame has followed for this long is sent again, and once more after twice as long. The service may have lost its own
/// connection, which nobody tells us.
const UNHEARD: Duration = Duration::from_secs(3);

/// How often an answer is sent if no frame follows it: the method may just take its time.
const MOST_UNHEARD: u32 = 3;

/// How often an answer is sent in all, however often the connection is lost.
const MOST_TIMES: u32 = 8;

/// Between two sendings of one answer.
const BETWEEN: Duration = Duration::from_secs(1);

/// An answer that could not be sent is tried again after this.
const SOON: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ask: &str) -> AskAnswer {
        AskAnswer { ask: ask.to_owned(), payload: Bytes::from_static(b"{}") }
    }

    struct Stage(Answers, Instant);

    impl Stage {
        fn new() -> Self {
            Self(Answers::default(), Instant::now())
        }
        fn at(&self, ms: u64) -> Instant {
            self.1 + Duration::from_millis(ms)
        }
        /// Which answers are sent again at this time.
        fn sends(&mut self, last: Option<u64>, ms: u64) -> Vec<String> {
            let now = self.at(ms);
            let mut sent = Vec::new();
            while let Some(answer) = self.0.due(last, now) {
                self.0.resent(&answer, now);
                sent.push(answer.ask);
            }
            sent
        }
    }

    /// SPEC.md §25.4.
    #[test]
    fn what_no_frame_follows_is_sent_again_a_few_times() {
        let mut stage = Stage::new();
        stage.0.keep(answer("a"), true, Some(3), stage.at(0));
        assert!(stage.sends(Some(3), 2_999).is_empty());
        assert_eq!(stage.sends(Some(3), 3_000), ["a"]);
        assert!(stage.sends(Some(3), 8_999).is_empty());
        assert_eq!(stage.sends(Some(3), 9_000), ["a"], "twice in all");
        assert!(stage.sends(Some(3), 1_000_000).is_empty());
        assert_eq!(stage.0.next_due(), None);
        // One that a frame follows is not sent again.
        stage.0.keep(answer("b"), true, Some(3), stage.at(0));
        assert!(stage.sends(Some(4), 3_000).is_empty());
        assert_eq!(stage.0.next_due(), None);
    }

    #[test]
    fn what_the_connection_may_have_lost_is_sent_again_whatever_followed_it() {
        let mut stage = Stage::new();
        stage.0.keep(answer("a"), true, Some(3), stage.at(0));
        assert!(stage.sends(Some(9), 100).is_empty(), "a frame came");
        stage.0.suspect(stage.at(200));
        assert!(stage.sends(Some(9), 999).is_empty(), "not more than one a second");
        assert_eq!(stage.sends(Some(9), 1_000), ["a"]);
        let mut times = 2;
        for second in 2..100 {
            stage.0.suspect(stage.at(second * 1_000));
            times += stage.sends(Some(9), second * 1_000).len();
        }
        assert_eq!(times, 8);
        // One that could not be sent is sent as soon as it can be.
        stage.0.keep(answer("b"), false, Some(9), stage.at(0));
        assert_eq!(stage.sends(Some(10), 250), ["b"]);
    }

    #[test]
    fn no_more_are_kept_than_a_service_has_questions_open() {
        let mut stage = Stage::new();
        for number in 0..100 {
            stage.0.keep(answer(&number.to_string()), true, None, stage.at(0));
        }
        let sent = stage.sends(None, 3_000);
        assert_eq!((sent.len(), sent.first().map(String::as_str)), (16, Some("84")));
        let large = |ask: &str| AskAnswer { ask: ask.to_owned(), payload: vec![0; 3 << 20].into() };
        stage.0.keep(large("x"), true, None, stage.at(0));
        stage.0.keep(large("y"), true, None, stage.at(0));
        assert_eq!(stage.sends(None, 3_000), ["y"]);
    }
}
