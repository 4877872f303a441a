//! What happens at the brokers: what is stored, forgotten and lost there.

use super::rules::Rules;
use super::world::{Fault, MEMORY, Run, Stream, World};

/// A lost leader is replaced after this many ticks at least; one that hands over, at once.
const ELECTION: u8 = 2;
/// A backup is older than the interval between two looks at the stream.
const OLD_BACKUP: u8 = 2;
/// Ages are distinguished up to this one.
const OLD: u8 = 4;

impl World {
    pub(crate) fn is_used(&self, broker: usize) -> bool {
        self.replicas.iter().any(|replica| replica.is_at(broker) && replica.run != Run::Down)
    }

    pub(crate) fn tick(&mut self) {
        self.now += 1;
        let older = |age: u8| (age + 1).min(OLD);
        for broker in &mut self.brokers {
            broker.lost = broker.lost.map(older);
            broker.backup = broker.backup.map(|(age, stream)| (older(age), stream));
            if let Some(stream) = &mut broker.stream {
                stream.id = stream.id.filter(|(_, at)| at + MEMORY > self.now);
            }
        }
        for replica in &mut self.replicas {
            replica.still = replica.still.map(older);
            let Some(watch) = &mut replica.watch else { continue };
            watch.age = older(watch.age);
            if watch.set_back && watch.age >= OLD_BACKUP {
                // Others have since stored more than the backup lacked.
                (watch.set_back, watch.number) = (false, 0);
                replica.check.highest().into_iter().for_each(|highest| *highest = 0);
            }
        }
    }

    /// Stores another message, or the message's own id, at a broker whose stream has a leader. Returns the sequence number, unless the id
    /// is known.
    pub(crate) fn store(&mut self, broker: usize, is_id: bool) -> Option<Option<u8>> {
        let now = self.now;
        let broker = &mut self.brokers[broker];
        let stream = broker.stream.as_mut().filter(|_| broker.lost.is_none())?;
        if is_id && stream.id.is_some() {
            return Some(None);
        }
        stream.last += 1;
        stream.first.get_or_insert(now);
        if is_id {
            stream.id = Some((stream.last, now));
        }
        Some(Some(stream.last))
    }

    /// Creates the missing stream.
    pub(crate) fn create(&mut self, broker: usize, rules: &Rules, clustered: bool) {
        let term = if clustered { self.now } else { 0 };
        self.brokers[broker].stream = Some(Stream { created: self.now, first: None, term, last: 0, id: None });
        self.brokers[broker].lost = None;
        for replica in self.replicas.iter_mut().filter(|replica| replica.is_at(broker)) {
            // What was told there is gone with the stream.
            replica.told = None;
            if let Some(watch) = &mut replica.watch {
                watch.same_name &= !rules.epoch_name;
                watch.same_creation = false;
                watch.same_term = false;
                watch.probe_there = false;
            }
        }
    }

    pub(crate) fn fails(&mut self, broker: usize, fault: Fault, clustered: bool) -> bool {
        let now = self.now;
        let place = &mut self.brokers[broker];
        let Some(mut stream) = place.stream.filter(|_| self.faults > 0 && place.lost.is_none()) else { return false };
        match fault {
            Fault::LeaderLost => place.lost = Some(0),
            Fault::HandedOver => stream.term = now,
            Fault::Emptied => {
                let term = if clustered { now } else { 0 };
                stream = Stream { first: None, last: 0, id: None, term, ..stream };
            }
            Fault::Removed => {}
            Fault::Restored => match place.backup {
                Some((age, backup)) if age >= OLD_BACKUP => stream = backup,
                _ => return false,
            },
        }
        let is_new_term = place.stream.is_some_and(|before| before.term != stream.term);
        place.stream = Some(stream).filter(|_| fault != Fault::Removed);
        place.backup = None;
        self.faults -= 1;
        self.lose_after(broker, if fault == Fault::Removed { 0 } else { stream.last }, is_new_term);
        let replicas = self.replicas.iter_mut().filter(|replica| replica.is_at(broker));
        for watch in replicas.filter_map(|replica| replica.watch.as_mut()) {
            watch.unbroken &= fault != Fault::Emptied;
            watch.set_back |= fault == Fault::Restored && watch.number > stream.last;
        }
        true
    }

    /// Elects another leader, which has everything up to the number `kept`.
    pub(crate) fn elects(&mut self, broker: usize, kept: u8) -> bool {
        let now = self.now;
        let place = &mut self.brokers[broker];
        let (Some(stream), Some(age)) = (place.stream.as_mut(), place.lost) else { return false };
        if age < ELECTION {
            return false;
        }
        stream.last = kept;
        stream.id = stream.id.filter(|(number, _)| *number <= kept);
        stream.first = stream.first.filter(|_| kept > 0);
        stream.term = now;
        place.lost = None;
        self.lose_after(broker, kept, true);
        true
    }

    fn lose_after(&mut self, broker: usize, kept: u8, is_new_term: bool) {
        let replicas = self.replicas.iter_mut().filter(|replica| replica.is_at(broker));
        for watch in replicas.filter_map(|replica| replica.watch.as_mut()) {
            watch.probe_there &= watch.number <= kept;
            watch.same_term &= !is_new_term;
        }
    }

    pub(crate) fn backs_up(&mut self, broker: usize) -> bool {
        let place = &mut self.brokers[broker];
        // A backup that holds the id is of no use to anybody.
        let lacks = place.stream.is_some_and(|stream| stream.id.is_none());
        let is_first = place.backup.is_none() && self.faults > 0 && lacks;
        place.backup = place.backup.or(place.stream.map(|stream| (0, stream)));
        is_first
    }
}
