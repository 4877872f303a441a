//! What a child prints on stderr, and whatever else a backend says, in our log: bounded in lines and length, with nothing that a terminal
//! would obey.
//! Never keeps more than one line of it.

use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How many lines go into the log per second.
const A_SECOND: u32 = 10;
/// How many bytes of each line.
const SHOWN: usize = 1024;

/// Logs lines until the end. Keeps reading whatever comes: a child whose output nobody reads would stop.
pub(super) async fn log(name: String, stderr: Option<impl AsyncRead + Unpin>) {
    let Some(mut stderr) = stderr else { return };
    let (mut buffer, mut line, mut rate) = ([0; 8192], Vec::new(), Rate::new(Instant::now()));
    loop {
        let read = stderr.read(&mut buffer).await.unwrap_or(0);
        for byte in buffer.iter().take(read) {
            match byte {
                b'\n' => tell(&name, &mut line, &mut rate),
                byte if line.len() < SHOWN => line.push(*byte),
                _ => {}
            }
        }
        if read == 0 {
            tell(&name, &mut line, &mut rate);
            return;
        }
    }
}

fn tell(name: &str, line: &mut Vec<u8>, rate: &mut Rate) {
    if !line.trim_ascii().is_empty()
        && let Some(left_out) = rate.check(Instant::now())
    {
        let text = visible(&String::from_utf8_lossy(line));
        tracing::info!(target: "sealwire::backend", backend = name, left_out, "stderr: {text}");
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

    /// How many were left out since then.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
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

    #[test]
    fn nothing_that_a_terminal_would_obey_is_told() {
        assert_eq!(visible("it's \u{1b}[2J \u{202e}\"a\\b\"\r\n"), "it's \\u{1b}[2J \\u{202e}\"a\\b\"");
        assert_eq!(brief(&"\n\u{1b}x".repeat(1 << 20)).len(), SHOWN);
    }
}
