//! What takes more than a second says what it is: in one line that counts the seconds on a terminal, once in a log.
//! Never leaves its line behind, and never speaks where scripts read.

use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Until this is dropped, something is under way.
#[derive(Debug)]
pub(crate) struct Working(Option<(Sender<()>, JoinHandle<()>)>);

/// What is done within this time is not worth a word.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the seconds are looked at.
const TICK: Duration = Duration::from_millis(250);

impl Working {
    /// Nothing is told.
    pub(crate) fn silently() -> Self {
        Self(None)
    }

    /// Tells `what`, which is one short line.
    pub(crate) fn on(what: String) -> Self {
        let (sender, done) = channel();
        // Without a thread, nothing is told; the work is done all the same.
        let teller = std::thread::Builder::new().name("progress".to_owned()).spawn(move || tell(&what, &done));
        Self(teller.ok().map(|teller| (sender, teller)))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some((sender, teller)) = self.0.take() {
            drop(sender);
            // A teller that panicked has told its last.
            drop(teller.join());
        }
    }
}

fn tell(what: &str, done: &Receiver<()>) {
    let over = |time| done.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
    let started = Instant::now();
    if over(PATIENCE) {
        return;
    }
    let mut stderr = std::io::stderr();
    // There is nowhere left to say that stderr cannot be written to.
    if !stderr.is_terminal() {
        let _ = writeln!(stderr, "{what} …");
        return;
    }
    while !over(TICK) {
        let _ = write!(stderr, "\r\x1b[K{what} … {} s", started.elapsed().as_secs());
        let _ = stderr.flush();
    }
    let _ = write!(stderr, "\r\x1b[K");
}
