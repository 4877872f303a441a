//! The latest package of a service that can be verified.
//! Never believes the bucket more than the signatures.

use sealwire::Name;
use sealwire::internal::auth::{Bucket, BucketSubjects, Stage};
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
    /// The bucket's, or the copy here if that is newer or the bucket's does not count. A package that is compared is only the bucket's: it may
    /// have been taken out.
    pub(in crate::policy) async fn read(
        desk: &Desk,
        (service, stage): (&Name, Stage),
        bucket: &mut Bucket,
    ) -> Result<Self, Failure> {
        let stored = bucket.read().await.map_err(|error| failed(&error))?;
        let sequence = stored.as_ref().map(|stored| stored.sequence);
        let taken_out = |text: &[u8]| stage == Stage::Shadow && text.is_empty();
        let stored = stored.filter(|stored| !taken_out(&stored.text));
        let (held, problem) = match stored.map(|stored| verify(desk, (service, stage), &stored.text)) {
            None => (None, None),
            Some(Err(error)) => (None, Some(format!("what the bucket holds has no effect: {error}"))),
            Some(Ok(held)) => (Some(held), None),
        };
        let path = desk.copy_of(&copy(service));
        let wrong = |error: PackageError| Failure::input(format!("`{}`: {error}", path.display()));
        let copied = if stage == Stage::Active { read_if_there(&path)? } else { None };
        let (kept, copied, distrusted) = match copied {
            None => (None, 0, None),
            Some(text) => match verify(desk, (service, stage), text.as_bytes()) {
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
        let path = desk.copy_of(&numbers(service, stage));
        let signed = match read_if_there(&path)? {
            None => Signed::default(),
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| Failure::input(format!("`{}`: {error}", path.display())))
                .map_err(|failure| failure.help("if it cannot be restored, delete it, and give the highest number that replicas report with `--after`"))?,
        };
        let number = |of: &Option<(Package, SignedPackage)>| of.as_ref().map_or(0, |(package, _)| package.number);
        let problem = match problem {
            None if stage == Stage::Shadow && held.is_some() && number(&held) < signed.number => Some(format!(
                "the bucket holds shadow package {}, and shadow package {} was signed here: that is a draft, or somebody has put back an old one",
                number(&held),
                signed.number
            )),
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
    write_public(&desk.copy_of(&numbers(&package.service, package.stage)), &text)
}

/// Keeps a package that is in the bucket now.
pub(in crate::policy) fn keep(desk: &Desk, package: &Package, text: &str) -> Result<(), Failure> {
    match package.stage {
        Stage::Active => write_public(&desk.copy_of(&copy(&package.service)), text),
        Stage::Shadow => Ok(()),
    }
}

/// The bucket, for what is of this stage.
pub(in crate::policy) async fn connect(desk: &Desk, service: &Name, stage: Stage) -> Result<Bucket, Failure> {
    desk.connect_to(BucketSubjects::policies(&desk.environment, service, stage)).await
}

fn verify(
    desk: &Desk,
    (service, stage): (&Name, Stage),
    text: &[u8],
) -> Result<(Package, SignedPackage), PackageError> {
    let signed = SignedPackage::parse(text)?;
    let package = signed.verify(&desk.operators, (&desk.environment, service), stage)?;
    Ok((package, signed))
}

fn numbers(service: &Name, stage: Stage) -> String {
    match stage {
        Stage::Active => format!("policies.{service}.number.json"),
        Stage::Shadow => format!("policies.{service}.shadow.number.json"),
    }
}

fn copy(service: &Name) -> String {
    format!("policies.{service}.json")
}
