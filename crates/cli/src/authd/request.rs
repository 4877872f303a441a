//! The question that a broker asks about a new connection: opened and checked.
//! Never believes a question that is not encrypted to us, signed by the broker that it names, or still of use to that broker.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::{KeyPair, XKey};
use sealwire::internal::nats::Message;
use serde::Deserialize;
use zeroize::Zeroizing;

/// A question that a broker asked just now.
pub(super) struct Question {
    /// Where the answer goes.
    pub(super) reply: String,
    /// The broker: its id, which is its public key, and the key to which the answer is encrypted.
    pub(super) server: String,
    pub(super) server_xkey: XKey,
    /// The key that the broker made up for this connection.
    pub(super) user_nkey: String,
    /// From where the client connects.
    pub(super) host: String,
    /// Whether it is a plain client, no leaf node, WebSocket or MQTT.
    pub(super) is_client: bool,
    /// The access token, if the client shows that and nothing else.
    pub(super) token: Option<Zeroizing<String>>,
}

/// Why a message is no question of a broker. Nobody is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NoQuestion {
    Reply,
    Encryption,
    Signature,
    Late,
}

impl NoQuestion {
    /// A name from a closed set, for metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Reply => "reply",
            Self::Encryption => "encryption",
            Self::Signature => "signature",
            Self::Late => "late",
        }
    }
}

impl fmt::Display for NoQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reply => "it names no inbox of a broker",
            Self::Encryption => "it is not encrypted to our key: set `xkey` of `auth_callout` to it",
            Self::Signature => "it is no signed question of a broker",
            Self::Late => "its broker does not wait any more",
        })
    }
}

/// Where brokers wait for answers, and nobody else.
const INBOX: &str = "$SYS._INBOX.";

#[derive(Deserialize)]
struct Claims {
    aud: String,
    iss: String,
    exp: u64,
    nats: Asked,
}

#[derive(Deserialize)]
struct Asked {
    #[serde(rename = "type")]
    kind: String,
    server_id: ServerId,
    user_nkey: String,
    client_info: ClientInfo,
    connect_opts: ConnectOptions,
}

#[derive(Deserialize)]
struct ServerId {
    id: String,
    #[serde(default)]
    xkey: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClientInfo {
    host: String,
    kind: String,
    #[serde(rename = "type")]
    protocol: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConnectOptions {
    auth_token: Zeroizing<String>,
    pass: Zeroizing<String>,
    jwt: String,
    nkey: String,
}

impl Question {
    /// Opens a message with our curve key. `with_jwt` says whether clients show a JWT beside their token, as in operator mode.
    pub(super) fn open(message: &Message, xkey: &XKey, with_jwt: bool, now_s: u64) -> Result<Self, NoQuestion> {
        let reply = message.reply.as_deref().filter(|reply| reply.starts_with(INBOX)).ok_or(NoQuestion::Reply)?;
        let sender = header(&message.headers, "Nats-Server-Xkey").ok_or(NoQuestion::Encryption)?;
        let server_xkey = XKey::from_public_key(sender).map_err(|_| NoQuestion::Encryption)?;
        let opened = xkey.open(&message.payload, &server_xkey).map_err(|_| NoQuestion::Encryption)?;
        let Claims { aud, iss, exp, nats } = verified(&Zeroizing::new(opened)).ok_or(NoQuestion::Signature)?;
        // Whoever signs as a broker must be the one that it says it is, with the key that it encrypted with.
        let is_of_broker = aud == "nats-authorization-request"
            && nats.kind == "authorization_request"
            && iss.starts_with('N')
            && nats.server_id.id == iss
            && nats.server_id.xkey == sender
            && nats.user_nkey.starts_with('U')
            && KeyPair::from_public_key(&nats.user_nkey).is_ok();
        if !is_of_broker {
            return Err(NoQuestion::Signature);
        }
        if exp <= now_s {
            return Err(NoQuestion::Late);
        }
        let ConnectOptions { auth_token, pass, jwt, nkey } = nats.connect_opts;
        let shown = if auth_token.is_empty() { pass } else { auth_token };
        Ok(Self {
            reply: reply.to_owned(),
            server: iss,
            server_xkey,
            user_nkey: nats.user_nkey,
            host: nats.client_info.host,
            is_client: nats.client_info.kind == "Client" && nats.client_info.protocol == "nats",
            token: (!shown.is_empty() && jwt.is_empty() != with_jwt && nkey.is_empty()).then_some(shown),
        })
    }
}

/// The claims of a JWT of NATS, signed by its issuer.
fn verified(jwt: &[u8]) -> Option<Claims> {
    let text = std::str::from_utf8(jwt).ok()?;
    let (signed, signature) = text.rsplit_once('.')?;
    let (head, claims) = signed.split_once('.')?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
    #[derive(Deserialize)]
    struct Head {
        alg: String,
    }
    let head: Head = serde_json::from_slice(&decode(head)?).ok()?;
    let claims: Claims = serde_json::from_slice(&Zeroizing::new(decode(claims)?)).ok()?;
    let key = KeyPair::from_public_key(&claims.iss).ok()?;
    (head.alg == "ed25519-nkey" && key.verify(signed.as_bytes(), &decode(signature)?).is_ok()).then_some(claims)
}

/// The value of the one header of this name.
fn header<'h>(block: &'h [u8], name: &str) -> Option<&'h str> {
    let text = std::str::from_utf8(block).ok()?;
    let mut values = text.split("\r\n").filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = values.next()?.trim();
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::gate::signed;

    const NOW: u64 = 1_790_000_000;

    /// A broker, its curve key, and ours.
    struct Setup {
        server: KeyPair,
        server_xkey: XKey,
        ours: XKey,
    }

    impl Setup {
        fn new() -> Self {
            Self { server: KeyPair::new_server(), server_xkey: XKey::new(), ours: XKey::new() }
        }

        /// The claims of a question that is in order.
        fn claims(&self) -> Value {
            let id = json!({ "id": self.server.public_key(), "name": "n", "xkey": self.server_xkey.public_key() });
            let nats = json!({
                "type": "authorization_request", "version": 2, "server_id": id,
                "user_nkey": KeyPair::new_user().public_key(),
                "client_info": { "host": "127.0.0.1", "kind": "Client", "type": "nats" },
                "connect_opts": { "auth_token": "a.b.c", "protocol": 1 },
            });
            json!({ "aud": "nats-authorization-request", "exp": NOW + 2, "nats": nats })
        }

        fn message(&self, claims: Value) -> Message {
            self.sealed(signed(&self.server, claims, NOW).unwrap().as_bytes())
        }

        fn sealed(&self, text: &[u8]) -> Message {
            let headers = format!("NATS/1.0\r\nNats-Server-Xkey: {}\r\n\r\n", self.server_xkey.public_key());
            Message {
                sid: 1,
                subject: "$SYS.REQ.USER.AUTH".to_owned(),
                reply: Some("$SYS._INBOX.x".to_owned()),
                headers: headers.into(),
                payload: self.server_xkey.seal(text, &self.ours).unwrap().into(),
                oversized: false,
            }
        }

        fn open(&self, message: &Message) -> Result<Question, NoQuestion> {
            Question::open(message, &self.ours, false, NOW)
        }
    }

    #[test]
    fn a_broker_s_question_is_opened() {
        let setup = Setup::new();
        let question = setup.open(&setup.message(setup.claims())).ok().unwrap();
        assert_eq!(question.server, setup.server.public_key());
        assert_eq!((question.host.as_str(), question.is_client), ("127.0.0.1", true));
        assert_eq!(question.token.as_ref().map(|token| token.as_str()), Some("a.b.c"));
        // As a password.
        let mut claims = setup.claims();
        claims["nats"]["connect_opts"] = json!({ "user": "ann", "pass": "d.e.f" });
        let question = setup.open(&setup.message(claims)).ok().unwrap();
        assert_eq!(question.token.as_ref().map(|token| token.as_str()), Some("d.e.f"));
        for (member, value) in [("jwt", "x"), ("nkey", "UX")] {
            let mut claims = setup.claims();
            claims["nats"]["connect_opts"][member] = value.into();
            assert!(setup.open(&setup.message(claims)).ok().unwrap().token.is_none(), "{member}");
        }
        // In operator mode, whoever is asked about has shown the JWT of the sentinel, or been given it.
        let open = |claims: Value| Question::open(&setup.message(claims), &setup.ours, true, NOW).ok().unwrap();
        assert!(open(setup.claims()).token.is_none());
        let mut claims = setup.claims();
        claims["nats"]["connect_opts"]["jwt"] = "x".into();
        assert_eq!(open(claims.clone()).token.as_ref().map(|token| token.as_str()), Some("a.b.c"));
        claims["nats"]["connect_opts"]["nkey"] = "UX".into();
        assert!(open(claims).token.is_none());
        for (member, value) in [("kind", "Leafnode"), ("type", "websocket"), ("type", "mqtt")] {
            let mut claims = setup.claims();
            claims["nats"]["client_info"][member] = value.into();
            assert!(!setup.open(&setup.message(claims)).ok().unwrap().is_client, "{value}");
        }
    }

    #[test]
    fn what_no_broker_asks_now_is_no_question() {
        let setup = Setup::new();
        type Change = fn(&mut Value);
        let changes: [(&str, NoQuestion, Change); 9] = [
            ("another audience", NoQuestion::Signature, |claims| claims["aud"] = "x".into()),
            ("another type", NoQuestion::Signature, |claims| claims["nats"]["type"] = "authorization_response".into()),
            ("no type", NoQuestion::Signature, |claims| drop(claims["nats"].as_object_mut().unwrap().remove("type"))),
            ("another server's name", NoQuestion::Signature, |claims| {
                claims["nats"]["server_id"]["id"] = KeyPair::new_server().public_key().into();
            }),
            ("another curve key", NoQuestion::Signature, |claims| {
                claims["nats"]["server_id"]["xkey"] = XKey::new().public_key().into();
            }),
            ("an account in the place of the user", NoQuestion::Signature, |claims| {
                claims["nats"]["user_nkey"] = KeyPair::new_account().public_key().into();
            }),
            ("no key of anybody", NoQuestion::Signature, |claims| claims["nats"]["user_nkey"] = "UAAA".into()),
            ("it ends now", NoQuestion::Late, |claims| claims["exp"] = NOW.into()),
            ("a replay", NoQuestion::Late, |claims| claims["exp"] = (NOW - 5).into()),
        ];
        for (what, expected, change) in changes {
            let mut claims = setup.claims();
            change(&mut claims);
            assert_eq!(setup.open(&setup.message(claims)).err(), Some(expected), "{what}");
        }
        // Signed by somebody who is no broker, by another broker than it says, or not at all.
        for key in [KeyPair::new_user(), KeyPair::new_account(), KeyPair::new_server()] {
            let text = signed(&key, setup.claims(), NOW).unwrap();
            assert_eq!(setup.open(&setup.sealed(text.as_bytes())).err(), Some(NoQuestion::Signature));
        }
        let text = signed(&setup.server, setup.claims(), NOW).unwrap();
        let (body, _) = text.rsplit_once('.').unwrap();
        for forged in [format!("{body}."), format!("{body}.AAAA"), body.to_owned(), String::new(), "a.b.c".to_owned()] {
            assert_eq!(setup.open(&setup.sealed(forged.as_bytes())).err(), Some(NoQuestion::Signature), "{forged}");
        }
    }

    #[test]
    fn what_is_not_encrypted_to_us_or_answered_elsewhere_is_no_question() {
        let setup = Setup::new();
        let good = || setup.message(setup.claims());
        let plain = signed(&setup.server, setup.claims(), NOW).unwrap();
        let other = Setup::new();
        let header = |text: String| Message { headers: text.into(), ..good() };
        let key = setup.server_xkey.public_key();
        for (what, message) in [
            ("clear text", Message { payload: plain.into(), ..good() }),
            ("for somebody else", Message { payload: other.message(setup.claims()).payload, ..good() }),
            ("no header", Message { headers: Default::default(), ..good() }),
            ("no key", header("NATS/1.0\r\nNats-Server-Xkey: x\r\n\r\n".to_owned())),
            ("two keys", header(format!("NATS/1.0\r\nNats-Server-Xkey: {key}\r\nNats-Server-Xkey: {key}\r\n\r\n"))),
            ("another header", header(format!("NATS/1.0\r\nnats-server-xkey: {key}\r\n\r\n"))),
            ("empty", Message { payload: Default::default(), ..good() }),
        ] {
            assert_eq!(setup.open(&message).err(), Some(NoQuestion::Encryption), "{what}");
        }
        // Answers are published with our permissions, not with those of whoever asks.
        for reply in [
            None,
            Some("$KV.bucket.key"),
            Some("_INBOX.ann.x"),
            Some("$SYS.REQ.USER.AUTH"),
            Some("rpc.v1.site.ann"),
            Some("$JS.API.INFO"),
        ] {
            let message = Message { reply: reply.map(str::to_owned), ..good() };
            assert_eq!(setup.open(&message).err(), Some(NoQuestion::Reply), "{reply:?}");
        }
    }
}
