//! What the two revisions of MCP require of a server, row by row. Each row must have a test named after it.
//! Sources are pages of the specification below `docs/specification/2026-07-28` (N) or `2025-11-25` (L, before it) of
//! modelcontextprotocol/modelcontextprotocol.

use std::collections::BTreeSet;

use sealwire_testkit::{files_below, root};

/// The requirement, its revisions, and its source.
const ROWS: [(&str, &str, &str); 43] = [
    ("one address, and each message a POST of its own", "N L", "basic/transports/streamable-http"),
    ("GET and DELETE are 405", "N", "basic/transports/streamable-http"),
    ("GET listens, DELETE ends a session or is 405", "L", "basic/transports"),
    ("pages of other origins are refused", "N L", "basic/transports/streamable-http"),
    ("a body is one request or notification", "N", "basic/transports/streamable-http"),
    ("a body may be a response, to what was asked", "L", "basic/transports"),
    ("`Accept` decides between JSON and events", "N L", "basic/transports/streamable-http"),
    ("a notification is 202 without a body", "N L", "basic/transports/streamable-http"),
    ("the revision in the head is that of the message", "N", "basic/transports/streamable-http"),
    ("a revision that is not known is refused with those that are", "N", "basic/versioning"),
    ("each request says its revision and its capabilities", "N", "basic/index"),
    ("method and name in the head are those of the message", "N", "basic/transports/streamable-http"),
    ("parameters that a tool wants in the head are checked; no tool here wants any", "N", "server/tools"),
    ("a method that is not known is 404", "N", "basic/transports/streamable-http"),
    ("JSON, or events with the response last", "N L", "basic/transports/streamable-http"),
    ("no requests of the server", "N", "basic/transports/streamable-http"),
    ("requests of the server on the stream, if they were declared", "L", "basic/transports"),
    ("nothing on the way holds events back", "N L", "basic/transports/streamable-http"),
    ("a closed stream is the cancellation", "N", "basic/utilities/cancellation"),
    ("a closed stream is none, a notification is", "L", "basic/utilities/cancellation"),
    ("streams may be resumed: not offered, so events have no ids", "L", "basic/transports"),
    ("`server/discover`", "N", "server/discover"),
    ("`initialize` agrees on a revision", "L", "basic/lifecycle"),
    ("a session, 404 after its end", "L", "basic/transports"),
    ("who names no revision speaks 2025-03-26", "L", "basic/transports"),
    ("results have `resultType`", "N", "basic/index"),
    ("lists are in order, and by who asks", "N", "server/tools"),
    ("lists say how long they may be kept, and by whom", "N", "server/utilities/caching"),
    ("names of tools are such as all clients take", "N L", "server/tools"),
    ("what a model can do something about is a result, the rest an error", "N L", "server/tools"),
    ("`structuredContent`, and the same as text", "N L", "server/tools"),
    ("`inputSchema` is one of an object, and leads nowhere else", "N L", "server/tools"),
    ("progress is more each time, and before the response", "N L", "basic/utilities/progress"),
    ("log messages only to who wants them", "N L", "server/utilities/logging"),
    ("subscriptions are acknowledged, named, and ended", "N", "basic/utilities/subscriptions"),
    ("a resource that is not found", "N L", "server/resources"),
    ("questions to people as results, and who may answer", "N", "basic/utilities/mrtr"),
    ("codes of errors that are others' to give", "N", "basic/index"),
    ("ids of requests", "N L", "basic/index"),
    ("lines on standard input and output", "N L", "basic/transports/stdio"),
    ("tasks, as an extension or by asking for one", "N L", "extensions/tasks; L basic/utilities/tasks"),
    ("trace context is handed on", "N L", "basic/index"),
    ("who shows no token is told where to get one", "N L", "basic/authorization"),
];

/// The rows that a test names: `row_12_…`, `row_05_and_06_…`, `row_09_to_11_…`, `row_16_17_and_37_…`.
fn named(function: &str) -> Vec<usize> {
    let mut rows: Vec<usize> = Vec::new();
    let mut is_range = false;
    for word in function.split('_').skip(1) {
        match (word, word.parse::<usize>()) {
            (_, Ok(row)) if is_range => {
                rows.extend(rows.last().unwrap() + 1..=row);
                is_range = false;
            }
            (_, Ok(row)) => rows.push(row),
            ("to", _) => is_range = true,
            ("and", _) => {}
            _ => break,
        }
    }
    rows
}

#[test]
fn every_row_has_a_test_that_is_named_after_it() {
    let mut tested = BTreeSet::new();
    for folder in ["crates/cli/tests/cli", "crates/gateway/src"] {
        for file in files_below(&root().join(folder)) {
            if file.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(file).unwrap();
            let functions =
                text.lines().filter_map(|line| line.trim_start().trim_start_matches("async ").strip_prefix("fn "));
            tested.extend(functions.filter(|name| name.starts_with("row_")).flat_map(named));
        }
    }
    for (row, (asked, revisions, source)) in (1..).zip(ROWS) {
        assert!(tested.remove(&row), "row {row} has no test: {asked} ({revisions}, {source})");
    }
    assert!(tested.is_empty(), "rows that there are not: {tested:?}");
    assert_eq!(named("row_09_to_11_x"), [9, 10, 11]);
    assert_eq!(named("row_16_17_and_37_of_2"), [16, 17, 37]);
}
