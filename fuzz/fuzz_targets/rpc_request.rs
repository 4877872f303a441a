//! The JSON-RPC envelope as services read it: hostile bytes in, requests or the fixed refusals out.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use sealwire::errors::code;
use sealwire::internal::rpc::{Body, Limits, MAX_BATCH, Request, Response};
use serde_json::value::RawValue;

fuzz_target!(|payload: &[u8]| {
    let limits = Limits::default();
    match Body::parse(payload, &limits) {
        Err(refused) => {
            assert!([code::PARSE_ERROR, code::INVALID_REQUEST].contains(&refused.code()), "{refused:?}");
            if refused.code() == code::INVALID_REQUEST {
                assert!(is_json(payload), "not JSON is a parse error, not an invalid request");
            }
        }
        Ok(body) => {
            assert!(is_json(payload), "taken, and yet not JSON");
            let entries = match body {
                Body::Single(entry) => vec![entry],
                Body::Batch(entries) => {
                    assert!((1..=MAX_BATCH).contains(&entries.len()));
                    entries
                }
            };
            for entry in entries {
                match entry {
                    Ok(request) => round_trip(&request, payload, &limits),
                    Err(response) => refusal(&response, payload),
                }
            }
        }
    }
});

/// What was read is what is in the text, and what is written again is read as the same.
fn round_trip(request: &Request, payload: &[u8], limits: &Limits) {
    if let Some(id) = &request.id {
        assert!(contains(payload, id.as_json().as_bytes()), "an id is echoed byte for byte");
    }
    if let Some(params) = &request.params {
        assert!(contains(payload, params.raw().get().as_bytes()), "params reach the handler as they were signed");
    }
    let Ok(Body::Single(Ok(again))) = Body::parse(&request.to_bytes(), limits) else {
        panic!("what we write we must read: {request:?}");
    };
    assert_eq!(again.method, request.method);
    assert_eq!(again.id.as_ref().map(|id| id.as_json()), request.id.as_ref().map(|id| id.as_json()));
    let raw = |request: &Request| request.params.as_ref().map(|params| params.raw().get().to_owned());
    assert_eq!(raw(&again), raw(request));
}

/// A refused entry is answered by one valid error object, with the id that was there or with null.
fn refusal(response: &Response, payload: &[u8]) {
    let error = response.outcome.as_ref().expect_err("nothing was executed");
    assert_eq!(error.code(), code::INVALID_REQUEST);
    let id = response.id.as_json();
    assert!(id == "null" || contains(payload, id.as_bytes()));
    // Values stay raw: an id may be a number that fits no type.
    let written = response.to_bytes();
    let members: BTreeMap<&str, &RawValue> = serde_json::from_slice(&written).expect("an object");
    assert!(members.keys().eq(["error", "id", "jsonrpc"].iter()), "{members:?}");
}

/// What an independent parser says, which is laxer: it skips numbers and strings without interpreting them.
fn is_json(payload: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(payload).is_ok()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
