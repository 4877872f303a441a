//! Control of an open call: its claims, and the shape of the message that carries it (SPEC.md §25).
//! Never looks at more of a message than its subject until the call is known to exist.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::delivery::Delivery;
use super::endpoint::Endpoint;
use super::envelope::{EnvelopeError, ProofText, authorization};
use super::nonce::Nonce;
use super::proof::{MAX_TIMEOUT_MS, MAX_WINDOW, ProofError, object, some_string};
use super::subject::is_plain_subject;
use crate::jose::{integer, optional_integer, unb64};
use crate::name::Name;

/// The `typ` of a control message's proof.
pub(crate) const CONTROL_TYP: &str = "nats-rpc-v1-ctl+jwt";

/// What a caller asks of an open call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlOp {
    /// Acknowledges the frames up to `ack`.
    Ack {
        /// The last frame number received without a gap.
        ack: u64,
        /// A new window, 1 to 1,024.
        window: Option<u64>,
        /// A new deadline, in milliseconds after `iat`, 1 to 600,000.
        timeout_ms: Option<u64>,
    },
    /// Asks for the frames after `ack` again.
    Again {
        /// The last frame number received without a gap; `None` if not even the first frame arrived.
        ack: Option<u64>,
    },
    /// Cancels the call: nobody wants the answer any more.
    Cancel,
    /// Answers a question; the answer is the payload.
    Answer {
        /// The digest of the proof of the frame that asked.
        ask: String,
    },
}

/// The claims of the proof of a control message, exactly as the protocol names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Claims", into = "Claims")]
pub struct ControlClaims {
    /// `<environment>/<service>`.
    pub aud: String,
    /// The subject as published.
    pub to: String,
    /// When it was signed: whole seconds since the Unix epoch.
    pub iat: u64,
    /// From when on the message is refused: whole seconds since the Unix epoch.
    pub exp: u64,
    /// base64url(SHA-256(access token)).
    pub ath: String,
    /// base64url(SHA-256(payload)).
    pub dig: String,
    /// base64url(SHA-256(proof of the request that began the call)).
    pub req: String,
    /// The counter, greater than in every earlier control message for this call.
    pub ctr: u64,
    /// `op`, and the claims that belong to it.
    pub op: ControlOp,
}

/// The claims as they are on the wire.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    aud: String,
    to: String,
    #[serde(deserialize_with = "integer")]
    iat: u64,
    #[serde(deserialize_with = "integer")]
    exp: u64,
    ath: String,
    dig: String,
    req: String,
    #[serde(deserialize_with = "integer")]
    ctr: u64,
    op: Op,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_integer")]
    ack: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_integer")]
    win: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "optional_integer")]
    tmo: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_string")]
    ask: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Ack,
    Again,
    Cancel,
    Answer,
}

impl TryFrom<Claims> for ControlClaims {
    type Error = &'static str;

    fn try_from(claims: Claims) -> Result<Self, Self::Error> {
        let Claims { aud, to, iat, exp, ath, dig, req, ctr, op, ack, win, tmo, ask } = claims;
        let op = match (op, ack, win, tmo, ask) {
            (Op::Ack, Some(ack), window, timeout_ms, None)
                if window.is_none_or(|window| (1..=MAX_WINDOW).contains(&window))
                    && timeout_ms.is_none_or(|timeout| (1..=MAX_TIMEOUT_MS).contains(&timeout)) =>
            {
                ControlOp::Ack { ack, window, timeout_ms }
            }
            (Op::Again, ack, None, None, None) => ControlOp::Again { ack },
            (Op::Cancel, None, None, None, None) => ControlOp::Cancel,
            (Op::Answer, None, None, None, Some(ask)) => ControlOp::Answer { ask },
            _ => return Err("claims that do not belong to `op`, or are out of range"),
        };
        if ctr == 0 {
            return Err("`ctr` begins at 1");
        }
        Ok(Self { aud, to, iat, exp, ath, dig, req, ctr, op })
    }
}

impl From<ControlClaims> for Claims {
    fn from(claims: ControlClaims) -> Self {
        let ControlClaims { aud, to, iat, exp, ath, dig, req, ctr, op } = claims;
        let (op, ack, win, tmo, ask) = match op {
            ControlOp::Ack { ack, window, timeout_ms } => (Op::Ack, Some(ack), window, timeout_ms, None),
            ControlOp::Again { ack } => (Op::Again, ack, None, None, None),
            ControlOp::Cancel => (Op::Cancel, None, None, None, None),
            ControlOp::Answer { ask } => (Op::Answer, None, None, None, Some(ask)),
        };
        Self { aud, to, iat, exp, ath, dig, req, ctr, op, ack, win, tmo, ask }
    }
}

impl ControlClaims {
    pub(crate) fn parse(part: impl AsRef<[u8]>) -> Result<Self, ProofError> {
        let bytes = unb64(part).ok_or(ProofError::Encoding)?;
        object(&bytes).ok_or(ProofError::Claims)
    }
}

/// Which call a control message is about, according to its subject. Nothing is proved yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ControlSubject {
    pub(crate) agent: Name,
    /// The replica that the message is for; `None` for all of them.
    pub(crate) replica: Option<Name>,
    pub(crate) call: Nonce,
}

/// Stands for every replica, in place of a replica's id.
pub(super) const ALL: &str = "all";

impl ControlSubject {
    /// Parses `<prefix>-ctl.<service>.<agent>.<replica>.<call>`; `None` for any other subject.
    pub(crate) fn parse(subject: &str, endpoint: &Endpoint) -> Option<Self> {
        if !is_plain_subject(subject) {
            return None;
        }
        let rest = subject.strip_prefix(&endpoint.control_prefix())?.strip_prefix('.')?;
        let mut tokens = rest.split('.');
        let (service, agent, replica, call) = (tokens.next()?, tokens.next()?, tokens.next()?, tokens.next()?);
        if tokens.next().is_some() || service != endpoint.service().as_str() {
            return None;
        }
        let replica = if replica == ALL { None } else { Some(Name::new(replica).ok()?) };
        Some(Self { agent: Name::new(agent).ok()?, replica, call: Nonce::from_text(call)? })
    }
}

impl Endpoint {
    /// The prefix of control subjects: the RPC prefix followed by `-ctl`. It is not below the RPC prefix, where a queue
    /// group would deliver the message to any replica.
    pub(crate) fn control_prefix(&self) -> String {
        format!("{}-ctl", self.prefix())
    }

    /// Where `agent` publishes control messages for the call with the nonce `call`, to the replica that runs it or to all.
    #[must_use]
    pub fn control_subject(&self, agent: &Name, replica: Option<&Name>, call: &str) -> String {
        let replica = replica.map_or(ALL, Name::as_str);
        format!("{}.{}.{agent}.{replica}.{call}", self.control_prefix(), self.service())
    }

    /// What a replica subscribes to for control of its calls, without a queue group.
    #[must_use]
    pub fn control_subscriptions(&self, replica: &Name) -> [String; 2] {
        let (prefix, service) = (self.control_prefix(), self.service());
        [format!("{prefix}.{service}.*.{replica}.*"), format!("{prefix}.{service}.*.{ALL}.*")]
    }
}

/// A control message with a valid shape. Nothing is authenticated yet.
pub(crate) struct ControlEnvelope {
    pub(crate) subject: String,
    pub(crate) agent: Name,
    pub(crate) token: Bytes,
    pub(crate) proof: ProofText,
    pub(crate) payload: Bytes,
}

impl ControlEnvelope {
    /// Checks everything that needs no key, for a message whose subject names an existing call.
    pub(crate) fn decode(
        delivery: Delivery,
        subject: &ControlSubject,
        endpoint: &Endpoint,
    ) -> Result<Self, EnvelopeError> {
        if delivery.oversized || delivery.payload.len() > endpoint.limits().payload {
            return Err(EnvelopeError::TooLarge);
        }
        let (token, proof) = authorization(&delivery.headers, endpoint)?;
        let token = delivery.headers.part(token);
        let proof = ProofText::parse(proof, &delivery.headers, CONTROL_TYP)?;
        let Delivery { subject: text, payload, .. } = delivery;
        Ok(Self { subject: text.into_string(), agent: subject.agent.clone(), token, proof, payload })
    }
}

/// Omits token, signature and payload.
impl std::fmt::Debug for ControlEnvelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlEnvelope").field("subject", &self.subject).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::jose::b64;

    fn endpoint() -> Endpoint {
        Endpoint::new(Name::new("prod").unwrap(), Name::new("math").unwrap())
    }

    /// SPEC.md §25.
    #[test]
    fn subjects_name_agent_replica_and_call() {
        let (agent, replica) = (Name::new("planner").unwrap(), Name::new("VMKS6MHK").unwrap());
        let call = "AAECAwQFBgcICQoLDA0ODw";
        let one = endpoint().control_subject(&agent, Some(&replica), call);
        assert_eq!(one, "rpc.v1-ctl.math.planner.VMKS6MHK.AAECAwQFBgcICQoLDA0ODw");
        let parsed = ControlSubject::parse(&one, &endpoint()).unwrap();
        assert_eq!((&parsed.agent, parsed.replica.as_ref()), (&agent, Some(&replica)));
        let all = endpoint().control_subject(&agent, None, call);
        assert_eq!(ControlSubject::parse(&all, &endpoint()).unwrap().replica, None);
        let subscriptions = endpoint().control_subscriptions(&replica);
        assert_eq!(subscriptions, ["rpc.v1-ctl.math.*.VMKS6MHK.*", "rpc.v1-ctl.math.*.all.*"]);
        for bad in [
            "rpc.v1.math.planner.all.AAECAwQFBgcICQoLDA0ODw",
            "rpc.v1-ctl.bank.planner.all.AAECAwQFBgcICQoLDA0ODw",
            "rpc.v1-ctl.math.planner.all",
            "rpc.v1-ctl.math.planner.all.AAECAwQFBgcICQoLDA0ODx",
            "rpc.v1-ctl.math.planner.all.AAECAwQFBgcICQoLDA0ODw.more",
            "rpc.v1-ctl.math.planner.*.AAECAwQFBgcICQoLDA0ODw",
            "rpc.v1-ctl.math.pla/nner.all.AAECAwQFBgcICQoLDA0ODw",
        ] {
            assert_eq!(ControlSubject::parse(bad, &endpoint()), None, "{bad}");
        }
        let overlapping = endpoint().with_prefixes("rpc.v1", "rpc.v1-ctl");
        assert!(overlapping.is_err(), "agents' inboxes may not be where control goes");
    }

    /// SPEC.md §25: each operation has its own claims, and no others.
    #[test]
    fn claims_are_exactly_those_of_their_operation() {
        let base = r#""aud":"p/m","to":"t","iat":1,"exp":2,"ath":"","dig":"","req":"""#;
        let parse = |rest: &str| ControlClaims::parse(b64(format!("{{{base},{rest}}}").as_bytes()));
        for good in [
            r#""ctr":1,"op":"ack","ack":0"#,
            r#""ctr":1,"op":"ack","ack":7,"win":1024,"tmo":600000"#,
            r#""ctr":1,"op":"again""#,
            r#""ctr":1,"op":"again","ack":7"#,
            r#""ctr":9007199254740991,"op":"cancel""#,
            r#""ctr":1,"op":"answer","ask":"x""#,
        ] {
            let claims = parse(good).unwrap();
            let written = serde_json::to_string(&claims).unwrap();
            assert_eq!(written, format!("{{{base},{good}}}"), "as it was");
        }
        for bad in [
            r#""ctr":0,"op":"cancel""#,
            r#""op":"cancel""#,
            r#""ctr":1.0,"op":"cancel""#,
            r#""ctr":1,"op":"stop""#,
            r#""ctr":1,"op":"ack""#,
            r#""ctr":1,"op":"ack","ack":1,"win":0"#,
            r#""ctr":1,"op":"ack","ack":1,"win":1025"#,
            r#""ctr":1,"op":"ack","ack":1,"tmo":0"#,
            r#""ctr":1,"op":"ack","ack":1,"tmo":600001"#,
            r#""ctr":1,"op":"ack","ack":null"#,
            r#""ctr":1,"op":"again","win":1"#,
            r#""ctr":1,"op":"cancel","ack":1"#,
            r#""ctr":1,"op":"cancel","ask":"x""#,
            r#""ctr":1,"op":"answer""#,
            r#""ctr":1,"op":"cancel","more":1"#,
            r#""ctr":1,"ctr":2,"op":"cancel""#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
