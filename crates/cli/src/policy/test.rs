//! `sealwire policy test`: compares the expected decisions next to the policies with what the policies decide.
//! Never passes if there was nothing to test.

use std::path::PathBuf;

use clap::Args;
use sealwire::internal::policy::{TestReport, TestSuite};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::policies::{FOLDER, check_folder, load};

/// Test policies against the expected decisions (`*.test.toml`) next to them
///
/// The exit code is 12 if a decision is not as expected or there are no cases, and 11 if the policies or the tables have errors.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy test
  sealwire policy test /etc/sealwire/policies --require-coverage
  sealwire policy test --json | jq '.failures[].name'

A case in bank.test.toml:
  [[case]]
  name = \"50.01 at night\"
  caller = { agent = \"teller\", roles = [\"teller\"] }
  method = \"bank/transfer\"
  params = { to = \"alice\", amount = 50_01 }
  at = \"sun 03:00\"
  expect = \"deny\"")]
pub(crate) struct Test {
    /// The folder
    #[arg(value_name = "DIR", default_value = FOLDER)]
    folder: PathBuf,
    /// Exit with code 12 also if some rule matches in no case
    #[arg(long)]
    require_coverage: bool,
}

#[derive(Serialize)]
struct TestResult<'a> {
    ok: bool,
    #[serde(flatten)]
    report: &'a TestReport,
}

impl Test {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        check_folder(&self.folder)?;
        let set = load(&self.folder, out)?;
        let expectations = TestSuite::load(&self.folder).map_err(|errors| {
            let message = format!("the expected decisions in `{}` cannot be used", self.folder.display());
            Failure::new(Exit::PolicyInvalid, message).findings(&errors)
        })?;
        if expectations.is_empty() {
            let message = format!("there is no case in `{}`, so nothing is tested", self.folder.display());
            return Err(Failure::new(Exit::PolicyTestFailed, message).help("write expected decisions into *.test.toml"));
        }
        let working = out.working("testing the policies");
        let report = TestReport::run(&set, &expectations);
        drop(working);
        let ok = report.passed() && (report.uncovered.is_empty() || !self.require_coverage);
        out.verdict(&TestResult { ok, report: &report }, || report.to_string())?;
        Ok(if ok { Exit::Ok } else { Exit::PolicyTestFailed })
    }
}
