//! Values by two labels: a name, and a word from a closed set.
//! Never holds more pairs than its bound, and one for each word beside.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The name of everything beyond the bound, as OpenTelemetry's conventions have it.
pub const OTHER: &str = "_OTHER";

/// Values by a name, such as an agent's from the key ring, and by a word from a closed set.
#[derive(Debug)]
pub struct Labelled<T> {
    most: usize,
    values: Mutex<Values<T>>,
}

#[derive(Debug)]
struct Values<T> {
    named: BTreeMap<Box<str>, BTreeMap<&'static str, T>>,
    pairs: usize,
    others: BTreeMap<&'static str, T>,
}

impl<T: Default> Labelled<T> {
    /// No values yet, and for at most this many pairs of a name and a word.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let values = Values { named: BTreeMap::new(), pairs: 0, others: BTreeMap::new() };
        Self { most, values: Mutex::new(values) }
    }

    /// Changes the value of a pair; once there are too many, that of [`OTHER`] with the same word. `None` is [`OTHER`], too.
    pub fn change(&self, name: Option<&str>, word: &'static str, change: impl FnOnce(&mut T)) {
        let mut values = self.values();
        let Values { named, pairs, others } = &mut *values;
        let value = name.and_then(|name| {
            if !named.get(name).is_some_and(|words| words.contains_key(word)) {
                if *pairs >= self.most {
                    return None;
                }
                *pairs += 1;
                named.entry(name.into()).or_default().insert(word, T::default());
            }
            named.get_mut(name)?.get_mut(word)
        });
        change(match value {
            Some(value) => value,
            None => others.entry(word).or_default(),
        });
    }

    /// What `of` makes of each value, with its name and word.
    pub fn read<R>(&self, mut of: impl FnMut(&T) -> R) -> Vec<(String, &'static str, R)> {
        let values = self.values();
        let others = std::iter::once((OTHER, &values.others));
        let named = values.named.iter().map(|(name, words)| (&**name, words)).chain(others);
        named
            .flat_map(|(name, words)| words.iter().map(move |(word, value)| (name.to_owned(), *word, value)))
            .map(|(name, word, value)| (name, word, of(value)))
            .collect()
    }

    fn values(&self) -> MutexGuard<'_, Values<T>> {
        // Nothing between lock and unlock can panic halfway.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_names_make_no_more_pairs_than_the_bound() {
        let counts = Labelled::<u64>::new(100);
        for number in 0..1_000_000_u32 {
            counts.change(Some(&number.to_string()), "stale", |count| *count += 1);
        }
        let read = counts.read(|count| *count);
        assert_eq!((read.len(), read.iter().map(|(.., count)| count).sum()), (101, 1_000_000_u64));
    }

    #[test]
    fn pairs_beyond_the_bound_are_counted_as_others() {
        let counts = Labelled::<u64>::new(3);
        for number in 0..1_000 {
            counts.change(Some(&format!("agent-{}", number % 100)), "stale", |count| *count += 1);
        }
        counts.change(None, "replayed", |count| *count += 1);
        let read = counts.read(|count| *count);
        let expected = [("agent-0", "stale", 10), ("agent-1", "stale", 10), ("agent-2", "stale", 10)];
        let others = [(OTHER, "replayed", 1), (OTHER, "stale", 970)];
        let read: Vec<_> = read.iter().map(|(name, word, count)| (name.as_str(), *word, *count)).collect();
        assert_eq!(read, [&expected[..], &others[..]].concat());
    }
}
