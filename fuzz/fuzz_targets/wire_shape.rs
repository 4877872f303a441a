//! The shape of a request: any subject, reply subject, headers and payload in; an envelope or a refusal out.
//!
//! The input is a text message: the subject on the first line, the reply subject on the second, then one line per header,
//! an empty line, and the payload.
#![no_main]

use std::str::FromStr;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use sealwire::internal::wire::Envelope;
use sealwire::serve::Delivery;
use sealwire_fuzz::{NOW, Service};

fuzz_target!(|input: &[u8]| {
    let Some(message) = Message::parse(input) else { return };
    let service = Service::get();
    let mut headers = HeaderMap::new();
    for (name, value) in &message.headers {
        headers.append(name.clone(), value.clone());
    }
    let delivery = Delivery::new(message.subject, message.reply, headers, message.payload.to_vec());
    match Envelope::decode(delivery, &service.endpoint) {
        Err(refused) => {
            let dropped = refused.error.is_dropped();
            assert!(dropped || message.reply_rule_holds(), "a hint would go to `{}`", message.reply);
        }
        Ok(envelope) => {
            message.assert_shape();
            if service.verifier.authenticate(envelope, NOW).is_ok() {
                assert!(message.is_good_vector(service), "authenticated, but nobody signed it");
            }
        }
    }
});

struct Message<'i> {
    subject: &'i str,
    reply: &'i str,
    headers: Vec<(HeaderName, HeaderValue)>,
    payload: &'i [u8],
}

impl<'i> Message<'i> {
    fn parse(input: &'i [u8]) -> Option<Self> {
        let mut rest = input;
        let mut line = || {
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let line = std::str::from_utf8(&rest[..end]).ok()?;
            rest = &rest[end + 1..];
            Some(line)
        };
        let (subject, reply) = (line()?, line()?);
        let mut headers = Vec::new();
        loop {
            match line()? {
                "" => return Some(Self { subject, reply, headers, payload: rest }),
                header => {
                    let (name, value) = header.split_once(':')?;
                    headers.push((HeaderName::from_str(name).ok()?, HeaderValue::from_str(value).ok()?));
                }
            }
        }
    }

    fn reply_rule_holds(&self) -> bool {
        let agent = self.subject.split('.').nth(3).unwrap_or_default();
        let below = self.reply.strip_prefix("_INBOX.").and_then(|rest| rest.strip_prefix(agent));
        let below = below.and_then(|rest| rest.strip_prefix('.'));
        self.reply.is_empty() || below.is_some_and(|rest| !agent.is_empty() && is_subject(rest))
    }

    /// What the specification says about a message of the right shape, said a second time.
    fn assert_shape(&self) {
        let tokens: Vec<&str> = self.subject.split('.').collect();
        assert!(is_subject(self.subject) && tokens.len() >= 4 && tokens[..3] == ["rpc", "v1", "math"]);
        assert!(self.reply_rule_holds());
        assert!(self.payload.len() <= 192 * 1024);
        let size = |(name, value): &(HeaderName, HeaderValue)| AsRef::<str>::as_ref(name).len() + value.as_str().len();
        assert!(self.headers.len() <= 32 && self.headers.iter().map(size).sum::<usize>() <= 16 * 1024);
        let authorization = self.authorization();
        assert_eq!(authorization.len(), 1);
        let credentials = authorization[0].strip_prefix("NatsRpc ").expect("the scheme, byte for byte, and one space");
        assert!(authorization[0].len() <= 8 * 1024);
        let parts: Vec<&str> = credentials.split('~').collect();
        assert_eq!(parts.len(), 2);
        let is_token68 = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        assert!(parts.iter().all(|part| !part.is_empty() && part.bytes().all(is_token68)));
    }

    fn authorization(&self) -> Vec<&str> {
        let named = |name: &HeaderName| AsRef::<str>::as_ref(name).eq_ignore_ascii_case("authorization");
        self.headers.iter().filter(|(name, _)| named(name)).map(|(_, value)| value.as_str()).collect()
    }

    /// Everything that is signed is as it was signed. Signatures here are deterministic and have one encoding.
    fn is_good_vector(&self, service: &Service) -> bool {
        service.vectors["vectors"].as_array().unwrap().iter().any(|vector| {
            vector["subject"] == self.subject
                && vector["reply"].as_str().unwrap_or_default() == self.reply
                && vector["payload"].as_str().map(str::as_bytes) == Some(self.payload)
                && self.authorization().first().is_some_and(|value| is_signed_with(vector, value))
        })
    }
}

/// Whether the vector holds this authorization. One holds it twice: refused as it is, and good once a change to the other
/// header's name has left one of them.
fn is_signed_with(vector: &serde_json::Value, authorization: &str) -> bool {
    vector["headers"]["Authorization"].as_str() == Some(authorization)
        || vector["header_list"]
            .as_array()
            .is_some_and(|headers| headers.iter().any(|header| header[1] == authorization))
}

fn is_subject(text: &str) -> bool {
    let printable = |byte: u8| (0x21..=0x7e).contains(&byte);
    text.bytes().all(printable) && text.split('.').all(|token| !["", "*", ">"].contains(&token))
}
