//! An act of operators, as a line of the record.
//! Never longer than a line may be: what does not fit is counted.

use serde::{Deserialize, Serialize};

/// A list of revocations that came into force: a line of kind `revocation`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationRecord {
    /// When it came into force here, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Its number.
    pub number: u64,
    /// The SHA-256 of the list as signed, in base64url.
    pub digest: String,
    /// The ids of the operators' keys that signed it.
    pub signers: Vec<String>,
    /// What it revokes and the list before did not.
    pub revoked: Vec<String>,
    /// What it no longer revokes.
    pub restored: Vec<String>,
}

/// The most names of each kind that a line has.
const NAMES: usize = 16;
/// The most characters of one. Those that are escaped take more bytes.
const CHARACTERS: usize = 100;

impl RevocationRecord {
    /// As it fits a line.
    #[must_use]
    pub fn within_bounds(mut self) -> Self {
        for names in [&mut self.signers, &mut self.revoked, &mut self.restored] {
            let further = names.len().saturating_sub(NAMES);
            names.truncate(NAMES);
            for name in names.iter_mut() {
                *name = name.chars().take(CHARACTERS).collect();
            }
            if further > 0 {
                names.push(format!("and {further} more"));
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Chain, Kind, MAX_LINE};

    #[test]
    fn the_largest_list_fits_a_line() {
        let names = || vec!["\u{1F600}\"".repeat(300); 300];
        let line = RevocationRecord {
            at_ms: u64::MAX,
            number: u64::MAX,
            digest: "x".repeat(43),
            signers: names(),
            revoked: names(),
            restored: names(),
        };
        let line = line.within_bounds();
        assert_eq!(line.revoked.last().map(String::as_str), Some("and 284 more"));
        assert!(Chain::new("a").line(Kind::Revocation, &line).is_ok_and(|line| line.len() <= MAX_LINE));
    }
}
