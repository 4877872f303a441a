//! Keeps a program running: starts it, restarts it after growing pauses when it ends, and ends it when told to.
//! Never starts it more than five times a minute, whatever becomes of it.

use std::collections::VecDeque;
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::Instant;

use super::{Child, Launch};

/// Starts a program again and again.
#[derive(Debug)]
pub struct Supervisor {
    launch: Launch,
    restarts: Restarts,
}

/// When a program may be started again.
#[derive(Debug, Default)]
pub struct Restarts {
    /// The latest starts, at most [`Restarts::MOST`].
    started: VecDeque<Instant>,
    failures: u32,
}

impl Restarts {
    /// The most starts of a program ...
    pub const MOST: usize = 5;
    /// ... within this time.
    pub const WITHIN: Duration = Duration::from_secs(60);
    /// The pause after the first end; each further end doubles it.
    const FIRST: Duration = Duration::from_millis(100);

    /// Records a start.
    fn started(&mut self, now: Instant) {
        if self.started.len() >= Self::MOST {
            self.started.pop_front();
        }
        self.started.push_back(now);
    }

    /// Records an end, and returns when to start again. A program that ran for a minute gets a fresh start.
    fn next(&mut self, now: Instant) -> Instant {
        let ran = self.started.back().map_or(Duration::ZERO, |start| now.saturating_duration_since(*start));
        self.failures = if ran >= Self::WITHIN { 0 } else { self.failures.saturating_add(1).min(10) };
        let patience = now + Self::FIRST * 2_u32.pow(self.failures.saturating_sub(1));
        match self.started.front() {
            Some(first) if self.started.len() >= Self::MOST => patience.max(*first + Self::WITHIN),
            _ => patience,
        }
    }
}

impl Supervisor {
    /// Supervises this program.
    #[must_use]
    pub fn new(launch: Launch) -> Self {
        Self { launch, restarts: Restarts::default() }
    }

    /// Keeps the program running until `stop` completes, and then ends it.
    ///
    /// `talk` converses with the program until that ends or must be ended, and returns why. It is dropped if it goes on for two seconds
    /// after the program has ended. `down` is told the reason each time the program has ended or cannot be started.
    ///
    /// Cancel safety: a dropped future ends the program soon.
    pub async fn run<F, Fut>(mut self, mut talk: F, down: impl Fn(String), stop: impl Future<Output = ()>)
    where
        F: FnMut(ChildStdin, ChildStdout) -> Fut,
        Fut: Future<Output = String>,
    {
        tokio::pin!(stop);
        let name = self.launch.name.clone();
        loop {
            self.restarts.started(Instant::now());
            let reason = match self.launch.start().await {
                Err(error) => format!("it cannot be started: {error}"),
                Ok(mut child) => {
                    let ended = tokio::select! {
                        biased;
                        () = &mut stop => None,
                        reason = converse(&mut child, &mut talk) => Some(reason),
                    };
                    child.stop().await;
                    let Some(reason) = ended else { return };
                    reason
                }
            };
            let next = self.restarts.next(Instant::now());
            let again_s = next.saturating_duration_since(Instant::now()).as_secs_f32();
            tracing::warn!(target: "sealwire::backend", backend = name, reason, again_s, "the program is not running");
            down(reason);
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = tokio::time::sleep_until(next) => self.launch.tally.restarts(),
            }
        }
    }
}

/// How long reading a program's last output may take, or its end once nobody talks with it.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// The reason if a program has closed its output. Mostly it ends a moment later, and its exit code says more.
pub(crate) const CLOSED: &str = "it has closed its output";
/// How the reason begins if a program has closed its input.
pub(crate) const UNREAD: &str = "it has closed its input";

async fn converse<F, Fut>(child: &mut Child, talk: &mut F) -> String
where
    F: FnMut(ChildStdin, ChildStdout) -> Fut,
    Fut: Future<Output = String>,
{
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return "it has no input or output".to_owned();
    };
    let talking = talk(stdin, stdout);
    tokio::pin!(talking);
    let said = tokio::select! {
        reason = &mut talking => Some(reason),
        ended = child.wait() => {
            drop(tokio::time::timeout(LAST_WORDS, &mut talking).await);
            return exit(ended, child);
        }
    };
    let said = said.unwrap_or_default();
    match tokio::time::timeout(LAST_WORDS, child.wait()).await {
        Ok(ended) if said == CLOSED || said.starts_with(UNREAD) => exit(ended, child),
        // It ends because nobody listens any more; why that is so says more.
        Ok(ended) => format!("{said}; {}", exit(ended, child)),
        Err(_) => said,
    }
}

/// How a program has ended and, unless that was in order, the last that it has said.
fn exit(ended: Result<std::process::ExitStatus, impl Display>, child: &Child) -> String {
    let code = ended.map(|status| status.code());
    let words = if matches!(code, Ok(Some(0))) { String::new() } else { child.last_words() };
    let reason = match code {
        // The guard's own code, which says why.
        Ok(Some(127)) if !words.is_empty() => {
            return format!("it cannot be started, or has ended with code 127: {words}");
        }
        Ok(Some(code @ 0..=128)) => format!("it has ended with code {code}"),
        Ok(Some(code)) => format!("it was ended by signal {}", code - 128),
        Ok(None) => "its guard was killed".to_owned(),
        Err(error) => format!("its end cannot be waited for: {error}"),
    };
    if words.is_empty() { reason } else { format!("{reason}; its last words: {words}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_at_once_is_started_five_times_a_minute_and_less_eagerly_each_time() {
        let begin = Instant::now();
        let (mut restarts, mut now, mut starts) = (Restarts::default(), begin, Vec::new());
        while now < begin + Duration::from_secs(600) {
            starts.push(now);
            restarts.started(now);
            now = restarts.next(now);
        }
        for (position, start) in starts.iter().enumerate() {
            let within = starts[position..].iter().take_while(|later| **later < *start + Restarts::WITHIN).count();
            assert!(within <= Restarts::MOST, "{within}");
        }
        assert!(starts[1] - starts[0] <= Duration::from_millis(100) && starts.len() > 5, "{starts:?}");
        // A program that ran well starts again at once.
        restarts.started(now);
        let later = now + Duration::from_secs(3600);
        assert!(restarts.next(later) <= later + Duration::from_millis(100));
    }
}
