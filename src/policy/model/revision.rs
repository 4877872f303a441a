//! Which policy decided: a digest of the content of the files.
//! Never equal for two folders that could decide differently.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

/// The identity of a [`PolicySet`](crate::policy::PolicySet): the SHA-256 of the names and bytes of its files.
///
/// `Display` and JSON show the first twelve hexadecimal digits, or `deny-all` for the set that denies everything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Revision {
    digest: [u8; 32],
    why: Option<Arc<str>>,
}

impl Revision {
    /// The digest over names and contents, in the order of the names. Lengths go in too, so that no two folders give
    /// the same bytes.
    pub(crate) fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut hash = Sha256::new();
        for (name, content) in files {
            for bytes in [name.as_bytes(), content] {
                hash.update((bytes.len() as u64).to_be_bytes());
                hash.update(bytes);
            }
        }
        Self { digest: hash.finalize().into(), why: None }
    }

    pub(crate) fn deny_all(why: String) -> Self {
        Self { digest: [0; 32], why: Some(why.into()) }
    }

    /// Why this set denies everything, if that is what it does.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The whole digest as 64 hexadecimal digits; all zero for the set that denies everything.
    #[must_use]
    pub fn digest(&self) -> String {
        self.digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.why.is_some() {
            return f.write_str("deny-all");
        }
        // 48 bits tell the revisions of one service apart; the whole digest is there for everything else.
        self.digest.iter().take(6).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Some(why) => write!(f, "deny-all ({why})"),
            None => fmt::Display::fmt(self, f),
        }
    }
}

impl Serialize for Revision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
