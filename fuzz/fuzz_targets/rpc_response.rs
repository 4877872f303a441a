//! The JSON-RPC envelope as clients read it: an answer, a batch of answers, or a refusal to read it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealwire::internal::rpc::{Limits, MAX_BATCH, Response, Responses};

fuzz_target!(|payload: &[u8]| {
    let limits = Limits::default();
    let Ok(responses) = Responses::parse(payload, &limits) else { return };
    match responses {
        Responses::Single(response) => {
            let Ok(Responses::Single(again)) = Responses::parse(&response.to_bytes(), &limits) else {
                panic!("what we write we must read: {response:?}");
            };
            same(&response, &again);
        }
        Responses::Batch(responses) => {
            assert!((1..=MAX_BATCH).contains(&responses.len()));
            let text = Response::batch_to_bytes(&responses).expect("not empty");
            let Ok(Responses::Batch(again)) = Responses::parse(&text, &limits) else {
                panic!("what we write we must read: {responses:?}");
            };
            assert_eq!(again.len(), responses.len());
            responses.iter().zip(&again).for_each(|(one, other)| same(one, other));
        }
    }
});

fn same(one: &Response, other: &Response) {
    assert_eq!(one.id.as_json(), other.id.as_json());
    match (&one.outcome, &other.outcome) {
        (Ok(one), Ok(other)) => assert_eq!(one.get(), other.get()),
        (Err(one), Err(other)) => assert_eq!(one.code(), other.code()),
        _ => panic!("a result became an error: {one:?}"),
    }
}
