//! Questions of a method to the client: to its people, its model, or about its folders.
//! Never asks a client for what it has not declared.

use sealwire::RpcError;
use sealwire::internal::rpc::Request;
use sealwire_mcp::{ClientCapabilities, ELICIT, INPUT, ROOTS, SAMPLE};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

/// The name of a question that has none of its own.
const QUESTION: &str = "question";
/// The most questions of one round: as many as a client of a stream answers at a time.
const ROUND: usize = 8;
/// The error code for a question that cannot be asked.
const NOT_ASKED: i32 = 1;

/// Whether a client can be asked this.
///
/// # Errors
/// What the method is told in place of an answer.
fn judge(client: ClientCapabilities, method: &str, params: &Value) -> Result<(), RpcError> {
    let refused = |why: &'static str| Err(RpcError::application(NOT_ASKED, why));
    match method {
        ELICIT if !client.elicitation => refused("the client cannot show people a form"),
        ELICIT if !is_form(params) => Err(RpcError::invalid_params(
            "a question needs a `message`, and a `requestedSchema` of an object of plain values",
        )),
        SAMPLE if !client.sampling => refused("the client lends no model (`sampling`)"),
        SAMPLE if !client.sampling_tools && ["tools", "toolChoice"].iter().any(|name| params.get(name).is_some()) => {
            refused("the client's model takes no tools (`sampling.tools`)")
        }
        SAMPLE if !is_sample(params) => {
            Err(RpcError::invalid_params("a model needs `messages`, a list, and `maxTokens`, a number"))
        }
        ROOTS if !client.roots => refused("the client names no folders (`roots`)"),
        ELICIT | SAMPLE | ROOTS => Ok(()),
        _ => refused("no client of MCP can be asked this"),
    }
}

/// A question of the method, on its way to the client.
pub(super) struct Question {
    /// Its name in `inputRequests`.
    pub(super) key: String,
    /// How many questions its method asks at the same time, and waits for together.
    pub(super) of: usize,
    pub(super) method: String,
    pub(super) params: Value,
    /// Why the client is not asked.
    pub(super) refusal: Option<RpcError>,
    reply: oneshot::Sender<Result<Value, RpcError>>,
}

impl Question {
    pub(super) fn answer(self, answer: Value) {
        // Fails if the call has ended.
        drop(self.reply.send(Ok(answer)));
    }

    pub(super) fn refuse(self, error: RpcError) {
        drop(self.reply.send(Err(error)));
    }

    /// Without an answer of the client: people have cancelled, and anything else is refused.
    pub(super) fn give_up(self, error: RpcError) {
        if self.method == ELICIT { self.answer(json!({ "action": "cancel" })) } else { self.refuse(error) }
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_over(&self) -> bool {
        self.reply.is_closed()
    }
}

/// Which of a round a question is.
#[derive(Deserialize)]
struct Input {
    key: String,
    of: usize,
}

/// Hands a question of the method on, and waits for the answer.
pub(super) async fn put(
    question: Request,
    client: ClientCapabilities,
    ask: &mpsc::Sender<Question>,
) -> Result<Value, RpcError> {
    let params = question.params.as_ref().and_then(|params| serde_json::from_str(params.raw().get()).ok());
    let mut params: Map<String, Value> = params.unwrap_or_default();
    let input = unmarked(&mut params);
    let params = Value::Object(params);
    let refusal = judge(client, &question.method, &params).err();
    let (key, of) = match input {
        Some(Input { key, of }) => (key, of.clamp(1, ROUND)),
        None => (QUESTION.to_owned(), 1),
    };
    if let Some(refusal) = refusal.clone().filter(|_| of == 1) {
        return Err(refusal);
    }
    let (reply, replied) = oneshot::channel();
    let gone = || RpcError::application(NOT_ASKED, "the client has gone");
    let is_form = question.method == ELICIT;
    // One that is refused counts for its round all the same.
    let question = Question { key, of, method: question.method, params, refusal, reply };
    let sent = ask.send(question).await.is_ok();
    match replied.await {
        Ok(answer) if sent => answer,
        _ if is_form => Ok(json!({ "action": "cancel" })),
        _ => Err(gone()),
    }
}

/// Takes our own mark out of a question's parameters: clients get what the server has sent.
fn unmarked(params: &mut Map<String, Value>) -> Option<Input> {
    let meta = params.get_mut("_meta")?.as_object_mut()?;
    let input = meta.remove(INPUT).and_then(|input| serde_json::from_value(input).ok());
    if meta.is_empty() {
        params.remove("_meta");
    }
    input
}

/// Whether clients can show this question.
fn is_form(params: &Value) -> bool {
    let schema = params.get("requestedSchema");
    let properties = schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
    let plain = |schema: &Value| {
        let kind = schema.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| ["string", "number", "integer", "boolean", "array"].contains(&kind))
    };
    params.get("message").is_some_and(Value::is_string)
        && params.get("mode").is_none_or(|mode| mode == "form")
        && schema.is_some_and(|schema| schema.get("type").is_some_and(|kind| kind == "object"))
        && properties.is_some_and(|properties| properties.values().all(plain))
}

fn is_sample(params: &Value) -> bool {
    params.get("messages").is_some_and(Value::is_array) && params.get("maxTokens").is_some_and(Value::is_number)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn asks(capabilities: Value) -> ClientCapabilities {
        serde_json::from_value(capabilities).unwrap()
    }

    #[test]
    fn a_client_is_asked_for_what_it_has_declared_and_nothing_else() {
        let form = json!({ "message": "m", "requestedSchema": { "type": "object", "properties": { "a": { "type": "string" } } } });
        let url = json!({ "mode": "url", "message": "m", "url": "https://evil.example", "elicitationId": "1" });
        let sample = json!({ "messages": [], "maxTokens": 1 });
        let tools = json!({ "messages": [], "maxTokens": 1, "tools": [] });
        let all = json!({ "elicitation": {}, "sampling": { "tools": {} }, "roots": {} });
        for (capabilities, method, params, may) in [
            (json!({}), ELICIT, &form, false),
            (json!({ "elicitation": {} }), ELICIT, &form, true),
            (json!({ "elicitation": { "form": {} } }), ELICIT, &form, true),
            (json!({ "elicitation": { "url": {} } }), ELICIT, &form, false),
            (all.clone(), ELICIT, &url, false),
            (all.clone(), ELICIT, &json!({ "message": "m" }), false),
            (json!({ "elicitation": {}, "roots": {} }), SAMPLE, &sample, false),
            (json!({ "sampling": {} }), SAMPLE, &sample, true),
            (json!({ "sampling": {} }), SAMPLE, &tools, false),
            (all.clone(), SAMPLE, &tools, true),
            (all.clone(), SAMPLE, &json!({ "messages": "m", "maxTokens": 1 }), false),
            (json!({ "sampling": {} }), ROOTS, &json!({}), false),
            (json!({ "roots": { "listChanged": true } }), ROOTS, &json!({}), true),
            (all.clone(), "ping", &json!({}), false),
            (all.clone(), "rpc.attachment", &json!({}), false),
        ] {
            assert_eq!(
                judge(asks(capabilities.clone()), method, params).is_ok(),
                may,
                "{capabilities} {method} {params}"
            );
        }
    }

    #[tokio::test]
    async fn a_mark_of_ours_is_not_passed_on_and_the_rest_is() {
        let (ask, mut asked) = mpsc::channel(ROUND);
        let params =
            json!({ "_meta": { INPUT: { "key": "k", "of": 99 }, "other": 1 }, "messages": [], "maxTokens": 1 });
        let request = Request::new(SAMPLE, &params, None).unwrap();
        let answered = tokio::spawn(async move { put(request, asks(json!({ "sampling": {} })), &ask).await });
        let question = asked.recv().await.unwrap();
        assert_eq!((question.key.as_str(), question.of), ("k", ROUND));
        assert_eq!(question.params, json!({ "_meta": { "other": 1 }, "messages": [], "maxTokens": 1 }));
        question.answer(json!({ "model": "m" }));
        assert_eq!(answered.await.unwrap().unwrap(), json!({ "model": "m" }));
    }
}
