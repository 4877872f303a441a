//! What the guard does, with a switch for each rule. Each function names the code that it mirrors.

use super::world::{Check, EXP, Guard, IAT, Replica, Run, S, Stored, Watch, World};

/// The rules. A test takes each one out and expects the message to be executed twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// A shared guard that enters vouches for nothing before that, unless a peer does.
    pub(crate) fence_at_start: bool,
    /// A guard enters when its replica begins to serve, and not only when it is opened.
    pub(crate) fence_when_serving: bool,
    /// Only replicas that serve vouch for others.
    pub(crate) serving_vouches: bool,
    /// They do so only with a look at the stream that is later than the entry of the one that listens.
    pub(crate) fresh_word: bool,
    /// A local guard's fence covers what a machine with a clock ahead by S has admitted.
    pub(crate) handover_margin: bool,
    /// Replicas whose guards differ do not serve beside each other.
    pub(crate) agreement_check: bool,
    /// A local guard that stood still for as long as a look is trusted fences what was issued meanwhile.
    pub(crate) lapse_fence: bool,
    /// After the stream's answer the time window is judged again.
    pub(crate) clock_reread: bool,
    /// The clock is compared with the broker's.
    pub(crate) clock_compared: bool,
    /// After a change of leader that was not watched, the memory counts from the new leader's term.
    pub(crate) leader_fence: bool,
    /// A verification is believed for less time than an election takes.
    pub(crate) short_trust: bool,
    /// A guard that has not looked for that long enters again.
    pub(crate) silence_enters: bool,
    /// The memory does not reach back before the stream's creation and its oldest message.
    pub(crate) reach_fence: bool,
    /// Each stream has a name of its own, and an answer counts only under the verified one.
    pub(crate) epoch_name: bool,
    /// A probe that is not recognised shows that ids were lost.
    pub(crate) probe_check: bool,
    /// So does a sequence number that goes back.
    pub(crate) sequence_check: bool,
    /// An answer counts only over the connection that was verified.
    pub(crate) line_check: bool,
    /// A check that is repeated takes a known id for its own only if the stored content says so.
    pub(crate) own_content: bool,
    /// And only if it is stored under a number above all that were seen before the check was first asked.
    pub(crate) own_number: bool,
}

impl Rules {
    pub(crate) const ALL: Self = Self {
        fence_at_start: true,
        fence_when_serving: true,
        serving_vouches: true,
        fresh_word: true,
        handover_margin: true,
        agreement_check: true,
        lapse_fence: true,
        clock_reread: true,
        clock_compared: true,
        leader_fence: true,
        short_trust: true,
        silence_enters: true,
        reach_fence: true,
        epoch_name: true,
        probe_check: true,
        sequence_check: true,
        line_check: true,
        own_content: true,
        own_number: true,
    };
}

/// `retention::UNSEEN`: a lost leader is missed for longer.
const UNSEEN: u8 = 1;

/// For how many ticks a verification is believed.
fn trusted_for(rules: &Rules) -> u8 {
    if rules.short_trust { UNSEEN } else { 3 }
}

/// What was admitted at the broker's time `at` was issued at `at + 2S` at the latest; 0 is long ago.
fn fence_of(at: u8) -> u8 {
    if at == 0 { 0 } else { at + 2 * S }
}

/// `Window::holds`, for the message of the model.
fn holds(clock: u8, fence: u8) -> bool {
    IAT > fence && IAT <= clock + S && clock < EXP
}

impl Replica {
    /// What this replica's clock may show: any time within the tolerated difference, another one at each reading. A
    /// clock that nobody compares may be wrong by more.
    fn clocks(now: u8, ahead: u8, compared: bool) -> impl Iterator<Item = u8> {
        let off = if compared { 0 } else { S };
        now.saturating_sub(S + off)..=now + ahead + off
    }

    fn whole_fence(&self) -> u8 {
        self.fence.max(self.entry)
    }

    /// `link::VerifiedStream`, while it is believed: `Shared::agree`.
    fn up(&self, rules: &Rules) -> Option<Watch> {
        self.watch.filter(|watch| watch.age <= trusted_for(rules) && !self.enters)
    }

    /// Whether the other one serves and shares no memory with this one.
    fn may_not_serve_beside(&self, other: &Self) -> bool {
        other.run == Run::Serving && (self.guard == Guard::Local || other.guard != self.guard)
    }

    /// Whether what was stored under this number was stored after the answer that had the `highest`.
    fn is_above(&self, number: u8, highest: u8) -> bool {
        number > highest && !self.watch.is_some_and(|watch| watch.set_back)
    }

    pub(crate) fn is_at(&self, broker: usize) -> bool {
        matches!(self.guard, Guard::Shared(at) if usize::from(at) == broker)
    }
}

impl World {
    /// `Config::builder`: the guard is opened, `LocalGuard::open` or `SharedGuard::open`.
    pub(crate) fn opens(&mut self, replica: usize, guard: Guard) -> bool {
        let now = self.now;
        let old = self.replicas[replica];
        if self.starts == 0 || old.run != Run::Down {
            return false;
        }
        self.starts -= 1;
        let enters = matches!(guard, Guard::Shared(_));
        let fence = if enters { 0 } else { (now.saturating_sub(S) + S).max(old.left) };
        self.replicas[replica] = Replica { run: Run::Open, guard, left: old.left, enters, fence, ..Replica::down() };
        true
    }

    /// `serve`: asks on `$SRV` who else is there, calls `ReplayGuard::serving`, and takes messages.
    pub(crate) fn serves(&mut self, replica: usize, rules: &Rules) -> bool {
        let now = self.now;
        let own = self.replicas[replica];
        if own.run != Run::Open {
            return false;
        }
        let offends = |other: &&Replica| own.may_not_serve_beside(other);
        let (still, heard) = (|other: &Replica| other.still.is_some(), |other: &Replica| other.still.is_none());
        let is_heard = self.replicas.iter().filter(offends).any(heard);
        let is_still = self.replicas.iter().filter(offends).any(still);
        if rules.agreement_check && is_heard {
            return false;
        }
        let own = &mut self.replicas[replica];
        own.run = Run::Serving;
        own.must_yield = is_still;
        match own.guard {
            // The slowest clock is the one to fear.
            Guard::Local if rules.fence_when_serving => {
                let margin = if rules.handover_margin { 2 * S } else { S };
                own.fence = own.fence.max(now.saturating_sub(S) + margin);
            }
            Guard::Local => {}
            Guard::Shared(_) => own.enters |= rules.fence_when_serving,
        }
        true
    }

    /// The process is suspended, and nobody hears from it.
    pub(crate) fn stands_still(&mut self, replica: usize) -> bool {
        let own = &mut self.replicas[replica];
        let may = self.pauses > 0 && own.run == Run::Serving;
        if may {
            own.still = Some(0);
            self.pauses -= 1;
        }
        may
    }

    /// The process is resumed. What it does first is up to chance, except for what precedes every message: a local
    /// guard's lease (`Lease::has_lapsed`), the age of a shared guard's last look.
    pub(crate) fn goes_on(&mut self, replica: usize, rules: &Rules) -> bool {
        let now = self.now;
        let own = &mut self.replicas[replica];
        let Some(age) = own.still.take() else { return false };
        if own.guard == Guard::Local && age > UNSEEN && rules.lapse_fence {
            own.fence = own.fence.max(now.saturating_sub(S) + 2 * S);
        }
        true
    }

    /// Whether two serve that must not, and can hear each other.
    pub(crate) fn is_to_yield(&self) -> bool {
        self.replicas.iter().any(|own| own.must_yield && self.offends(own))
    }

    fn offends(&self, own: &Replica) -> bool {
        self.replicas.iter().any(|other| other != own && other.still.is_none() && own.may_not_serve_beside(other))
    }

    /// `Agreement::lost`: the one that started later stops, and the other one's guard is told.
    pub(crate) fn yields(&mut self, replica: usize) -> bool {
        let (now, own) = (self.now, self.replicas[replica]);
        if !own.must_yield || !self.offends(&own) {
            return false;
        }
        self.replicas[replica] = Replica { left: own.left, ..Replica::down() };
        for other in self.replicas.iter_mut().filter(|other| own.may_not_serve_beside(other)) {
            // `ReplayGuard::outsider`. A shared guard looks before it admits more; nobody vouches for it.
            let ahead = if other.guard == Guard::Local { now.saturating_sub(S) } else { now };
            other.fence = other.fence.max(ahead + 2 * S);
            other.check = Check::None;
        }
        true
    }

    /// Killed, or stopped in an orderly way, which is like a kill at a moment without a check.
    pub(crate) fn stops(&mut self, replica: usize) -> bool {
        let own = &mut self.replicas[replica];
        let was = own.run;
        *own = Replica { left: own.left, ..Replica::down() };
        was != Run::Down
    }

    /// `GuardMonitor::verify`.
    pub(crate) fn verifies(&mut self, replica: usize, rules: &Rules, clustered: bool) -> bool {
        let own = self.replicas[replica];
        let (Guard::Shared(broker), true) = (own.guard, own.run != Run::Down) else { return false };
        let broker = usize::from(broker);
        if self.brokers[broker].stream.is_none() {
            self.create(broker, rules, clustered);
        }
        let own = self.replicas[replica];
        // `GuardMonitor::probe`: the previous one again, then a new one.
        let forgot = own.watch.is_some_and(|watch| watch.same_name && !watch.probe_there);
        if forgot {
            self.store(broker, false);
        }
        let Some(Some(number)) = self.store(broker, false) else { return false };
        let Some(stream) = self.brokers[broker].stream else { return false };
        self.vouches(replica, own, rules);
        let now = self.now;
        // `RetentionTracker::observe`.
        let last = own.watch.filter(|last| last.same_name && last.same_creation);
        let unseen = last.is_none_or(|last| last.age > UNSEEN);
        let gap = match last {
            None => Some(if rules.leader_fence { stream.term } else { 0 }),
            Some(last) => last.gap(now, stream.term, forgot, number, rules),
        };
        let enters = own.enters || (unseen && rules.silence_enters);
        if enters {
            for peer in self.replicas.iter_mut().filter_map(|peer| peer.watch.as_mut()) {
                peer.is_word = false;
            }
        }
        let own = &mut self.replicas[replica];
        let reach = if rules.reach_fence { stream.first.unwrap_or(now).max(stream.created) } else { 0 };
        own.fence = own.fence.max(fence_of(reach.max(gap.unwrap_or(0))));
        own.enters = false;
        if enters {
            own.entry = if rules.fence_at_start { fence_of(now) } else { 0 };
            (own.listens, own.told) = (own.entry > 0, None);
        } else if let Some(told) = own.told.take() {
            // `RetentionTracker::apply_claim`.
            own.entry = own.entry.min(told);
            own.listens = false;
        }
        let is_unbroken = last.is_some_and(|last| last.unbroken) || !rules.line_check;
        if gap.is_some() || enters || !is_unbroken {
            // An answer to a check that began earlier proves nothing now: `VerifiedStream::continues`. The check is repeated, in the same
            // memory: in another one the fence lies ahead of the message anyway.
            let is_same = gap.is_none() && !enters;
            let again = own.check.highest().filter(|_| is_same).map(|highest| Check::Again { highest: *highest });
            own.check = again.unwrap_or(Check::None);
        }
        own.watch = Some(Watch::now(number));
        true
    }

    /// `GuardMonitor::claim`: the probe tells those who have entered since what its replica vouched for when it last looked.
    fn vouches(&mut self, replica: usize, own: Replica, rules: &Rules) {
        let serves = own.run == Run::Serving || !rules.serving_vouches;
        let Some(up) = own.up(rules).filter(|up| serves && up.same_name) else { return };
        if !up.is_word && rules.fresh_word {
            return;
        }
        for (other, peer) in self.replicas.iter_mut().enumerate() {
            if other != replica && peer.guard == own.guard && peer.listens {
                peer.told.get_or_insert(own.whole_fence());
            }
        }
    }

    /// `Shared::admit` up to the question, or all of `LocalGuard::admit`.
    pub(crate) fn offered(&mut self, replica: usize, rules: &Rules, ahead: u8) -> bool {
        let now = self.now;
        let own = &mut self.replicas[replica];
        if own.run != Run::Serving || own.holds {
            return false;
        }
        match own.guard {
            Guard::Local => {
                // Nobody compares a local guard's clock: that it is right is assumed.
                let fits = |clock: &u8| *clock > own.fence && holds(*clock, own.fence);
                let Some(clock) = Replica::clocks(now, ahead, true).find(fits) else { return false };
                own.holds = true;
                own.left = own.left.max(clock + S);
                self.executed += 1;
            }
            Guard::Shared(_) => {
                let Some(watch) = own.up(rules) else { return false };
                let fence = own.whole_fence();
                let admits = |clock| clock > fence && holds(clock, fence);
                if !Replica::clocks(now, ahead, rules.clock_compared).any(admits) {
                    return false;
                }
                own.holds = true;
                own.check = Check::Asked { highest: watch.number };
            }
        }
        true
    }

    /// The question arrives at the broker, however late: `ask::ask`, and `Answer::heard`.
    pub(crate) fn asked(&mut self, replica: usize, rules: &Rules) -> bool {
        let own = self.replicas[replica];
        let Guard::Shared(broker) = own.guard else { return false };
        let highest = match (own.check, own.up(rules)) {
            (Check::Asked { highest }, _) => highest,
            // Over a link that is up: `Shared::ask_again`.
            (Check::Again { .. }, Some(watch)) => watch.number,
            _ => return false,
        };
        let Some(number) = self.store(usize::from(broker), true) else { return false };
        let by_verified = own.watch.is_some_and(|watch| watch.same_name);
        let is_new = match number {
            Some(number) => own.is_above(number, highest) || !rules.sequence_check,
            None if matches!(own.check, Check::Asked { .. }) => false,
            None => match own.stored {
                Stored::High => true,
                Stored::Low => !rules.own_number,
                Stored::No => !rules.own_content,
            },
        };
        let own = &mut self.replicas[replica];
        own.check = if by_verified && is_new { Check::New } else { Check::None };
        true
    }

    /// The question arrives at the broker or is lost, and its answer is lost or late.
    pub(crate) fn unheard(&mut self, replica: usize) -> bool {
        let own = self.replicas[replica];
        let (Guard::Shared(broker), Check::Asked { highest } | Check::Again { highest }) = (own.guard, own.check)
        else {
            return false;
        };
        let number = self.store(usize::from(broker), true).flatten();
        let is_above = number.map(|number| own.is_above(number, highest));
        let own = &mut self.replicas[replica];
        own.check = Check::Again { highest };
        own.stored = is_above.map_or(own.stored, |above| if above { Stored::High } else { Stored::Low });
        true
    }

    /// `Shared::admit` after the answer.
    pub(crate) fn judged(&mut self, replica: usize, rules: &Rules, ahead: u8) -> bool {
        let now = self.now;
        let own = &mut self.replicas[replica];
        if own.check != Check::New {
            return false;
        }
        own.check = Check::None;
        let fence = own.whole_fence();
        let is_whole = own.up(rules).is_some_and(|up| up.unbroken || !rules.line_check);
        let in_time = |clock| !rules.clock_reread || holds(clock, fence);
        if is_whole && Replica::clocks(now, ahead, rules.clock_compared).any(in_time) {
            self.executed += 1;
        }
        true
    }
}

impl Watch {
    /// Since when the memory may have a gap: `RetentionTracker::observe`, for the same stream.
    fn gap(&self, now: u8, term: u8, forgot: bool, number: u8, rules: &Rules) -> Option<u8> {
        let back = rules.sequence_check && (number < self.number || self.set_back);
        if (forgot && rules.probe_check) || back {
            return Some(now);
        }
        (rules.leader_fence && !self.same_term && self.age > UNSEEN).then_some(term)
    }
}
