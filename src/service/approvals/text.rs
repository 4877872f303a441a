//! The text of a call that waits for approval: what approvers are shown, and what they sign the digest of.
//! Never merges two spellings of parameters: what is approved is what the method gets.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::entry::{Entry, Who};
use crate::jose::sha256_b64;
use crate::rpc::Params;

/// What a call is, apart from who asks when. Two calls with one text are the same call.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) audience: &'a str,
    pub(super) who: &'a Who,
    pub(super) method: &'a str,
    /// The names of the method's parameters, by position.
    pub(super) names: Vec<&'a str>,
    /// As [`plain`] writes them.
    pub(super) params: Option<Box<RawValue>>,
    pub(super) idempotency_key: Option<&'a str>,
}

/// The members are in the order of their names.
#[derive(Serialize)]
struct Text<'a> {
    agent: &'a str,
    ask: &'a str,
    asked_at: u64,
    audience: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<&'a str>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<&'a [&'a str]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    subject: &'a str,
}

impl Wanted<'_> {
    /// What was asked for at `asked_at` (seconds since the Unix epoch) under the random text `ask`.
    pub(super) fn text(&self, ask: &str, asked_at: u64) -> String {
        let Self { audience, who, method, names, params, idempotency_key } = self;
        let is_positional = params.as_ref().is_some_and(|params| params.get().starts_with('['));
        let text = Text {
            agent: who.agent.as_str(),
            ask,
            asked_at,
            audience,
            idempotency_key: *idempotency_key,
            issuer: who.issuer.as_deref(),
            method,
            names: is_positional.then_some(names),
            params: params.as_deref(),
            subject: &who.subject,
        };
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// Whether an approval of this request can be one of the call. Not if the method's parameters have other names by now, or the subject's
    /// rights came through other hands: those who sign would be shown something else.
    pub(super) fn is_of(&self, entry: &Entry) -> bool {
        self.who.via == entry.who.via && self.text(&entry.ask, entry.asked_at) == entry.text
    }
}

/// What an approver signs of a text.
pub(super) fn digest(text: &str) -> String {
    sha256_b64(&[DOMAIN, text.as_bytes()].concat())
}

/// No digest over anything else is one of these.
const DOMAIN: &[u8] = b"sealwire-approval-v1\0";

/// Parameters without white space and with the members of each object in the order of their names (of Unicode code points). Numbers,
/// strings and what stands by position are as they were sent.
pub(super) fn plain(params: Option<&Params>) -> Option<Box<RawValue>> {
    let mut text = String::new();
    write(params?.raw(), &mut text);
    RawValue::from_string(text).ok()
}

/// INVARIANT: the text passed `strict_json`: it is no deeper than that permits, and no object has a member twice.
fn write(value: &RawValue, text: &mut String) {
    if let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(value.get()) {
        text.push('{');
        for (position, (name, value)) in members.into_iter().enumerate() {
            text.push_str(if position > 0 { "," } else { "" });
            text.push_str(&serde_json::Value::from(name).to_string());
            text.push(':');
            write(value, text);
        }
        text.push('}');
    } else if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(value.get()) {
        text.push('[');
        for (position, value) in items.into_iter().enumerate() {
            text.push_str(if position > 0 { "," } else { "" });
            write(value, text);
        }
        text.push(']');
    } else {
        text.push_str(value.get());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::name::Name;

    fn plain_text(params: &str) -> String {
        let params = Params::encode(&RawValue::from_string(params.to_owned()).unwrap()).unwrap();
        plain(params.as_ref()).unwrap().get().to_owned()
    }

    #[test]
    fn white_space_and_order_of_members_do_not_matter_and_everything_else_does() {
        let plain = r#"{"amount":1.0,"note":{"a":[1,{"x":null,"y":"\u0041"}],"b":true}}"#;
        for same in [
            plain,
            "{ \"note\" : {\"b\":true, \"a\":[1 ,\n{\"y\":\"\\u0041\",\"x\":null}]}, \"amount\":1.0 }",
            r#"{"\u0061mount":1.0,"note":{"a":[1,{"x":null,"y":"\u0041"}],"b":true}}"#,
        ] {
            assert_eq!(plain_text(same), plain, "{same}");
        }
        let mut others: Vec<_> = [
            plain,
            r#"{"amount":1.00,"note":{"a":[1,{"x":null,"y":"\u0041"}],"b":true}}"#,
            r#"{"amount":1.0,"note":{"a":[1,{"x":null,"y":"A"}],"b":true}}"#,
            r#"{"amount":1.0,"note":{"a":[1,{"y":"\u0041"}],"b":true}}"#,
            r#"{"amount":1.0,"note":{"a":[{"x":null,"y":"\u0041"},1],"b":true}}"#,
            r#"[1.0,{"a":[1,{"x":null,"y":"\u0041"}],"b":true}]"#,
        ]
        .map(plain_text)
        .into();
        others.sort();
        others.dedup();
        assert_eq!(others.len(), 6);
    }

    #[test]
    fn a_request_is_of_a_call_only_as_long_as_approvers_are_shown_that_call_and_who_passed_it_on() {
        let who = Who {
            agent: Name::new("ann").unwrap(),
            subject: "carol".to_owned(),
            issuer: Some("https://idp.example".to_owned()),
            via: vec!["gateway".to_owned()],
        };
        let params = Params::encode(&[1]).unwrap();
        let wanted = |who, names| Wanted {
            audience: "prod/bank",
            who,
            method: "bank/transfer",
            names,
            params: plain(params.as_ref()),
            idempotency_key: None,
        };
        let text = wanted(&who, vec!["amount"]).text("ask", 1_000);
        let entry = Entry::new(text, "ask".to_owned(), 1_000, who.clone(), "bank/transfer".to_owned());
        assert!(wanted(&who, vec!["amount"]).is_of(&entry));
        assert!(!wanted(&who, vec!["total"]).is_of(&entry));
        let other = Who { via: vec!["tess".to_owned()], ..who.clone() };
        assert!(!wanted(&other, vec!["amount"]).is_of(&entry));
    }

    /// SPEC.md §6.3: a second implementation gets the same digest.
    #[test]
    fn text_and_digest_are_those_of_the_specification() {
        let who = Who {
            agent: Name::new("planner").unwrap(),
            subject: "carol".to_owned(),
            issuer: Some("https://idp.example".to_owned()),
            via: Vec::new(),
        };
        let params = Params::encode(&("alice", 1_000_001)).unwrap();
        let wanted = Wanted {
            audience: "prod/bank",
            who: &who,
            method: "bank/transfer",
            names: vec!["to", "amount"],
            params: plain(params.as_ref()),
            idempotency_key: Some("k-1"),
        };
        let text = wanted.text("AAECAwQFBgcICQoLDA0ODw", 1_790_000_000);
        let expected = concat!(
            r#"{"agent":"planner","ask":"AAECAwQFBgcICQoLDA0ODw","asked_at":1790000000,"audience":"prod/bank","#,
            r#""idempotency_key":"k-1","issuer":"https://idp.example","method":"bank/transfer","names":["to","amount"],"#,
            r#""params":["alice",1000001],"subject":"carol"}"#
        );
        assert_eq!(text, expected);
        assert_eq!(digest(&text), "mGWQLELV8A7e28PlkJfBz9e5XDH03RKo3DvAG6GyWpg");
    }
}
