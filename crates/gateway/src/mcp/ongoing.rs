//! A call in progress: its parts and progress, and its questions to the client.
//! Never asks a client that cannot be asked.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use sealwire::internal::client::{MessageId, Receipt};
use sealwire::{CallStream, ClientError, RequestBuilder};
use sealwire_mcp::{ClientCapabilities, LogLevel, Meta, raw};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::notifier::{Notes, Notifier};
use super::open_questions::{AskedClient, OpenQuestions};
use super::peer::Requester;
use super::questions::{Question, put};
use crate::bus::BusLink;
use crate::caller::hold;
use crate::catalogue::Tool;
use crate::revocation::Loss;

/// The largest result, in bytes, which is far more than a model can read.
pub(super) const MAX_RESULT: usize = 4 << 20;
/// How many questions of a call may wait for their turn.
const QUESTIONS: usize = 8;
/// The `_meta` member of a result that holds the proofs.
const RECEIPT: &str = "dev.sealwire/receipt";

/// A call in progress.
pub(super) struct OngoingCall {
    pub(super) tool: Arc<Tool>,
    link: BusLink,
    id: MessageId,
    /// `None` under HMAC, where nobody else could check it.
    receipt: Option<Receipt>,
    /// The digest of the request that it is made for.
    pub(super) digest: String,
    /// `Some` until its result is taken.
    stream: Option<CallStream<Box<RawValue>>>,
    notes: Arc<Notes>,
    /// What the client can be asked for.
    pub(super) capabilities: ClientCapabilities,
    /// `None` if it can be asked for nothing.
    questions: Option<mpsc::Receiver<Question>>,
    /// Answers that the client has sent before the questions came, by their names.
    responses: Map<String, Value>,
    round: Round,
    parts: Vec<Box<RawValue>>,
    part_bytes: usize,
}

/// The questions that a method asks at the same time, and waits for together.
#[derive(Default)]
struct Round {
    seen: usize,
    of: usize,
    open: Vec<Question>,
}

impl Round {
    /// Takes a question; returns those that have to be asked once the round is complete.
    fn take(&mut self, mut question: Question, responses: &mut Map<String, Value>) -> Option<Vec<Question>> {
        if self.seen == 0 {
            self.of = question.of;
        }
        self.seen += 1;
        match (question.refusal.take(), responses.remove(&question.key)) {
            (Some(refusal), _) => question.refuse(refusal),
            (None, Some(answer)) if answer.is_object() => question.answer(answer),
            (None, _) => self.open.push(question),
        }
        if self.seen < self.of {
            return None;
        }
        self.seen = 0;
        Some(std::mem::take(&mut self.open)).filter(|open| !open.is_empty())
    }
}

/// How far a call has come.
pub(super) enum Step {
    Ended(Result<Box<RawValue>, ClientError>),
    Asks(Vec<Question>),
    TooLarge,
    /// Without a broker for too long. The call may have been sent: the task that sends runs concurrently.
    Gone,
    /// The caller may no longer receive it.
    Lost(Loss),
}

impl OngoingCall {
    pub(super) fn begin(
        capabilities: ClientCapabilities,
        (request, link): (RequestBuilder, BusLink),
        tool: Arc<Tool>,
        params: &RawValue,
        digest: String,
        responses: Map<String, Value>,
    ) -> Self {
        let notes = Arc::new(Notes::default());
        let noted = Arc::clone(&notes);
        let id = MessageId::default();
        let receipt = link.receipt();
        let mut request = request
            .relay()
            .capture_id(&id)
            .request()
            .max_bytes(MAX_RESULT)
            .capable_of(capabilities.of_callers())
            .on_notification(move |told| noted.lock().push(told));
        if let Some(receipt) = &receipt {
            request = request.relay().capture_receipt(receipt).request();
        }
        let mut questions = None;
        if !capabilities.is_empty() {
            let (ask, asked) = mpsc::channel(QUESTIONS);
            questions = Some(asked);
            request = request.on_ask(move |question| {
                let ask = ask.clone();
                async move { put(question, capabilities, &ask).await }
            });
        }
        let stream = Some(request.stream(&tool.method.name, params));
        let (parts, part_bytes, round) = (Vec::new(), 0, Round::default());
        Self {
            tool,
            link,
            id,
            receipt,
            digest,
            stream,
            notes,
            capabilities,
            questions,
            responses,
            round,
            parts,
            part_bytes,
        }
    }

    /// Drives the call until it ends, or asks what only another request of the client can answer.
    pub(super) async fn drive(
        &mut self,
        Requester { peer, revision, .. }: Requester<'_>,
        open: &OpenQuestions,
        meta: &Meta,
        level: Option<LogLevel>,
    ) -> Step {
        let mut notifier = Notifier::new(&peer.out, meta.progress.as_ref(), level);
        let mut asked: Option<AskedClient<'_>> = None;
        let OngoingCall { tool, link, id, stream, notes, questions, responses, round, parts, part_bytes, .. } = self;
        let mut gone = pin!(link.lost(id));
        let mut hold = hold(&peer.caller, Some((&tool.service, &tool.method.name)));
        loop {
            let due = notifier.is_due();
            tokio::select! {
                biased;
                () = answered(&mut asked), if asked.is_some() => asked = None,
                Some(question) = asking(questions), if asked.is_none() => match revision.has_handshake() {
                    false => {
                        if let Some(questions) = round.take(question, responses) {
                            return Step::Asks(questions);
                        }
                    }
                    // One after the other: each is a request of its own.
                    true => match question.refusal.clone() {
                        Some(refusal) => question.refuse(refusal),
                        None => asked = Some(Box::pin(open.ask(peer, question)).await),
                    },
                },
                _ = &mut gone => return Step::Gone,
                loss = hold.lost() => return Step::Lost(loss),
                () = due => notifier.flush(),
                part = next(stream, notes, &mut notifier) => match part {
                    Some(Ok(part)) => {
                        notifier.part(&part);
                        if tool.method.is_stream {
                            *part_bytes += part.get().len() + 1;
                            if *part_bytes > MAX_RESULT {
                                return Step::TooLarge;
                            }
                            parts.push(part);
                        }
                    }
                    Some(Err(error)) => return Step::Ended(Err(error)),
                    None => break,
                },
            }
        }
        notifier.flush();
        let Some(stream) = stream.take() else { return Step::Ended(Err(ClientError::Ended)) };
        // The stream has ended, so this does not wait.
        let result = Box::pin(stream.finish::<Box<RawValue>>()).await;
        Step::Ended(result.map(|result| if tool.method.is_stream { raw(parts) } else { result }))
    }

    /// The `_meta` of a result: the proofs of request and answer.
    pub(super) fn receipt(&self) -> Map<String, Value> {
        let proofs = self.receipt.as_ref().and_then(|receipt| receipt.request().zip(receipt.answer()));
        let proofs = proofs.map(|(request, answer)| json!({ "request": request, "answer": answer }));
        proofs.map(|proofs| (RECEIPT.to_owned(), proofs)).into_iter().collect()
    }
}

/// The next part. Notifications that came before it are sent first.
async fn next(
    stream: &mut Option<CallStream<Box<RawValue>>>,
    notes: &Notes,
    notifier: &mut Notifier<'_>,
) -> Option<Result<Box<RawValue>, ClientError>> {
    let Some(stream) = stream else { return None };
    poll_fn(|context| {
        let part = stream.poll_next_unpin(context);
        notes.lock().drain(..).for_each(|note| notifier.note(&note));
        part
    })
    .await
}

async fn asking(questions: &mut Option<mpsc::Receiver<Question>>) -> Option<Question> {
    match questions {
        Some(questions) => questions.recv().await,
        None => pending().await,
    }
}

async fn answered(asked: &mut Option<AskedClient<'_>>) {
    match asked {
        Some(asked) => asked.answered().await,
        None => pending().await,
    }
}
