//! Asks a policy that is compared with the one in force what it would decide about each call, on a thread of its own.
//! Never changes a decision, never keeps a call waiting, and never lets a slow or broken policy cost a call anything.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use super::calls::Call;
use crate::auth::Caller;
use crate::policy::{Decision, PolicySet, Question, Revision, Ruling, ShadowPolicy};
use crate::rpc::Params;

/// Where calls are compared, if they are.
#[derive(Debug, Default)]
pub(super) struct Comparing(ArcSwapOption<Waiting>);

/// What is compared, and the calls that wait for it.
#[derive(Debug)]
struct Waiting {
    shadow: Arc<ShadowPolicy>,
    samples: Mutex<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    calls: Vec<Sample>,
    /// INVARIANT: of the parameters of `calls`.
    bytes: usize,
    is_over: bool,
}

/// A call that the policy in force has decided.
#[derive(Debug)]
struct Sample {
    caller: Arc<Caller>,
    method: Arc<str>,
    params: Option<Params>,
    now_ms: u64,
    decided: Ruling,
    revision: Revision,
}

/// A call that is about to be decided.
pub(super) struct Copied {
    waiting: Arc<Waiting>,
    caller: Arc<Caller>,
    method: Arc<str>,
    params: Option<Params>,
}

impl Comparing {
    /// Compares with this from now on, or with nothing.
    pub(super) fn with(&self, shadow: Option<Arc<ShadowPolicy>>, in_force: &PolicySet) {
        let waiting = shadow.map(|shadow| {
            shadow.compare_with(in_force.revision());
            Arc::new(Waiting { shadow, samples: Mutex::default() })
        });
        self.0.store(waiting.clone());
        let Some(waiting) = waiting else { return };
        let (weak, shadow) = (Arc::downgrade(&waiting), Arc::clone(&waiting.shadow));
        // Nobody waits for its end: it comes with that of the comparison, or of the service, after one call at most.
        let started = std::thread::Builder::new().name("sealwire-shadow".to_owned());
        if let Err(error) = started.spawn(move || run(&weak, &|question| shadow.rule(question))) {
            end(&waiting, &format!("no thread to compare on: {error}"));
        }
    }

    /// Copies a call, if it is to be compared.
    pub(super) fn copy(&self, call: &Call) -> Option<Copied> {
        let waiting = self.0.load_full()?;
        let size = call.params().map_or(0, |params| params.raw().get().len());
        // Without room, nothing is copied. Others may still take the room meanwhile.
        let has_room = waiting.samples().has_room(size, &waiting.shadow);
        has_room.then(|| Copied {
            caller: Arc::clone(&call.message.caller),
            method: Arc::clone(&call.method),
            params: call.params.clone(),
            waiting,
        })
    }
}

impl Samples {
    /// Whether there is room for a call with parameters of this size; if not, it is counted.
    fn has_room(&self, size: usize, shadow: &ShadowPolicy) -> bool {
        let has_room = self.calls.len() < MAX_WAITING && self.bytes + size <= MAX_WAITING_BYTES;
        if !has_room && !self.is_over {
            shadow.skipped(1);
        }
        has_room && !self.is_over
    }
}

impl Copied {
    /// Has it compared with what the policy of this revision has decided at that time.
    pub(super) fn decided(self, decision: &Decision, revision: &Revision, now_ms: u64) {
        let Self { waiting, caller, method, params } = self;
        let (decided, revision) = (Ruling::of(decision), revision.clone());
        let sample = Sample { caller, method, params, now_ms, decided, revision };
        let mut samples = waiting.samples();
        if samples.has_room(sample.size(), &waiting.shadow) {
            samples.bytes += sample.size();
            samples.calls.push(sample);
        }
    }
}

impl Sample {
    fn size(&self) -> usize {
        self.params.as_ref().map_or(0, |params| params.raw().get().len())
    }

    fn question(&self) -> Question<'_> {
        let params = self.params.as_ref().map(Params::raw);
        Question { caller: &self.caller, method: &self.method, params, now_ms: self.now_ms }
    }
}

impl Waiting {
    fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares what waits, until nobody is interested any more or the policy turns out to be unfit. Calls are not told to wake this thread, since
/// that costs them more than all the rest: it looks again and again.
fn run(waiting: &Weak<Waiting>, judge: &dyn Fn(&Question<'_>) -> Ruling) {
    let (mut window, mut spent) = (Instant::now(), Duration::ZERO);
    while let Some(waiting) = waiting.upgrade() {
        let calls = {
            let mut samples = waiting.samples();
            samples.bytes = 0;
            std::mem::take(&mut samples.calls)
        };
        let mut calls = calls.into_iter();
        for sample in calls.by_ref() {
            let (began, question) = (cpu_time(), sample.question());
            let Ok(would) = catch_unwind(AssertUnwindSafe(|| judge(&question))) else {
                return end(&waiting, "it panicked while it decided a call: this is a bug in sealwire");
            };
            let took = cpu_time().saturating_sub(began);
            if took > SLOW {
                let ms = took.as_millis();
                return end(&waiting, &format!("it took {ms} ms to decide a call of `{}`", sample.method));
            }
            waiting.shadow.count(&question, (&sample.decided, &sample.revision), &would);
            spent += took;
            if spent >= SHARE {
                break;
            }
        }
        waiting.shadow.skipped(calls.len());
        drop((calls, waiting));
        let pause = if spent >= SHARE { WINDOW.saturating_sub(window.elapsed()) } else { LOOK_EVERY };
        std::thread::sleep(pause);
        if window.elapsed() >= WINDOW {
            (window, spent) = (Instant::now(), Duration::ZERO);
        }
    }
}

fn end(waiting: &Waiting, why: &str) {
    tracing::error!(target: "sealwire::policy", why, number = waiting.shadow.id.number, "a shadow package is not compared any more");
    waiting.shadow.end(why);
    let mut samples = waiting.samples();
    *samples = Samples { is_over: true, ..Samples::default() };
}

/// The processor time of this thread: what others do meanwhile does not count.
fn cpu_time() -> Duration {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    }
    #[cfg(not(unix))]
    {
        static BEGAN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        BEGAN.elapsed()
    }
}

/// How many calls wait to be compared.
const MAX_WAITING: usize = 1_024;
/// The bytes of their parameters.
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;
/// How often the thread looks for calls.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How much of a processor it uses: so much of each window.
const SHARE: Duration = Duration::from_millis(25);
const WINDOW: Duration = Duration::from_millis(100);
/// A policy that takes longer for one call is compared no more.
const SLOW: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
