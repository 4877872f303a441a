//! The latest package of a service that can be verified.
//! Never believes the bucket more than the signatures.

use sealwire::Name;
use sealwire::internal::auth::{Bucket, Stage};
use sealwire::internal::policy::{Package, PackageError, SignedPackage};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::files::{read_if_there, write_public};
use crate::revocation::desk::{Desk, failed};

/// The package with the highest number that was signed here, whether it got to the bucket or not: no two have one number.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    number: u64,
    digest: String,
}

/// The latest package that can be verified, if there is one.
pub(in crate::policy) struct Latest {
    pub(in crate::policy) package: Option<(Package, SignedPackage)>,
    /// The number of what the bucket holds, whatever it is.
    pub(in crate::policy) sequence: Option<u64>,
    /// Why the content of the bucket or of the copy does not count.
    pub(in crate::policy) problem: Option<String>,
    /// The number of the copy, also if too few of today's operators have signed it: replicas may have seen it.
    copied: u64,
    signed: Signed,
}

impl Latest {
    /// The bucket's, or the copy here if that is newer or the bucket's does not count.
    pub(in crate::policy) async fn read(desk: &Desk, service: &Name, bucket: &mut Bucket) -> Result<Self, Failure> {
        let stored = bucket.read().await.map_err(|error| failed(&error))?;
        let sequence = stored.as_ref().map(|stored| stored.sequence);
        let (held, problem) = match stored.map(|stored| verify(desk, service, &stored.text)) {
            None => (None, None),
            Some(Err(error)) => (None, Some(format!("what the bucket holds has no effect: {error}"))),
            Some(Ok(held)) => (Some(held), None),
        };
        let path = desk.copy_of(&copy(service));
        let wrong = |error: PackageError| Failure::input(format!("`{}`: {error}", path.display()));
        let (kept, copied, distrusted) = match read_if_there(&path)? {
            None => (None, 0, None),
            Some(text) => match verify(desk, service, text.as_bytes()) {
                Ok(kept) => (Some(kept), 0, None),
                // Keys change, and numbers go on.
                Err(error @ PackageError::Signatures(_)) => {
                    let package =
                        SignedPackage::parse(text.as_bytes()).and_then(|signed| signed.unverified()).map_err(wrong)?;
                    let problem = format!(
                        "`{}` holds package {}, which does not count any more: {error}",
                        path.display(),
                        package.number
                    );
                    (None, package.number, Some(problem))
                }
                Err(error) => return Err(wrong(error)),
            },
        };
        let path = desk.copy_of(&numbers(service));
        let signed = match read_if_there(&path)? {
            None => Signed::default(),
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| Failure::input(format!("`{}`: {error}", path.display())))
                .map_err(|failure| failure.help("if it cannot be restored, delete it, and give the highest number that replicas report with `--after`"))?,
        };
        let number = |of: &Option<(Package, SignedPackage)>| of.as_ref().map_or(0, |(package, _)| package.number);
        let problem = match problem {
            None if number(&kept) > number(&held) => Some(format!(
                "the bucket holds package {}, and `{}` package {}: somebody has put back an old one, or emptied it",
                number(&held),
                path.display(),
                number(&kept)
            )),
            problem => problem,
        };
        let problem = match (problem, distrusted) {
            (Some(problem), Some(distrusted)) => Some(format!("{problem}; {distrusted}")),
            (problem, distrusted) => problem.or(distrusted),
        };
        let package = if number(&kept) > number(&held) { kept } else { held };
        Ok(Self { package, sequence, problem, copied, signed })
    }

    /// The highest number that was pushed; 0 if none was.
    fn pushed(&self) -> u64 {
        self.package.as_ref().map_or(0, |(package, _)| package.number).max(self.copied)
    }

    /// The number of the next package.
    pub(in crate::policy) fn next(&self) -> u64 {
        self.pushed().max(self.signed.number).saturating_add(1)
    }

    /// Whether a draft of this number may be signed: it is newer than what was pushed, and no other was signed here with this number.
    pub(in crate::policy) fn allows(&self, number: u64, digest: &str) -> bool {
        let is_signed = (number, digest) == (self.signed.number, &self.signed.digest);
        number > self.pushed() && (is_signed || number > self.signed.number)
    }
}

/// Remembers that this package is signed, before anybody else gets it.
pub(in crate::policy) fn remember(desk: &Desk, package: &Package, digest: String) -> Result<(), Failure> {
    let signed = Signed { number: package.number, digest };
    let text = serde_json::to_string(&signed).unwrap_or_default();
    write_public(&desk.copy_of(&numbers(&package.service)), &text)
}

/// Keeps a package that is in the bucket now.
pub(in crate::policy) fn keep(desk: &Desk, service: &Name, text: &str) -> Result<(), Failure> {
    write_public(&desk.copy_of(&copy(service)), text)
}

fn verify(desk: &Desk, service: &Name, text: &[u8]) -> Result<(Package, SignedPackage), PackageError> {
    let signed = SignedPackage::parse(text)?;
    let package = signed.verify(&desk.operators, (&desk.environment, service), Stage::Active)?;
    Ok((package, signed))
}

fn numbers(service: &Name) -> String {
    format!("policies.{service}.number.json")
}

fn copy(service: &Name) -> String {
    format!("policies.{service}.json")
}
