//! Policies that operators sign and replicas take from a bucket that no agent can reach.
//! Never puts in force what operators have not signed for this very service, or an older version than one seen before.

mod comparison;
mod follower;
mod package;
mod report;
mod shadow;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub(crate) use comparison::Ruling;
pub use comparison::{Comparison, Counted, Difference, Fate, Total};
pub use follower::{ALL_DIFFERENCES, PackageEvent, PackageFollower};
pub use package::{Package, PackageError, SignedPackage};
pub use report::{PackageId, PackageReport, RefusedPackage, ShadowReport};
pub use shadow::{ShadowPolicy, ShadowStanding};

use self::package::brief;
use super::engine::PolicySet;
use super::model::{Finding, Methods};
use crate::auth::{Operators, OperatorsError, RevocationConfig, Stage};
use crate::files::{Content, FileTrust, Folder, SecretFileError, read_trusted, write_secret};
use crate::name::Name;

/// The packages of one service, for whoever decides by its policies.
#[derive(Debug)]
pub struct Packages {
    environment: Name,
    service: Name,
    operators: Operators,
    /// The broker, the login and whose files are trusted.
    config: RevocationConfig,
    state: PathBuf,
    opened: Instant,
    standing: Mutex<PackageStanding>,
}

/// How the packages of a service stand.
#[derive(Debug, Clone, Default)]
pub struct PackageStanding {
    /// The package in force; none before the first.
    pub active: Option<PackageId>,
    /// The newest package, if it is not in force because it cannot be.
    pub refused: Option<RefusedPackage>,
    /// What is wrong with the bucket, or with what it holds.
    pub problem: Option<String>,
    /// Why everything is denied, if it is.
    pub denies: Option<String>,
    /// Why the state file does not hold what is known here.
    pub unkept: Option<String>,
    /// When the bucket was last seen.
    pub seen: Option<Instant>,
    /// What is compared with the policies in force.
    pub shadow: ShadowStanding,
    /// What the state file is to hold.
    kept: Kept,
}

/// A package that has just come into force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageChange {
    /// Which.
    pub id: PackageId,
    /// Who signed it.
    pub signers: Vec<String>,
}

/// The file that is kept across restarts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// The highest number of a package that operators have signed for us.
    highest: u64,
    /// The digest of that package: another one with its number is none.
    #[serde(default)]
    digest: String,
    /// The last package that was in force, as it is stored in the bucket.
    package: Option<Arc<str>>,
    /// The highest number of a package that was to be compared, and its digest.
    #[serde(default)]
    shadow: (u64, String),
}

/// What was kept of the last package in force.
enum LastGood {
    Package(Box<Package>, PackageChange),
    /// There is one, and too few of today's operators have signed it.
    Distrusted(PackageError),
    /// Nothing was ever in force; or it is not known what was, though packages were seen.
    Nothing,
}

/// Why it cannot be known which policies were distributed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackagesError {
    /// Whose signatures count.
    #[error(transparent)]
    Operators(#[from] OperatorsError),
    /// The state file, or its folder.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The state file is not what was written there.
    #[error(
        "state file `{}`: {reason}. Restore it; or see by `sealwire policy status` that the bucket holds the latest package, and delete it",
        path.display()
    )]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// What became of a package that was offered.
#[derive(Debug)]
enum Offer {
    /// It is the newest that is known.
    Known,
    /// It is to be tried.
    New(Box<Package>, PackageChange),
    /// It has no effect, for this reason.
    Invalid(String),
}

impl Packages {
    /// Those of this service, by the operators and the login of `[revocation]`, with what was kept in `state`.
    ///
    /// # Errors
    /// [`PackagesError`]; the operator is to blame.
    pub fn open(
        config: &RevocationConfig,
        (environment, service): (&Name, &Name),
        state: PathBuf,
    ) -> Result<Self, PackagesError> {
        let operators = Operators::new(&config.operator, config.signatures)?;
        let mut kept = read_state(&state, &config.nats.files)?;
        if let Some((number, digest)) =
            kept.package.as_deref().and_then(unverified).filter(|(number, _)| *number > kept.highest)
        {
            (kept.highest, kept.digest) = (number, digest);
        }
        let standing = Mutex::new(PackageStanding { kept, ..PackageStanding::default() });
        let (environment, service, config) = (environment.clone(), service.clone(), config.clone());
        let packages = Self { environment, service, operators, config, state, opened: Instant::now(), standing };
        // Now, and not once it is needed: the operator is there.
        packages.last_good()?;
        Ok(packages)
    }

    /// The package that was in force when the state was written, verified anew.
    fn last_good(&self) -> Result<LastGood, PackagesError> {
        let Some(text) = self.standing().kept.package else { return Ok(LastGood::Nothing) };
        match self.verify(text.as_bytes(), Stage::Active) {
            Ok((package, change)) => Ok(LastGood::Package(Box::new(package), change)),
            // Keys change, and the bucket may hold a package of the new ones by now.
            Err(error @ PackageError::Signatures(_)) if unverified(&text).is_some() => Ok(LastGood::Distrusted(error)),
            Err(error) => Err(PackagesError::State { path: self.state.clone(), reason: error.to_string() }),
        }
    }

    /// The policy to begin with, if there was ever a package. If the last one in force cannot be used any more, or is not known, that is the
    /// set that denies everything: the folder may hold anything by now, and a newer package may be in the bucket.
    pub fn begin(&self, methods: &Methods) -> Option<(PolicySet, Vec<Finding>)> {
        let (highest, state) = (self.standing().kept.highest, self.state.display());
        let why = match self.last_good() {
            Ok(LastGood::Package(package, change)) => match load(&package, methods) {
                Ok(loaded) => {
                    self.change(|standing| standing.active = Some(change.id));
                    return Some(loaded);
                }
                Err(reason) => {
                    let number = change.id.number;
                    let why = format!(
                        "package {number} of the policies, kept in `{state}`, cannot be used any more: {reason}"
                    );
                    self.change(|standing| standing.refused = Some(RefusedPackage { id: change.id, reason }));
                    why
                }
            },
            Ok(LastGood::Distrusted(error)) => format!(
                "the package of policies that was in force, kept in `{state}`, does not count any more: {error}. Push one that they have signed"
            ),
            Ok(LastGood::Nothing) if highest == 0 => return None,
            Ok(LastGood::Nothing) => {
                format!(
                    "package {highest} of the policies was seen, and `{state}` holds none that was in force. Push the next one"
                )
            }
            Err(error) => error.to_string(),
        };
        tracing::error!(target: "sealwire::policy", why, "everything is denied until there is a newer package");
        self.denies(&why);
        Some((PolicySet::denying(why, methods.without_files()), Vec::new()))
    }

    /// Notes that everything is denied before the first package, and why.
    pub fn denies(&self, why: &str) {
        self.change(|standing| standing.denies = Some(brief(why)));
    }

    /// For how long the bucket has not been seen.
    #[must_use]
    pub fn unseen(&self) -> Duration {
        self.standing().seen.unwrap_or(self.opened).elapsed()
    }

    /// How they stand.
    #[must_use]
    pub fn standing(&self) -> PackageStanding {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut PackageStanding) -> T) -> T {
        change(&mut self.standing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn verify(&self, text: &[u8], stage: Stage) -> Result<(Package, PackageChange), PackageError> {
        let signed = SignedPackage::parse(text)?;
        let package = signed.verify(&self.operators, (&self.environment, &self.service), stage)?;
        let (number, revision) = (package.number, package.revision().to_string());
        let id = PackageId { number, digest: signed.digest(), revision };
        Ok((package, PackageChange { id, signers: signed.signers(&self.operators) }))
    }

    /// Judges a package. One that is to be tried counts as seen from now on, whether it can be used or not.
    fn offer(&self, text: &[u8]) -> Offer {
        let (package, change) = match self.verify(text, Stage::Active) {
            Ok(verified) => verified,
            Err(error) => return Offer::Invalid(error.to_string()),
        };
        self.change(|standing| {
            let newest = standing.refused.as_ref().map(|refused| &refused.id).or(standing.active.as_ref());
            if newest == Some(&change.id) {
                return Offer::Known;
            }
            let (number, highest) = (change.id.number, standing.kept.highest);
            // One that was refused before a restart is tried again, since this program may be a newer one. So is one that more have signed by now.
            let is_tried_again = newest.is_none_or(|newest| newest.number < highest)
                && (number, &change.id.digest) == (highest, &standing.kept.digest);
            if number <= highest && !is_tried_again {
                return Offer::Invalid(format!(
                    "the bucket holds package {number}, and package {highest} was seen before: somebody has put back an old one, or two were \
                     signed with one number. Push the next one, with `--after {highest}`"
                ));
            }
            (standing.kept.highest, standing.kept.digest) = (number, change.id.digest.clone());
            Offer::New(Box::new(package), change)
        })
    }

    /// Judges a package that is to be compared. The newest that was seen counts again after a restart, and none before it.
    fn offer_shadow(&self, text: &[u8]) -> Offer {
        let (package, change) = match self.verify(text, Stage::Shadow) {
            Ok(verified) => verified,
            Err(error) => return Offer::Invalid(error.to_string()),
        };
        self.change(|standing| {
            let ShadowStanding { compared, refused, .. } = &standing.shadow;
            let newest = refused.as_ref().map(|refused| &refused.id).or(compared.as_ref().map(|compared| &compared.id));
            if newest == Some(&change.id) {
                return Offer::Known;
            }
            let (new, (number, digest)) = (&change.id, &standing.kept.shadow);
            if new.number < *number || (new.number == *number && new.digest != *digest) {
                return Offer::Invalid(format!(
                    "the bucket holds shadow package {}, and shadow package {number} was seen before: somebody has put back an old one, or \
                     two were signed with one number. Push the next one, with `--after {number}`",
                    new.number
                ));
            }
            standing.kept.shadow = (new.number, new.digest.clone());
            Offer::New(Box::new(package), change)
        })
    }

    /// A package is in force.
    fn is_active(&self, id: PackageId, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into();
        self.change(|standing| {
            (standing.active, standing.refused, standing.denies) = (Some(id), None, None);
            standing.kept.package = Some(text);
        });
    }

    /// Keeps for the next start what is in force here, and the highest number. What the file says counts only where it is newer, of another
    /// process: it may be gone or wrong by now. Blocks.
    fn keep(&self) -> Result<(), SecretFileError> {
        let mut kept = self.standing().kept;
        let number =
            |text: &Arc<str>| self.verify(text.as_bytes(), Stage::Active).map_or(0, |(package, _)| package.number);
        if let Ok(other) = read_state(&self.state, &self.config.nats.files) {
            if other.highest > kept.highest {
                (kept.highest, kept.digest) = (other.highest, other.digest);
            }
            if other.shadow.0 > kept.shadow.0 {
                kept.shadow = other.shadow;
            }
            let ours = kept.package.as_ref().map_or(0, number);
            if let Some(newer) = other.package.filter(|theirs| number(theirs) > ours) {
                kept.package = Some(newer);
            }
        }
        let written = write_secret(&self.state, &serde_json::to_string(&kept).unwrap_or_default(), true);
        self.change(|standing| standing.unkept = written.as_ref().err().map(|error| brief(&error.to_string())));
        written
    }
}

/// The number and the digest of a signed package, whoever signed it.
fn unverified(text: &str) -> Option<(u64, String)> {
    let signed = SignedPackage::parse(text.as_bytes()).ok()?;
    Some((signed.unverified().ok()?.number, signed.digest()))
}

/// The policy of a package, or why it cannot be used: the first few findings.
fn load(package: &Package, methods: &Methods) -> Result<(PolicySet, Vec<Finding>), String> {
    let files = package.files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    PolicySet::from_texts(files, methods).map_err(|errors| {
        let findings = errors.findings().iter().take(FINDINGS).map(|finding| finding.to_string());
        let text = brief(&findings.collect::<Vec<_>>().join("; "));
        match errors.findings().len().checked_sub(FINDINGS) {
            Some(more) if more > 0 => format!("{text}; and {more} more"),
            _ => text,
        }
    })
}

/// How many findings a reason has.
const FINDINGS: usize = 3;

fn read_state(path: &Path, trust: &FileTrust) -> Result<Kept, PackagesError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Folder::open(folder, Some(trust))?;
    match read_trusted(path, Content::Public, trust) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| PackagesError::State { path: path.to_owned(), reason: error.to_string() }),
        Err(error) if error.is_missing() => Ok(Kept::default()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
