//! One connection's share of the load: calls begun, waited for and counted, on one thread.
//! Never begins one after the end, and never lets a slow call delay the time that the next one counts from.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use sealwire::{Client, ClientError, RequestBuilder};
use serde::de::IgnoredAny;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};

use crate::bench::bare::Requester;
use crate::bench::pace::{Pacer, Schedule};
use crate::bench::plan::{Load, Shape, Target};
use crate::bench::span::{Side, Span};
use crate::bench::tally::{Outcome, Tally};

/// How long calls under way have left once the measurement is stopped. The command goes on for less than a second after a signal.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(200);

/// How long to wait after an error that is no answer: one that this end finds by itself, such as a lost connection, takes no time, and
/// would keep a processor busy with nothing.
const AFTER_A_FAULT: Duration = Duration::from_millis(10);

/// A connection's share of the work.
pub(crate) struct Share {
    pub(crate) target: Arc<Target>,
    pub(crate) client: Client,
    pub(crate) bare: Option<Requester>,
    pub(crate) load: Load,
    /// This connection's number, and how many there are.
    pub(crate) share: (usize, usize),
    /// Calls that have ended, over all connections: for progress.
    pub(crate) done: Arc<AtomicU64>,
    pub(crate) stop: watch::Receiver<Option<Instant>>,
}

impl Share {
    /// Makes the calls of a span, and waits for those under way at its end.
    ///
    /// # Errors
    /// If the system provides no thread.
    pub(crate) async fn work(&self, side: Side, span: &Span) -> std::io::Result<Tally> {
        let tally = RefCell::new(Tally::new());
        let under_way = Cell::new(0);
        let one = Calls { share: self, side, span, tally: &tally, under_way: &under_way };
        let mut stop = self.stop.clone();
        let stopped = async {
            // The sender is gone only if the process ends.
            if let Ok(at) = stop.wait_for(Option::is_some).await.map(|at| *at) {
                span.stop(at.unwrap_or_else(Instant::now));
            }
        };
        let mut stopped = std::pin::pin!(stopped);
        match self.load {
            Load::InFlight(in_flight) => {
                let mut loops: FuturesUnordered<_> = (0..self.own(in_flight)).map(|_| one.again_and_again()).collect();
                one.through(&mut loops, stopped.as_mut()).await;
            }
            Load::Rate { per_second, in_flight } => {
                let schedule = Schedule::new(span.start, per_second, self.share);
                let total = schedule.before(span.to());
                let pacer = Pacer::start(self.share.0, schedule, total)?;
                let mut calls = FuturesUnordered::new();
                let (mut begun, most) = (0, self.own(in_flight));
                let end = sleep_until(span.to().into());
                let mut end = std::pin::pin!(end);
                while begun < total && Instant::now() < span.to() {
                    while begun < pacer.due() && calls.len() < most {
                        calls.push(one.once(schedule.due(begun)));
                        begun += 1;
                    }
                    tokio::select! {
                        Some(()) = calls.next() => {}
                        () = pacer.changed() => {}
                        () = &mut end => {}
                        () = &mut stopped => {}
                    }
                }
                let left = schedule.before(span.to()).saturating_sub(begun.max(schedule.before(span.from())));
                tally.borrow_mut().not_begun += left * self.calls();
                one.through(&mut calls, stopped.as_mut()).await;
            }
        }
        tally.borrow_mut().given_up += under_way.get();
        Ok(tally.into_inner())
    }

    /// This connection's part of the messages in flight.
    fn own(&self, in_flight: usize) -> usize {
        let (index, of) = self.share;
        in_flight / of + usize::from(index < in_flight % of)
    }

    fn calls(&self) -> u64 {
        self.target.shape.calls()
    }

    async fn message(&self, side: Side) -> Outcome {
        let done = match (side, &self.bare) {
            (Side::Bare, Some(bare)) => bare.request().await.map(|()| Outcome { results: 1, ..Outcome::default() }),
            _ => self.call().await.map_err(Into::into),
        };
        done.unwrap_or_else(|fault| Outcome { faults: vec![(fault, self.calls())], ..Outcome::default() })
    }

    async fn call(&self) -> Result<Outcome, ClientError> {
        let Target { method, params, shape, .. } = &*self.target;
        let request = self.target.request(&self.client);
        let one = Outcome { results: 1, ..Outcome::default() };
        match shape {
            Shape::Single => request.call::<IgnoredAny>(method, params).await.map(|_| one),
            Shape::Batch(calls) => {
                let mut batch = request.batch();
                let calls: Vec<_> = (0..*calls).map(|_| batch.call(method, params)).collect();
                let mut answers = batch.send().await?;
                let mut outcome = Outcome::default();
                for call in calls {
                    match answers.take::<IgnoredAny>(call) {
                        Ok(_) => outcome.results += 1,
                        Err(error) => outcome.faults.push((error.into(), 1)),
                    }
                }
                Ok(outcome)
            }
            Shape::Stream => {
                let mut stream = request.stream::<IgnoredAny>(method, params);
                let mut items = 0;
                while let Some(item) = stream.next().await {
                    item?;
                    items += 1;
                }
                stream.finish::<IgnoredAny>().await.map(|_| Outcome { items, ..one })
            }
        }
    }
}

impl Target {
    fn request(&self, client: &Client) -> RequestBuilder {
        let request = client.request(&self.service).deadline(self.deadline);
        if self.on_method_subject { request.on_method_subject() } else { request }
    }
}

struct Calls<'a> {
    share: &'a Share,
    side: Side,
    span: &'a Span,
    tally: &'a RefCell<Tally>,
    under_way: &'a Cell<u64>,
}

impl Calls<'_> {
    /// One place of the closed loop.
    async fn again_and_again(&self) {
        let mut begun = Instant::now();
        while begun < self.span.to() {
            self.once(begun).await;
            begun = Instant::now();
        }
    }

    /// One message, whose time counts from `from`.
    async fn once(&self, from: Instant) {
        self.under_way.set(self.under_way.get() + self.share.calls());
        let outcome = self.share.message(self.side).await;
        let to = Instant::now();
        self.under_way.set(self.under_way.get() - self.share.calls());
        self.share.done.fetch_add(self.share.calls(), Ordering::Relaxed);
        let unanswered = outcome.faults.iter().any(|(fault, _)| !fault.is_answer());
        self.tally.borrow_mut().record(self.span, from, to, outcome);
        if unanswered {
            sleep(AFTER_A_FAULT).await;
        }
    }

    /// Waits for what is under way, but not much longer once stopped. Each call has its deadline.
    async fn through<F: Future<Output = ()>>(
        &self,
        calls: &mut FuturesUnordered<F>,
        mut stopped: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) {
        let mut all = std::pin::pin!(async { while calls.next().await.is_some() {} });
        if self.share.stop.borrow().is_none() {
            tokio::select! {
                () = &mut all => return,
                () = &mut stopped => {}
            }
        }
        drop(timeout(GIVEN_UP_AFTER, all).await);
    }
}
