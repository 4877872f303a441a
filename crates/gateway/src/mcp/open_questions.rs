//! Questions to clients that accept requests, until they are answered or withdrawn.
//! Never lets one client answer what another was asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sealwire::RpcError;
use sealwire_mcp::{Id, notification};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::outbox::Outbox;
use super::peer::Peer;
use super::questions::Question;
use crate::seal::{Kind, Seal};

/// How long a client may take to answer a question of a call.
pub(super) const OPEN_FOR: Duration = Duration::from_secs(600);

/// The client's answer to a question: a result, or the text of an error.
type QuestionReply = Result<Box<RawValue>, String>;

/// The open questions. Each belongs to a call, which bounds how many there are.
pub(crate) struct OpenQuestions {
    seal: Option<Arc<Seal>>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    questions: HashMap<String, Asker>,
    asked: u64,
    /// Whether no answers will come any more.
    is_deaf: bool,
}

struct Asker {
    /// Who may answer it.
    peer: Arc<str>,
    reply: oneshot::Sender<QuestionReply>,
}

/// The id of a question whose answer may arrive at another replica.
#[derive(Serialize, Deserialize)]
struct QuestionId {
    /// The replica that asks.
    at: String,
    name: String,
}

impl QuestionId {
    fn sealed(seal: &Seal, peer: &Peer, name: &str) -> Option<String> {
        let id = Self { at: seal.place().to_owned(), name: name.to_owned() };
        // Valid for as long as a call may take.
        seal.seal(Kind::McpQuestion, &peer.name, OPEN_FOR, id, SystemTime::now()).ok()
    }
}

impl OpenQuestions {
    pub(super) fn new(seal: Option<Arc<Seal>>) -> Self {
        Self { seal, open: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().questions.is_empty()
    }

    /// The client will answer no more questions, open ones included.
    pub(super) fn close(&self) {
        let mut open = self.lock();
        open.is_deaf = true;
        // Dropping the senders tells whoever waits for the answers.
        open.questions.clear();
    }

    /// ClientCapabilities a client that accepts requests.
    pub(super) async fn ask<'a>(&'a self, peer: &'a Peer, question: Question) -> AskedClient<'a> {
        let (reply, replied) = oneshot::channel();
        let id = {
            let mut open = self.lock();
            open.asked += 1;
            let name = format!("question-{}", open.asked);
            let id = self.seal.as_ref().and_then(|seal| QuestionId::sealed(seal, peer, &name)).unwrap_or(name);
            if !open.is_deaf {
                open.questions.insert(id.clone(), Asker { peer: Arc::clone(&peer.name), reply });
            }
            id
        };
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": question.method, "params": question.params });
        peer.out.send(&request).await;
        AskedClient { questions: self, out: &peer.out, id, question: Some(question), replied }
    }

    /// Takes an answer. Only the client that was asked may give it. Returns whether anything was waiting for it.
    pub(crate) fn answer(
        &self,
        peer: &str,
        id: &RawValue,
        result: Option<&RawValue>,
        error: Option<&RawValue>,
    ) -> bool {
        let Ok(Id::Text(id)) = serde_json::from_str(id.get()) else { return false };
        let asker = {
            let mut open = self.lock();
            match open.questions.get(&id) {
                Some(asker) if &*asker.peer == peer => open.questions.remove(&id),
                _ => None,
            }
        };
        let Some(asker) = asker else { return false };
        let reply = match (result, error) {
            (Some(result), None) => Ok(result.to_owned()),
            (_, error) => Err(error.map(|error| error.get().to_owned()).unwrap_or_default()),
        };
        asker.reply.send(reply).is_ok()
    }

    /// The replica that asked this caller.
    pub(crate) fn replica(&self, peer: &str, id: &RawValue) -> Option<String> {
        let Ok(Id::Text(id)) = serde_json::from_str(id.get()) else { return None };
        let opened = self.seal.as_ref()?.open(Kind::McpQuestion, peer, &id, SystemTime::now());
        opened.map(|id: QuestionId| id.at)
    }
}

/// A question to a client. Dropping it withdraws the question if it is still open.
pub(super) struct AskedClient<'a> {
    questions: &'a OpenQuestions,
    out: &'a Outbox,
    id: String,
    question: Option<Question>,
    replied: oneshot::Receiver<QuestionReply>,
}

/// The error of a client that does not answer.
#[derive(Deserialize)]
struct ClientRefusal {
    code: i32,
    #[serde(default)]
    message: String,
}

impl AskedClient<'_> {
    /// Hands the client's answer to the method once it has come. Cancel safe.
    pub(super) async fn answered(&mut self) {
        let reply = (&mut self.replied).await.unwrap_or_else(|_| Err(String::new()));
        let Some(question) = self.question.take() else { return };
        let refusal = match &reply {
            Ok(result) => match serde_json::from_str::<Value>(result.get()) {
                Ok(answer) if answer.is_object() => return question.answer(answer),
                _ => None,
            },
            Err(error) => serde_json::from_str::<ClientRefusal>(error).ok(),
        };
        let ClientRefusal { code, message } = refusal.unwrap_or(ClientRefusal { code: -1, message: String::new() });
        let message = message.chars().take(1_000).collect::<String>();
        question.give_up(RpcError::application(code, message));
    }
}

impl Drop for AskedClient<'_> {
    fn drop(&mut self) {
        let was_open = self.questions.lock().questions.remove(&self.id).is_some();
        if was_open {
            self.out.send_now(&notification("notifications/cancelled", &json!({ "requestId": self.id })));
        }
    }
}
