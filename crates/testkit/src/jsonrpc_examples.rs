//! The examples of section 7 of the JSON-RPC 2.0 specification, as text.
//!
//! They call `subtract` (params `minuend`, `subtrahend`), `sum` (any numbers), `get_data` (answers `["hello", 5]`) and
//! the notifications `update`, `notify_hello` and `notify_sum`. The methods `foobar` and `foo.get` do not exist.

use serde_json::Value;

/// What it shows, what is sent, and what must come back.
pub const EXAMPLES: &[(&str, &str, Option<&str>)] = &[
    (
        "call with positional parameters",
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}"#,
        Some(r#"{"jsonrpc": "2.0", "result": 19, "id": 1}"#),
    ),
    (
        "call with positional parameters, the other way round",
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}"#,
        Some(r#"{"jsonrpc": "2.0", "result": -19, "id": 2}"#),
    ),
    (
        "call with named parameters",
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}"#,
        Some(r#"{"jsonrpc": "2.0", "result": 19, "id": 3}"#),
    ),
    (
        "call with named parameters, the other way round",
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}"#,
        Some(r#"{"jsonrpc": "2.0", "result": 19, "id": 4}"#),
    ),
    ("notification", r#"{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}"#, None),
    ("notification of a method that does not exist", r#"{"jsonrpc": "2.0", "method": "foobar"}"#, None),
    (
        "call of a method that does not exist",
        r#"{"jsonrpc": "2.0", "method": "foobar", "id": "1"}"#,
        Some(r#"{"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"}"#),
    ),
    (
        "call with invalid JSON",
        r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#,
        Some(r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}"#),
    ),
    (
        "call with an invalid request object",
        r#"{"jsonrpc": "2.0", "method": 1, "params": "bar"}"#,
        Some(r#"{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}"#),
    ),
    (
        "batch, invalid JSON",
        r#"[
            {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
            {"jsonrpc": "2.0", "method"
        ]"#,
        Some(r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}"#),
    ),
    (
        "empty array",
        "[]",
        Some(r#"{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}"#),
    ),
    (
        "invalid batch, but not empty",
        "[1]",
        Some(r#"[{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}]"#),
    ),
    (
        "invalid batch",
        "[1,2,3]",
        Some(
            r#"[
                {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
                {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
                {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}
            ]"#,
        ),
    ),
    (
        "batch",
        r#"[
            {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
            {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
            {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},
            {"foo": "boo"},
            {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
            {"jsonrpc": "2.0", "method": "get_data", "id": "9"}
        ]"#,
        Some(
            r#"[
                {"jsonrpc": "2.0", "result": 7, "id": "1"},
                {"jsonrpc": "2.0", "result": 19, "id": "2"},
                {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
                {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},
                {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"}
            ]"#,
        ),
    ),
    (
        "batch of notifications only",
        r#"[
            {"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},
            {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}
        ]"#,
        None,
    ),
];

/// Whether two responses are the same except for white space, the order of members, and the order of a batch.
pub fn same_response(left: &str, right: &str) -> bool {
    match (serde_json::from_str(left), serde_json::from_str(right)) {
        (Ok(Value::Array(left)), Ok(Value::Array(mut rest))) => {
            left.iter().all(|response| {
                let found = rest.iter().position(|other| other == response);
                found.map(|at| rest.swap_remove(at)).is_some()
            }) && rest.is_empty()
        }
        (Ok(left), Ok(right)) => left == right,
        _ => false,
    }
}
