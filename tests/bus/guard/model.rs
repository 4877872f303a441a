//! The replay guard against an oracle that never forgets: random messages, clocks that leap and go back, crashes,
//! clean restarts, sweeps and floods. The same model is run on deliberately flawed guards and must convict each.
//!
//! `SEALWIRE_MODEL_ROUNDS=2000 cargo test --release --test bus guard::model::` searches further.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::{BoxFuture, FutureExt as _};
use sealwire::internal::auth::{
    AdmitError, GuardIdentity, GuardStats, LocalGuard, NonceLimits, ReplayGuard, TimeFloor, Window,
};
use sealwire::internal::wire::Nonce;
use sealwire::{Clock, ManualClock, Name};
use tokio::time::Instant;

const START_S: u64 = 1_790_000_000;

const LIMITS: NonceLimits = NonceLimits { owner: 60, total: 150, owners: 8, reserve: 5 };

#[derive(Debug, Clone)]
struct Message {
    owner: usize,
    nonce: Nonce,
    iat: u64,
    exp: u64,
}

/// What survives a crash of the service, and the environment that it runs in.
struct World {
    clock: Arc<ManualClock>,
    /// Real time, which only a flawed guard uses.
    elapsed_ms: Arc<AtomicU64>,
    folder: tempfile::TempDir,
    /// The reference guard's state file.
    persisted: Arc<AtomicU64>,
}

/// A guard under test.
trait Suspect: ReplayGuard {
    fn sweep(&self) {}
}

impl Suspect for LocalGuard {
    fn sweep(&self) {
        LocalGuard::sweep(self);
    }
}

/// Makes the guard of the next run of the service.
type Start = dyn Fn(&World, Window) -> Box<dyn Suspect>;

/// One run of the model.
struct Model<'a> {
    random: Random,
    world: World,
    start: &'a Start,
    /// Predict every answer, instead of only looking for double executions.
    exact: bool,
    guard: Option<Box<dyn Suspect>>,
    window: Window,
    owners: Vec<Name>,
    /// Everything ever offered.
    offered: Vec<Message>,
    /// Everything ever executed: this is never forgotten.
    executed: HashSet<(usize, Nonce)>,
    last_executed_iat: u64,
    /// What this run of the service has admitted, with its expiry.
    this_run: HashMap<(usize, Nonce), u64>,
    tally: Tally,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    ok: u64,
    stale: u64,
    replayed: u64,
    full: u64,
    restarts: u64,
}

impl<'a> Model<'a> {
    fn new(seed: u64, start: &'a Start, exact: bool) -> Self {
        let world = World {
            clock: Arc::new(ManualClock::at(START_S)),
            elapsed_ms: Arc::default(),
            folder: scratch(),
            persisted: Arc::default(),
        };
        let mut model = Self {
            random: Random(seed),
            world,
            start,
            exact,
            guard: None,
            window: Window::default(),
            owners: ["a", "b", "c", "d"].map(|name| Name::new(name).unwrap()).to_vec(),
            offered: Vec::new(),
            executed: HashSet::new(),
            last_executed_iat: 0,
            this_run: HashMap::new(),
            tally: Tally::default(),
        };
        model.restart();
        model
    }

    /// An error is a message that ran twice, or an answer without an explanation.
    async fn run(mut self, steps: u32) -> Result<Tally, String> {
        for step in 0..steps {
            self.step().await.map_err(|wrong| format!("step {step}: {wrong}"))?;
        }
        Ok(self.tally)
    }

    async fn step(&mut self) -> Result<(), String> {
        match self.random.below(400) {
            0..160 => return self.offer_new().await,
            160..350 => return self.offer_again().await,
            350..352 => return self.flood().await,
            352..388 => self.pass(3000),
            388 => self.pass(120_000),
            389 => self.stand_still(120_000),
            390..393 => self.step_clock(),
            393..398 => self.guard().sweep(),
            _ => {
                if self.random.below(2) == 0 {
                    self.guard().close().await;
                }
                self.guard = None;
                if self.random.below(2) == 0 {
                    self.step_clock();
                }
                if self.random.below(3) == 0 {
                    self.window = Window::new(5 + self.random.below(40), self.random.below(12)).unwrap();
                }
                self.restart();
            }
        }
        Ok(())
    }

    fn guard(&self) -> &dyn Suspect {
        self.guard.as_deref().unwrap()
    }

    fn restart(&mut self) {
        self.guard = Some((self.start)(&self.world, self.window));
        self.this_run.clear();
        self.tally.restarts += 1;
        let fence = self.guard().fence();
        assert!(!self.exact || fence >= self.last_executed_iat, "fence {fence}, executed {}", self.last_executed_iat);
    }

    /// Lets time pass, in which the guard does each second what its thread would do.
    fn pass(&mut self, at_most_ms: u64) {
        let mut left_ms = self.random.below(at_most_ms);
        while left_ms > 0 {
            let ms = left_ms.min(1000);
            self.world.clock.advance_ms(ms);
            self.world.elapsed_ms.fetch_add(ms, Ordering::SeqCst);
            self.guard().sweep();
            left_ms -= ms;
        }
    }

    /// The process stands still: others may have served in its place.
    fn stand_still(&mut self, at_most_ms: u64) {
        let ms = self.random.below(at_most_ms);
        self.world.clock.advance_ms(ms);
        self.world.elapsed_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// Somebody sets the clock, and no real time passes.
    fn step_clock(&mut self) {
        let (now, by) = (self.world.clock.now_ms(), self.random.below(100_000));
        self.world.clock.set_ms(if self.random.below(3) == 0 { now + by } else { now - by });
    }

    async fn offer_new(&mut self) -> Result<(), String> {
        let base = match self.random.below(2) {
            0 => self.guard().stats().floor_ms / 1000,
            _ => self.world.clock.now_s(),
        };
        let iat = base + self.random.below(2 * self.window.skew_s + 4) - self.window.skew_s - 2;
        let exp = iat + self.random.below(self.window.window_s + 2);
        let owner = self.random.owner();
        self.offer(Message { owner, nonce: Nonce::random(), iat, exp }).await
    }

    /// Usually something recent, sometimes something old.
    async fn offer_again(&mut self) -> Result<(), String> {
        let count = self.offered.len();
        if count == 0 {
            return Ok(());
        }
        let among = if self.random.below(4) == 0 { count } else { count.min(15) };
        let back = self.random.below(among as u64) as usize;
        let message = self.offered[count - 1 - back].clone();
        self.offer(message).await
    }

    async fn flood(&mut self) -> Result<(), String> {
        let owner = self.random.owner();
        for _ in 0..80 {
            let iat = self.world.clock.now_s();
            let exp = iat + self.window.window_s;
            self.offer(Message { owner, nonce: Nonce::random(), iat, exp }).await?;
        }
        Ok(())
    }

    async fn offer(&mut self, message: Message) -> Result<(), String> {
        let Message { owner, nonce, iat, exp } = message.clone();
        let answer = self.guard().admit(&self.owners[owner], nonce, iat, exp, Instant::now()).await;
        if answer.is_ok() && !self.executed.insert((owner, nonce)) {
            return Err(format!("executed twice: {message:?}"));
        }
        if self.exact {
            self.explain(&message, answer)?;
        }
        match answer {
            Ok(()) => {
                self.this_run.insert((owner, nonce), exp);
                self.last_executed_iat = self.last_executed_iat.max(iat);
                self.tally.ok += 1;
            }
            Err(AdmitError::Stale | AdmitError::Fenced { .. }) => self.tally.stale += 1,
            Err(AdmitError::Replayed) => self.tally.replayed += 1,
            Err(AdmitError::OwnerFull { .. } | AdmitError::Full { .. }) => self.tally.full += 1,
            Err(AdmitError::Unavailable(outage)) => return Err(format!("unavailable: {outage}")),
        }
        self.offered.push(message);
        Ok(())
    }

    /// The clock stood still during the offer, so the floor after it is the time by which the guard judged.
    fn explain(&self, message: &Message, answer: Result<(), AdmitError>) -> Result<(), String> {
        let now = self.guard().stats().floor_ms / 1000;
        let held = self.this_run.iter().filter(|((owner, _), exp)| *owner == message.owner && **exp > now).count();
        let known = self.this_run.contains_key(&(message.owner, message.nonce));
        let fence = self.guard().fence();
        // Until the fence has passed nothing is admitted, not even a message dated after it.
        let holds = now > fence && self.window.holds(message.iat, message.exp, now, fence);
        let in_time = self.window.holds(message.iat, message.exp, now, 0);
        let is_recent = now <= fence + self.window.skew_s;
        let explained = match answer {
            Err(AdmitError::Stale) => !in_time || !holds && !known && !is_recent,
            Err(AdmitError::Fenced { .. }) => in_time && !holds && !known && is_recent,
            Err(AdmitError::Replayed) => in_time && known,
            Err(AdmitError::OwnerFull { .. }) => holds && !known && held == LIMITS.owner,
            Err(AdmitError::Full { .. }) => holds && !known && held >= LIMITS.reserve,
            Err(AdmitError::Unavailable(_)) => false,
            Ok(()) => holds && !known && held < LIMITS.owner,
        };
        if explained { Ok(()) } else { Err(format!("{answer:?} at {now} holding {held} for {message:?}")) }
    }
}

/// In memory where the system has such a folder: the model restarts a thousand times, and a busy disk is slow.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// SplitMix64 (Steele, Lea, Flood 2014): a failure names the seed that repeats it, except for the values of nonces.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end.max(1)
    }

    fn owner(&mut self) -> usize {
        self.below(4) as usize
    }
}

#[tokio::test]
async fn no_message_runs_twice_and_every_answer_is_explained() {
    let rounds = std::env::var("SEALWIRE_MODEL_ROUNDS").map_or(100, |rounds| rounds.parse().unwrap());
    let start = |world: &World, window| -> Box<dyn Suspect> {
        let floor = TimeFloor::File(world.folder.path().join("floor"));
        Box::new(LocalGuard::open(window, LIMITS, world.clock.clone(), &floor).unwrap())
    };
    let mut total = Tally::default();
    for seed in 0..rounds {
        let tally = Model::new(seed, &start, true).run(1500).await;
        let tally = tally.unwrap_or_else(|wrong| panic!("seed {seed}, {wrong}"));
        total.ok += tally.ok;
        total.stale += tally.stale;
        total.replayed += tally.replayed;
        total.full += tally.full;
        total.restarts += tally.restarts;
    }
    println!("{rounds} rounds: {total:?}");
    // The model proves something only if it gets every kind of answer often.
    assert!(total.ok.min(total.stale).min(total.replayed) > 50 * rounds, "{total:?}");
    assert!(total.full.min(total.restarts) > 5 * rounds, "{total:?}");
}

/// Which rule is left out of the reference guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Judges by the wall clock as it is.
    NoFloor,
    /// Keeps the floor in memory only.
    FloorNotPersisted,
    /// Checks only `exp` after a restart.
    NoFence,
    /// Drops owners that were idle, in real time, for longer than the life of any message.
    DropsIdleOwners,
    /// Makes room instead of refusing.
    EvictsWhenFull,
}

/// The rules in their simplest form, each of which can be broken.
#[derive(Debug)]
struct Reference {
    window: Window,
    flaw: Flaw,
    fence: u64,
    clock: Arc<ManualClock>,
    elapsed_ms: Arc<AtomicU64>,
    persisted: Arc<AtomicU64>,
    state: Mutex<ReferenceState>,
}

#[derive(Debug)]
struct ReferenceState {
    floor_ms: u64,
    /// For every owner, the last use, and the nonces with their expiry.
    owners: HashMap<Name, (u64, HashMap<Nonce, u64>)>,
}

impl Reference {
    fn open(world: &World, window: Window, flaw: Flaw) -> Self {
        let floor_ms = world.clock.now_ms();
        let left = if flaw == Flaw::FloorNotPersisted { 0 } else { world.persisted.load(Ordering::SeqCst) };
        let fence = if flaw == Flaw::NoFence { 0 } else { left.max(floor_ms / 1000 + window.skew_s) };
        Self {
            window,
            flaw,
            fence,
            clock: world.clock.clone(),
            elapsed_ms: world.elapsed_ms.clone(),
            persisted: world.persisted.clone(),
            state: Mutex::new(ReferenceState { floor_ms, owners: HashMap::new() }),
        }
    }

    fn check(&self, owner: &Name, nonce: Nonce, iat: u64, exp: u64) -> Result<(), AdmitError> {
        let ReferenceState { floor_ms, owners } = &mut *self.state.lock().unwrap();
        let elapsed_ms = self.elapsed_ms.load(Ordering::SeqCst);
        *floor_ms = self.clock.now_ms().max(if self.flaw == Flaw::NoFloor { 0 } else { *floor_ms });
        let now = *floor_ms / 1000;
        if !self.window.holds(iat, exp, now, 0) {
            return Err(AdmitError::Stale);
        }
        if self.flaw == Flaw::DropsIdleOwners {
            let idle_ms = (2 * (self.window.window_s + self.window.skew_s) + 60) * 1000;
            owners.retain(|_, (used_ms, _)| *used_ms + idle_ms > elapsed_ms);
        }
        let (used_ms, nonces) = owners.entry(owner.clone()).or_default();
        *used_ms = elapsed_ms;
        nonces.retain(|_, expires| *expires > now);
        if nonces.contains_key(&nonce) {
            return Err(AdmitError::Replayed);
        }
        if now <= self.fence || iat <= self.fence {
            let is_recent = now <= self.fence + self.window.skew_s;
            return Err(if is_recent { AdmitError::Fenced { retry_after_ms: 1 } } else { AdmitError::Stale });
        }
        if nonces.len() == LIMITS.owner {
            if self.flaw != Flaw::EvictsWhenFull {
                return Err(AdmitError::OwnerFull { retry_after_ms: 1 });
            }
            let victim = *nonces.keys().next().unwrap();
            nonces.remove(&victim);
        }
        nonces.insert(nonce, exp);
        self.persisted.fetch_max(now + self.window.skew_s, Ordering::SeqCst);
        Ok(())
    }
}

impl ReplayGuard for Reference {
    fn fence(&self) -> u64 {
        self.fence
    }

    fn admit<'a>(
        &'a self,
        owner: &'a Name,
        nonce: Nonce,
        iat: u64,
        exp: u64,
        _received: Instant,
    ) -> BoxFuture<'a, Result<(), AdmitError>> {
        let answer = self.check(owner, nonce, iat, exp);
        async move { answer }.boxed()
    }

    fn kind(&self) -> &'static str {
        "local"
    }

    fn identity(&self) -> GuardIdentity {
        GuardIdentity::new(self.kind(), self.window)
    }

    fn not_ready(&self) -> Option<String> {
        None
    }

    fn stats(&self) -> GuardStats {
        let mut stats = GuardStats::default();
        stats.floor_ms = self.state.lock().unwrap().floor_ms;
        stats
    }
}

impl Suspect for Reference {}

async fn first_conviction(start: &Start) -> Option<String> {
    for seed in 0..200 {
        if let Err(wrong) = Model::new(seed, start, false).run(1500).await {
            return Some(format!("seed {seed}, {wrong}"));
        }
    }
    None
}

#[tokio::test]
async fn the_model_acquits_the_reference_and_convicts_every_flaw() {
    let sound = |world: &World, window| -> Box<dyn Suspect> { Box::new(Reference::open(world, window, Flaw::None)) };
    for seed in 0..20 {
        Model::new(seed, &sound, true).run(1500).await.unwrap();
    }
    use Flaw::{DropsIdleOwners, EvictsWhenFull, FloorNotPersisted, NoFence, NoFloor};
    for flaw in [NoFloor, FloorNotPersisted, NoFence, DropsIdleOwners, EvictsWhenFull] {
        let start = move |world: &World, window| -> Box<dyn Suspect> { Box::new(Reference::open(world, window, flaw)) };
        let conviction = first_conviction(&start).await;
        println!("{flaw:?}: {conviction:?}");
        assert!(conviction.is_some_and(|wrong| wrong.contains("executed twice")), "{flaw:?}");
    }
}

#[tokio::test]
async fn the_model_convicts_the_guard_without_its_state_file() {
    let start = |world: &World, window| -> Box<dyn Suspect> {
        Box::new(LocalGuard::open(window, LIMITS, world.clock.clone(), &TimeFloor::Ephemeral).unwrap())
    };
    assert!(first_conviction(&start).await.is_some_and(|wrong| wrong.contains("executed twice")));
}
