//! The package that replicas compare with the policies in force: what is put in force of it, and its end.
//! Never takes out what it has not read.

use std::collections::BTreeMap;
use std::path::Path;

use sealwire::internal::auth::{Bucket, BucketError, Stage};
use sealwire::internal::policy::{Package, SignedPackage};
use sealwire::{Name, PolicySet};

use super::latest::{Latest, connect};
use crate::exit::Failure;
use crate::output::Output;
use crate::policies::{known_methods, refused};
use crate::revocation::desk::{Desk, failed};

/// The shadow package of a service.
pub(in crate::policy) struct Shadowed {
    pub(in crate::policy) bucket: Bucket,
    pub(in crate::policy) package: Package,
    pub(in crate::policy) signed: SignedPackage,
    /// Why it may not be the one that was meant.
    pub(in crate::policy) problem: Option<String>,
    sequence: u64,
}

impl Shadowed {
    pub(in crate::policy) async fn read(desk: &Desk, service: &Name) -> Result<Self, Failure> {
        let mut bucket = connect(desk, service, Stage::Shadow).await?;
        let Latest { package, sequence, problem, .. } =
            Latest::read(desk, (service, Stage::Shadow), &mut bucket).await?;
        let Some(((package, signed), sequence)) = package.zip(sequence) else {
            let message = problem.unwrap_or_else(|| format!("no shadow package was pushed for {service}"));
            return Err(Failure::input(message).help("sealwire policy push --shadow DIR"));
        };
        Ok(Self { bucket, package, signed, problem, sequence })
    }

    /// Its files, which are to be put in force, if they are those of this folder, or if no folder is named and it is the latest.
    pub(in crate::policy) fn files(
        &self,
        folder: Option<(&Path, BTreeMap<String, String>)>,
        out: &Output,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let files = &self.package.files;
        match (&self.problem, &folder) {
            (None, _) => {}
            // Whoever can write the bucket chooses which of those that were once signed is there.
            (Some(problem), None) => {
                return Err(Failure::input(problem).help("name the folder that is to be put in force"));
            }
            (Some(problem), Some(_)) => out.warning(problem),
        }
        if let Some((folder, others)) = folder.filter(|(_, others)| others != files) {
            let other = files.iter().find(|(name, text)| others.get(*name) != Some(*text)).map(|(name, _)| name);
            let other = other.or_else(|| others.keys().find(|name| !files.contains_key(*name)));
            let message = format!(
                "`{}` is not what was compared: shadow package {} with revision {} has another `{}`",
                folder.display(),
                self.package.number,
                self.package.revision(),
                other.map(String::as_str).unwrap_or_default()
            );
            let help = "compare it first (`policy push --shadow DIR`), or put in force what was compared, without DIR";
            return Err(Failure::input(message).help(help));
        }
        // Another version of this program may have pushed it.
        let texts = files.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        PolicySet::from_texts(texts, &known_methods())
            .map_err(|errors| refused(Path::new("the shadow package"), &errors))?;
        Ok(files.clone())
    }

    /// Takes it out, so that replicas compare nothing any more; false if somebody else has written meanwhile.
    pub(in crate::policy) async fn remove(&mut self) -> Result<bool, Failure> {
        match self.bucket.write("", Some(self.sequence)).await {
            Ok(_) => Ok(true),
            Err(BucketError::Overtaken) => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }
}
