use std::sync::Arc;
use std::time::Duration;

use sealwire::call::TaskState;
use sealwire::errors::{BusError, ErrorKind, HintKind, InvalidRequest, ProtocolError, StreamLoss, TokenFault};
use sealwire::internal::rpc::{Limits, Responses};
use sealwire::internal::wire::{FrameFault, Unverifiable};
use sealwire::{ClientError, RpcError};

use super::{exit, failure, of_several};
use crate::exit::{self, Exit};

/// An error that a service signed.
fn remote(code: i32, data: &str) -> RpcError {
    signed(code, data, "")
}

/// The same, with further members of the response.
fn signed(code: i32, data: &str, more: &str) -> RpcError {
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"m","data":{data}}}{more}}}"#);
    match Responses::parse(text.as_bytes(), &Limits::default()) {
        Ok(Responses::Single(response)) => response.outcome.unwrap_err(),
        other => panic!("{other:?}"),
    }
}

/// Every error of a client, with the exit code and the kind that a script gets.
fn table() -> Vec<(ClientError, u8, &'static str)> {
    let own = |code| ClientError::Remote(signed(code, r#"{"outcome":"unknown"}"#, r#","application_error":true"#));
    let signed = |code| ClientError::Remote(remote(code, "null"));
    let unknown = |code| ClientError::Remote(remote(code, r#"{"outcome":"unknown"}"#));
    let subject = || "rpc.v1.demo.ann".to_owned();
    let decode = |is_part| ClientError::Decode {
        is_part,
        wanted: "u8",
        cause: serde_json::from_str::<u8>("\"x\"").unwrap_err(),
    };
    let lost = |why| ClientError::StreamLost { service: "demo".to_owned(), last_seq: Some(3), why };
    let repeated = |earlier, last| ClientError::Repeated { earlier: Arc::new(earlier), last: Box::new(last) };
    let timeout = || ClientError::Timeout { service: "demo".to_owned(), after: Duration::from_secs(1) };
    let mut rows = vec![
        (ClientError::Connect(BusError::NoUrl), 30, "input"),
        (ClientError::Connect(BusError::Member { member: "nkey_seed".to_owned(), reason: "is none" }), 30, "input"),
        (ClientError::Connect(BusError::Refused { urls: String::new() }), 20, "transport"),
        (ClientError::Connect(BusError::Unreachable { urls: String::new(), cause: String::new() }), 20, "transport"),
        (ClientError::Connect(BusError::Tls { urls: String::new(), cause: String::new() }), 20, "transport"),
        (ClientError::Connect(BusError::Forbidden { action: "subscribe to", subject: subject() }), 20, "transport"),
        (ClientError::Invalid(InvalidRequest::BatchSize(0)), 30, "input"),
        (ClientError::Token(Arc::new(TokenFault::NoExpiry)), 30, "input"),
        (ClientError::Busy { limit: 1 }, 20, "transport"),
        (ClientError::TooManyStreams { limit: 1 }, 20, "transport"),
        (ClientError::Disconnected { waited: Duration::ZERO, cause: None }, 20, "transport"),
        (ClientError::TooLarge { size: 2, limit: 1 }, 30, "input"),
        (ClientError::NoResponders { subject: subject() }, 20, "transport"),
        (timeout(), 23, "timeout"),
        (ClientError::ConnectionLost, 20, "transport"),
        (decode(false), 21, "remote_error"),
        (decode(true), 23, "protocol"),
        (ClientError::ResultTooLarge { limit: 1 }, 21, "remote_error"),
        (ClientError::Clock { offset_s: 90, error: remote(-32011, "null") }, 21, "remote_error"),
        (ClientError::Task(TaskState::Working), 23, "timeout"),
        (ClientError::Task(TaskState::Unknown), 23, "timeout"),
        (ClientError::Task(TaskState::Absent), 21, "remote_error"),
        (ClientError::Task(TaskState::Cancelled), 21, "remote_error"),
        (ClientError::Task(TaskState::NotKept), 21, "remote_error"),
        (ClientError::Ended, 1, "bug"),
        (ClientError::Cancelled { sent: true }, 130, "interrupted"),
        (ClientError::Cancelled { sent: false }, 130, "interrupted"),
        (ClientError::Closed { sent: true }, 1, "bug"),
        (ClientError::Closed { sent: false }, 1, "bug"),
        // The first attempt that may have run decides; what the last one was told says nothing about it.
        (repeated(timeout(), signed(-32602)), 23, "timeout"),
        (repeated(ClientError::ConnectionLost, signed(-32002)), 20, "transport"),
        (repeated(signed(-32014), signed(-32002)), 21, "remote_error"),
        (repeated(ClientError::Frames(FrameFault::Digest), timeout()), 23, "protocol"),
        // Denied before it began, or ended by a policy that came later.
        (signed(-32002), 10, "denied"),
        (unknown(-32002), 21, "remote_error"),
        (signed(-32003), 23, "timeout"),
    ];
    let credentials = sealwire::Credentials::load("/no/such/file").unwrap_err();
    rows.push((ClientError::Credentials(credentials), 30, "input"));
    for sent in [true, false] {
        rows.push((ClientError::Forbidden { subject: subject(), sent }, 20, "transport"));
        rows.push((ClientError::InboxForbidden { subject: subject(), sent }, 20, "transport"));
    }
    for hint in [HintKind::Unauthenticated, HintKind::Overloaded, HintKind::TooLarge] {
        rows.push((ClientError::Hint { hint }, 22, "unverified"));
    }
    for why in [Unverifiable::Unsigned, Unverifiable::Key, Unverifiable::Signature, Unverifiable::Malformed] {
        rows.push((ClientError::Unverifiable(why), 22, "unverified"));
    }
    // Signed by the service, and no answer.
    for fault in [FrameFault::Replica, FrameFault::Window, FrameFault::Conflict, FrameFault::Digest] {
        rows.push((ClientError::Frames(fault), 23, "protocol"));
    }
    for fault in [
        ProtocolError::Shape,
        ProtocolError::UnknownId,
        ProtocolError::RepeatedId,
        ProtocolError::Missing,
        ProtocolError::Catalogue,
        ProtocolError::Task,
        ProtocolError::Part("item"),
    ] {
        rows.push((ClientError::Protocol(fault), 23, "protocol"));
    }
    for why in [StreamLoss::Silence, StreamLoss::Gap, StreamLoss::Cut] {
        rows.push((lost(why), 23, "timeout"));
    }
    // A method that uses our numbers for something of its own has answered.
    for code in [-32700, -32603, -32002, -32003, -32010, -32011, -32014, -32016, -32000] {
        rows.push((own(code), 21, "remote_error"));
    }
    // The service's own words.
    for code in [
        -32700,
        -32600,
        -32601,
        -32602,
        -32603,
        -32004,
        -32005,
        -32010,
        -32011,
        -32012,
        -32013,
        -32014,
        -32015,
        -32016,
        -32017,
        -32000,
        -32099,
        -31999,
        0,
        1,
        7,
        i32::MIN,
        i32::MAX,
    ] {
        rows.push((signed(code), 21, "remote_error"));
    }
    rows
}

#[test]
fn every_error_of_a_client_has_its_exit_code_and_its_kind_and_the_help_lists_them() {
    let help = exit::table("");
    let rows = table();
    for (error, code, _) in &rows {
        let found = exit(error);
        assert_eq!(found.code(), *code, "{error:?}");
        assert!(help.contains(&format!("\n {code:>3}  ")), "{code} is not in the help: {help}");
        // The codes that promise that nothing ran, or that the outcome is known, must not lie.
        if error.is_outcome_unknown() {
            assert!(!matches!(found, Exit::Ok | Exit::Denied | Exit::Input | Exit::Usage), "{error:?}");
        }
    }
    for kind in ErrorKind::ALL {
        assert!(rows.iter().any(|(error, ..)| error.kind() == kind), "{kind:?} is not in the table");
    }
    let count = rows.len();
    for (error, code, kind) in rows {
        let object = serde_json::to_value(failure(error).object()).unwrap();
        assert_eq!((&object["exit"], &object["kind"]), (&code.into(), &kind.into()), "{object}");
    }
    println!("{count} errors");
}

#[test]
fn of_several_errors_the_first_that_is_no_denial_counts() {
    use Exit::{Denied, Ok, Remote, Timeout};
    for (errors, wanted) in [
        (&[][..], Ok),
        (&[Denied], Denied),
        (&[Denied, Denied], Denied),
        (&[Denied, Remote, Timeout], Remote),
        (&[Timeout, Denied], Timeout),
    ] {
        assert_eq!(of_several(errors.iter().copied()), wanted, "{errors:?}");
    }
}
