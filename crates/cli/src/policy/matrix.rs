//! `sealwire policy matrix`: every group of callers against every method, for reviewers.
//! Never shows a conditional permission as more than it is: what depends on the call is neither allowed nor denied.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sealwire::internal::policy;
use sealwire::internal::policy::CallerGroup;

use crate::exit::{Exit, Failure};
use crate::files;
use crate::output::Output;
use crate::policies::{FOLDER, load};

/// Show who can call what: always, under conditions, or not by this role or name
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy matrix
  sealwire policy matrix /etc/sealwire/policies --by roles
  sealwire policy matrix --html matrix.html")]
pub(crate) struct Matrix {
    /// The folder
    #[arg(value_name = "DIR", default_value = FOLDER)]
    folder: PathBuf,
    /// The columns next to `anyone`
    #[arg(long, value_enum, default_value_t, value_name = "WHOM")]
    by: Grouping,
    /// Write the table as an HTML page instead, with the conditions in its cells
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Grouping {
    #[default]
    All,
    Roles,
    Agents,
    Subjects,
}

impl Matrix {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let mut matrix = load(&self.folder, out)?.matrix();
        self.by.narrow(&mut matrix);
        match &self.html {
            None => out.verdict(&matrix, || matrix.to_string())?,
            Some(file) => {
                let is_page = |text: &str| text.get(..9).is_some_and(|head| head.eq_ignore_ascii_case("<!doctype"));
                files::check_output(file, "page", is_page)?;
                files::write_public(file, &matrix.to_html())?;
                out.verdict(&serde_json::json!({ "html": files::shown(file), "revision": matrix.revision }), || {
                    format!("{}: who can call what, policy revision {}", file.display(), matrix.revision)
                })?;
            }
        }
        Ok(Exit::Ok)
    }
}

impl Grouping {
    fn shows(self, callers: &CallerGroup) -> bool {
        match callers {
            CallerGroup::Anyone => true,
            CallerGroup::Role(_) => matches!(self, Self::All | Self::Roles),
            CallerGroup::Agent(_) => matches!(self, Self::All | Self::Agents),
            CallerGroup::Subject(_) => matches!(self, Self::All | Self::Subjects),
        }
    }

    /// Removes the columns that were not asked for.
    fn narrow(self, matrix: &mut policy::Matrix) {
        let shown: Vec<bool> = matrix.callers.iter().map(|callers| self.shows(callers)).collect();
        for row in &mut matrix.rows {
            let mut shown = shown.iter();
            row.cells.retain(|_| shown.next().is_some_and(|shown| *shown));
        }
        matrix.callers.retain(|callers| self.shows(callers));
    }
}
