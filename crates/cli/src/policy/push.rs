//! `sealwire policy push`: signs a folder of policies, gives it to the replicas of a service, and waits for them.
//! Never pushes what `policy check` or `policy test` refuses, and never over what it has not read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::internal::auth::{Bucket, BucketError, Stage};
use sealwire::internal::policy::{Package, SignedPackage, TestReport, TestSuite};
use sealwire::{Clock as _, Name, SystemClock};
use tokio::time::Instant;

use super::package::draft;
use super::package::latest::{Latest, connect, keep, remember};
use super::package::reports::Reports;
use super::package::shadowed::Shadowed;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::policies::{FOLDER, known_methods, refused};
use crate::revocation::Signing;
use crate::revocation::desk::{Desk, failed};
use crate::runtime::block_on;

/// Sign a folder of policies and put it in force at every replica of a service
///
/// The folder is checked and tested first. Replicas take it only with the signatures of operators, and keep what they have if they cannot use
/// it. An earlier version comes back by pushing its folder again. With --shadow, replicas compare it with the policies in force instead:
/// `policy compare` says what it would decide otherwise, and --activate puts it in force. See docs/policy-push.md.
///
/// The exit code is 0 if all that report have it in force, 11 if one cannot use it, and 23 if one has not answered.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy push policies --service bank --key op-1.json --create 3
  sealwire policy push policies --service bank --key op-1.json --expect bank=2
  sealwire policy push policies --service bank --key op-1.json --shadow
  sealwire policy push --service bank --key op-1.json --activate
  sealwire policy push policies --service bank --key op-1.json --draft bank.json
  sealwire policy push policies --service bank --key op-2.json --sign bank.json")]
pub(crate) struct Push {
    /// The folder: `policies`, or with --activate, what is compared
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    /// The service
    #[arg(long, value_name = "NAME")]
    service: Name,
    /// Have it compared with the policies in force, which stay in force
    #[arg(long)]
    shadow: bool,
    /// Put in force what was pushed with --shadow, and end the comparison. A folder that is named must hold the very files
    #[arg(long, conflicts_with = "shadow")]
    activate: bool,
    /// Sign this draft of another operator, if it holds the very files of the folder, and push it once enough have signed
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
        let folder = match &self.folder {
            None if self.activate => None,
            folder => Some(folder.as_deref().unwrap_or(Path::new(FOLDER))),
        };
        let files = folder.map(|folder| Ok::<_, Failure>((folder, check(folder, out)?))).transpose()?;
        let desk = Desk::open(&self.signing.config)?;
        let keys = desk.keys(&self.signing.keys)?;
        block_on(async {
            let stage = if self.shadow { Stage::Shadow } else { Stage::Active };
            let mut bucket = connect(&desk, &self.service, stage).await?;
            if let Some(copies) = self.create {
                bucket.create(copies).await.map_err(|error| failed(&error))?;
            }
            let latest = Latest::read(&desk, (&self.service, stage), &mut bucket).await?;
            if let Some(problem) = &latest.problem {
                out.warning(problem);
            }
            let mut shadowed = match self.activate {
                true => Some(Shadowed::read(&desk, &self.service).await?),
                false => None,
            };
            let files_of = folder.map_or_else(|| "the shadow package".to_owned(), |dir| format!("`{}`", dir.display()));
            let files = match &shadowed {
                Some(shadowed) => shadowed.files(files, out)?,
                None => files.map(|(_, files)| files).unwrap_or_default(),
            };
            let package = Package {
                environment: desk.environment.clone(),
                service: self.service.clone(),
                stage,
                number: latest.next().max(self.after.saturating_add(1)),
                at_ms: SystemClock.now_ms(),
                files,
            };
            let (package, unfinished) = match &self.sign {
                None => {
                    let signed = SignedPackage::new(&package).or_fail(Exit::Input)?;
                    (package, signed)
                }
                Some(path) => draft::read(path, &package, self.after, (&latest, &files_of))?,
            };
            let signed = keys.iter().fold(unfinished, SignedPackage::signed);
            if let Some(path) = &self.signing.draft {
                return draft::write(path, (&package, &signed), &desk, &self.words(folder), out);
            }
            let verified = signed.verify(&desk.operators, (&desk.environment, &self.service), stage);
            verified.map_err(|error| {
                let failure = Failure::of(Exit::Input, &error);
                failure.help("give every key with `--key`, or let another operator sign: `--draft FILE`")
            })?;
            remember(&desk, &package, signed.digest())?;
            let exit = self.put(&desk, &mut bucket, (&package, &signed), &latest, out).await?;
            if let Some(shadowed) = &mut shadowed
                && !shadowed.remove().await?
            {
                out.note("another shadow package was pushed meanwhile, and goes on being compared");
            }
            Ok(exit)
        })?
    }

    /// What another operator gives as well.
    fn words(&self, folder: Option<&Path>) -> String {
        let folder = folder.map(|folder| folder.display().to_string());
        let stage = [("--shadow", self.shadow), ("--activate", self.activate)];
        let stage = stage.into_iter().filter(|(_, is_given)| *is_given).map(|(word, _)| word.to_owned());
        folder.into_iter().chain(stage).collect::<Vec<_>>().join(" ")
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
        let mut reports = Reports::listen(bucket, package.stage).await?;
        let began = Instant::now();
        bucket.write(&text, Some(latest.sequence.unwrap_or(0))).await.map_err(|error| match error {
            BucketError::Overtaken => Failure::input("somebody else has pushed meanwhile: nothing was written")
                .help("see what is in force now (`sealwire policy status`), and push again if it still holds"),
            error => failed(&error),
        })?;
        keep(desk, package, &text)?;
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
