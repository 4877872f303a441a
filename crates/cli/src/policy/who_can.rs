//! `sealwire policy who-can`: the callers of one method.
//! Never answers for a method that does not exist: its name is probably mistyped.

use std::path::PathBuf;

use clap::Args;
use sealwire::PolicySet;
use sealwire::decide::Budget;
use sealwire::internal::policy::{AccessCell, CallerGroup};
use serde::Serialize;

use super::cells::cell_text;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::policies::{FOLDER, load};

/// List who can call a method, and by which rules
///
/// Several lines may apply to one caller: that of anyone, those of its roles, that of its name. Nobody else can call the method.
/// `allowed` means every call in the caller's own name, as long as parameters and claims have their declared types.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy who-can bank/transfer
  sealwire policy who-can admin/drain-cache --dir /etc/sealwire/policies")]
pub(crate) struct WhoCan {
    /// The method
    #[arg(value_name = "METHOD")]
    method: String,
    /// The folder of the policy files
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    dir: PathBuf,
}

#[derive(Serialize)]
struct Answer<'a> {
    method: &'a str,
    callers: Vec<Entry>,
    /// What the calls are charged to, once they are allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    budgets: Vec<&'a Budget>,
}

#[derive(Serialize)]
struct Entry {
    callers: CallerGroup,
    #[serde(flatten)]
    cell: AccessCell,
}

impl WhoCan {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let set = load(&self.dir, out)?;
        check_method(&set, &self.method)?;
        let found = set.who_can(&self.method);
        let entries = || found.iter().cloned().map(|(callers, cell)| Entry { callers, cell }).collect();
        let budgets: Vec<&Budget> = set.budgets_of(&self.method).collect();
        let answer = Answer { method: &self.method, callers: entries(), budgets: budgets.clone() };
        out.verdict(&answer, || {
            if found.is_empty() {
                return format!("nobody can call {}", self.method);
            }
            let cells = found.iter().map(|(callers, cell)| cell_text(&callers.to_string(), cell));
            cells.chain(budgets.iter().map(|budget| format!("budget {budget}\n"))).collect()
        })?;
        Ok(Exit::Ok)
    }
}

fn check_method(set: &PolicySet, method: &str) -> Result<(), Failure> {
    if set.methods().contains(method) {
        return Ok(());
    }
    let names: Vec<String> = set.methods().names().map(|name| format!("`{name}`")).collect();
    let failure = Failure::input(format!("the policy files declare no method `{}`", method.escape_debug()));
    let help = format!("declare it: `[method.\"…\"]`; there are {}", names.join(", "));
    Err(failure.help(if names.is_empty() { "declare it: `[method.\"…\"]`".to_owned() } else { help }))
}
