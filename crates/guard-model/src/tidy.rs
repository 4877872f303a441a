//! Gives worlds that differ in nothing that matters one form, so that there are few enough to visit them all.

use super::world::{Check, EXP, Guard, IAT, Replica, Run, S, Stored, World};

impl World {
    /// One form for worlds that differ in nothing that matters.
    pub(crate) fn tidied(mut self) -> Self {
        let now = self.now;
        for replica in &mut self.replicas {
            // Nobody whose clock is right admits it any more, however often it is asked again.
            if now >= EXP + S && matches!(replica.check, Check::Again { .. }) {
                replica.check = Check::None;
            }
            // A message at or behind the fence is stale, however far the fence is.
            replica.fence = replica.fence.min(IAT);
            replica.entry = replica.entry.min(IAT);
            replica.listens &= replica.fence < IAT && !replica.is_done() && now <= IAT;
            if !replica.listens {
                replica.told = None;
            }
        }
        let listen = |replica: &Replica| replica.listens || replica.enters;
        let somebody_listens = self.replicas.iter().any(listen);
        let nobody_will = self.starts == 0 && !somebody_listens;
        for replica in &mut self.replicas {
            if let Some(watch) = &mut replica.watch {
                watch.is_word |= !somebody_listens;
            }
            let is_past = replica.fence == IAT || (replica.is_done() && nobody_will);
            if is_past && matches!(replica.guard, Guard::Shared(_)) && replica.run != Run::Down {
                *replica = Self::past(*replica);
            }
        }
        for broker in 0..self.brokers.len() {
            let has_id = self.brokers[broker].stream.is_some_and(|stream| stream.id.is_some());
            for replica in self.replicas.iter_mut().filter(|replica| replica.is_at(broker)) {
                // Nobody looks at it once the check is over.
                if !has_id || replica.check == Check::None {
                    replica.stored = Stored::No;
                }
            }
        }
        for stream in self.brokers.iter_mut().filter_map(|broker| broker.stream.as_mut()) {
            // Anything this young already fences the message.
            stream.created = stream.created.min(IAT - 2 * S);
            stream.first = stream.first.map(|first| first.min(IAT - 2 * S));
            stream.term = stream.term.min(IAT - 2 * S);
        }
        self.number_anew();
        self.replicas.sort_unstable();
        self
    }

    /// It matters which sequence number is higher, but not by how much: others' messages fill any gap.
    fn number_anew(&mut self) {
        let may_lose_a_part = self.faults > 0 || self.brokers.iter().any(|broker| broker.lost.is_some());
        let mut numbers = [false; 64];
        numbers[0] = true;
        self.each_number(&mut |number| numbers[usize::from(*number)] = true);
        // What was stored last has a number above all that anybody knows, whatever others add to it.
        let mut rank = [0; 64];
        let mut next = 0;
        for number in 1..numbers.len() {
            next += u8::from(numbers[number]);
            rank[number] = next;
        }
        self.each_number(&mut |number| *number = rank[usize::from(*number)]);
        let mut known = 0;
        self.each_known(&mut |number| known = known.max(*number));
        let whole = self.brokers.iter().all(|broker| broker.stream.is_none_or(|stream| stream.last >= known));
        for stream in self.brokers.iter_mut().filter_map(|broker| broker.stream.as_mut()) {
            stream.last = stream.last.min(known.max(stream.id.map_or(0, |(number, _)| number)));
        }
        if whole && !may_lose_a_part {
            self.each_number(&mut |number| *number = 1);
        }
    }

    /// A run that can no longer execute the message, and can only tell its fence and be seen on the bus.
    fn past(replica: Replica) -> Replica {
        let Replica { run, guard, still, must_yield, left, .. } = replica;
        Replica { fence: IAT, run, guard, still, must_yield, left, ..Replica::down() }
    }

    fn each_number(&mut self, then: &mut dyn FnMut(&mut u8)) {
        let streams = self
            .brokers
            .iter_mut()
            .flat_map(|broker| broker.stream.iter_mut().chain(broker.backup.iter_mut().map(|(_, stream)| stream)));
        for stream in streams {
            then(&mut stream.last);
            stream.id.iter_mut().for_each(|(number, _)| then(number));
        }
        self.each_known(then);
    }

    /// The numbers that replicas know.
    fn each_known(&mut self, then: &mut dyn FnMut(&mut u8)) {
        for replica in &mut self.replicas {
            replica.watch.iter_mut().for_each(|watch| then(&mut watch.number));
            replica.check.highest().into_iter().for_each(&mut *then);
        }
    }
}
