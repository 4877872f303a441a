//! The messages of a run: issued at a steady rate, each offered three times to each replica, early and late.
//! Never waits for an answer, but issues nothing new while healthy replicas are far behind.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sealwire::internal::wire::Nonce;
use sealwire::{Clock, SystemClock};

use super::chaos::Random;
use super::fleet::{Fleet, REPLICAS};
use super::history::{Message, Offer};
use super::replica::WINDOW_S;

/// The thread that issues and offers messages.
pub(crate) struct Load {
    shared: Arc<Mutex<Shared>>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<Made>>,
}

#[derive(Debug, Clone, Copy)]
struct Shared {
    /// Issue messages until there are this many.
    until: u64,
    /// Nothing is wrong, and nothing will be while any of these messages is offered.
    calm: bool,
    stop: bool,
    issued: u64,
    /// Offers that are not due yet.
    waiting: u64,
}

/// What was offered, once everything is over.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) messages: Vec<Message>,
    pub(crate) offers: Vec<Offer>,
    /// Offers that found nobody: the replica was dead.
    pub(crate) nobody: u64,
}

impl Load {
    pub(crate) fn start(rate: u64, seed: u64, fleet: Arc<Mutex<Fleet>>) -> Self {
        let shared = Shared { until: 0, calm: true, stop: false, issued: 0, waiting: 0 };
        let shared = Arc::new(Mutex::new(shared));
        let driver = Driver {
            rate,
            random: Random(seed),
            fleet,
            shared: shared.clone(),
            wheel: (0..WHEEL).map(|_| Vec::new()).collect(),
            made: Made::default(),
        };
        Self { shared, thread: Some(std::thread::spawn(move || driver.run())) }
    }

    pub(crate) fn issue_until(&self, until: u64, calm: bool) {
        let mut shared = self.shared.lock().unwrap();
        (shared.until, shared.calm) = (until, calm);
    }

    pub(crate) fn issued(&self) -> u64 {
        self.shared.lock().unwrap().issued
    }

    /// Whether everything was issued and offered as requested.
    pub(crate) fn is_done(&self) -> bool {
        let shared = self.shared.lock().unwrap();
        shared.issued >= shared.until && shared.waiting == 0
    }

    /// Stops, and returns everything that was made so far.
    pub(crate) fn stop(&mut self) -> Made {
        self.shared.lock().unwrap().stop = true;
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The thread owns the fleet, and the fleet owns the processes.
        if let (Ok(mut shared), Some(thread)) = (self.shared.lock(), self.thread.take()) {
            shared.stop = true;
            drop(shared);
            let _ = thread.join();
        }
    }
}

struct Driver {
    rate: u64,
    random: Random,
    fleet: Arc<Mutex<Fleet>>,
    shared: Arc<Mutex<Shared>>,
    /// For each tick, which message goes to which replica.
    wheel: Vec<Vec<(u32, usize)>>,
    made: Made,
}

impl Driver {
    fn run(mut self) -> Made {
        let began = Instant::now();
        let (mut tick, mut budget, mut waiting) = (0, 0, 0);
        loop {
            let told = *self.shared.lock().unwrap();
            if told.stop {
                return self.made;
            }
            let mut issued = self.made.messages.len() as u64;
            // In thousandths of a message. Messages that could not be issued in time are not issued later.
            budget = (budget + self.rate * TICK_MS).min(self.rate * 10 * TICK_MS);
            let room = self.fleet.lock().unwrap().behind() < CROWDED;
            while room && budget >= 1000 && issued < told.until {
                budget -= 1000;
                issued += 1;
                let calm_for_ms = told.calm.then(|| (told.until - issued) * 1000 / self.rate);
                self.issue(tick, calm_for_ms);
                waiting += 3 * REPLICAS as u64;
            }
            waiting -= self.offer(tick);
            {
                let mut shared = self.shared.lock().unwrap();
                (shared.issued, shared.waiting) = (issued, waiting);
            }
            tick += 1;
            // A late thread catches up tick by tick, so that no offer is left out.
            let due = began + Duration::from_millis(TICK_MS * tick as u64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    /// Makes a new message, and plans when it is offered to whom. In a calm phase, which lasts while messages are issued and a
    /// little longer, all offers fall within the phase and within the message's life.
    fn issue(&mut self, tick: usize, calm_for_ms: Option<u64>) {
        let index = u32::try_from(self.made.messages.len()).unwrap();
        let (nonce, iat) = (Nonce::random(), SystemClock.now_s());
        self.made.messages.push(Message { nonce, iat, calm: calm_for_ms.is_some() });
        let life_ms = WINDOW_S * 1000;
        let most_ms = calm_for_ms.map_or(u64::MAX, |left_ms| (left_ms + CALM_AFTER_MS).min(life_ms - IN_TIME_MS));
        let first = self.random.below(REPLICAS as u64) as usize;
        let mut plan = |replica: usize, after_ms: u64| {
            // The wheel's current slot is still to be offered.
            let slot = (tick + (after_ms.min(most_ms) / TICK_MS) as usize) % WHEEL;
            self.wheel[slot].push((index, (first + replica) % REPLICAS));
        };
        if self.random.below(2) == 0 {
            // To all replicas at once, three times: they race for it.
            for after_ms in [0, 300 + self.random.below(life_ms / 2), late(&mut self.random)] {
                (0..REPLICAS).for_each(|replica| plan(replica, after_ms));
            }
        } else {
            // To one replica after the other, so that some get it only when others may have forgotten it.
            for replica in 0..REPLICAS {
                let begin_ms = if replica == 0 { 0 } else { self.random.below(life_ms - 2_000) };
                plan(replica, begin_ms);
                plan(replica, begin_ms + self.random.below(life_ms - begin_ms));
                plan(replica, late(&mut self.random).max(begin_ms));
            }
        }
    }

    /// Makes the offers that are due, and returns how many there were.
    fn offer(&mut self, tick: usize) -> u64 {
        let due = std::mem::take(&mut self.wheel[tick % WHEEL]);
        if due.is_empty() {
            return 0;
        }
        let mut lines = vec![(String::new(), 0); REPLICAS];
        for (message, replica) in &due {
            let (text, count) = &mut lines[*replica];
            let Message { nonce, iat, .. } = self.made.messages[*message as usize];
            let _ = writeln!(text, "{message} {} {iat}", nonce.to_text());
            *count += 1;
        }
        let mut lives = [None; REPLICAS];
        let at_ms = SystemClock.now_ms();
        let mut fleet = self.fleet.lock().unwrap();
        for (replica, (text, count)) in lines.into_iter().enumerate() {
            lives[replica] = fleet.hand(replica, text, count);
        }
        drop(fleet);
        for (message, replica) in &due {
            match lives[*replica] {
                Some(life) => self.made.offers.push(Offer { message: *message, life, at_ms }),
                None => self.made.nobody += 1,
            }
        }
        due.len() as u64
    }
}

/// When the last copy comes: within the life, close to its end, or after it.
fn late(random: &mut Random) -> u64 {
    let life_ms = WINDOW_S * 1000;
    match random.below(20) {
        0..11 => random.below(life_ms),
        11..17 => life_ms - 1_500 + random.below(1_500),
        _ => life_ms + random.below(AFTER_LIFE_MS),
    }
}

const TICK_MS: u64 = 10;
const AFTER_LIFE_MS: u64 = 3_000;

/// The number of ticks until the latest possible offer, and some more.
const WHEEL: usize = ((WINDOW_S * 1000 + AFTER_LIFE_MS) / TICK_MS) as usize + 100;

/// The limit for offers that wait in healthy replicas: about two seconds' worth.
const CROWDED: u64 = 20_000;

/// For how long copies are still offered after the last message of a calm phase was issued.
const CALM_AFTER_MS: u64 = 3_000;

/// In calm phases, a message is offered for the last time this long before the end of its life, so that a slow machine does
/// not make it stale.
const IN_TIME_MS: u64 = 4_000;
