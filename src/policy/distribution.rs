//! Policies that operators sign and replicas take from a bucket that no agent can reach.
//! Never puts in force what operators have not signed for this very service, or an older version than one seen before.

mod follower;
mod package;
mod report;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use follower::{PackageEvent, PackageFollower};
pub use package::{Package, PackageError, SignedPackage};
pub use report::{PackageId, PackageReport, RefusedPackage};

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
    kept: Kept,
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
    /// When the bucket was last seen.
    pub seen: Option<Instant>,
    /// The highest number of a package that operators have signed for us.
    highest: u64,
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
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// The highest number seen.
    highest: u64,
    /// The last package that was in force, as it is stored in the bucket.
    package: Option<String>,
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
        let kept = read_state(&state, &config.nats.files)?;
        let standing = PackageStanding { highest: kept.highest, ..PackageStanding::default() };
        let (environment, service, config) = (environment.clone(), service.clone(), config.clone());
        let packages = Self { environment, service, operators, config, state, kept, standing: Mutex::new(standing) };
        // Now, and not once it is needed: the operator is there.
        packages.last_good()?;
        Ok(packages)
    }

    /// The package that was in force when the state was written, verified anew.
    fn last_good(&self) -> Result<Option<(Package, PackageChange)>, PackagesError> {
        let Some(text) = &self.kept.package else { return Ok(None) };
        let wrong = |reason: String| PackagesError::State { path: self.state.clone(), reason };
        self.verify(text.as_bytes()).map(Some).map_err(|error| wrong(error.to_string()))
    }

    /// The policy to begin with, if one was kept. One that cannot be used any more gives the set that denies everything: the folder may hold
    /// anything by now, and a newer package may be in the bucket.
    pub fn begin(&self, methods: &Methods) -> Option<(PolicySet, Vec<Finding>)> {
        let (package, change) = self.last_good().ok()??;
        let (number, state) = (change.id.number, self.state.display());
        match load(&package, methods) {
            Ok(loaded) => {
                self.change(|standing| standing.active = Some(change.id));
                Some(loaded)
            }
            Err(reason) => {
                let why =
                    format!("package {number} of the policies, kept in `{state}`, cannot be used any more: {reason}");
                tracing::error!(target: "sealwire::policy", why, "everything is denied until there is a newer package");
                self.change(|standing| standing.refused = Some(RefusedPackage { id: change.id, reason }));
                Some((PolicySet::denying(why, methods.without_files()), Vec::new()))
            }
        }
    }

    /// How they stand.
    #[must_use]
    pub fn standing(&self) -> PackageStanding {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change<T>(&self, change: impl FnOnce(&mut PackageStanding) -> T) -> T {
        change(&mut self.standing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn verify(&self, text: &[u8]) -> Result<(Package, PackageChange), PackageError> {
        let signed = SignedPackage::parse(text)?;
        let package = signed.verify(&self.operators, (&self.environment, &self.service), Stage::Active)?;
        let (number, revision) = (package.number, package.revision().to_string());
        let id = PackageId { number, digest: signed.digest(), revision };
        Ok((package, PackageChange { id, signers: signed.signers() }))
    }

    /// Judges a package. One that is to be tried counts as seen from now on, whether it can be used or not.
    fn offer(&self, text: &[u8]) -> Offer {
        let (package, change) = match self.verify(text) {
            Ok(verified) => verified,
            Err(error) => return Offer::Invalid(error.to_string()),
        };
        self.change(|standing| {
            let newest = standing.refused.as_ref().map(|refused| &refused.id).or(standing.active.as_ref());
            if newest == Some(&change.id) {
                return Offer::Known;
            }
            let (number, highest) = (change.id.number, standing.highest);
            // Of a package that was refused before a restart, the number alone is known. This program may be a newer one.
            let is_refused = newest.is_none_or(|newest| newest.number < highest) && number == highest;
            if number <= highest && !is_refused {
                return Offer::Invalid(format!(
                    "the bucket holds package {number}, and package {highest} was seen before: somebody has put back an old one, or two were \
                     signed with one number. Push the next one, with `--after {highest}`"
                ));
            }
            standing.highest = change.id.number;
            Offer::New(Box::new(package), change)
        })
    }

    /// Keeps a package that is in force for the next start, or that a newer one than the last has been seen. Blocks.
    fn keep(&self, package: Option<&str>) -> Result<(), SecretFileError> {
        let mut kept = read_state(&self.state, &self.config.nats.files).unwrap_or_default();
        let number = |text: &String| self.verify(text.as_bytes()).map_or(0, |(package, _)| package.number);
        let highest = self.standing().highest;
        kept.highest = kept.highest.max(highest);
        // Another process may have kept a newer one.
        if let Some(package) = package.map(str::to_owned)
            && kept.package.as_ref().map_or(0, number) < number(&package)
        {
            kept.package = Some(package);
        }
        write_secret(&self.state, &serde_json::to_string(&kept).unwrap_or_default(), true)
    }
}

/// The policy of a package, or why it cannot be used: the first few findings.
fn load(package: &Package, methods: &Methods) -> Result<(PolicySet, Vec<Finding>), String> {
    let files = package.files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    PolicySet::from_texts(files, methods).map_err(|errors| {
        let findings = errors.findings().iter().take(FINDINGS).map(|finding| finding.to_string());
        let text: String = findings.collect::<Vec<_>>().join("; ").chars().take(REASON).collect();
        match errors.findings().len().checked_sub(FINDINGS) {
            Some(more) if more > 0 => format!("{text}; and {more} more"),
            _ => text,
        }
    })
}

/// How many findings a reason has, and how many characters.
const FINDINGS: usize = 3;
const REASON: usize = 1_000;

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
