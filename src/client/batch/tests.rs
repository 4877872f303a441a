#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use crate::rpc::Limits;
use bytes::Bytes;

fn pair(text: &str, calls: usize) -> Result<BatchAnswers, ClientError> {
    let payload = Bytes::copy_from_slice(text.as_bytes());
    let responses = Responses::parse(&payload, &Limits::default()).map_err(ProtocolError::from);
    BatchAnswers::pair(Answer::new(responses, payload), calls)
}

/// SPEC.md §12.
#[test]
fn answers_are_paired_by_id_in_any_order() {
    let text = r#"[{"jsonrpc":"2.0","result":"b","id":2},{"jsonrpc":"2.0","error":{"code":7,"message":"m"},"id":3},
        {"jsonrpc":"2.0","result":"a","id":1.0}]"#;
    let mut answers = pair(text, 3).unwrap();
    assert_eq!(answers.take::<String>(BatchCall(1)).unwrap(), "b");
    assert_eq!(answers.take::<String>(BatchCall(0)).unwrap(), "a");
    assert_eq!(answers.error(BatchCall(2)).unwrap().code(), 7);
    assert!(answers.error(BatchCall(1)).is_none());
}

#[test]
fn call_without_an_answer_is_an_error_of_its_own() {
    let mut answers = pair(r#"[{"jsonrpc":"2.0","result":1,"id":2}]"#, 2).unwrap();
    let missing = answers.take::<u64>(BatchCall(0)).unwrap_err();
    assert!(matches!(missing, ClientError::Protocol(ProtocolError::Missing)), "{missing}");
    assert_eq!(answers.take::<u64>(BatchCall(1)).unwrap(), 1);
    assert!(matches!(answers.take::<u64>(BatchCall(7)), Err(ClientError::Protocol(ProtocolError::Missing))));
}

/// SPEC.md §12.
#[test]
fn answers_that_nobody_asked_for_spoil_the_whole() {
    let one = r#"{"jsonrpc":"2.0","result":1,"id":1}"#;
    let cases = [
        (format!("[{one},{one}]"), ProtocolError::RepeatedId),
        (format!("[{one},{}]", one.replace(r#""id":1"#, r#""id":3"#)), ProtocolError::UnknownId),
        (format!("[{one},{}]", one.replace(r#""id":1"#, r#""id":"1""#)), ProtocolError::UnknownId),
        (format!("[{one},{}]", one.replace(r#""id":1"#, r#""id":null"#)), ProtocolError::UnknownId),
        (one.to_owned(), ProtocolError::Shape),
    ];
    for (text, fault) in cases {
        let error = pair(&text, 2).unwrap_err();
        assert!(matches!(&error, ClientError::Protocol(found) if *found == fault), "{text}: {error:?}");
    }
    assert!(matches!(pair("[]", 1), Err(ClientError::Protocol(ProtocolError::Response(_)))));
}

#[test]
fn refusal_of_the_whole_batch_is_the_service_s_error() {
    let error = pair(r#"{"jsonrpc":"2.0","error":{"code":-32015,"message":"too large"},"id":null}"#, 2).unwrap_err();
    assert_eq!(error.remote().unwrap().code(), -32015);
    assert!(!error.is_outcome_unknown(), "signed, it means: executed");
}

/// SPEC.md §9.2: an earlier attempt may have run each entry, whichever the last one refuses.
#[test]
fn an_entry_that_is_refused_by_now_may_have_run_before() {
    let text = r#"[{"jsonrpc":"2.0","error":{"code":-32002,"message":"m"},"id":1},
        {"jsonrpc":"2.0","error":{"code":-32601,"message":"m"},"id":2},
        {"jsonrpc":"2.0","error":{"code":7,"message":"m"},"id":3},{"jsonrpc":"2.0","result":1,"id":4}]"#;
    let payload = Bytes::from_static(text.as_bytes());
    let responses = Responses::parse(&payload, &Limits::default()).map_err(ProtocolError::from);
    let answer = Answer { earlier: Some(Arc::new(ClientError::ConnectionLost)), ..Answer::new(responses, payload) };
    let mut answers = BatchAnswers::pair(answer, 4).unwrap();
    for (call, code) in [(0, -32002), (1, -32601)] {
        assert_eq!(answers.error(BatchCall(call)).unwrap().code(), code);
        let error = answers.take::<u64>(BatchCall(call)).unwrap_err();
        assert!(matches!(error, ClientError::Repeated { .. }) && error.is_outcome_unknown(), "{error:?}");
        assert_eq!(error.remote().unwrap().code(), code);
    }
    assert!(matches!(answers.take::<u64>(BatchCall(2)), Err(ClientError::Remote(_))));
    assert_eq!(answers.take::<u64>(BatchCall(3)).unwrap(), 1);
    assert!(!pair(text, 4).unwrap().take::<u64>(BatchCall(0)).unwrap_err().is_outcome_unknown(), "sent once");
}
