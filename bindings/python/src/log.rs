//! What the library logs, for Python's `logging`: lines wait in a list until a thread of Python takes them.
//! Never holds up who logs, and never keeps more lines than it says.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Record};
use tracing::{Event, Id, Level, Metadata, Subscriber};

use crate::runtime;

/// The most lines that wait, and the bytes of each.
const MOST_LINES: usize = 1_000;
const MOST_LINE: usize = 8 * 1024;

static LOG: Log = Log { waiting: Mutex::new(Waiting::new()), arrived: Condvar::new() };
/// As Python counts levels, in tens; above all of them, nothing is logged.
static LEVEL: AtomicU8 = AtomicU8::new(u8::MAX);

struct Log {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

struct Waiting {
    lines: VecDeque<Line>,
    /// How many were left out since the last time.
    left_out: u64,
    is_closed: bool,
}

struct Line {
    level: u8,
    target: &'static str,
    text: String,
}

/// A line as Python takes it: level, target, text.
type Taken = (u8, &'static str, String);

/// Begins to collect lines of this level and above, as `logging` counts them. Called again, it only changes the level.
#[pyfunction]
pub(crate) fn log_level(level: u8) {
    if LEVEL.swap(level, Ordering::Relaxed) != level {
        // Fails if it was set before, which is as good.
        drop(tracing::subscriber::set_global_default(Collector));
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Waits for lines, for `seconds` at most: `(lines, left_out)`; `None` once it is closed and empty.
#[pyfunction]
pub(crate) fn log_lines(py: Python<'_>, seconds: f64) -> PyResult<Option<(Vec<Taken>, u64)>> {
    runtime::check(py)?;
    let limit = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    Ok(py.detach(|| {
        let is_empty = |waiting: &mut Waiting| waiting.lines.is_empty() && !waiting.is_closed;
        let waited = LOG.arrived.wait_timeout_while(LOG.lock(), limit, is_empty);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if waiting.lines.is_empty() && waiting.is_closed {
            return None;
        }
        let lines = waiting.lines.drain(..).map(|line| (line.level, line.target, line.text)).collect();
        Some((lines, std::mem::take(&mut waiting.left_out)))
    }))
}

/// No more lines are taken.
#[pyfunction]
pub(crate) fn log_close(py: Python<'_>) -> PyResult<()> {
    runtime::check(py)?;
    LOG.lock().is_closed = true;
    LOG.arrived.notify_all();
    Ok(())
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing between lock and unlock can panic halfway.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    const fn new() -> Self {
        Self { lines: VecDeque::new(), left_out: 0, is_closed: false }
    }

    fn push(&mut self, line: Line) {
        if self.is_closed {
            return;
        }
        if self.lines.len() >= MOST_LINES {
            self.lines.pop_front();
            self.left_out += 1;
        }
        self.lines.push_back(line);
    }
}

/// Collects the library's own events; spans are none of them.
struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("sealwire")
            && level(*metadata.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let least = LEVEL.load(Ordering::Relaxed);
        let all = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
        Some(all.into_iter().find(|each| level(*each) >= least).map_or(LevelFilter::OFF, LevelFilter::from_level))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let text = text.finish();
        LOG.lock().push(Line { level: level(*event.metadata().level()), target: event.metadata().target(), text });
        LOG.arrived.notify_one();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message, and then the fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn finish(mut self) -> String {
        self.message.push_str(&self.fields);
        if self.message.len() > MOST_LINE {
            let end = (0..=MOST_LINE).rev().find(|end| self.message.is_char_boundary(*end)).unwrap_or(0);
            self.message.truncate(end);
            self.message.push('…');
        }
        self.message
    }

    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        if field.name() == "message" {
            let _ = write!(self.message, "{value}");
        } else {
            let _ = write!(self.fields, " {}={value}", field.name());
        }
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }
}

/// As `logging` has them; `TRACE` is below all of them.
fn level(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}
