//! Reports work that takes longer than a second: on a terminal, a line that counts the seconds; elsewhere, a single line.
//! Never leaves its line on the terminal, and never prints anything for scripts.

use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::term::safe_text;

/// Reports some work as in progress until this is dropped.
#[derive(Debug)]
pub(crate) struct ProgressLine(Option<(Sender<()>, JoinHandle<()>)>);

/// Work that is done within this time is not reported.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the line with the seconds is updated.
const TICK: Duration = Duration::from_millis(250);

impl ProgressLine {
    /// Reports nothing.
    pub(crate) fn silently() -> Self {
        Self(None)
    }

    /// Reports `what`, which is one short line.
    pub(crate) fn on(what: String) -> Self {
        let (sender, done) = channel();
        // If the thread cannot start, nothing is reported; the work goes on all the same.
        let teller = std::thread::Builder::new().name("progress".to_owned()).spawn(move || tell(&what, &done));
        Self(teller.ok().map(|teller| (sender, teller)))
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some((sender, teller)) = self.0.take() {
            drop(sender);
            // A panic of the thread does not concern the work.
            drop(teller.join());
        }
    }
}

/// A progress bar: one line on a terminal, nothing elsewhere. Removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    is_hidden: bool,
    drawn: Option<Instant>,
}

impl Bar {
    /// Shows nothing.
    pub(crate) fn hidden() -> Self {
        Self { is_hidden: true, drawn: None }
    }

    /// Shown if stderr is a terminal that can take a line back.
    pub(crate) fn on_terminal() -> Self {
        Self { is_hidden: !redraws(), drawn: None }
    }

    /// Shows `done` of `total`, and a few words. Updates that come faster than anybody reads are skipped.
    pub(crate) fn show(&mut self, done: f64, total: Option<f64>, words: &str) {
        if self.is_hidden || self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAWN && total != Some(done)) {
            return;
        }
        self.drawn = Some(Instant::now());
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "\r\x1b[K{}", bar(done, total, words));
        let _ = stderr.flush();
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[K");
            let _ = stderr.flush();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// One line that fits a terminal, whatever the numbers and the words are.
fn bar(done: f64, total: Option<f64>, words: &str) -> String {
    let words: String = safe_text(words).chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS).collect();
    let share = total.map(|total| done / total).filter(|share| share.is_finite());
    match share {
        Some(share) => {
            let share = share.clamp(0.0, 1.0);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to CELLS, and 0 to 100")]
            let (full, percent) = ((share * CELLS as f64) as usize, (share * 100.0) as u32);
            format!("[{}{}] {percent:>3} % {words}", "#".repeat(full), "-".repeat(CELLS.saturating_sub(full)))
        }
        None => format!("… {} {words}", format!("{done}").chars().take(20).collect::<String>()),
    }
}

/// The shortest time between two updates of a bar.
const REDRAWN: Duration = Duration::from_millis(100);
/// The bar's length, and the most characters of the text beside it. The whole line stays below 80 characters.
const CELLS: usize = 30;
const WORDS: usize = 36;

/// Whether stderr is a terminal that understands the sequences which replace a line.
fn redraws() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|name| name != "dumb" && !name.is_empty())
}

fn tell(what: &str, done: &Receiver<()>) {
    let over = |time| done.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
    let started = Instant::now();
    if over(PATIENCE) {
        return;
    }
    let mut stderr = std::io::stderr();
    // There is nowhere left to say that stderr cannot be written to.
    if !redraws() {
        let _ = writeln!(stderr, "{what} …");
        return;
    }
    while !over(TICK) {
        let _ = write!(stderr, "\r\x1b[K{what} … {} s", started.elapsed().as_secs());
        let _ = stderr.flush();
    }
    let _ = write!(stderr, "\r\x1b[K");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_one_line_that_fits_whatever_it_is_told() {
        assert_eq!(bar(1.0, Some(2.0), "half"), "[###############---------------]  50 % half");
        assert_eq!(bar(3.0, None, "so far"), "… 3 so far");
        for (done, total) in
            [(-1.0, Some(2.0)), (9.0, Some(2.0)), (f64::NAN, Some(1.0)), (1.0, Some(0.0)), (1e300, None)]
        {
            let text = bar(done, total, &format!("\u{1b}[2J\n{}", "x".repeat(200)));
            assert!(text.chars().count() < 80 && !text.contains(['\n', '\u{1b}']), "{text}");
        }
    }
}
