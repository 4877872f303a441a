//! What a child prints on stderr, and whatever else a backend says, in our log: bounded in lines and length, with nothing that a terminal
//! would obey.
//! Never keeps more than one line of it and the last kibibyte, and reads no more than 4 MiB a second: a program that says more waits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How many lines go into the log per second.
const A_SECOND: u32 = 10;
/// How many bytes of each line.
const SHOWN: usize = 1024;

/// How many bytes of it are read per second.
const READ: usize = 4 << 20;

/// The last lines, of [`SHOWN`] bytes together.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > SHOWN && self.lines.len() > 1 {
            self.bytes -= self.lines.pop_front().map_or(0, |line| line.len());
        }
    }

    pub(super) fn text(&self) -> String {
        let lines = self.lines.iter().map(|line| line.trim());
        lines.collect::<Vec<_>>().join(" | ").chars().take(SHOWN).collect()
    }
}

/// Logs lines until the end. Keeps reading whatever comes: a child whose output nobody reads would stop.
pub(super) async fn log(name: String, stderr: Option<impl AsyncRead + Unpin>, tail: Arc<Mutex<Tail>>) {
    let Some(mut stderr) = stderr else { return };
    let (mut buffer, mut line, mut rate) = ([0; 8192], Vec::new(), Rate::new(Instant::now()));
    let mut second = (Instant::now(), 0);
    let tell = |line: &mut Vec<u8>, rate: &mut Rate| tell(&name, line, rate, &tail);
    loop {
        let read = stderr.read(&mut buffer).await.unwrap_or(0);
        second.1 += read;
        if second.1 > READ {
            tokio::time::sleep_until((second.0 + Duration::from_secs(1)).into()).await;
            second = (Instant::now(), 0);
        }
        for byte in buffer.iter().take(read) {
            match byte {
                b'\n' => tell(&mut line, &mut rate),
                byte if line.len() < SHOWN => line.push(*byte),
                _ => {}
            }
        }
        if read == 0 {
            tell(&mut line, &mut rate);
            return;
        }
    }
}

fn tell(name: &str, line: &mut Vec<u8>, rate: &mut Rate, tail: &Mutex<Tail>) {
    if !line.trim_ascii().is_empty() {
        let text = visible(&String::from_utf8_lossy(line));
        if let Some(left_out) = rate.check(Instant::now()) {
            tracing::info!(target: "sealwire::backend", backend = name, left_out, "stderr: {text}");
        }
        tail.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
    line.clear();
}

/// A text with control characters and invisible characters as escapes.
pub(crate) fn visible(text: &str) -> String {
    escaped(text).collect()
}

/// The same for the beginning of a text.
pub(crate) fn brief(text: &str) -> String {
    escaped(text).take(SHOWN).collect()
}

fn escaped(text: &str) -> impl Iterator<Item = char> {
    text.trim_end().chars().flat_map(|c| {
        let plain = matches!(c, '"' | '\'' | '\\');
        plain.then_some(c).into_iter().chain((!plain).then(|| c.escape_debug()).into_iter().flatten())
    })
}

/// A limit on the lines per second, and how many were left out.
#[derive(Debug)]
pub(crate) struct Rate {
    since: Instant,
    told: u32,
    left_out: u64,
}

impl Rate {
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, told: 0, left_out: 0 }
    }

    /// Whether a line may go into the log now; if so, how many were left out since the last one that could.
    pub(crate) fn check(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.told) = (now, 0);
        }
        if self.told >= A_SECOND {
            self.left_out += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_are_told_and_the_others_counted() {
        let now = Instant::now();
        let mut rate = Rate::new(now);
        assert_eq!((0..1_000).filter(|_| rate.check(now).is_some()).count(), 10);
        assert_eq!(rate.check(now + Duration::from_secs(1)), Some(990));
    }

    #[tokio::test]
    async fn the_last_words_are_short_however_much_was_said() {
        let tail = Arc::<Mutex<Tail>>::default();
        let said = ["first\n".repeat(10_000), "x".repeat(5_000), "\n\n  last \u{1b}\n".to_owned()].concat();
        log("child".to_owned(), Some(said.as_bytes()), Arc::clone(&tail)).await;
        assert_eq!(tail.lock().unwrap_or_else(PoisonError::into_inner).text(), "last \\u{1b}");
        log("child".to_owned(), Some(b"Error: no module\n  at x\n".as_slice()), Arc::clone(&tail)).await;
        let text = tail.lock().unwrap_or_else(PoisonError::into_inner).text();
        assert_eq!(text, "last \\u{1b} | Error: no module | at x");
    }

    #[test]
    fn nothing_that_a_terminal_would_obey_is_told() {
        assert_eq!(visible("it's \u{1b}[2J \u{202e}\"a\\b\"\r\n"), "it's \\u{1b}[2J \\u{202e}\"a\\b\"");
        assert_eq!(brief(&"\n\u{1b}x".repeat(1 << 20)).len(), SHOWN);
    }
}
