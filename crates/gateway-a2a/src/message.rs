//! Reads callers' messages, each of which becomes a call or the answer to a question.
//! Never changes parameters, except numbers that the format itself has changed.

use sealwire_gateway::dialect::{Refusal, json};
use sealwire_gateway::http::A2aAgent;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::fault;
use crate::raw::raw;

/// A message.
pub(crate) struct Incoming {
    pub(crate) id: String,
    /// The task that it is for.
    pub(crate) task: Option<String>,
    pub(crate) context: Option<String>,
    pub(crate) input: Input,
    pub(crate) returns_immediately: bool,
}

/// Its one part.
pub(crate) enum Input {
    Text(String),
    Data(Box<RawValue>),
}

/// The longest `messageId`, and the longest `contextId`.
const ID_BYTES: usize = 256;

#[derive(Deserialize)]
struct SendMessage {
    #[serde(deserialize_with = "json::member")]
    message: Message,
    #[serde(default, deserialize_with = "json::optional")]
    configuration: Option<Configuration>,
    tenant: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    message_id: String,
    context_id: Option<String>,
    task_id: Option<String>,
    role: String,
    #[serde(deserialize_with = "json::items")]
    parts: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
    #[serde(default, deserialize_with = "present")]
    data: Option<Box<RawValue>>,
    raw: Option<IgnoredAny>,
    url: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    return_immediately: Option<bool>,
    task_push_notification_config: Option<IgnoredAny>,
}

/// A call, as a `data` part.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    method: String,
    params: Option<Box<RawValue>>,
}

/// A member that is present, even if it is null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

impl Incoming {
    pub(crate) fn read(params: &str, agent: &A2aAgent) -> Result<Self, Refusal> {
        let SendMessage { message, configuration, tenant } = fault::read(params)?;
        let configuration = configuration.unwrap_or_default();
        if configuration.task_push_notification_config.is_some() {
            return Err(fault::no_push());
        }
        // An empty string means that the field is not set.
        let set = |text: Option<String>| text.filter(|text| !text.is_empty());
        if set(tenant).is_some() {
            return Err(fault::invalid("tenant", "the card names no tenant"));
        }
        if message.message_id.is_empty() {
            return Err(fault::invalid("message.messageId", "it is missing"));
        }
        if message.message_id.len() > ID_BYTES {
            return Err(fault::invalid("message.messageId", "it has more than 256 bytes"));
        }
        if message.role != "ROLE_USER" {
            return Err(fault::invalid("message.role", "it must be `ROLE_USER`"));
        }
        let context = set(message.context_id);
        if context.as_ref().is_some_and(|context| context.len() > ID_BYTES) {
            return Err(fault::invalid("message.contextId", "it has more than 256 bytes"));
        }
        let Ok([part]) = <[Part; 1]>::try_from(message.parts) else {
            return Err(fault::invalid("message.parts", "there must be one part: `text` or `data`"));
        };
        let input = match part {
            Part { data: Some(data), text: None, raw: None, url: None } => Input::Data(whole_numbers(&data)),
            Part { text: Some(text), data: None, raw: None, url: None } => Input::Text(text),
            Part { raw: None, url: None, .. } => {
                return Err(fault::invalid("message.parts[0]", "it must have `text` or `data`"));
            }
            _ => return Err(fault::content_type("files are not accepted: send a `data` part")),
        };
        let task = set(message.task_id);
        if task.is_none() && agent.text_method.is_none() && matches!(input, Input::Text(_)) {
            let wanted = "texts are not accepted: send a `data` part with `method` and `params`";
            return Err(fault::content_type(wanted));
        }
        let returns_immediately = configuration.return_immediately.unwrap_or(false);
        Ok(Self { id: message.message_id, task, context, input, returns_immediately })
    }

    /// The method and parameters of the call.
    pub(crate) fn call(&self, agent: &A2aAgent) -> Result<(String, Option<Box<RawValue>>), Refusal> {
        match &self.input {
            Input::Text(text) => {
                let params = match &agent.text_param {
                    Some(name) => raw(&std::collections::BTreeMap::from([(name, text)])),
                    None => raw(&[text]),
                };
                Ok((agent.text_method.clone().unwrap_or_default(), Some(params)))
            }
            Input::Data(data) => {
                let call: Call = json::object(data.get())
                    .map_err(|error| fault::invalid("message.parts[0].data", error.to_string()))?;
                match &call.params {
                    Some(params) if !params.get().starts_with(['{', '[']) => {
                        let wanted = "it must be an object or an array";
                        Err(fault::invalid("message.parts[0].data.params", wanted))
                    }
                    _ => Ok((call.method, call.params)),
                }
            }
        }
    }
}

/// The same value with `2` for `2.0`. A `data` part is a `google.protobuf.Value`, whose numbers are all floats, and libraries write them
/// like that: a method that takes an integer would never get one.
fn whole_numbers(value: &RawValue) -> Box<RawValue> {
    let text = value.get();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|letter: char| letter == '"' || letter.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let length = if from.starts_with('"') { string_length(from) } else { number_length(from) };
        let (token, after) = from.split_at(length);
        let is_negative_zero = before.ends_with('-') && token.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        out.push_str(match token.split_once('.') {
            Some((whole, zeros))
                if !token.starts_with('"') && !is_negative_zero && zeros.bytes().all(|byte| byte == b'0') =>
            {
                whole
            }
            _ => token,
        });
        rest = after;
    }
    out.push_str(rest);
    // Cannot fail: it is still JSON.
    RawValue::from_string(out).unwrap_or_else(|_| value.to_owned())
}

/// The length of a string, with its quotes.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

fn number_length(text: &str) -> usize {
    text.find(|letter: char| !(letter.is_ascii_digit() || ".eE+-".contains(letter))).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn whole_numbers_have_no_fraction_and_nothing_else_is_changed() {
        for (from, to) in [
            (r#"[2.0, -3.00 ,2.5,1e3,2.0e1,0.0,-0.0,10]"#, r#"[2, -3 ,2.5,1e3,2.0e1,0,-0.0,10]"#),
            (r#"{"a 1.0":"2.0 \" 3.0","b\\":4.0}"#, r#"{"a 1.0":"2.0 \" 3.0","b\\":4}"#),
            (
                r#"{"big":123456789012345678901234567890,"ä":"€ 1.0"}"#,
                r#"{"big":123456789012345678901234567890,"ä":"€ 1.0"}"#,
            ),
            ("7.0", "7"),
            ("null", "null"),
        ] {
            assert_eq!(whole_numbers(&RawValue::from_string(from.to_owned()).unwrap()).get(), to);
        }
    }

    #[test]
    fn a_message_is_one_call_or_refused() {
        let agent: A2aAgent = serde_json::from_str(r#"{"text_method":"text/echo"}"#).unwrap();
        let read = |part: &str| {
            let text = format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER","parts":[{part}],"new":1}}}}"#);
            Incoming::read(&text, &agent).and_then(|incoming| incoming.call(&agent))
        };
        let call =
            |part: &str| read(part).map(|(method, params)| (method, params.map(|params| params.get().to_owned())));
        let params = |text: &str| Some(text.to_owned());
        assert_eq!(call(r#"{"text":"a"}"#).unwrap(), ("text/echo".to_owned(), params(r#"["a"]"#)));
        let data = r#"{"data":{"method":"math/add","params":{"a":2.0,"b":3}},"mediaType":"application/json"}"#;
        assert_eq!(call(data).unwrap(), ("math/add".to_owned(), params(r#"{"a":2,"b":3}"#)));
        assert_eq!(call(r#"{"data":{"method":"x"}}"#).unwrap(), ("x".to_owned(), None));
        for (part, code) in [
            (r#"{"data":{"method":"x","params":1}}"#, -32_602),
            (r#"{"data":{"method":"x","more":1}}"#, -32_602),
            (r#"{"data":null}"#, -32_602),
            ("{}", -32_602),
            (r#"{"text":"a","data":{}}"#, -32_602),
            (r#"{"text":"a"},{"text":"b"}"#, -32_602),
            (r#"{"raw":"AA=="}"#, -32_005),
            (r#"{"url":"https://a.example"}"#, -32_005),
        ] {
            assert_eq!(call(part).unwrap_err().code, code, "{part}");
        }
    }
}
