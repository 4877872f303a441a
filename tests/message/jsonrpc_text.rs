//! JSON-RPC 2.0 as text: every sentence of the specification that binds a server or a client, and its examples.
//!
//! [`RULES`] lists the sentences with MUST, MUST NOT, REQUIRED, SHOULD, SHOULD NOT, MAY and OPTIONAL, and the two with a
//! small "should", each with the test of that behaviour. The methods here are a small table.

use std::collections::HashMap;

use sealwire::internal::rpc::{Body, Entry, Id, Limits, Outcome, Params, Request, Response, ResponseError, Responses};
use sealwire::{MethodName, RpcError};
use sealwire_testkit::jsonrpc_examples::{EXAMPLES, same_response};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::to_raw_value;

/// Section, sentence, and the test that it is obeyed.
const RULES: &[(&str, &str, fn())] = &[
    (
        "§2",
        "All member names [..] that are considered for matching of any kind should be considered to be case-sensitive.",
        member_names_are_case_sensitive,
    ),
    (
        "§3",
        "Most 2.0 implementations should consider trying to handle 1.0 objects [considered: they are refused]",
        requests_of_version_1_are_refused,
    ),
    ("§4", "jsonrpc [..] MUST be exactly \"2.0\".", version_of_a_request_is_exactly_2_0),
    (
        "§4",
        "Method names that begin with the word rpc followed by a period character [..] MUST NOT be used for anything else.",
        reserved_method_names_are_recognised,
    ),
    ("§4", "params [..] This member MAY be omitted.", params_may_be_omitted),
    (
        "§4",
        "id [..] MUST contain a String, Number, or NULL value if included.",
        ids_of_other_types_are_refused_with_id_null,
    ),
    (
        "§4",
        "The value SHOULD normally not be Null and Numbers SHOULD NOT contain fractional parts",
        unusual_ids_are_taken_but_not_made,
    ),
    (
        "§4",
        "The Server MUST reply with the same value in the Response object if included.",
        ids_are_echoed_byte_for_byte,
    ),
    (
        "§4.1",
        "The Server MUST NOT reply to a Notification, including those that are within a batch request.",
        notifications_get_no_reply_not_even_an_error,
    ),
    (
        "§4.2",
        "If present, parameters for the rpc call MUST be provided as a Structured value.",
        params_that_are_not_structured_are_refused,
    ),
    (
        "§4.2",
        "by-position: params MUST be an Array, containing the values in the Server expected order.",
        params_by_position_fill_the_fields_in_order,
    ),
    (
        "§4.2",
        "by-name: params MUST be an Object, with member names that match the Server expected parameter names.",
        params_by_name_fill_the_fields_in_any_order,
    ),
    (
        "§4.2",
        "The absence of expected names MAY result in an error being generated.",
        missing_params_are_an_error_that_names_them,
    ),
    (
        "§4.2",
        "The names MUST match exactly, including case, to the method's expected parameters.",
        names_of_params_are_case_sensitive,
    ),
    (
        "§5",
        "When a rpc call is made, the Server MUST reply with a Response, except for in the case of Notifications.",
        every_call_gets_one_response,
    ),
    ("§5", "jsonrpc [..] MUST be exactly \"2.0\".", version_of_a_response_is_exactly_2_0),
    ("§5", "result: This member is REQUIRED on success.", a_response_has_a_result_or_an_error),
    (
        "§5",
        "result [..] MUST NOT exist if there was an error invoking the method.",
        a_response_has_a_result_or_an_error,
    ),
    ("§5", "error: This member is REQUIRED on error.", a_response_has_a_result_or_an_error),
    (
        "§5",
        "error [..] MUST NOT exist if there was no error triggered during invocation.",
        a_response_has_a_result_or_an_error,
    ),
    ("§5", "The value for this member MUST be an Object as defined in section 5.1.", errors_are_well_formed_objects),
    ("§5", "id: This member is REQUIRED.", a_response_has_an_id),
    ("§5", "It MUST be the same as the value of the id member in the Request Object.", ids_are_echoed_byte_for_byte),
    (
        "§5",
        "If there was an error in detecting the id in the Request object (e.g. Parse error/Invalid Request), it MUST be Null.",
        an_id_that_cannot_be_detected_is_null_in_the_response,
    ),
    (
        "§5",
        "Either the result member or error member MUST be included, but both members MUST NOT be included.",
        a_response_has_a_result_or_an_error,
    ),
    (
        "§5.1",
        "When a rpc call encounters an error, the Response Object MUST contain the error member with a value that is a Object",
        errors_are_well_formed_objects,
    ),
    ("§5.1", "code [..] MUST be an integer.", error_codes_are_integers),
    ("§5.1", "The message SHOULD be limited to a concise single sentence.", refusals_are_one_short_sentence),
    ("§5.1", "data [..] may be omitted.", error_data_may_be_omitted),
    (
        "§6",
        "To send several Request objects at the same time, the Client MAY send an Array filled with Request objects.",
        a_batch_is_an_array_of_requests,
    ),
    (
        "§6",
        "A Response object SHOULD exist for each Request object, except that there SHOULD NOT be any Response objects for notifications.",
        a_batch_gets_a_response_for_each_call_and_none_for_notifications,
    ),
    (
        "§6",
        "The Server MAY process a batch rpc call as a set of concurrent tasks, processing them in any order",
        responses_of_a_batch_are_matched_by_id_in_any_order,
    ),
    (
        "§6",
        "The Response objects being returned from a batch call MAY be returned in any order within the Array.",
        responses_of_a_batch_are_matched_by_id_in_any_order,
    ),
    (
        "§6",
        "The Client SHOULD match contexts between the set of Request objects and the resulting set of Response objects based on the id",
        responses_of_a_batch_are_matched_by_id_in_any_order,
    ),
    (
        "§6",
        "If the batch rpc call itself fails to be recognized as an valid JSON or as an Array with at least one value, the response from the Server MUST be a single Response object.",
        a_batch_that_is_none_gets_a_single_response,
    ),
    (
        "§6",
        "If there are no Response objects contained within the Response array [..] the server MUST NOT return an empty Array and should return nothing at all.",
        a_batch_of_notifications_gets_nothing,
    ),
    (
        "§8",
        "Method names that begin with rpc. are reserved for system extensions, and MUST NOT be used for anything else.",
        reserved_method_names_are_recognised,
    ),
    ("§8", "All system extensions are OPTIONAL. [there are none at this layer]", reserved_method_names_are_recognised),
];

#[test]
fn rules_are_listed_once() {
    let mut seen: Vec<_> = RULES.iter().map(|(section, sentence, _)| (section, sentence)).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), RULES.len());
}

#[test]
fn the_examples_of_section_7_come_out_as_printed() {
    for (name, request, expected) in EXAMPLES {
        match (answer(request), expected) {
            (Some(actual), Some(expected)) => assert!(same_response(&actual, expected), "{name}: {actual}"),
            (None, None) => {}
            (actual, _) => panic!("{name}: {actual:?}"),
        }
    }
}

#[test]
fn member_names_are_case_sensitive() {
    let call = r#"{"jsonrpc":"2.0","method":"sum","id":1}"#;
    assert_eq!(answer(call).unwrap(), r#"{"jsonrpc":"2.0","result":0,"id":1}"#);
    assert_eq!(code_of(&call.replace("jsonrpc", "Jsonrpc")), -32600);
    assert_eq!(code_of(&call.replace("method", "METHOD")), -32600);
    assert_eq!(answer(&call.replace("id", "ID")), None, "without `id` it is a notification");
    assert_eq!(
        read(r#"{"jsonrpc":"2.0","Result":1,"id":1}"#).unwrap_err(),
        ResponseError::Outcome,
        "the client does not mistake `Result` for `result`"
    );
}

#[test]
fn requests_of_version_1_are_refused() {
    assert_eq!(
        answer(r#"{"method":"sum","params":[1],"id":7}"#).unwrap(),
        r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid Request: `jsonrpc` must be \"2.0\""},"id":7}"#
    );
    assert_eq!(read(r#"{"result":1,"error":null,"id":7}"#).unwrap_err(), ResponseError::Version);
}

#[test]
fn version_of_a_request_is_exactly_2_0() {
    for version in ["2.0", "2", "\"2\"", "\"2.00\"", "\" 2.0\"", "\"1.0\"", "\"\"", "null", "[\"2.0\"]", "true"] {
        assert_eq!(code_of(&format!(r#"{{"jsonrpc":{version},"method":"sum","id":1}}"#)), -32600, "{version}");
    }
    // The same string, written with an escape.
    assert!(answer(r#"{"jsonrpc":"2\u002e0","method":"sum","id":1}"#).unwrap().contains("result"));
    assert!(Request::new("a", &(), None).unwrap().to_bytes().starts_with(br#"{"jsonrpc":"2.0","#));
}

#[test]
fn reserved_method_names_are_recognised() {
    for (name, reserved) in [("rpc.discover", true), ("rpc.", false), ("rpcs.x", false), ("a.rpc.b", false)] {
        assert_eq!(MethodName::new(name).is_ok_and(|name| name.is_reserved()), reserved, "{name}");
    }
    assert_eq!(code_of(r#"{"jsonrpc":"2.0","method":"rpc.discover","id":1}"#), -32601);
}

#[test]
fn params_may_be_omitted() {
    assert_eq!(
        answer(r#"{"jsonrpc":"2.0","method":"get_data","id":1}"#).unwrap(),
        r#"{"jsonrpc":"2.0","result":["hello",5],"id":1}"#
    );
    let request = Request::new("get_data", &(), Some(Id::from(1))).unwrap();
    assert_eq!(request.to_bytes(), br#"{"jsonrpc":"2.0","method":"get_data","id":1}"#);
}

#[test]
fn ids_of_other_types_are_refused_with_id_null() {
    for id in ["true", "false", "[]", "[1]", "{}", r#"{"a":1}"#] {
        assert_eq!(
            answer(&format!(r#"{{"jsonrpc":"2.0","method":"sum","id":{id}}}"#)).unwrap(),
            r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid Request: `id` must be a string, a number or null"},"id":null}"#
        );
    }
}

#[test]
fn unusual_ids_are_taken_but_not_made() {
    assert_eq!(
        answer(r#"{"jsonrpc":"2.0","method":"sum","id":null}"#).unwrap(),
        r#"{"jsonrpc":"2.0","result":0,"id":null}"#,
        "a call, not a notification"
    );
    assert!(answer(r#"{"jsonrpc":"2.0","method":"sum","id":1.5}"#).unwrap().ends_with(r#""id":1.5}"#));
    // A client makes ids only from integers and strings; `Id::null` is for responses.
    assert_eq!(Id::from(u64::MAX).as_json(), "18446744073709551615");
    assert_eq!(Id::from("null").as_json(), "\"null\"");
}

#[test]
fn ids_are_echoed_byte_for_byte() {
    for id in [
        "0",
        "-0",
        "1.0",
        "1E400",
        "9007199254740993",
        "-170141183460469231731687303715884105728000000000000000000000000000001",
        "0.1000000000000000055511151231257827021181583404541015625",
        "null",
        r#""""#,
        r#""\u0061\/\"\\""#,
        r#""\ud83d\ude00 😀""#,
        r#""\u0000""#,
    ] {
        for request in [
            format!(r#"{{"id": {id} ,"jsonrpc":"2.0","method":"sum"}}"#),
            format!(r#"{{"jsonrpc":"2.0","method":"none","id":{id}}}"#),
            format!(r#"{{"jsonrpc":"2.0","method":1,"id":{id}}}"#),
        ] {
            assert!(answer(&request).unwrap().ends_with(&format!(",\"id\":{id}}}")), "{request}");
            let batch = answer(&format!("[{request}]")).unwrap();
            assert!(batch.ends_with(&format!(",\"id\":{id}}}]")), "{batch}");
        }
    }
}

#[test]
fn notifications_get_no_reply_not_even_an_error() {
    for notification in [
        r#"{"jsonrpc":"2.0","method":"sum","params":[1]}"#,
        r#"{"jsonrpc":"2.0","method":"none"}"#,
        r#"{"jsonrpc":"2.0","method":"subtract","params":[]}"#,
    ] {
        assert_eq!(answer(notification), None, "{notification}");
        let batch = answer(&format!(r#"[{notification},{{"jsonrpc":"2.0","method":"sum","id":1}}]"#));
        assert_eq!(batch.unwrap(), r#"[{"jsonrpc":"2.0","result":0,"id":1}]"#);
    }
}

#[test]
fn params_that_are_not_structured_are_refused() {
    for params in ["null", "1", "\"a\"", "true"] {
        assert_eq!(
            answer(&format!(r#"{{"jsonrpc":"2.0","method":"sum","params":{params},"id":"x"}}"#)).unwrap(),
            r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid Request: `params` must be an object or an array"},"id":"x"}"#
        );
    }
    assert!(Request::new("sum", &1, None).is_err(), "the client does not send them either");
}

#[test]
fn params_by_position_fill_the_fields_in_order() {
    let call =
        |params| answer(&format!(r#"{{"jsonrpc":"2.0","method":"subtract","params":{params},"id":1}}"#)).unwrap();
    assert_eq!(call("[42,23]"), r#"{"jsonrpc":"2.0","result":19,"id":1}"#);
    assert_eq!(call("[23,42]"), r#"{"jsonrpc":"2.0","result":-19,"id":1}"#);
    let error = r#"{"jsonrpc":"2.0","error":{"code":-32602,"message":"Invalid params: more values than the method takes"},"id":1}"#;
    assert_eq!(call("[42,23,1]"), error);
    assert_eq!(Params::encode(&(42, 23)).unwrap().unwrap().raw().get(), "[42,23]");
}

#[test]
fn params_by_name_fill_the_fields_in_any_order() {
    let call =
        |params| answer(&format!(r#"{{"jsonrpc":"2.0","method":"subtract","params":{params},"id":1}}"#)).unwrap();
    assert_eq!(call(r#"{"minuend":42,"subtrahend":23}"#), r#"{"jsonrpc":"2.0","result":19,"id":1}"#);
    assert_eq!(call(r#"{"subtrahend":23,"minuend":42}"#), r#"{"jsonrpc":"2.0","result":19,"id":1}"#);
    assert_eq!(Params::encode(&json!({"a": 1})).unwrap().unwrap().raw().get(), r#"{"a":1}"#);
}

#[test]
fn missing_params_are_an_error_that_names_them() {
    for params in ["", r#","params":{}"#, r#","params":[]"#, r#","params":{"subtrahend":1}"#] {
        let response = answer(&format!(r#"{{"jsonrpc":"2.0","method":"subtract"{params},"id":1}}"#)).unwrap();
        let named =
            response.contains("parameter `minuend` is missing") || response.contains("0 values, and the method takes");
        assert!(response.contains(r#""code":-32602"#) && named, "{response}");
    }
}

#[test]
fn names_of_params_are_case_sensitive() {
    let call = r#"{"jsonrpc":"2.0","method":"subtract","params":{"Minuend":42,"subtrahend":23},"id":1}"#;
    assert_eq!(code_of(call), -32602);
}

#[test]
fn every_call_gets_one_response() {
    for method in ["subtract", "sum", "get_data", "none", "", "rpc.x", "\\u0000"] {
        let response = answer(&format!(r#"{{"jsonrpc":"2.0","method":"{method}","id":1}}"#)).unwrap();
        assert!(matches!(read(&response).unwrap(), Responses::Single(one) if one.id == Id::from(1)), "{response}");
    }
}

#[test]
fn version_of_a_response_is_exactly_2_0() {
    assert!(answer(r#"{"jsonrpc":"2.0","method":"sum","id":1}"#).unwrap().starts_with(r#"{"jsonrpc":"2.0","#));
    assert!(answer("[]").unwrap().starts_with(r#"{"jsonrpc":"2.0","#));
    for version in ["", r#""jsonrpc":2.0,"#, r#""jsonrpc":"2","#, r#""jsonrpc":null,"#, r#""jsonrpc":"1.0","#] {
        let response = format!(r#"{{{version}"result":1,"id":1}}"#);
        assert_eq!(read(&response).unwrap_err(), ResponseError::Version, "{response}");
    }
}

#[test]
fn a_response_has_a_result_or_an_error() {
    let result = Response::new(Id::from(1), Ok(to_raw_value(&()).unwrap()));
    assert_eq!(result.to_bytes(), br#"{"jsonrpc":"2.0","result":null,"id":1}"#);
    let error = Response::new(Id::from(1), Err(RpcError::validation("odd")));
    assert_eq!(error.to_bytes(), br#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"odd"},"id":1}"#);
    let members = ["", r#""result":1,"error":{"code":1,"message":""},"#, r#""result":1,"error":null,"#];
    for members in members {
        let response = format!(r#"{{"jsonrpc":"2.0",{members}"id":1}}"#);
        assert_eq!(read(&response).unwrap_err(), ResponseError::Outcome, "{response}");
    }
    let Responses::Single(null) = read(r#"{"jsonrpc":"2.0","result":null,"id":1}"#).unwrap() else { panic!() };
    assert_eq!(null.outcome.unwrap().get(), "null");
}

#[test]
fn errors_are_well_formed_objects() {
    let error = RpcError::application(7, "a \"b\"\n").with_data(&json!([1, {"c": null}])).caused_by("secret");
    let text = Response::new(Id::null(), Err(error)).to_bytes();
    assert_eq!(
        std::str::from_utf8(&text).unwrap(),
        r#"{"jsonrpc":"2.0","error":{"code":7,"message":"a \"b\"\n","data":[1,{"c":null}]},"id":null}"#
    );
    let Responses::Single(read_back) = Responses::parse(&text, &Limits::default()).unwrap() else { panic!() };
    let error = read_back.outcome.unwrap_err();
    assert_eq!((error.code(), error.message()), (7, "a \"b\"\n"));
    assert_eq!(error.data().unwrap().get(), r#"[1,{"c":null}]"#);
    for error in ["null", "1", "\"a\"", "[]", r#"[1,"a"]"#, "{}", r#"{"code":1}"#, r#"{"message":"a"}"#] {
        let response = format!(r#"{{"jsonrpc":"2.0","error":{error},"id":1}}"#);
        assert_eq!(read(&response).unwrap_err(), ResponseError::Error, "{response}");
    }
}

#[test]
fn a_response_has_an_id() {
    for id in ["", r#","id":true"#, r#","id":[1]"#, r#","Id":1"#] {
        let response = format!(r#"{{"jsonrpc":"2.0","result":1{id}}}"#);
        assert_eq!(read(&response).unwrap_err(), ResponseError::Id, "{response}");
    }
}

#[test]
fn an_id_that_cannot_be_detected_is_null_in_the_response() {
    let responses = |text: &str| answer(text).unwrap();
    for text in
        ["{", "[]", "1", "\"a\"", "{}", "[[]]", r#"{"id":{}}"#, r#"{"id":1,"id":1}"#, r#"{"id":1,}"#, "\u{feff}{}"]
    {
        let response = responses(text);
        assert!(response.trim_end_matches(']').ends_with(r#","id":null}"#), "{text}: {response}");
    }
    // The id can be detected although the request is invalid.
    assert!(responses(r#"{"id":"a"}"#).ends_with(r#","id":"a"}"#));
}

#[test]
fn error_codes_are_integers() {
    for code in ["1.0", "1e0", "\"1\"", "null", "true", "-32600.5", "4294967296", "[1]"] {
        let response = format!(r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"a"}},"id":1}}"#);
        assert_eq!(read(&response).unwrap_err(), ResponseError::Error, "{response}");
    }
    for code in [i32::MIN, -32700, 0, i32::MAX] {
        let response = format!(r#"{{"jsonrpc":"2.0","error":{{"code":{code},"message":"a"}},"id":1}}"#);
        let Responses::Single(single) = read(&response).unwrap() else { panic!() };
        assert_eq!(single.outcome.unwrap_err().code(), code);
    }
}

#[test]
fn refusals_are_one_short_sentence() {
    let long = format!(r#"{{"jsonrpc":"2.0","method":"subtract","params":["{}"],"id":1}}"#, "\\u001b".repeat(10_000));
    let deep = "[".repeat(100);
    let wide = format!("[{}1]", "1,".repeat(50));
    for request in ["", "{}", "[]", r#"{"method":"a"}"#, r#"{"a":1,"a":2}"#, &long, &deep, &wide] {
        let message = error_of(&answer(request).unwrap()).message().to_owned();
        let one_line = !message.chars().any(char::is_control);
        assert!(one_line && !message.is_empty() && message.chars().count() <= 220, "{message}");
    }
}

#[test]
fn error_data_may_be_omitted() {
    let error = |text| error_of(text).data().map(|data| data.get().to_owned());
    assert_eq!(error(r#"{"jsonrpc":"2.0","error":{"code":1,"message":"a"},"id":1}"#), None);
    assert_eq!(error(r#"{"jsonrpc":"2.0","error":{"code":1,"message":"a","data":null},"id":1}"#).unwrap(), "null");
    assert!(!answer("{").unwrap().contains("data"));
}

#[test]
fn a_batch_is_an_array_of_requests() {
    let calls: Vec<_> = (1..=2).map(|n| Request::new("sum", &[n, n], Some(Id::from(n))).unwrap()).collect();
    let text = Request::batch_to_bytes(&calls).unwrap();
    assert_eq!(
        std::str::from_utf8(&text).unwrap(),
        r#"[{"jsonrpc":"2.0","method":"sum","params":[1,1],"id":1},{"jsonrpc":"2.0","method":"sum","params":[2,2],"id":2}]"#
    );
    let Body::Batch(entries) = Body::parse(&text, &Limits::default()).unwrap() else { panic!() };
    assert_eq!(entries.len(), 2);
    assert!(Request::batch_to_bytes(&[]).is_none(), "an empty batch would be refused");
}

#[test]
fn a_batch_gets_a_response_for_each_call_and_none_for_notifications() {
    let batch = r#"[
        {"jsonrpc":"2.0","method":"sum","params":[1,2],"id":1},
        {"jsonrpc":"2.0","method":"sum","params":[1,2]},
        {"jsonrpc":"2.0","method":"none","id":2},
        {"jsonrpc":"2.0","method":"sum","id":null},
        [{"jsonrpc":"2.0","method":"sum","id":3}],
        null
    ]"#;
    let expected = r#"[
        {"jsonrpc":"2.0","result":3,"id":1},
        {"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":2},
        {"jsonrpc":"2.0","result":0,"id":null},
        {"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid Request"},"id":null},
        {"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid Request"},"id":null}
    ]"#;
    assert!(same_response(&answer(batch).unwrap(), expected));
}

#[test]
fn responses_of_a_batch_are_matched_by_id_in_any_order() {
    let reply = r#"[{"jsonrpc":"2.0","result":"b","id":2.0},{"jsonrpc":"2.0","result":"a","id":1}]"#;
    let Responses::Batch(responses) = read(reply).unwrap() else { panic!() };
    let by_id: HashMap<Id, Response> = responses.into_iter().map(|response| (response.id.clone(), response)).collect();
    assert_eq!(by_id[&Id::from(1)].outcome.as_ref().unwrap().get(), "\"a\"");
    assert_eq!(by_id[&Id::from(2)].outcome.as_ref().unwrap().get(), "\"b\"");
    assert_eq!(read("[]").unwrap_err(), ResponseError::EmptyBatch);
}

#[test]
fn a_batch_that_is_none_gets_a_single_response() {
    for (text, code) in [("[", -32700), ("[1,]", -32700), ("[{}", -32700), ("[]", -32600), (" [ ] ", -32600)] {
        let response = answer(text).unwrap();
        assert!(response.starts_with('{'), "{response}");
        assert_eq!(code_of(text), code, "{text}");
    }
}

#[test]
fn a_batch_of_notifications_gets_nothing() {
    let notification = r#"{"jsonrpc":"2.0","method":"sum"}"#;
    assert_eq!(answer(&format!("[{notification}]")), None);
    assert_eq!(answer(&format!("[{notification},{notification}]")), None);
    assert_eq!(Response::batch_to_bytes(&[]), None);
}

/// A server without a network: takes the bytes that come in and returns those that go out.
fn answer(payload: &str) -> Option<String> {
    let bytes = match Body::parse(payload.as_bytes(), &Limits::default()) {
        Err(error) => Some(Response::new(Id::null(), Err(error)).to_bytes()),
        Ok(Body::Single(entry)) => respond(entry).map(|response| response.to_bytes()),
        Ok(Body::Batch(entries)) => {
            let responses: Vec<_> = entries.into_iter().filter_map(respond).collect();
            Response::batch_to_bytes(&responses)
        }
    };
    bytes.map(|bytes| String::from_utf8(bytes).unwrap())
}

fn respond(entry: Entry) -> Option<Response> {
    match entry {
        Err(refusal) => Some(refusal),
        Ok(request) => {
            let outcome = run(&request);
            request.id.map(|id| Response::new(id, outcome))
        }
    }
}

fn run(request: &Request) -> Outcome {
    #[derive(Deserialize)]
    struct Subtract {
        minuend: i64,
        subtrahend: i64,
    }
    let params = request.params.as_ref();
    let result = match request.method.as_str() {
        "subtract" => Params::decode::<Subtract>(params).map(|p| json!(p.minuend - p.subtrahend))?,
        "sum" | "notify_sum" | "notify_hello" | "update" => {
            Params::decode::<Vec<i64>>(params).map(|terms| json!(terms.iter().sum::<i64>()))?
        }
        "get_data" => Params::decode::<()>(params).map(|()| json!(["hello", 5]))?,
        _ => return Err(error_of(NOT_FOUND)),
    };
    Ok(to_raw_value(&result).unwrap())
}

const NOT_FOUND: &str = r#"{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":null}"#;

fn read(reply: &str) -> Result<Responses, ResponseError> {
    Responses::parse(reply.as_bytes(), &Limits::default())
}

fn error_of(reply: &str) -> RpcError {
    match read(reply).unwrap() {
        Responses::Single(response) => response.outcome.unwrap_err(),
        Responses::Batch(mut responses) => responses.remove(0).outcome.unwrap_err(),
    }
}

fn code_of(request: &str) -> i32 {
    error_of(&answer(request).unwrap()).code()
}
