//! A request for approval as a service shows it, and as people read it.
//! Never shows anything else than what is signed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::exit::{Exit, Failure};
use crate::{term, when};

/// One request in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) id: String,
    pub(super) state: String,
    pub(super) agent: String,
    pub(super) subject: String,
    pub(super) method: String,
    pub(super) asked_at: u64,
    pub(super) deadline: u64,
    pub(super) needs: Vec<Needed>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Needed {
    pub(super) approval: String,
    pub(super) roles: Vec<String>,
    pub(super) count: usize,
    pub(super) have: usize,
}

/// A request in full.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    #[serde(flatten)]
    pub(super) summary: Summary,
    text: String,
    #[serde(default)]
    via: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(default)]
    decisions: Vec<Decided>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Decided {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    approval: Option<String>,
    agent: String,
    decision: String,
    at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    void: Option<String>,
}

/// What the text says: SPEC.md §6.3. Its members are in this order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    agent: String,
    ask: String,
    asked_at: u64,
    audience: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    method: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params: Option<Box<RawValue>>,
    subject: String,
}

/// A request whose text is what this program shows of it.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) request: Request,
    text: Text,
    /// What an approver signs.
    pub(super) digest: String,
}

impl Summary {
    /// It on one line.
    pub(super) fn to_line(&self, now_s: u64) -> String {
        let Self { id, state, agent, subject, method, deadline, .. } = self;
        let who = if subject == agent { agent.clone() } else { format!("{agent} for {subject}") };
        format!("{id}  {state}  {method}  {who}  until {}", when::both(*deadline, now_s))
    }
}

impl Request {
    /// Takes the text apart, for a request at `service` of `environment`.
    ///
    /// # Errors
    /// The service does not say what it would have people sign.
    pub(super) fn read(self, environment: &str, service: &str) -> Result<Read, Failure> {
        let wrong = |why: &str| {
            Failure::new(Exit::Protocol, format!("the service's request is not to be trusted: {why}"))
                .help("nothing was signed; tell those who run the service")
        };
        let text: Text =
            serde_json::from_str(&self.text).map_err(|error| wrong(&format!("its text is not one: {error}")))?;
        // Anything else in it would be signed without having been shown.
        if serde_json::to_string(&text).ok().as_deref() != Some(&self.text) {
            return Err(wrong("its text has other spellings than the one that is signed"));
        }
        if text.names.is_some() && !text.params.as_ref().is_some_and(|params| params.get().starts_with('[')) {
            return Err(wrong("its `names` are those of no positions"));
        }
        if text.audience != format!("{environment}/{service}") {
            return Err(wrong(&format!("it is of `{}`", term::safe_text(&text.audience))));
        }
        let said = (&self.summary.agent, &self.summary.subject, &self.summary.method, self.summary.asked_at);
        if said != (&text.agent, &text.subject, &text.method, text.asked_at) {
            return Err(wrong("its text is of another call"));
        }
        let bytes = [&b"sealwire-approval-v1\0"[..], self.text.as_bytes()].concat();
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
        Ok(Read { request: self, text, digest })
    }
}

impl Read {
    /// Everything that is signed, and what the service says besides.
    pub(super) fn to_text(&self, now_s: u64) -> String {
        let (summary, text) = (&self.request.summary, &self.text);
        let mut lines = vec![
            ("state", summary.state.clone()),
            ("method", text.method.clone()),
            ("service", text.audience.clone()),
            ("agent", text.agent.clone()),
            ("on behalf of", if text.subject == text.agent { "nobody".to_owned() } else { plain(&text.subject) }),
        ];
        lines.extend(text.issuer.as_deref().map(|issuer| ("vouched for by", plain(issuer))));
        let via = &self.request.via;
        lines.extend(
            (!via.is_empty())
                .then(|| ("passed on by", via.iter().map(|name| plain(name)).collect::<Vec<_>>().join(", "))),
        );
        lines.extend(text.idempotency_key.as_deref().map(|key| ("idempotency key", plain(key))));
        lines.push(("asked", when::both(text.asked_at, now_s)));
        lines.push(("until", when::both(summary.deadline, now_s)));
        lines.extend(self.request.rule.as_deref().map(|rule| ("rule", plain(rule))));
        lines.extend(summary.needs.iter().map(|need| ("needs", need.to_text())));
        for decided in &self.request.decisions {
            lines.push((if decided.decision == "deny" { "denied" } else { "approved" }, decided.to_text(now_s)));
        }
        let mut shown = format!("{}\n", summary.id);
        for (name, value) in lines {
            // Writing to a string cannot fail.
            let _ = writeln!(shown, "  {name:<16}{value}");
        }
        shown += &self.params();
        let _ = write!(shown, "  {:<16}{}", "digest", self.digest);
        shown
    }

    /// Each parameter on lines of its own, as the caller wrote it.
    fn params(&self) -> String {
        let Some(params) = &self.text.params else { return "  no parameters\n".to_owned() };
        let empty = matches!(params.get(), "[]" | "{}").then_some(params.get());
        let mut shown = format!("  {:<16}{}", "parameters", empty.unwrap_or_default()).trim_end().to_owned() + "\n";
        let mut add = |name: &str, value: Option<&RawValue>| {
            let value = value.map_or_else(|| "not given".to_owned(), |value| written(value.get()));
            let _ = writeln!(shown, "    {} = {value}", plain(name));
        };
        if let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(params.get()) {
            members.iter().for_each(|(name, value)| add(name, Some(value)));
        } else {
            let values: Vec<&RawValue> = serde_json::from_str(params.get()).unwrap_or_default();
            let names = self.text.names.as_deref().unwrap_or_default();
            for position in 0..values.len().max(names.len()) {
                let name = names.get(position).cloned().unwrap_or_else(|| format!("({})", position + 1));
                add(&name, values.get(position).copied());
            }
        }
        shown
    }
}

impl Needed {
    pub(super) fn to_text(&self) -> String {
        let roles = self.roles.iter().map(|role| plain(role)).collect::<Vec<_>>().join(", ");
        format!("{}: {} of {}, from {roles}", plain(&self.approval), self.have, self.count)
    }
}

impl Decided {
    fn to_text(&self, now_s: u64) -> String {
        let Self { approval, agent, at, reason, void, .. } = self;
        let approval = approval.as_deref().map(|name| format!(" ({})", plain(name))).unwrap_or_default();
        let reason = reason.as_deref().map(|reason| format!(": {}", quoted(reason))).unwrap_or_default();
        let void = void.as_deref().map(|why| format!("; no longer counts: {}", plain(why))).unwrap_or_default();
        format!("{}{approval}, {}{reason}{void}", plain(agent), when::both(*at, now_s))
    }
}

/// A text of others on one line. Letters that look like ASCII are told apart.
fn plain(text: &str) -> String {
    let safe: String = term::safe_text(text).replace('\n', "\\n");
    if safe.is_ascii() { safe } else { format!("{safe} (in ASCII: {})", text.escape_unicode_letters()) }
}

/// A text of others whose end can be told.
fn quoted(text: &str) -> String {
    plain(&serde_json::Value::from(text).to_string())
}

/// A JSON value as it was sent, and with other letters than ASCII also as escapes.
fn written(json: &str) -> String {
    let safe = term::safe_json(json).into_owned();
    if safe.is_ascii() { safe } else { format!("{safe} (in ASCII: {})", json.escape_unicode_letters()) }
}

trait Escaped {
    fn escape_unicode_letters(&self) -> String;
}

impl Escaped for str {
    /// Everything beyond ASCII as JSON escapes it.
    fn escape_unicode_letters(&self) -> String {
        let mut escaped = String::with_capacity(self.len());
        for c in self.chars() {
            if c.is_ascii() && !c.is_ascii_control() {
                escaped.push(c);
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(escaped, "\\u{unit:04x}");
                }
            }
        }
        escaped
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    const TEXT: &str = concat!(
        r#"{"agent":"planner","ask":"AAECAwQFBgcICQoLDA0ODw","asked_at":1790000000,"audience":"prod/bank","#,
        r#""idempotency_key":"k-1","issuer":"https://idp.example","method":"bank/transfer","names":["to","amount"],"#,
        r#""params":["alice",1000001],"subject":"carol"}"#
    );

    fn request(text: &str) -> Request {
        serde_json::from_value(json!({
            "id": "planner.x", "state": "pending", "agent": "planner", "subject": "carol", "method": "bank/transfer",
            "asked_at": 1_790_000_000, "deadline": 1_790_000_900, "needs": [
                { "approval": "two-treasurers", "roles": ["treasurer"], "count": 2, "have": 1 }
            ],
            "text": text, "via": [], "revision": "r1", "decisions": [],
        }))
        .unwrap()
    }

    /// SPEC.md §6.3: the same text has the same digest as at the service.
    #[test]
    fn the_digest_is_that_of_what_is_shown() {
        let read = request(TEXT).read("prod", "bank").unwrap();
        assert_eq!(read.digest, "mGWQLELV8A7e28PlkJfBz9e5XDH03RKo3DvAG6GyWpg");
        let shown = read.to_text(1_790_000_060);
        for line in ["    to = \"alice\"", "    amount = 1000001", "  on behalf of    carol", "two-treasurers: 1 of 2"]
        {
            assert!(shown.contains(line), "{shown}");
        }
    }

    #[test]
    fn a_text_that_says_more_or_something_else_is_not_shown_as_if_it_were_all() {
        for (what, text) in [
            ("white space", TEXT.replace("\"agent\":", "\"agent\": ")),
            ("a further member", TEXT.replace("\"subject\"", "\"note\":1,\"subject\"")),
            ("a member twice", TEXT.replace("\"subject\"", "\"subject\":\"x\",\"subject\"")),
            ("an escape", TEXT.replace("carol", "c\\u0061rol")),
            ("another order", TEXT.replace(r#"{"agent":"planner","#, r#"{"#).replace('}', r#","agent":"planner"}"#)),
            ("another service", TEXT.replace("prod/bank", "prod/vault")),
            ("another environment", TEXT.replace("prod/bank", "test/bank")),
            ("names of an object", TEXT.replace(r#"["alice",1000001]"#, r#"{"to":"alice"}"#)),
            ("names of nothing", TEXT.replace(r#""params":["alice",1000001],"#, "")),
            ("another method", TEXT.replace("bank/transfer", "bank/close")),
            ("another subject", TEXT.replace("carol", "dave")),
        ] {
            assert_ne!(text, TEXT, "{what}");
            let failure = request(&text).read("prod", "bank").unwrap_err();
            assert_eq!(failure.exit(), Exit::Protocol, "{what}");
        }
    }

    #[test]
    fn what_a_call_lacks_and_where_a_reason_ends_is_shown() {
        let unnamed = TEXT.replace(r#""names":["to","amount"],"#, "");
        for (text, params, line) in [
            (TEXT, r#"["alice"]"#, "    amount = not given\n"),
            (TEXT, "[]", "  parameters      []\n    to = not given\n    amount = not given\n"),
            (&unnamed, "[]", "  parameters      []\n"),
            (&unnamed, "{}", "  parameters      {}\n"),
            (&unnamed, r#"["alice"]"#, "  parameters\n    (1) = \"alice\"\n"),
        ] {
            let text = text.replace(r#"["alice",1000001]"#, params);
            let shown = request(&text).read("prod", "bank").unwrap().to_text(1_790_000_060);
            assert!(shown.contains(line), "{params}: {shown}");
        }
        let mut request = request(&unnamed.replace(r#""params":["alice",1000001],"#, ""));
        request.decisions.push(Decided {
            approval: None,
            agent: "tina".to_owned(),
            decision: "deny".to_owned(),
            at: 1_790_000_000,
            reason: Some("no\"; no longer counts: \"x".to_owned()),
            void: None,
        });
        let shown = request.read("prod", "bank").unwrap().to_text(1_790_000_060);
        assert!(shown.contains("  no parameters\n") && shown.contains(r#": "no\"; no longer counts: \"x""#), "{shown}");
    }

    #[test]
    fn what_is_hidden_in_a_parameter_is_shown() {
        let text = TEXT.replace("alice", "p\u{430}ypal\u{202e}\u{e0041}");
        let shown = request(&text).read("prod", "bank").unwrap().to_text(1_790_000_060);
        assert!(shown.contains("to = \"p\u{430}ypal\\u202e\\udb40\\udc41\" (in ASCII: \"p\\u0430ypal"), "{shown}");
        assert!(!shown.contains(['\u{202e}', '\u{e0041}']), "{shown}");
    }
}
