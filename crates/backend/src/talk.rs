//! Both directions of the conversation with a process: JSON-RPC messages, one per line.
//! Never decides to whom a line belongs, and never goes on listening to a process that says nothing useful.

use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::child::{CLOSED, Rate, UNREAD, visible};
use crate::lines::Lines;

/// How many messages may wait to be written.
pub(crate) const WRITES: usize = 64;
/// How many useless lines a process may print before it is ended: in a row, or within a second.
const USELESS: u64 = 1000;

/// Writes each message when the process has read what is ahead of it, until the process stops reading; returns why.
pub(crate) async fn write(mut messages: mpsc::Receiver<Vec<u8>>, mut stdin: impl AsyncWrite + Unpin) -> String {
    while let Some(message) = messages.recv().await {
        if let Err(error) = stdin.write_all(&line(message)).await {
            return format!("{UNREAD}: {error}");
        }
    }
    std::future::pending().await
}

/// Hands each line to `take`, which says why a line is useless. Ends with the output, or after too many useless lines; returns why.
pub(crate) async fn read(
    backend: &str,
    stdout: impl AsyncRead + Unpin,
    mut take: impl FnMut(&[u8]) -> Result<(), &'static str>,
) -> String {
    let (mut lines, mut useless, mut rate) = (Lines::new(stdout), 0, Rate::new(Instant::now()));
    loop {
        let line = match lines.next().await {
            Err(error) => return format!("its output cannot be read: {error}"),
            Ok(None) => return CLOSED.to_owned(),
            Ok(Some(line)) => line,
        };
        match take(line) {
            Ok(()) => useless = 0,
            Err(why) => {
                useless += 1;
                // Some programs write blank lines between messages.
                if !line.trim_ascii().is_empty()
                    && let Some(left_out) = rate.check(Instant::now())
                {
                    let start = visible(&String::from_utf8_lossy(line.get(..200).unwrap_or(line)));
                    tracing::warn!(target: "sealwire::backend", backend, why, left_out, "a line was dropped: {start}");
                }
            }
        }
        if useless.max(rate.left_out()) > USELESS {
            return format!("it has printed {USELESS} useless lines");
        }
    }
}

/// A message as one line. A line break inside it can only be white space between tokens, since JSON strings have none. A caller's text
/// reaches the program as it came, and must not become a message of its own there.
fn line(mut message: Vec<u8>) -> Vec<u8> {
    message.iter_mut().filter(|byte| matches!(**byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    message.push(b'\n');
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_prints_nothing_but_blank_lines_is_not_listened_to() {
        let blank = " \r\n".repeat(2_000);
        let why = read("blank", blank.as_bytes(), |_| Err("no JSON")).await;
        assert!(why.contains("1000 useless lines"), "{why}");
        // Between messages, blank lines do no harm.
        let spaced = "{}\n\n".repeat(2_000);
        let why = read("spaced", spaced.as_bytes(), |line| if line.is_empty() { Err("no JSON") } else { Ok(()) }).await;
        assert_eq!(why, CLOSED);
    }

    #[tokio::test]
    async fn nor_is_one_that_says_something_of_use_between_lines_without_any() {
        let mixed = "{}\nuseless\n".repeat(100_000);
        let why = read("mixed", mixed.as_bytes(), |line| if line == b"{}" { Ok(()) } else { Err("no JSON") }).await;
        assert!(why.contains("1000 useless lines"), "{why}");
    }
}
