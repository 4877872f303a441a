//! What the model is about: replicas, their streams, and one message that somebody offers again and again.
//!
//! One message is enough: the guard judges each by itself. All that other messages do to it is raise the stream's
//! sequence numbers (`Step::Others`). Whoever captured the message may offer it to any replica at any time, so that is
//! not part of the state. Time is in whole ticks; several things may happen in one, in every order. Time 0 is long ago.

/// The tolerated difference of clocks.
pub(crate) const S: u8 = 1;
/// When the message is issued; it expires at `EXP`, so it lives as long as the window allows.
pub(crate) const IAT: u8 = 4;
pub(crate) const EXP: u8 = IAT + 1;
/// How long the stream remembers: a message that is first admitted at `IAT - 2S` by the broker's clock may come for the
/// last time before `EXP + S` by that clock. The code keeps a minute more, for which this takes one S:
/// `SharedConfig::memory`.
pub(crate) const MEMORY: u8 = EXP - IAT + 3 * S;
/// The last tick: everything that was stored first has been forgotten by then.
pub(crate) const END: u8 = IAT - 2 * S + MEMORY;

/// Machines.
pub(crate) const REPLICAS: usize = 3;

/// What a world may hold.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) replicas: [Replica; REPLICAS],
    /// How many brokers have a stream, each its own.
    pub(crate) brokers: usize,
    /// How many processes may run at a time.
    pub(crate) at_once: usize,
    /// Whether the stream has copies, and so a leader that can be lost.
    pub(crate) clustered: bool,
    /// How often a process may be started.
    pub(crate) starts: u8,
    pub(crate) may_start: Vec<Guard>,
    /// How often a process may stand still so that nobody hears from it. That it just takes no steps for a while, but is heard, needs no
    /// limit.
    pub(crate) pauses: u8,
    /// How many faults of brokers there may be, and which.
    pub(crate) faults: u8,
    pub(crate) may_fail: Vec<Fault>,
    /// How far replicas' clocks may be ahead of the broker's and count as right; behind it, up to S.
    pub(crate) ahead: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Guard {
    Local,
    /// With the stream at this broker.
    Shared(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The leader and what only it had are lost; another is elected.
    LeaderLost,
    HandedOver,
    /// All nodes die: the same name, the same creation, and nothing in it.
    Emptied,
    Removed,
    /// A backup, at least two ticks old, replaces the stream.
    Restored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) now: u8,
    pub(crate) executed: u8,
    pub(crate) starts: u8,
    pub(crate) pauses: u8,
    pub(crate) faults: u8,
    /// The second is used only by mistake.
    pub(crate) brokers: [Broker; 2],
    pub(crate) replicas: [Replica; REPLICAS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Broker {
    pub(crate) stream: Option<Stream>,
    /// For how long there has been no leader.
    pub(crate) lost: Option<u8>,
    /// A backup, and its age.
    pub(crate) backup: Option<(u8, Stream)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub(crate) created: u8,
    /// When its oldest message was stored.
    pub(crate) first: Option<u8>,
    /// Since when its leader has led; 0 outside a cluster.
    pub(crate) term: u8,
    /// The last sequence number.
    pub(crate) last: u8,
    /// The number under which the id is stored, and when it was stored.
    pub(crate) id: Option<(u8, u8)>,
}

/// A process, or what is left of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Replica {
    pub(crate) run: Run,
    pub(crate) guard: Guard,
    /// It stands still, for this long.
    pub(crate) still: Option<u8>,
    /// It began to serve beside one that stood still, and that it must not serve beside.
    pub(crate) must_yield: bool,
    /// The nonce is in the memory of this process.
    pub(crate) holds: bool,
    /// A local guard's fence; for a shared one, what is stale given what was seen of the memory.
    pub(crate) fence: u8,
    /// What is stale because this replica has entered: `retention::Entry`.
    pub(crate) entry: u8,
    /// It enters with its next look: `Shared::enter`.
    pub(crate) enters: bool,
    /// It has entered, and nobody has vouched for it: `RetentionTracker::awaits_claim`.
    pub(crate) listens: bool,
    /// The state file of a local guard, which survives.
    pub(crate) left: u8,
    pub(crate) watch: Option<Watch>,
    /// The fence that a peer's probe has told since.
    pub(crate) told: Option<u8>,
    pub(crate) check: Check,
    pub(crate) stored: Stored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Run {
    Down,
    /// The guard is open; nobody was asked yet who else serves.
    Open,
    Serving,
}

/// What the last verification saw, compared with what is there: `link::VerifiedStream`, `retention::StreamSnapshot`,
/// `monitor::Probe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Watch {
    /// How long ago it was, up to `OLD`.
    pub(crate) age: u8,
    /// The stream still has the name, the creation and the leader's term that were seen.
    pub(crate) same_name: bool,
    pub(crate) same_creation: bool,
    pub(crate) same_term: bool,
    /// The connection has not broken since.
    pub(crate) unbroken: bool,
    /// The sequence number of the probe, which was the highest then; and whether the stream still holds it.
    pub(crate) number: u8,
    pub(crate) probe_there: bool,
    /// The stream was set back so far that no number reaches this one while the look is trusted.
    pub(crate) set_back: bool,
    /// It came after everybody who listens had entered.
    pub(crate) is_word: bool,
}

/// A check of the message, from question to belief (`Shared::admit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Check {
    None,
    /// Not at the broker yet.
    Asked {
        highest: u8,
    },
    /// Asked, and not answered in time: to be asked again.
    Again {
        highest: u8,
    },
    /// Acknowledged as new, by the verified name and under a higher number; or found to be this check's own.
    New,
}

/// Whether the id that the stream holds was stored by this run's check: its content says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stored {
    No,
    /// Yes, but not under a number above all that were seen before the question.
    Low,
    High,
}

impl Check {
    /// The highest number that was seen before the question.
    pub(crate) fn highest(&mut self) -> Option<&mut u8> {
        match self {
            Self::None | Self::New => None,
            Self::Asked { highest } | Self::Again { highest } => Some(highest),
        }
    }
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "what a step carries is read by people, in a counterexample")]
pub(crate) enum Step {
    Tick,
    /// Other messages are stored.
    Others(usize),
    Fails(usize, Fault),
    Elected {
        broker: usize,
        kept: u8,
    },
    BackedUp(usize),
    Opens(usize, Guard),
    Serves(usize),
    Stops(usize),
    StandsStill(usize),
    GoesOn(usize),
    Yields(usize),
    Verifies(usize),
    /// The message is offered: refused at once or executed (local), or the question goes out (shared).
    Offered(usize),
    /// The question reaches the broker.
    Asked(usize),
    /// It does, or is lost, and no answer comes in time.
    Unheard(usize),
    /// The answer is judged.
    Judged(usize),
}

impl Replica {
    pub(crate) fn down() -> Self {
        Self {
            run: Run::Down,
            guard: Guard::Local,
            still: None,
            must_yield: false,
            holds: false,
            fence: 0,
            entry: 0,
            enters: false,
            listens: false,
            left: 0,
            watch: None,
            told: None,
            check: Check::None,
            stored: Stored::No,
        }
    }

    /// Has served for a long time, with a local guard.
    pub(crate) fn local() -> Self {
        Self { run: Run::Serving, ..Self::down() }
    }

    /// Has served for a long time with the stream at `broker`, and verified it just now.
    pub(crate) fn shared(broker: u8) -> Self {
        Self { run: Run::Serving, guard: Guard::Shared(broker), watch: Some(Watch::now(1)), ..Self::down() }
    }

    /// Whether this run has judged the message.
    pub(crate) fn is_done(&self) -> bool {
        self.holds && self.check == Check::None
    }
}

impl Watch {
    /// A look at a stream whose last number is `number`.
    pub(crate) fn now(number: u8) -> Self {
        Self {
            age: 0,
            same_name: true,
            same_creation: true,
            same_term: true,
            unbroken: true,
            number,
            probe_there: true,
            set_back: false,
            is_word: true,
        }
    }
}
