#![allow(clippy::unwrap_used, reason = "tests")]
use std::future::ready;

use super::*;

/// Why a process with this output is not listened to, and what was heard of it.
async fn heard(output: &[u8]) -> (String, Vec<String>) {
    let mut heard = Vec::new();
    let take = |line: &[u8]| {
        heard.push(String::from_utf8_lossy(line).into_owned());
        if serde_json::from_slice::<serde_json::Value>(line).is_ok_and(|value| value.is_object()) {
            Ok(MessageKind::Asked)
        } else {
            Err("no JSON")
        }
    };
    let why = read("program", output, take, || ready(())).await;
    (why, heard)
}

#[tokio::test]
async fn a_process_that_prints_nothing_but_blank_lines_is_not_listened_to() {
    let (why, _) = heard(" \r\n".repeat(2_000).as_bytes()).await;
    assert!(why.contains("1000 useless lines"), "{why}");
    // Between messages, blank lines do no harm.
    assert_eq!(heard("{}\n\n".repeat(2_000).as_bytes()).await.0, CLOSED);
    assert_eq!(heard("{}\r\n\r\n".repeat(2_000).as_bytes()).await.0, CLOSED);
}

#[tokio::test]
async fn nor_is_one_that_says_something_of_use_between_lines_without_any() {
    let (why, _) = heard("{}\nuseless\n".repeat(100_000).as_bytes()).await;
    assert!(why.contains("1000 useless lines"), "{why}");
    // Few lines can have many bytes.
    let (why, heard) = heard(format!("{}\n", "x".repeat(1 << 20)).repeat(20).as_bytes()).await;
    assert!(why.contains("8 MiB without use") && heard.len() == 9, "{why} {}", heard.len());
}

#[tokio::test]
async fn messages_are_read_whatever_their_line_ends_and_marks() {
    for (output, messages) in [
        ("{\"a\":1}\n{\"b\":2}\n", 2),
        ("{\"a\":1}\r\n{\"b\":2}\r\n", 2),
        ("{\"a\":1}\r{\"b\":2}\r", 2),
        ("{\"a\":1}\n{\"b\":2}", 2),
        ("\u{feff}{\"a\":1}\n{\"b\":2}\n", 2),
        ("\u{feff}{\"a\":1}\r\n\u{feff}{\"b\":2}\r\n", 2),
        ("\u{feff}\r\n{\"a\":1}\r\n", 1),
        // Spread over lines, in whatever style.
        ("{\n  \"a\": 1\n}\n{\"b\":2}\n", 2),
        ("{\r\n  \"a\": {\r\n    \"b\": [\r\n1,2]\r\n  }\r\n}\r\n", 1),
        ("\u{feff}{\n\"a\": \"}\\\"{\"\n}\n", 1),
        ("{ \"a\":\n1 }\n\n{\n\"b\": 2\n}\n", 2),
    ] {
        let (why, heard) = heard(output.as_bytes()).await;
        assert_eq!(why, CLOSED);
        let objects = heard.iter().filter(|text| text.trim_start().starts_with('{'));
        let objects: Vec<serde_json::Value> = objects.map(|text| serde_json::from_str(text).unwrap()).collect();
        assert_eq!(objects.len(), messages, "{output:?}: {heard:?}");
    }
    // A line that looks like the beginning of a message swallows no message.
    let message = r#"{"jsonrpc":"2.0","id":1,"result":1}"#;
    for noise in ["{ starting", "[info] {", "[ \"", "{\n\"a\":"] {
        let (_, heard) = heard(format!("{noise}\n{message}\n").as_bytes()).await;
        assert!(heard.contains(&message.to_owned()), "{noise}: {heard:?}");
    }
    // Nor one that is spread over lines itself.
    let message = "{\n  \"jsonrpc\": \"2.0\",\n  \"id\": 1,\n  \"result\": {\n    \"a\": []\n  }\n}";
    for noise in ["{ starting", "[info] {", "{", "{\n\"a\": 1", "{\n\"a\": {\n\"b\": 2"] {
        let (_, heard) = heard(format!("{noise}\n{message}\n").as_bytes()).await;
        let heard: Vec<_> = heard.iter().map(|text| text.trim_end()).collect();
        assert!(heard.contains(&message), "{noise}: {heard:?}");
    }
    // Nor does it take more than a line may have.
    let (why, heard) = heard(format!("{{\n{}", "\"a\": 1,\n".repeat(400_000)).as_bytes()).await;
    assert!(why.contains("useless lines") && heard.iter().all(|text| text.len() <= MAX_LINE + 1), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_finished_is_given_up_soon() {
    use tokio::io::AsyncWriteExt as _;
    let (mut program, output) = tokio::io::duplex(1_024);
    let (heard, mut said) = mpsc::unbounded_channel();
    let take = move |line: &[u8]| {
        heard.send(String::from_utf8_lossy(line).into_owned()).unwrap();
        Err("no JSON")
    };
    let reading = tokio::spawn(async move { read("program", output, take, || ready(())).await });
    program.write_all(b"{\n\"id\": 7,\n").await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(said.recv().await.unwrap(), "{\n\"id\": 7,\n");
    assert_eq!(began.elapsed().as_secs(), UNFINISHED.as_secs());
    program.write_all(b"next\n").await.unwrap();
    assert_eq!(said.recv().await.unwrap(), "next");
    drop(program);
    assert_eq!(reading.await.unwrap(), CLOSED);
}

#[test]
fn a_message_is_one_line_for_every_reader() {
    let text = "{\"a\":\"x\u{2028}y\u{2029}z\u{85}\u{e9}\u{2027}\u{7f}\\u000b\",\r\n\"b\":\t1}";
    let line = String::from_utf8(line(text.as_bytes())).unwrap();
    let expected = "{\"a\":\"x\\u2028y\\u2029z\\u0085\u{e9}\u{2027}\u{7f}\\u000b\",  \"b\":\t1}\n";
    assert_eq!(line, expected);
    let values = [text, &line].map(|text| serde_json::from_str::<serde_json::Value>(text).unwrap());
    assert_eq!(values[0], values[1]);
}
