//! Callers that prove possession of the key that their tokens are bound to, with proofs made by third-party code. RFC 9449.

use std::process::Stdio;

use sealwire::internal::auth::{Confirmation, TokenIssuer};
use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use super::mint::{URL, configure_dpop, request, stage};
use super::{FAST, Gateway};
use crate::backends::stage::LONG;

/// What a client of others found at gateways that take proofs like this, which start when it has its keys: what they say first, they
/// say for seconds only.
pub(super) async fn found(
    python: &std::path::Path,
    script: &str,
    issuer: &TokenIssuer,
    start: impl AsyncFnOnce() -> Vec<Gateway>,
) -> (Value, Vec<Gateway>) {
    let mut command = Command::new(python);
    command.arg("-B").arg(root().join("crates/cli/tests/cli/gateway_http").join(script));
    command.arg(URL).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = command.kill_on_drop(true).spawn().unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap());
    let mut thumbprints = String::new();
    within(LONG, said.read_line(&mut thumbprints)).await.unwrap();
    let thumbprints: Map<String, Value> = serde_json::from_str(&thumbprints).unwrap();
    let token = |cnf| {
        let mut request = request("ann");
        request.cnf = cnf;
        issuer.issue(&request).unwrap()
    };
    let mut tokens: Map<String, Value> = thumbprints
        .into_iter()
        .map(|(name, jkt)| {
            let jkt = jkt.as_str().unwrap().to_owned();
            (name, token(Some(Confirmation { kid: None, jkt: Some(jkt) })).into())
        })
        .collect();
    tokens.insert("unbound".to_owned(), token(None).into());
    tokens.insert("kid".to_owned(), token(Some(Confirmation { kid: Some("k".to_owned()), jkt: None })).into());
    let gateways = start().await;
    let addresses: Vec<_> = gateways.iter().map(|gateway| format!("http://{}", gateway.at)).collect();
    let told = json!({ "gateways": addresses, "tokens": tokens });
    let mut stdin = client.stdin.take().unwrap();
    within(LONG, stdin.write_all(format!("{told}\n").as_bytes())).await.unwrap();
    let mut found = String::new();
    within(3 * LONG, said.read_to_string(&mut found)).await.unwrap();
    assert!(within(LONG, client.wait()).await.unwrap().success());
    (serde_json::from_str(&found).unwrap(), gateways)
}

const INVALID: &str = "401 invalid_dpop_proof";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_bound_to_a_key_is_good_for_who_proves_it_for_this_request_once() {
    let Some(python) = python() else { return };
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    for mode in ["accept", "require"] {
        configure_dpop(&stage, FAST, mode);
        let start = async || {
            let gateway = Gateway::spawn(&stage.shell).await;
            gateway.is_ready(200).await;
            vec![gateway]
        };
        let (mut found, mut gateways) = found(python, "dpop.py", &issuer, start).await;
        let bad = found.as_object_mut().unwrap().remove("bad").unwrap();
        for (what, came) in bad.as_object().unwrap() {
            // The gateway's own clock decides whether these are in time.
            let expected = match what.as_str() {
                "old" | "from ahead" | "nonce" => "401 use_dpop_nonce",
                _ => INVALID,
            };
            assert_eq!(came, expected, "{what}");
        }
        assert_eq!(bad.as_object().unwrap().len(), 33);
        // Whether a second has passed since the gateway started.
        let began = found.as_object_mut().unwrap().remove("first, with the nonce").unwrap();
        assert!(began == 3 || began == "401 use_dpop_nonce", "{began}");
        let algs = "ES256 EdDSA Ed25519 PS256 RS256";
        let metadata = format!("resource_metadata=\"{URL}/.well-known/oauth-protected-resource\"");
        let (bearer, dpop) = (format!("Bearer {metadata}"), format!("DPoP algs=\"{algs}\", {metadata}"));
        let is_required = mode == "require";
        let expected = json!({
            "first": "401 use_dpop_nonce", "another's nonce": "401 use_dpop_nonce",
            "ES256": 3, "EdDSA": 3, "RS256": 3, "PS256": 3, "written otherwise": 3, "a time with a fraction": 3, "a slow clock, with a nonce": 3,
            "used": [3, INVALID], "same jti": [3, INVALID], "nonce, used": [3, INVALID], "unused": 3,
            "as a bearer": "401 invalid_token", "as a bearer, with a proof": "401 invalid_token",
            "unbound": "401 invalid_token", "bound to a kid": "401 invalid_token",
            "unbound, as a bearer": if is_required { json!("401 invalid_token") } else { json!(3) },
            "twice": 401, "a stream": [200, true, INVALID],
            "challenge": if is_required { dpop } else { format!("{bearer}, {dpop}") },
            "about": {
                "bearer_methods_supported": if is_required { json!([]) } else { json!(["header"]) },
                "dpop_signing_alg_values_supported": algs.split(' ').collect::<Vec<_>>(),
                "dpop_bound_access_tokens_required": is_required.then_some(true),
            },
        });
        assert_eq!(found, expected);
        assert_eq!(gateways.remove(0).stop().await.0, Some(0));
    }
    stage.end().await;
}
