//! The load: a number of calls under way, each followed by another (a closed loop), on one thread with a runtime of its own. Sides take
//! turns of a second, so that a busy moment of the machine affects all of them; only what ends in a turn counts in it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use tokio::runtime::Builder;
use tokio::time::{sleep_until, timeout};

use crate::callers::Arguments;
use crate::error::Fallible;
use crate::plan::{Plan, Work};
use crate::sides::{Side, Stage};
use crate::slice::{Found, Slice};
use crate::{cpu, table};

/// The time until as many calls are under way as there should be, over connections that are made.
const LEAD: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(60);

pub fn measure(plan: &Plan) -> Fallible<()> {
    let (stage, mut sides) = Stage::open(plan)?;
    if let Some(named) = &plan.sides {
        sides.retain(|side| named.iter().any(|name| name == side.key));
    }
    for side in &sides {
        on_the_load_thread(|| refuses(side))?;
    }
    let mut found = Found::new();
    for &work in &plan.works {
        for &in_flight in &plan.in_flight {
            let mut rounds: Vec<Vec<Slice>> = sides.iter().map(|_| Vec::new()).collect();
            for round in 0..plan.rounds {
                for at in 0..sides.len() {
                    // A different one comes first in each round.
                    let at = (at + round) % sides.len();
                    let slice = on_the_load_thread(|| slice(&sides[at], work, in_flight, plan.slice));
                    // Some have a limit on what is under way that others do not: the cell stays empty, and the reason is printed.
                    rounds[at].push(slice.unwrap_or_else(|error| {
                        eprintln!("NOT MEASURED: {}, {}, {in_flight} in flight: {error}", sides[at].name, work.name());
                        Slice::unknown(&sides[at])
                    }));
                }
            }
            eprintln!("{work:?}, {in_flight} in flight: measured");
            found.insert((work, in_flight), rounds);
        }
    }
    table::print(plan, &sides, &found);
    drop(stage);
    Ok(())
}

/// A client's whole life on a thread of its own, whose time is the client's.
fn on_the_load_thread<T: Send>(work: impl FnOnce() -> Fallible<T> + Send) -> Fallible<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| "the load has panicked")?
    })
}

/// A caller without a token must be refused.
fn refuses(side: &Side) -> Fallible<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let Some(stranger) = &side.stranger else { return Ok(()) };
    let called = async {
        let with = Arguments::new(Work::Add)?;
        match stranger.open(1, "Bearer none").await?.pop() {
            Some(mut place) => place.call(&with).await,
            None => Ok(()),
        }
    };
    match runtime.block_on(async { timeout(PATIENCE, called).await })? {
        Ok(()) => Err(format!("{} lets everybody in", side.name).into()),
        Err(_) => Ok(()),
    }
}

fn slice(side: &Side, work: Work, in_flight: usize, length: Duration) -> Fallible<Slice> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let with = Arguments::new(work)?;
    let measured = async {
        let mut places = side.way.open(in_flight, &side.bearer).await?;
        let from = Instant::now() + LEAD;
        let to = from + length;
        let latencies = RefCell::new(Histogram::<u64>::new(3)?);
        let (with, seen) = (&with, &latencies);
        let loops: FuturesUnordered<_> = places
            .iter_mut()
            .map(|place| async move {
                let mut begun = Instant::now();
                while begun < to {
                    place.call(with).await?;
                    let ended = Instant::now();
                    if from <= ended && ended < to {
                        seen.borrow_mut().record(u64::try_from((ended - begun).as_nanos())?)?;
                    }
                    begun = ended;
                }
                Fallible::Ok(())
            })
            .collect();
        let all = loops.collect::<Vec<_>>();
        let spent = async {
            sleep_until(from.into()).await;
            let before = spent(side);
            sleep_until(to.into()).await;
            (before, spent(side))
        };
        let (ended, (before, after)) = tokio::join!(all, spent);
        ended.into_iter().collect::<Fallible<Vec<()>>>()?;
        let seen = latencies.into_inner();
        let calls = seen.len() as f64;
        // If no call of a side has ended in its time, latency and processor time are not known.
        let us = |at: usize| if calls > 0.0 { (after[at] - before[at]).as_secs_f64() * 1e6 / calls } else { f64::NAN };
        let quantile = |part: f64| if calls > 0.0 { seen.value_at_quantile(part) as f64 / 1e3 } else { f64::NAN };
        Fallible::Ok(Slice {
            rate: calls / length.as_secs_f64(),
            p50: quantile(0.5),
            p99: quantile(0.99),
            client: us(0),
            processes: side.processes.iter().enumerate().map(|(at, (name, _))| (*name, us(at + 1))).collect(),
        })
    };
    let slice = runtime.block_on(async { timeout(PATIENCE, measured).await });
    runtime.shutdown_background();
    slice?
}

/// Processor time of this thread, and of each process.
fn spent(side: &Side) -> Vec<Duration> {
    let own = cpu::spent(std::process::id(), "load");
    std::iter::once(own).chain(side.processes.iter().map(|(_, pid)| cpu::spent(*pid, ""))).collect()
}
