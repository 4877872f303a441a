#![allow(clippy::unwrap_used, reason = "tests")]
use async_nats::HeaderMap;

use super::*;

const PROOF: &str = concat!(
    "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFnZW50LTdmM2EuazEiLCJ0eXAiOiJuYXRzLXJwYy12MStqd3QifQ.",
    "e30.C_9R-ZsOWta7FqDzguhnlXSvqUfxdqzrERA1RiMSmiQ"
);

fn endpoint() -> Endpoint {
    Endpoint::new(Name::new("prod").unwrap(), Name::new("math").unwrap())
}

fn headers(values: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in values {
        headers.append(*name, *value);
    }
    headers
}

fn good() -> HeaderMap {
    headers(&[("Authorization", &format!("NatsRpc t.o.k~{PROOF}"))])
}

fn decode(subject: &str, reply: &str, headers: HeaderMap, payload: &str) -> Result<Envelope, EnvelopeError> {
    Envelope::decode(Delivery::new(subject, reply, headers, payload.to_owned()), &endpoint()).map_err(|bad| bad.error)
}

#[test]
fn a_good_shape_is_taken_apart() {
    let envelope = decode("rpc.v1.math.a.math.add", "_INBOX.a.1", good(), "{}").unwrap();
    assert_eq!(envelope.method.as_deref(), Some("math.add"));
    assert_eq!(envelope.token, "t.o.k");
    assert_eq!(envelope.proof.header.kid, "agent-7f3a.k1");
    assert_eq!(envelope.proof.claims(), b"e30");
}

/// SPEC.md §3.1.
#[test]
fn subjects_outside_the_grammar_are_dropped() {
    for subject in [
        "",
        "rpc.v1",
        "rpc.v1.math",
        "rpc.v1.math.",
        "rpc.v1.math..x",
        "rpc.v1..a",
        "rpc.v2.math.a",
        "rpc.v1x.math.a",
        "rpc.v1.math.a.",
        "rpc.v1.math.*",
        "rpc.v1.math.>",
        "rpc.v1.math.a.*",
        "rpc.v1.math.ä",
        "rpc.v1.math.a b",
        "rpc.v1.math.a\u{7f}",
        "$JS.API.STREAM",
        &format!("rpc.v1.math.{}", "a".repeat(65)),
        &format!("rpc.v1.math.a.{}", "m.".repeat(300)),
    ] {
        let error = decode(subject, "_INBOX.a.1", good(), "{}").unwrap_err();
        assert_eq!(error, EnvelopeError::Subject, "{subject}");
        assert!(error.is_dropped());
    }
}

/// SPEC.md §3, SPEC.md §3.1.
#[test]
fn reply_subjects_outside_the_agents_inbox_are_dropped() {
    for reply in [
        "_INBOX.b.1",
        "_INBOX.a",
        "_INBOX.a.",
        "_INBOX.ab.1",
        "_INBOXa.1",
        "_INBOX.a.*",
        "_INBOX.a.>",
        "_INBOX.a..x",
        "$JS.API.STREAM.DELETE.X",
        "$SYS.REQ.USER.AUTH",
        "rpc.v1.math.a",
        "_inbox.a.1",
        "_INBOX.a.x y",
        "_INBOX.a.\t",
    ] {
        let error = decode("rpc.v1.math.a", reply, good(), "{}").unwrap_err();
        assert_eq!(error, EnvelopeError::Reply, "{reply}");
        assert!(error.is_dropped());
    }
    assert!(decode("rpc.v1.math.a", "", good(), "{}").unwrap().reply.is_none());
}

/// SPEC.md §10.
#[test]
fn repeated_authorization_headers_are_refused_in_any_case() {
    let value = format!("NatsRpc t~{PROOF}");
    for (first, second) in
        [("Authorization", "Authorization"), ("Authorization", "authorization"), ("AUTHORIZATION", "aUTHORIZATION")]
    {
        let error = decode("rpc.v1.math.a", "", headers(&[(first, &value), (second, &value)]), "{}").unwrap_err();
        assert_eq!(error, EnvelopeError::Repeated);
    }
    assert!(decode("rpc.v1.math.a", "", headers(&[("authoriZATION", &value)]), "{}").is_ok());
    assert_eq!(decode("rpc.v1.math.a", "", HeaderMap::new(), "{}").unwrap_err(), EnvelopeError::Missing);
}

/// SPEC.md §6.
#[test]
fn values_outside_the_grammar_are_refused() {
    for value in [
        format!("natsrpc t~{PROOF}"),
        format!("NatsRpc  t~{PROOF}"),
        format!("NatsRpc\tt~{PROOF}"),
        format!("NatsRpct~{PROOF}"),
        format!("NatsRpc t{PROOF}"),
        format!("NatsRpc t~u~{PROOF}"),
        format!("NatsRpc ~{PROOF}"),
        "NatsRpc t~".to_owned(),
        format!("NatsRpc t~{PROOF} "),
        format!("NatsRpc t,~{PROOF}"),
        format!("NatsRpc tö~{PROOF}"),
        "NatsRpc ".to_owned(),
        format!("NatsRpc {}~{PROOF}", "t".repeat(4097)),
        format!("NatsRpc t~{}{PROOF}", "p".repeat(9000)),
        format!("Bearer t~{PROOF}"),
    ] {
        let error = decode("rpc.v1.math.a", "", headers(&[("Authorization", &value)]), "{}").unwrap_err();
        assert_eq!(error, EnvelopeError::Authorization, "{value}");
    }
}

/// SPEC.md §4.
#[test]
fn proofs_that_are_not_three_canonical_parts_are_refused() {
    for proof in ["a.b", "a.b.c.d", "e30=.e30.AA", "e30.e30.AB", "e30.e30.AA", "..", "!.e30.AA"] {
        let headers = headers(&[("Authorization", &format!("NatsRpc t~{proof}"))]);
        let error = decode("rpc.v1.math.a", "", headers, "{}").unwrap_err();
        assert!(matches!(error, EnvelopeError::Proof(_) | EnvelopeError::Authorization), "{proof}: {error}");
    }
}

/// SPEC.md §15.
#[test]
fn headers_and_payloads_above_their_limits_are_refused() {
    let mut many = good();
    for n in 0..32 {
        many.append(format!("h{n}").as_str(), "v");
    }
    assert_eq!(decode("rpc.v1.math.a", "", many, "{}").unwrap_err(), EnvelopeError::Headers);
    let mut large = good();
    large.append("traceparent", "x".repeat(16 * 1024));
    assert_eq!(decode("rpc.v1.math.a", "", large, "{}").unwrap_err(), EnvelopeError::Headers);
    let payload = "x".repeat(192 * 1024 + 1);
    assert_eq!(decode("rpc.v1.math.a", "", good(), &payload).unwrap_err(), EnvelopeError::TooLarge);
}

/// SPEC.md §10.
#[test]
fn another_services_subject_is_refused_but_not_dropped() {
    assert_eq!(decode("rpc.v1.ops.a", "_INBOX.a.1", good(), "{}").unwrap_err(), EnvelopeError::Service);
}
