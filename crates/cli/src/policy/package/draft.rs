//! A package that not enough operators have signed yet, as a file.
//! Never signs what its reader has not named.

use std::path::Path;

use sealwire::internal::auth::Stage;
use sealwire::internal::policy::{Package, SignedPackage};
use serde_json::json;

use super::latest::{Latest, remember};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{read_if_there, write_public};
use crate::output::Output;
use crate::revocation::desk::Desk;

/// The package in this file, if it is what is to be signed next: that of `wanted` with another number, and with these very files.
pub(in crate::policy) fn read(
    path: &Path,
    wanted: &Package,
    after: u64,
    (latest, files_of): (&Latest, &str),
) -> Result<(Package, SignedPackage), Failure> {
    let missing = || Failure::input(format!("`{}` is not there", path.display()));
    let text = read_if_there(path)?.ok_or_else(missing)?;
    let unfinished = SignedPackage::parse(text.as_bytes()).or_fail(Exit::Input)?;
    let package = unfinished.unverified().or_fail(Exit::Input)?;
    let whose = |package: &Package| {
        let stage = if package.stage == Stage::Shadow { "shadow " } else { "" };
        (package.environment.clone(), package.service.clone(), stage)
    };
    if whose(&package) != whose(wanted)
        || package.number <= after
        || !latest.allows(package.number, &unfinished.digest())
    {
        let ((environment, service, stage), (to, of, next)) = (whose(&package), whose(wanted));
        let failure = Failure::input(format!(
            "`{}` is {stage}package {} of {environment}/{service}, and the next {next}one of {to}/{of} is {}",
            path.display(),
            package.number,
            wanted.number
        ));
        return Err(failure.help("somebody else has pushed meanwhile, or the draft is old: make it again"));
    }
    if package.files != wanted.files {
        let message = format!("`{}` does not hold the files of {files_of}", path.display());
        return Err(Failure::input(message).help("name the folder that you have reviewed: what you sign must be that"));
    }
    Ok((package, unfinished))
}

/// Writes it, for another operator, who gives these words.
pub(in crate::policy) fn write(
    path: &Path,
    (package, signed): (&Package, &SignedPackage),
    desk: &Desk,
    words: &str,
    out: &Output,
) -> Result<Exit, Failure> {
    remember(desk, package, signed.digest())?;
    write_public(path, &signed.to_text().or_fail(Exit::Input)?)?;
    let (shown, revision) = (path.display().to_string(), package.revision().to_string());
    let signers = signed.signers(&desk.operators);
    let result = json!({ "draft": shown, "number": package.number, "revision": revision, "signers": signers });
    out.result(&result, || {
        format!(
            "wrote {shown}: package {} with revision {revision}; nothing is in force yet\nAnother operator: sealwire policy push {words} \
             --service {} --sign {shown} --key FILE",
            package.number, package.service
        )
    })?;
    Ok(Exit::Ok)
}
