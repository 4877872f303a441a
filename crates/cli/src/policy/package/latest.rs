//! The latest package of a service that can be verified.
//! Never believes the bucket more than the signatures.

use sealwire::Name;
use sealwire::internal::auth::{Bucket, Stage};
use sealwire::internal::policy::{Package, PackageError, SignedPackage};

use crate::exit::Failure;
use crate::files::{read_if_there, write_public};
use crate::revocation::desk::{Desk, failed};

/// The latest package that can be verified, if there is one.
pub(in crate::policy) struct Latest {
    pub(in crate::policy) package: Option<(Package, SignedPackage)>,
    /// The number of what the bucket holds, whatever it is.
    pub(in crate::policy) sequence: Option<u64>,
    /// Why the bucket's own content does not count.
    pub(in crate::policy) problem: Option<String>,
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
        let kept = match read_if_there(&path)? {
            None => None,
            Some(text) => {
                let wrong = |error| Failure::input(format!("`{}`: {error}", path.display()));
                Some(verify(desk, service, text.as_bytes()).map_err(wrong)?)
            }
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
        let package = if number(&kept) > number(&held) { kept } else { held };
        Ok(Self { package, sequence, problem })
    }

    /// Its number; 0 if there is none.
    pub(in crate::policy) fn number(&self) -> u64 {
        self.package.as_ref().map_or(0, |(package, _)| package.number)
    }
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

fn copy(service: &Name) -> String {
    format!("policies.{service}.json")
}
