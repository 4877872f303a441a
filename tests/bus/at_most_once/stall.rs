//! Finds the times at which a busy machine did not let a process run. Never blames the machine for what a fault did: a wait
//! during a fault is no stall.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire::{Clock, SystemClock};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::history::{NODE_STALLED, Span, Trouble, overlap};

/// The overlong waits of the last few seconds.
#[derive(Debug, Default)]
pub(crate) struct Waits(VecDeque<Span>);

impl Waits {
    /// Records a wait that should take no time. Returns the span of all of them once they add up to too much.
    pub(crate) fn waited(&mut self, from_ms: u64, to_ms: u64) -> Option<Span> {
        if to_ms.saturating_sub(from_ms) >= LATE_MS {
            self.0.push_back((from_ms, to_ms));
        }
        while self.0.pop_front_if(|(_, to)| *to + WITHIN_MS < to_ms).is_some() {}
        let late_ms: u64 = self.0.iter().map(|(from, to)| to - from).sum();
        let (from, _) = *self.0.front()?;
        (late_ms > STALL_MS).then_some((from, to_ms))
    }
}

/// Adds a span to earlier ones, joining it with the last if it begins at most `gap_ms` after it.
pub(crate) fn add(spans: &mut Vec<Span>, (from, to): Span, gap_ms: u64) {
    match spans.last_mut() {
        Some(last) if from <= last.1 + gap_ms => last.1 = to.max(last.1),
        _ => spans.push((from, to)),
    }
}

/// Pings nodes all the time, and records when one answered late.
pub(crate) struct Attendants {
    stalls: Arc<Mutex<Vec<Span>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Attendants {
    pub(crate) fn of(ports: impl Iterator<Item = u16>) -> Self {
        let stalls = Arc::<Mutex<Vec<Span>>>::default();
        let attended = |port| {
            let stalls = Arc::clone(&stalls);
            tokio::spawn(async move {
                loop {
                    // This returns when the connection ends: a killed node causes no wait.
                    let _ = attend(port, &stalls).await;
                    sleep(EVERY).await;
                }
            })
        };
        let tasks = ports.map(attended).collect();
        Self { stalls, tasks }
    }

    /// Whether there was a stall that ended then or later.
    pub(crate) fn have_seen_one_since(&self, from_ms: u64) -> bool {
        self.stalls.lock().unwrap().iter().any(|(_, to_ms)| *to_ms >= from_ms)
    }

    /// The stalls that no fault explains.
    pub(crate) fn troubles(&self, done: &[Trouble], gap_ms: u64) -> Vec<Trouble> {
        let mut stalls = self.stalls.lock().unwrap().clone();
        stalls.retain(|(from, to)| {
            !done.iter().any(|trouble| overlap((*from, *to), (trouble.span.0, trouble.span.1.saturating_add(gap_ms))))
        });
        stalls.sort_unstable();
        let mut joined = Vec::new();
        stalls.into_iter().for_each(|stall| add(&mut joined, stall, gap_ms));
        joined.into_iter().map(|span| Trouble { what: NODE_STALLED, span, forgot_ms: None }).collect()
    }
}

impl Drop for Attendants {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn attend(port: u16, stalls: &Mutex<Vec<Span>>) -> std::io::Result<()> {
    let mut node = BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?);
    node.write_all(b"CONNECT {\"verbose\":false}\r\n").await?;
    let (mut waits, mut line) = (Waits::default(), String::new());
    loop {
        sleep(EVERY).await;
        let asked_ms = SystemClock.now_ms();
        node.write_all(b"PING\r\n").await?;
        while line != "PONG\r\n" {
            line.clear();
            if node.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if line == "PING\r\n" {
                node.write_all(b"PONG\r\n").await?;
            }
        }
        line.clear();
        if let Some(stall) = waits.waited(asked_ms, SystemClock.now_ms()) {
            // The stalls of several nodes are mixed: only those of one node are in order. They are sorted at the end.
            stalls.lock().unwrap().push(stall);
        }
    }
}

const EVERY: Duration = Duration::from_millis(20);

/// How long a guard may go without checking its stream. A check is half a dozen requests in sequence, which begin
/// 0.75 s after the last one, so that many short waits cost as much as a long one.
const WITHIN_MS: u64 = 2_500;

/// A process that did not run for this much of that time was as good as paused, whatever the cause.
const STALL_MS: u64 = 500;

/// Shorter waits occur on every machine.
const LATE_MS: u64 = 50;

#[test]
fn one_long_wait_is_a_stall_and_so_are_many_short_ones() {
    let mut waits = Waits::default();
    assert_eq!(waits.waited(1_000, 1_500), None);
    assert_eq!(waits.waited(9_000, 9_501), Some((9_000, 9_501)));
    let mut waits = Waits::default();
    let found: Vec<_> = (0..20).filter_map(|n| waits.waited(n * 200, n * 200 + 60)).collect();
    assert_eq!(found.first(), Some(&(0, 1_660)), "the ninth");
    assert_eq!(found.last(), Some(&(1_400, 3_860)), "of the last seconds");
    let mut waits = Waits::default();
    assert!((0..100).all(|n| waits.waited(n * 60, n * 60 + 49).is_none()));
    let mut spans = Vec::new();
    [(0, 5), (5, 9), (20, 30), (21, 25)].into_iter().for_each(|span| add(&mut spans, span, 1));
    assert_eq!(spans, [(0, 9), (20, 30)]);
}

#[tokio::test]
async fn a_node_that_does_not_run_is_late_and_what_was_done_to_it_is_no_stall() {
    let mut node = sealwire_testkit::NatsServer::start().await;
    let attendants = Attendants::of([node.port()].into_iter());
    let late = async {
        while attendants.troubles(&[], 0).is_empty() {
            node.pause().await;
            sleep(Duration::from_millis(700)).await;
            node.resume().await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    sealwire_testkit::within(sealwire_testkit::SOON, late).await;
    let pause = Trouble { what: "a node was paused", span: (0, u64::MAX), forgot_ms: None };
    assert!(attendants.troubles(&[pause], 0).is_empty());
}
