//! `sealwire policy check`: reports everything that is wrong or doubtful in a folder, for people and for CI.
//! Never stops at the first finding.

use std::path::PathBuf;

use clap::Args;
use sealwire::PolicySet;
use sealwire::decide::Finding;
use sealwire::internal::policy::TestSuite;
use sealwire::internal::service::BUILTIN_METHODS;
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::policies::{FOLDER, check_folder, known_methods};

/// Check a folder of policy files; the exit code is 11 if there are errors
///
/// A folder with expected decisions (`*.test.toml`) but no policy is an error, too.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy check
  sealwire policy check /etc/sealwire/policies --json | jq '.findings[]'
  sealwire policy check --warnings-are-errors")]
pub(crate) struct Check {
    /// The folder
    #[arg(value_name = "DIR", default_value = FOLDER)]
    folder: PathBuf,
    /// Exit with code 11 for warnings, too
    #[arg(long)]
    warnings_are_errors: bool,
}

#[derive(Serialize)]
struct CheckResult<'a> {
    ok: bool,
    revision: Option<String>,
    methods: Vec<String>,
    findings: &'a [Finding],
}

impl Check {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        check_folder(&self.folder)?;
        let loaded = PolicySet::load(&self.folder, &known_methods());
        let (set, findings) = match &loaded {
            Ok((set, warnings)) => (Some(set), warnings.as_slice()),
            Err(errors) => (None, errors.findings()),
        };
        // Expected decisions without a policy mean that the policy is elsewhere, or was never copied here.
        let empty = set.is_some_and(|set| set.revision().why().is_some());
        let astray = empty && TestSuite::load(&self.folder).map_or(true, |tables| !tables.is_empty());
        let ok = set.is_some() && !astray && (findings.is_empty() || !self.warnings_are_errors);
        let methods: Vec<String> = set.iter().flat_map(|set| set.methods().names()).map(ToString::to_string).collect();
        let revision = set.map(|set| set.revision().to_string());
        out.verdict(&CheckResult { ok, revision: revision.clone(), methods: methods.clone(), findings }, || {
            let lines = findings.iter().map(|finding| format!("{finding}\n"));
            let verdict = match revision {
                Some(_) if astray => {
                    format!("{}: expected decisions, but no policy", self.folder.display())
                }
                Some(revision) => {
                    let own = methods.iter().filter(|name| !BUILTIN_METHODS.contains(&name.as_str())).count();
                    format!(
                        "{}: revision {revision}, {own} method{}, and {} of every service",
                        self.folder.display(),
                        if own == 1 { "" } else { "s" },
                        methods.len() - own
                    )
                }
                None => format!("{}: cannot be used", self.folder.display()),
            };
            lines.chain([verdict]).collect()
        })?;
        Ok(if ok { Exit::Ok } else { Exit::PolicyInvalid })
    }
}
