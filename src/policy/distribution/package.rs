//! One version of a service's policies, as operators sign it and replicas get it.
//! Never holds what too few operators have signed, once it is verified.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::auth::{MAX_PACKAGE_BYTES, OperatorKey, Operators, Signatures, Stage, TooFewSignatures};
use crate::jose::{b64, sha256_b64, unb64};
use crate::name::{Name, shown};
use crate::policy::engine::{Loaded, PolicySet};
use crate::policy::language::Folder;
use crate::policy::model::{Methods, Report, Revision};

/// What every signature begins with: a signature of anything else that an operator signs is none of a package.
const SIGNED: &str = "sealwire policies v1\n";
/// The most files of a package.
const MAX_PACKAGE_FILES: usize = 256;
/// The longest name of a file, in characters.
const MAX_FILE_NAME: usize = 200;
/// The highest number: the highest whole one that every reader of JSON takes as it is.
const MAX_NUMBER: u64 = (1 << 53) - 1;

/// The policies of one service. The next version has a higher number, also if its content is an earlier one's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// For which environment.
    pub environment: Name,
    /// For which service.
    pub service: Name,
    /// What it is for.
    pub stage: Stage,
    /// Its number among those of its service and stage, from 1.
    pub number: u64,
    /// When it was signed, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The policy files, by their names in the folder.
    pub files: BTreeMap<String, String>,
}

/// Why a package has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// Not a signed package.
    #[error("not a signed package of policies ({0})")]
    Form(String),
    /// It is too long.
    #[error(
        "the signed package has {0} bytes, and {MAX_PACKAGE_BYTES} is the most, which is about 180,000 of policy files"
    )]
    TooLong(usize),
    /// Too few known operators have signed it.
    #[error(transparent)]
    Signatures(#[from] TooFewSignatures),
    /// It is for somebody else.
    #[error("a package for {package}, and this is {here}")]
    Elsewhere {
        /// For whom it is.
        package: String,
        /// Who this is.
        here: String,
    },
    /// A number that no package has.
    #[error("a package has a number from 1 to {MAX_NUMBER}, and this has {0}")]
    Number(u64),
    /// It has no files, or too many.
    #[error("a package has 1 to {MAX_PACKAGE_FILES} policy files, and this has {0}")]
    Files(usize),
    /// A name that no policy file has.
    #[error(
        "`{0}` is no name of a policy file: it ends in `.toml` or `.cedar`, and has at most {MAX_FILE_NAME} characters"
    )]
    FileName(String),
}

impl Package {
    /// The policy files of a folder, by their names, and the policy that they make with these methods: of one reading, so that what is
    /// signed is what was checked.
    pub fn files_of(folder: &Path, methods: &Methods) -> (BTreeMap<String, String>, Loaded) {
        let report = Report::default();
        let read = Folder::read(folder, None, &report);
        // What is no text is reported where the policy is made.
        let texts = read.texts(&Report::default());
        let files = texts.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        if report.errors() > 0 {
            return (files, Err(report.into_errors()));
        }
        (files, PolicySet::from_folder(&read, methods, report, &folder.display().to_string()))
    }

    /// The revision of these files, as a service that has read them from its folder would name it.
    #[must_use]
    pub fn revision(&self) -> Revision {
        Revision::of(self.files.iter().map(|(name, text)| (name.as_str(), text.as_bytes())))
    }

    /// For whom it is.
    fn whose(&self) -> String {
        format!("{}/{} ({})", self.environment, self.service, self.stage)
    }

    fn check(&self) -> Result<(), PackageError> {
        if !(1..=MAX_NUMBER).contains(&self.number) {
            return Err(PackageError::Number(self.number));
        }
        if self.files.is_empty() || self.files.len() > MAX_PACKAGE_FILES {
            return Err(PackageError::Files(self.files.len()));
        }
        let is_policy = |name: &str| {
            let ends = (name.ends_with(".toml") && !name.ends_with(".test.toml")) || name.ends_with(".cedar");
            ends && name.chars().count() <= MAX_FILE_NAME && !name.chars().any(char::is_control)
        };
        match self.files.keys().find(|name| !is_policy(name)) {
            Some(name) => Err(PackageError::FileName(shown(name))),
            None => Ok(()),
        }
    }
}

/// The text of a package, and its signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedPackage {
    /// The package as JSON, in base64url.
    package: String,
    signatures: Signatures,
}

impl SignedPackage {
    /// The package, signed by nobody yet.
    ///
    /// # Errors
    /// [`PackageError::Files`], [`PackageError::FileName`].
    pub fn new(package: &Package) -> Result<Self, PackageError> {
        package.check()?;
        Ok(Self { package: b64(serde_json::to_vec(package).unwrap_or_default()), signatures: Signatures::default() })
    }

    /// The same, signed by this operator, too.
    #[must_use]
    pub fn signed(mut self, key: &OperatorKey) -> Self {
        let input = self.input();
        self.signatures.add(&input, key);
        self
    }

    /// Reads what [`SignedPackage::to_text`] wrote. No signature is checked.
    ///
    /// # Errors
    /// [`PackageError::TooLong`], [`PackageError::Form`].
    pub fn parse(text: &[u8]) -> Result<Self, PackageError> {
        if text.len() > MAX_PACKAGE_BYTES {
            return Err(PackageError::TooLong(text.len()));
        }
        serde_json::from_slice(text).map_err(|error| form(&error.to_string()))
    }

    /// As it is stored.
    ///
    /// # Errors
    /// [`PackageError::TooLong`].
    pub fn to_text(&self) -> Result<String, PackageError> {
        let text = serde_json::to_string(self).map_err(|error| form(&error.to_string()))?;
        if text.len() > MAX_PACKAGE_BYTES { Err(PackageError::TooLong(text.len())) } else { Ok(text) }
    }

    /// The SHA-256 of the package's text, whoever signed it.
    #[must_use]
    pub fn digest(&self) -> String {
        sha256_b64(self.package.as_bytes())
    }

    /// Which of these operators have signed it.
    #[must_use]
    pub fn signers(&self, operators: &Operators) -> Vec<String> {
        operators.signers(&self.input(), &self.signatures)
    }

    /// What it says, whoever says so: for showing it to people.
    ///
    /// # Errors
    /// [`PackageError`].
    pub fn unverified(&self) -> Result<Package, PackageError> {
        let text = unb64(&self.package).ok_or_else(|| form("`package` is not base64url"))?;
        let package: Package = serde_json::from_slice(&text).map_err(|error| form(&error.to_string()))?;
        package.check()?;
        Ok(package)
    }

    /// The package, if enough of these operators have signed it for this service and stage.
    ///
    /// # Errors
    /// [`PackageError`].
    pub fn verify(
        &self,
        operators: &Operators,
        (environment, service): (&Name, &Name),
        stage: Stage,
    ) -> Result<Package, PackageError> {
        operators.have_signed(&self.input(), &self.signatures)?;
        let package = self.unverified()?;
        if (&package.environment, &package.service, package.stage) == (environment, service, stage) {
            return Ok(package);
        }
        let here = format!("{environment}/{service} ({stage})");
        Err(PackageError::Elsewhere { package: package.whose(), here })
    }

    fn input(&self) -> String {
        format!("{SIGNED}{}", self.package)
    }
}

/// What is wrong with the form. The error quotes what somebody without a key may have written.
fn form(error: &str) -> PackageError {
    PackageError::Form(brief(error))
}

/// A text for people and for a report, in one line and of bounded length.
pub(super) fn brief(text: &str) -> String {
    let mut brief = String::new();
    // Escaped, each character becomes ten at most.
    for character in text.chars().take(REASON) {
        match character {
            '"' | '\'' => brief.push(character),
            _ => brief.extend(character.escape_debug()),
        }
    }
    brief.chars().take(REASON).collect()
}

/// How many characters of a reason are kept.
const REASON: usize = 1_000;
