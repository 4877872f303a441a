//! Why an answer, or part of one, is not shown.
//! Never says what was in it.

/// Why an answer is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Fault {
    /// No answer as ADR-32 has it, or a name that no service may have.
    #[error("not an answer to the question, or with names that no service may have")]
    Malformed,
    /// Larger than is read.
    #[error("too large")]
    Oversized,
    /// In the name of a service whose keys are known, without its signature for this question.
    #[error("not signed by the service that it names")]
    Unproved,
    /// Another one with this id has been taken in the same round.
    #[error("an id that another answer had before it")]
    Duplicate,
    /// Numbers that cannot be.
    #[error("numbers that cannot be")]
    Implausible,
    /// Beyond the bounds of what is shown, or more new names than are taken in that time.
    #[error("no room for more, or more new names than are taken at a time")]
    Full,
    /// Beyond the answers that are read in one round.
    #[error("more answers than are read in one round")]
    Flood,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Malformed, Self::Oversized, Self::Unproved, Self::Duplicate, Self::Implausible, Self::Full, Self::Flood];

    /// One word, for a label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Oversized => "oversized",
            Self::Unproved => "unproved",
            Self::Duplicate => "duplicate",
            Self::Implausible => "implausible",
            Self::Full => "full",
            Self::Flood => "flood",
        }
    }
}

/// How often each occurred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults([u64; Fault::ALL.len()]);

impl Faults {
    pub(crate) fn count(&mut self, fault: Fault, times: u64) {
        if let Some(count) = self.0.get_mut(fault as usize) {
            *count = count.saturating_add(times);
        }
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = (Fault, u64)> {
        Fault::ALL.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_its_own_count() {
        let mut faults = Faults::default();
        for (times, fault) in (1..).zip(Fault::ALL) {
            faults.count(fault, times);
        }
        assert!(faults.read().eq(Fault::ALL.into_iter().zip(1..)));
    }
}
