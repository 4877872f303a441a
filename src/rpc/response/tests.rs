#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use proptest::prelude::*;

use super::*;
use crate::rpc::MAX_BATCH;

fn parse(text: &str) -> Result<Responses, ResponseError> {
    Responses::parse(text.as_bytes(), &Limits::default())
}

#[test]
fn results_are_kept_as_they_came() {
    let text = r#"{"jsonrpc":"2.0","result":{ "a" : [1e999,"\u0061"] },"id":"\u0061"}"#;
    let Responses::Single(response) = parse(text).unwrap() else { panic!("a batch") };
    assert_eq!(response.outcome.as_ref().unwrap().get(), r#"{ "a" : [1e999,"\u0061"] }"#);
    assert_eq!(response.id, Id::from("a"));
    assert_eq!(response.to_bytes(), text.as_bytes());
}

#[test]
fn unknown_members_of_a_response_are_ignored() {
    assert!(parse(r#"{"jsonrpc":"2.0","result":1,"id":1,"took_ms":5}"#).is_ok());
    assert!(parse(r#"{"jsonrpc":"2.0","error":{"code":1,"message":"a","hint":{}},"id":1}"#).is_ok());
}

/// SPEC.md §14.
#[test]
fn only_the_response_itself_can_say_that_an_error_is_the_applications() {
    let own = |members: &str| match parse(&format!(r#"{{"jsonrpc":"2.0",{members},"id":1}}"#)).unwrap() {
        Responses::Single(response) => response.outcome.err().map(|error| error.profile_code()),
        Responses::Batch(_) => panic!("a batch"),
    };
    let error = r#""error":{"code":-32002,"message":"a","application_error":true,"data":{"application_error":true}}"#;
    for (mark, code) in [
        ("", Some(-32002)),
        (r#","application_error":true"#, None),
        (r#","application_error": true "#, None),
        (r#","application_error":false"#, Some(-32002)),
        (r#","application_error":"true""#, Some(-32002)),
        (r#","application_error":1"#, Some(-32002)),
        (r#","application_error":null"#, Some(-32002)),
        (r#","application_error":[true]"#, Some(-32002)),
        (r#","Application_error":true"#, Some(-32002)),
    ] {
        assert_eq!(own(&format!("{error}{mark}")), Some(code), "{mark}");
    }
    assert_eq!(own(r#""result":1,"application_error":true"#), None);
    let twice = format!(r#"{{"jsonrpc":"2.0",{error},"application_error":true,"application_error":false,"id":1}}"#);
    assert_eq!(parse(&twice).map(drop), Err(ResponseError::Json(Flaw::DuplicateMember)));
}

#[test]
fn a_reply_that_can_be_read_in_two_ways_is_refused() {
    let duplicate = Err(ResponseError::Json(Flaw::DuplicateMember));
    for text in [
        r#"{"jsonrpc":"2.0","result":1,"result":2,"id":1}"#,
        r#"{"jsonrpc":"2.0","result":1,"id":1,"\u0069d":2}"#,
        r#"{"jsonrpc":"2.0","result":{"a":1,"a":2},"id":1}"#,
        r#"{"jsonrpc":"2.0","error":{"code":1,"code":2,"message":"a"},"id":1}"#,
    ] {
        assert_eq!(parse(text).map(drop), duplicate, "{text}");
    }
}

#[test]
fn text_that_is_not_strict_json_is_refused() {
    let refused = |bytes: &[u8]| Responses::parse(bytes, &Limits::default()).map(drop).unwrap_err().to_string();
    assert_eq!(refused(b""), "the reply is not valid JSON");
    assert_eq!(refused(b"\xff"), "the reply is not UTF-8");
    assert_eq!(refused(b"\xEF\xBB\xBF{}"), "the reply begins with a byte-order mark");
    assert_eq!(refused(&b"[".repeat(100_000)), "the reply is nested deeper than 64 levels");
    assert_eq!(refused(br#"{"a":1,"a":1}"#), "the reply has an object in which a member name occurs twice");
}

#[test]
fn a_reply_that_is_no_response_is_refused() {
    for text in ["1", "null", "\"a\"", "[1]", "[[]]", r#"["2.0",1]"#, r#"[["2.0",1,null,1]]"#] {
        assert_eq!(parse(text).map(drop), Err(ResponseError::NotAnObject), "{text}");
    }
    let one = r#"{"jsonrpc":"2.0","result":1,"id":1}"#;
    assert_eq!(parse(&format!("[{one},{{}}]")).map(drop), Err(ResponseError::Version), "one bad part spoils the whole");
    assert!(parse(&format!("[{}]", vec![one; MAX_BATCH].join(","))).is_ok());
    let many = format!("[{}]", vec![one; MAX_BATCH + 1].join(","));
    assert_eq!(parse(&many).map(drop), Err(ResponseError::LongBatch));
}

proptest! {
    #[test]
    fn responses_survive_being_written_and_read(
        message in any::<String>(), code in prop_oneof![any::<i32>(), -32800..-31900], own in any::<bool>(), result in any::<Option<Vec<String>>>(), id in any::<Option<u64>>(),
        text_id in any::<String>(),
    ) {
        let raw = serde_json::value::to_raw_value(&result).unwrap();
        let id = id.map_or_else(|| Id::from(text_id.as_str()), Id::from);
        let make = if own { RpcError::application } else { RpcError::with_code };
        let error = make(code, message.clone()).with_data(&raw);
        let written = Response::batch_to_bytes(&[
            Response::new(id.clone(), Ok(raw.clone())),
            Response::new(id.clone(), Err(error)),
        ]);
        let Responses::Batch(read) = Responses::parse(&written.unwrap(), &Limits::default()).unwrap() else {
            panic!("a single")
        };
        let [first, second] = read.as_slice() else { panic!("{read:?}") };
        prop_assert!(first.id == id && second.id == id);
        prop_assert_eq!(first.outcome.as_ref().unwrap().get(), raw.get());
        let error = second.outcome.as_ref().unwrap_err();
        prop_assert_eq!((error.code(), error.message()), (code, message.as_str()));
        // Codes outside the reserved range are an application's without a mark.
        prop_assert_eq!(error.is_application(), own || !(-32768..=-32000).contains(&code));
        prop_assert_eq!(error.data().unwrap().get(), raw.get());
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Responses::parse(&bytes, &Limits::default());
    }
}
