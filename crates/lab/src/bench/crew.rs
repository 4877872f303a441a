//! The whole measurement: a thread for each connection, one span after the other, and the sum of what they saw.
//! Never lets two spans overlap: a comparison would measure how the sides disturb each other.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use sealwire::Client;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::bench::bare::{Exchange, RESPONDER, Requester, Responder};
use crate::bench::cpu::{CpuTime, WatchedProcess};
use crate::bench::error::BenchError;
use crate::bench::load::Share;
use crate::bench::plan::Plan;
use crate::bench::report::{Cpu, Report, Sample};
use crate::bench::span::{Side, Span};
use crate::bench::tally::Tally;
use crate::bench::thread::thread;

/// How far the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The share of the total time, warm-up included, 0 to 1.
    pub share: f64,
    /// Calls that have ended.
    pub done: u64,
}

/// How often progress is reported.
const TOLD_EVERY: Duration = Duration::from_millis(200);
/// The length of one side's turn in a comparison: long enough for thousands of calls, and short enough that other load on the machine
/// affects both sides.
const SLICE: Duration = Duration::from_secs(1);
/// Fewer pairs of turns say nothing about their spread.
const PAIRS: u32 = 3;
/// One part in so many of a turn does not count, until as many calls are under way as there should be.
const LEAD: u32 = 10;
/// How long before a span its threads are told about it, so that they begin together.
const AHEAD: Duration = Duration::from_millis(5);
/// How long leaving the broker may take.
const CLOSED_WITHIN: Duration = Duration::from_millis(200);

/// Measures as planned, or until `stop` completes: calls under way then have a moment left, and what was measured is returned.
///
/// # Errors
/// [`BenchError`], if nothing was measured.
///
/// Cancel safety: dropping the future ends the load.
pub async fn run(
    plan: Plan,
    stop: impl Future<Output = ()>,
    mut progress: impl FnMut(Progress),
) -> Result<Report, BenchError> {
    plan.check()?;
    for watched in &plan.watched {
        if CpuTime::by(watched.pid).is_none() {
            return Err(BenchError::NoProcess { name: watched.name.clone(), pid: watched.pid });
        }
    }
    let (tell, told) = watch::channel(None);
    let mut stop = std::pin::pin!(stop);
    let opening = Crew::open(plan, told);
    let crew = tokio::select! {
        biased;
        () = &mut stop => return Err(BenchError::Stopped),
        crew = opening => crew?,
    };
    let mut report = Report::default();
    let turns = crew.turns();
    let all: Duration = turns.iter().map(|turn| turn.lead + turn.window).sum();
    let mut before = Duration::ZERO;
    for turn in turns {
        let mut ticks = interval(TOLD_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let began = Instant::now();
        let mut working = std::pin::pin!(crew.turn(turn, &tell));
        let mut stopping = false;
        let sample = loop {
            tokio::select! {
                sample = &mut working => break sample?,
                () = &mut stop, if !stopping => {
                    stopping = true;
                    tell.send_replace(Some(Instant::now()));
                }
                _ = ticks.tick() => {
                    let into = began.elapsed().min(turn.lead + turn.window);
                    let share = (before + into).as_secs_f64() / all.as_secs_f64();
                    progress(Progress { share, done: crew.done.load(Ordering::Relaxed) });
                }
            }
        };
        before += turn.lead + turn.window;
        report.add(turn.side, sample);
        if stopping {
            report.stopped = true;
            break;
        }
    }
    crew.close().await;
    if report.is_empty() { Err(BenchError::Stopped) } else { Ok(report) }
}

/// One side's turn.
#[derive(Debug, Clone, Copy)]
struct Turn {
    side: Side,
    lead: Duration,
    window: Duration,
}

/// The threads, and what they have to do.
struct Crew {
    workers: Vec<Worker>,
    warmup: Duration,
    duration: Duration,
    watched: Vec<WatchedProcess>,
    done: Arc<AtomicU64>,
    responder: Option<Responder>,
}

/// A thread with a connection.
struct Worker {
    orders: mpsc::UnboundedSender<Order>,
    ended: oneshot::Receiver<()>,
}

struct Order {
    side: Side,
    span: Span,
    answer: oneshot::Sender<std::io::Result<Tally>>,
}

impl Crew {
    async fn open(plan: Plan, stop: watch::Receiver<Option<Instant>>) -> Result<Self, BenchError> {
        let Plan { target, load, connections, warmup, duration, bare, watched } = plan;
        let exchange = match &bare {
            Some(bare) => Some(Exchange::like(&target, bare).await?),
            None => None,
        };
        let responder = match &exchange {
            Some(exchange) => Some(Responder::start(exchange).await?),
            None => None,
        };
        let (done, target) = (Arc::<AtomicU64>::default(), Arc::new(target));
        let (mut workers, mut connecting) = (Vec::new(), Vec::new());
        for index in 0..connections {
            let (orders, ordered) = mpsc::unbounded_channel();
            let (connected, connects) = oneshot::channel();
            let (over, ended) = oneshot::channel();
            let (target, exchange, done) = (Arc::clone(&target), exchange.clone(), Arc::clone(&done));
            let (share, stop) = ((index, connections), stop.clone());
            thread(format!("load-{index}"), move || async move {
                let connecting = async {
                    let client = Client::builder(target.credentials.clone()).in_flight(load.in_flight());
                    let client = client.connect().await?;
                    let bare = match exchange {
                        Some(exchange) => Some(Requester::connect(exchange).await?),
                        None => None,
                    };
                    Ok::<_, BenchError>(Share { target, client, bare, load, share, done, stop })
                };
                // The caller may have gone; then no orders come, either.
                match connecting.await {
                    Ok(share) => {
                        drop(connected.send(Ok(())));
                        obey(share, ordered).await;
                    }
                    Err(error) => drop(connected.send(Err(error))),
                }
                drop(over);
            })?;
            workers.push(Worker { orders, ended });
            connecting.push(async { connects.await.unwrap_or(Err(BenchError::Ended)) });
        }
        try_join_all(connecting).await?;
        Ok(Self { workers, warmup, duration, watched, done, responder })
    }

    /// One turn, or the two sides alternately, each first as often as second.
    fn turns(&self) -> Vec<Turn> {
        if self.responder.is_none() {
            return vec![Turn { side: Side::Sealwire, lead: self.warmup, window: self.duration }];
        }
        let sides = [Side::Sealwire, Side::Bare];
        let slice = SLICE.min(self.duration / (2 * PAIRS));
        let mut turns: Vec<Turn> =
            sides.iter().map(|&side| Turn { side, lead: self.warmup / 2, window: Duration::ZERO }).collect();
        let mut left = self.duration;
        let mut swapped = false;
        while left >= 2 * slice {
            left -= 2 * slice;
            let pair = if swapped { [Side::Bare, Side::Sealwire] } else { sides };
            turns.extend(pair.map(|side| Turn { side, lead: slice / LEAD, window: slice }));
            swapped = !swapped;
        }
        turns
    }

    async fn turn(&self, turn: Turn, stop: &watch::Sender<Option<Instant>>) -> Result<Sample, BenchError> {
        let Turn { side, lead, window } = turn;
        let before = self.spent(side);
        let span = Span::begin_at(Instant::now() + AHEAD, lead, window);
        let mut answers = Vec::with_capacity(self.workers.len());
        for worker in &self.workers {
            let (answer, answered) = oneshot::channel();
            let order = Order { side, span: span.clone(), answer };
            worker.orders.send(order).map_err(|_| BenchError::Ended)?;
            answers.push(answered);
        }
        let mut tally = Tally::new();
        for answered in join_all(answers).await {
            tally.add(answered.map_err(|_| BenchError::Ended)??);
        }
        if let Some(stopped) = *stop.borrow() {
            span.stop(stopped);
        }
        let spent = self.spent(side).into_iter().zip(before).map(|((name, after), (_, before))| {
            let spent = match (after, before) {
                (Some(after), Some(before)) => after.since(before),
                _ => None,
            };
            Cpu { name, spent }
        });
        Ok(Sample { tally, window: span.to().saturating_duration_since(span.from()), cpu: spent.collect() })
    }

    /// Processor time so far, of everything that takes part.
    fn spent(&self, side: Side) -> Vec<(String, Option<CpuTime>)> {
        let own = match side {
            Side::Sealwire => vec![("client", "load-")],
            Side::Bare => vec![("client", "load-"), ("responder", RESPONDER)],
        };
        let own = own.into_iter().map(|(name, threads)| (name.to_owned(), CpuTime::by_threads(threads)));
        let watched = self.watched.iter().map(|watched| (watched.name.clone(), CpuTime::by(watched.pid)));
        own.chain(watched).collect()
    }

    async fn close(self) {
        let ended = self.workers.into_iter().map(|Worker { orders, ended }| {
            drop(orders);
            ended
        });
        drop(timeout(2 * CLOSED_WITHIN, join_all(ended)).await);
    }
}

async fn obey(share: Share, mut orders: mpsc::UnboundedReceiver<Order>) {
    while let Some(Order { side, span, answer }) = orders.recv().await {
        // The caller may have gone.
        drop(answer.send(share.work(side, &span).await));
    }
    drop(timeout(CLOSED_WITHIN, share.client.close()).await);
}
