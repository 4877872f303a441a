//! `sealwire policy push`: signs a folder of policies, gives it to the replicas of a service, and waits for them.
//! Never pushes what `policy check` or `policy test` refuses, and never over what it has not read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::internal::auth::{Bucket, BucketError, BucketSubjects, Stage};
use sealwire::internal::policy::{Package, SignedPackage, TestReport, TestSuite};
use sealwire::{Clock as _, Name, SystemClock};
use serde_json::json;
use tokio::time::Instant;

use super::package::latest::{Latest, keep, remember};
use super::package::reports::Reports;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{read_if_there, write_public};
use crate::output::Output;
use crate::policies::{FOLDER, known_methods, refused};
use crate::revocation::Signing;
use crate::revocation::desk::{Desk, failed};
use crate::runtime::block_on;

/// Sign a folder of policies and put it in force at every replica of a service
///
/// The folder is checked and tested first. Replicas take it only with the signatures of operators, and keep what they have if they cannot use
/// it. An earlier version comes back by pushing its folder again. See docs/policy-push.md.
///
/// The exit code is 0 if all that report have it in force, 11 if one cannot use it, and 23 if one has not answered.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy push policies --service bank --key op-1.json --create 3
  sealwire policy push policies --service bank --key op-1.json --expect bank=2
  sealwire policy push policies --service bank --key op-1.json --draft bank.json
  sealwire policy push policies --service bank --key op-2.json --sign bank.json")]
pub(crate) struct Push {
    /// The folder
    #[arg(value_name = "DIR", default_value = FOLDER)]
    folder: PathBuf,
    /// The service
    #[arg(long, value_name = "NAME")]
    service: Name,
    /// Sign this draft of another operator, if it holds the very files of the folder, and put it in force once enough have signed
    #[arg(long, value_name = "FILE")]
    sign: Option<PathBuf>,
    /// Make the bucket if it is not there: how many brokers of a cluster keep it
    #[arg(long, value_name = "COPIES")]
    create: Option<usize>,
    /// A higher number that a replica has reported: if the bucket was lost or rolled back
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,
    #[command(flatten)]
    signing: Signing,
}

impl Push {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let files = check(&self.folder, out)?;
        let desk = Desk::open(&self.signing.config)?;
        let keys = desk.keys(&self.signing.keys)?;
        block_on(async {
            let subjects = BucketSubjects::policies(&desk.environment, &self.service, Stage::Active);
            let mut bucket = desk.connect_to(subjects).await?;
            if let Some(copies) = self.create {
                bucket.create(copies).await.map_err(|error| failed(&error))?;
            }
            let latest = Latest::read(&desk, &self.service, &mut bucket).await?;
            if let Some(problem) = &latest.problem {
                out.warning(problem);
            }
            let number = latest.next().max(self.after.saturating_add(1));
            let (package, unfinished) = match &self.sign {
                None => {
                    let package = Package {
                        environment: desk.environment.clone(),
                        service: self.service.clone(),
                        stage: Stage::Active,
                        number,
                        at_ms: SystemClock.now_ms(),
                        files,
                    };
                    let signed = SignedPackage::new(&package).or_fail(Exit::Input)?;
                    (package, signed)
                }
                Some(path) => {
                    let (package, unfinished) = read_draft(path)?;
                    let expected = (&desk.environment, &self.service, Stage::Active);
                    if (&package.environment, &package.service, package.stage) != expected
                        || package.number <= self.after
                        || !latest.allows(package.number, &unfinished.digest())
                    {
                        let failure = Failure::input(format!(
                            "`{}` is package {} of {}/{}, and the next one of {}/{} is {number}",
                            path.display(),
                            package.number,
                            package.environment,
                            package.service,
                            desk.environment,
                            self.service
                        ));
                        return Err(
                            failure.help("somebody else has pushed meanwhile, or the draft is old: make it again")
                        );
                    }
                    if package.files != files {
                        let message =
                            format!("`{}` does not hold the files of `{}`", path.display(), self.folder.display());
                        let help = "name the folder that you have reviewed: what you sign must be that";
                        return Err(Failure::input(message).help(help));
                    }
                    (package, unfinished)
                }
            };
            let signed = keys.iter().fold(unfinished, SignedPackage::signed);
            if let Some(path) = &self.signing.draft {
                remember(&desk, &package, signed.digest())?;
                return draft(path, &signed, &package, (&self.folder, &desk), out);
            }
            let verified = signed.verify(&desk.operators, (&desk.environment, &self.service), Stage::Active);
            verified.map_err(|error| {
                let failure = Failure::of(Exit::Input, &error);
                failure.help("give every key with `--key`, or let another operator sign: `--draft FILE`")
            })?;
            remember(&desk, &package, signed.digest())?;
            self.put(&desk, &mut bucket, (&package, &signed), &latest, out).await
        })?
    }

    /// Writes the package over the one that was read, and waits for the replicas.
    async fn put(
        &self,
        desk: &Desk,
        bucket: &mut Bucket,
        (package, signed): (&Package, &SignedPackage),
        latest: &Latest,
        out: &Output,
    ) -> Result<Exit, Failure> {
        let text = signed.to_text().or_fail(Exit::Input)?;
        let mut reports = Reports::listen(bucket).await?;
        let began = Instant::now();
        bucket.write(&text, Some(latest.sequence.unwrap_or(0))).await.map_err(|error| match error {
            BucketError::Overtaken => Failure::input("somebody else has pushed meanwhile: nothing was written")
                .help("see what is in force now (`sealwire policy status`), and push again if it still holds"),
            error => failed(&error),
        })?;
        keep(desk, &self.service, &text)?;
        reports.wait(bucket, &signed.digest(), began, &self.signing.waiting).await?;
        reports.tell(out, package, (signed, &desk.operators), &self.signing.waiting)
    }
}

/// As `policy check` and `policy test` would, in one. These files are what is signed, whatever the folder holds by then.
fn check(folder: &Path, out: &Output) -> Result<BTreeMap<String, String>, Failure> {
    let (files, loaded) = Package::files_of(folder, &known_methods());
    let (set, warnings) = loaded.map_err(|errors| refused(folder, &errors))?;
    for finding in warnings {
        out.note(&finding.to_string());
    }
    if let Some(why) = set.revision().why() {
        return Err(Failure::new(Exit::PolicyInvalid, format!("`{}` cannot be pushed: {why}", folder.display())));
    }
    let expectations = TestSuite::load(folder).map_err(|errors| {
        let message = format!("the expected decisions in `{}` cannot be used", folder.display());
        Failure::new(Exit::PolicyInvalid, message).findings(&errors)
    })?;
    if expectations.is_empty() {
        out.note("there are no expected decisions (*.test.toml), so nothing was tested");
        return Ok(files);
    }
    let report = TestReport::run(&set, &expectations);
    if report.passed() {
        return Ok(files);
    }
    let message = format!("`{}` does not decide as expected: nothing was pushed", folder.display());
    Err(Failure::new(Exit::PolicyTestFailed, message).help(format!("see `sealwire policy test {}`", folder.display())))
}

fn read_draft(path: &Path) -> Result<(Package, SignedPackage), Failure> {
    let missing = || Failure::input(format!("`{}` is not there", path.display()));
    let text = read_if_there(path)?.ok_or_else(missing)?;
    let unfinished = SignedPackage::parse(text.as_bytes()).or_fail(Exit::Input)?;
    Ok((unfinished.unverified().or_fail(Exit::Input)?, unfinished))
}

fn draft(
    path: &Path,
    signed: &SignedPackage,
    package: &Package,
    (folder, desk): (&Path, &Desk),
    out: &Output,
) -> Result<Exit, Failure> {
    write_public(path, &signed.to_text().or_fail(Exit::Input)?)?;
    let (shown, revision) = (path.display().to_string(), package.revision().to_string());
    let signers = signed.signers(&desk.operators);
    let result = json!({ "draft": shown, "number": package.number, "revision": revision, "signers": signers });
    out.result(&result, || {
        format!(
            "wrote {shown}: package {} with revision {revision}; nothing is in force yet\nAnother operator: sealwire policy push {} \
             --service {} --sign {shown} --key FILE",
            package.number,
            folder.display(),
            package.service
        )
    })?;
    Ok(Exit::Ok)
}
