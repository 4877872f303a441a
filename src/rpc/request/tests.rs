#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use proptest::prelude::*;

use super::super::MAX_BATCH;
use super::*;
use crate::rpc::MAX_DEPTH;

fn parse(text: &str) -> Result<Body, RpcError> {
    Body::parse(text.as_bytes(), &Limits::default())
}

fn single(text: &str) -> Entry {
    match parse(text).unwrap() {
        Body::Single(entry) => entry,
        Body::Batch(_) => panic!("{text} is a batch"),
    }
}

/// Code and text of the refusal of a whole message.
fn refused(text: &str) -> (i32, String) {
    let error = parse(text).unwrap_err();
    (error.code(), error.message().to_owned())
}

#[test]
fn params_and_method_are_kept_as_they_came() {
    let request =
        single(r#" {"params": { "a" : 1e999 , "b":"\u0061" } ,"method":"\u0061\/b","jsonrpc":"2.0"} "#).unwrap();
    assert_eq!(request.method, "a/b");
    assert_eq!(request.params.as_ref().unwrap().raw().get(), r#"{ "a" : 1e999 , "b":"\u0061" }"#);
    assert!(request.is_notification());
}

/// SPEC.md §11.
#[test]
fn unknown_members_are_ignored() {
    let request = single(r#"{"jsonrpc":"2.0","method":"a","trace":{"id":2},"Params":1,"id":1}"#).unwrap();
    assert!(request.params.is_none());
    assert_eq!(request.id, Some(Id::from(1)));
}

/// SPEC.md §11.
#[test]
fn duplicate_members_refuse_the_whole_message() {
    let expected = (-32600, "Invalid Request: the text has an object in which a member name occurs twice".to_owned());
    for text in [
        r#"{"method":"a","method":"b"}"#,
        r#"{"\u006dethod":"a","jsonrpc":"2.0","method":"b","id":1}"#,
        r#"[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"a","params":{"x":[{"y":1,"y":1}]},"id":1}]"#,
    ] {
        assert_eq!(refused(text), expected, "{text}");
    }
    assert_eq!(refused(r#"{"method":"a","method":"b""#), (-32700, "Parse error".to_owned()));
}

#[test]
fn depth_is_counted_from_the_outermost_bracket() {
    let call = |levels: usize| {
        format!(r#"{{"jsonrpc":"2.0","method":"a","params":{}{}}}"#, "[".repeat(levels), "]".repeat(levels))
    };
    assert!(single(&call(MAX_DEPTH - 1)).is_ok());
    let expected = (-32700, "Parse error: the text is nested deeper than 64 levels".to_owned());
    assert_eq!(refused(&call(MAX_DEPTH)), expected);
    assert_eq!(refused(&format!("[{}]", call(MAX_DEPTH - 1))), expected);
    assert_eq!(refused(&"[".repeat(100_000)), expected);
}

/// SPEC.md §11.
#[test]
fn unreadable_payloads_are_parse_errors() {
    let refused = |bytes: &[u8]| Body::parse(bytes, &Limits::default()).unwrap_err().to_string();
    assert_eq!(refused(b""), "Parse error (-32700)");
    assert_eq!(refused(b"\0"), "Parse error (-32700)");
    assert_eq!(refused(b"{\"jsonrpc\":\"2.0\",\"method\":\"a\0\"}"), "Parse error (-32700)");
    assert_eq!(refused(br#"{"jsonrpc":"2.0","method":"\ud800"}"#), "Parse error (-32700)");
    assert_eq!(refused(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}"), "Parse error: the text is not UTF-8 (-32700)");
    assert_eq!(refused(b"\xEF\xBB\xBF[]"), "Parse error: the text begins with a byte-order mark (-32700)");
}

#[test]
fn a_batch_over_the_bound_is_refused_as_a_whole() {
    let batch = |entries: usize| format!("[{}]", vec![r#"{"jsonrpc":"2.0","method":"a"}"#; entries].join(","));
    assert!(matches!(parse(&batch(MAX_BATCH)).unwrap(), Body::Batch(entries) if entries.len() == MAX_BATCH));
    let expected = (-32600, "Invalid Request: a batch may have at most 50 entries".to_owned());
    assert_eq!(refused(&batch(MAX_BATCH + 1)), expected);
    assert_eq!(refused(&format!("[{}1]", "1,".repeat(MAX_BATCH))), expected);
    assert!(Body::parse(batch(3).as_bytes(), &Limits { max_batch: 2 }).is_err());
}

/// SPEC.md §11.
#[test]
fn junk_entries_fail_alone_with_id_null() {
    let text =
        r#"[1,"a",null,true,[],[{"jsonrpc":"2.0","method":"a","id":1}],{},{"jsonrpc":"2.0","method":"a","id":9}]"#;
    let Body::Batch(entries) = parse(text).unwrap() else { panic!("a single") };
    let (last, junk) = entries.split_last().unwrap();
    assert_eq!(last.as_ref().unwrap().id, Some(Id::from(9)));
    for entry in junk {
        let response = entry.as_ref().unwrap_err();
        assert!(response.id.is_null());
        assert_eq!(response.outcome.as_ref().unwrap_err().code(), code::INVALID_REQUEST);
    }
}

#[test]
fn an_object_in_an_array_is_not_read_as_the_array_form_of_a_struct() {
    assert!(single(r#"{"jsonrpc":"2.0","method":"a"}"#).is_ok());
    let Body::Batch(entries) = parse(r#"[["2.0","a",[],1]]"#).unwrap() else { panic!("a single") };
    assert!(matches!(entries.as_slice(), [Err(_)]));
}

/// Generates ids of every legal kind, as text.
fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        r#"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,5})?"#,
        r#""([a-z é😀/]|\\u00[0-7][0-9a-fA-F]|\\[bfnrt/"\\]|\\ud83d\\uDE00){0,12}""#,
    ]
}

fn params() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop_oneof![
        prop::collection::vec(id(), 0..4).prop_map(|items| format!("[ {} ]", items.join(" , "))),
        prop::collection::vec(id(), 0..4).prop_map(|items| {
            let members: Vec<_> = items.iter().enumerate().map(|(n, item)| format!("\"p{n}\" :{item}")).collect();
            format!("{{{}}}", members.join(","))
        }),
    ])
}

proptest! {
    #[test]
    fn valid_requests_survive_being_read_and_written(
        method in any::<String>(), params in params(), id in prop::option::of(id()), order in 0..4_usize,
    ) {
        let mut members = vec![
            r#""jsonrpc" : "2.0""#.to_owned(), format!(r#""method":{}"#, serde_json::to_string(&method).unwrap()),
        ];
        members.extend(params.as_ref().map(|params| format!(r#""params": {params}"#)));
        members.extend(id.as_ref().map(|id| format!("\"id\":\t{id}\n")));
        let turn = order % members.len();
        members.rotate_left(turn);
        let request = single(&format!("{{{}}}", members.join(" ,"))).unwrap();
        prop_assert_eq!(&request.method, &method);
        prop_assert_eq!(request.params.as_ref().map(|params| params.raw().get()), params.as_deref());
        prop_assert_eq!(request.id.as_ref().map(Id::as_json), id.as_deref());

        let written = request.to_bytes();
        let again = single(std::str::from_utf8(&written).unwrap()).unwrap();
        prop_assert_eq!(again.to_bytes(), written);
        prop_assert_eq!(again.method, method);
        prop_assert_eq!(again.id, request.id);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Body::parse(&bytes, &Limits::default());
    }

    #[test]
    fn whatever_is_refused_is_answered_by_readable_text(
        text in r#"(\[|\]|\{|\}|:|,|"jsonrpc":"2.0"|"method"|"params"|"id"|"a"|1|null|true|[ a"]){0,16}"#,
    ) {
        let responses: Vec<Response> = match parse(&text) {
            Err(error) => vec![Response::new(Id::null(), Err(error))],
            Ok(Body::Single(entry)) => entry.err().into_iter().collect(),
            Ok(Body::Batch(entries)) => entries.into_iter().filter_map(Result::err).collect(),
        };
        for response in responses {
            let code = response.outcome.as_ref().unwrap_err().code();
            prop_assert!(code == code::PARSE_ERROR || code == code::INVALID_REQUEST);
            prop_assert!(crate::rpc::Responses::parse(&response.to_bytes(), &Limits::default()).is_ok());
        }
    }
}
