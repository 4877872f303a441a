//! `sealwire policy`: examines the access policies in a folder before they are used.
//! Never changes what a file says: `fmt` changes only its layout, and `skeleton` and `learn` write only new files.

mod caller;
mod can;
mod check;
mod diff;
mod explain;
mod first_call;
mod fmt;
mod learn;
mod lines;
mod matrix;
mod schema;
mod skeleton;
mod test;
mod who_can;

use std::fmt::Write as _;
use std::path::Path;

use clap::Subcommand;
use sealwire::MethodName;
use sealwire::policy::{AccessCell, Finding, Methods, PolicyErrors, PolicySet};
use sealwire::service::BUILTIN_METHODS;

use crate::exit::{Exit, Failure};
use crate::output::Output;
pub(crate) use first_call::NewAgent;

/// Access policies: check, test, explain, review, compare and format the files.
#[derive(Subcommand)]
pub(crate) enum Policy {
    Check(check::Check),
    Test(test::Test),
    Explain(explain::Explain),
    Matrix(matrix::Matrix),
    WhoCan(who_can::WhoCan),
    Can(can::Can),
    Diff(diff::Diff),
    Skeleton(skeleton::Skeleton),
    Learn(learn::Learn),
    Fmt(fmt::Fmt),
    Schema(schema::Schema),
}

impl Policy {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Check(command) => command.run(out),
            Self::Test(command) => command.run(out),
            Self::Explain(command) => command.run(out),
            Self::Matrix(command) => command.run(out),
            Self::WhoCan(command) => command.run(out),
            Self::Can(command) => command.run(out),
            Self::Diff(command) => command.run(out),
            Self::Skeleton(command) => command.run(out),
            Self::Learn(command) => command.run(out),
            Self::Fmt(command) => command.run(out),
            Self::Schema(command) => command.run(out),
        }
    }
}

/// The default folder of policy files.
const FOLDER: &str = "policies";

/// Checks that the folder exists: a mistyped name is an input error, not a policy that denies everything.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        return Ok(());
    }
    let message = format!("`{}` is not a folder", folder.display());
    Err(Failure::input(message).help("name the folder that holds the policy files (*.toml, *.cedar)"))
}

/// The methods of a service that has none of its own; the files declare the others.
///
/// A `*` in a file also covers the built-in methods of every service, so reviewers have to see them.
pub(crate) fn known_methods() -> Methods {
    let builtin = BUILTIN_METHODS.into_iter().filter_map(|name| MethodName::new(name).ok());
    builtin.fold(Methods::from_files(), Methods::with)
}

/// The policy of a folder, with these methods and those that its files declare, and warnings.
pub(crate) fn read(folder: &Path, methods: &Methods) -> Result<(PolicySet, Vec<Finding>), Failure> {
    PolicySet::load(folder, methods).map_err(|errors| refused(folder, &errors))
}

/// The errors in a folder, each with its place; or that there is no such folder.
pub(crate) fn refused(folder: &Path, errors: &PolicyErrors) -> Failure {
    let wrong = || Failure::new(Exit::PolicyInvalid, format!("`{}` cannot be used", folder.display())).findings(errors);
    check_folder(folder).err().unwrap_or_else(wrong)
}

/// The policy of a folder, with the methods that its files declare. Prints warnings for people.
fn load(folder: &Path, out: &Output) -> Result<PolicySet, Failure> {
    load_with(folder, &known_methods(), out)
}

/// Like [`load`], with `methods` in addition to those that the files declare.
fn load_with(folder: &Path, methods: &Methods, out: &Output) -> Result<PolicySet, Failure> {
    let (set, warnings) = read(folder, methods)?;
    for finding in warnings {
        // The line begins with the place and `warning:`.
        out.note(&finding.to_string());
    }
    Ok(set)
}

/// Checks that policies name these roles: otherwise the mistake would only show as a denial.
pub(crate) fn check_roles(set: &PolicySet, roles: &[String]) -> Result<(), Failure> {
    let known: Vec<String> = first_call::roles(set).collect();
    match roles.iter().find(|role| !known.contains(role)) {
        Some(role) => {
            let failure = Failure::input(format!("no policy names the role `{}`", role.escape_debug()));
            Err(failure.help(format!("there are: {}", known.join(", "))))
        }
        None => Ok(()),
    }
}

/// A line with what callers can do with a method, and below it the rules that say so.
fn cell_text(heading: &str, cell: &AccessCell) -> String {
    let mut text = format!("{:<11}  {heading}\n", cell.access);
    for rule in &cell.rules {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {rule}");
    }
    text
}
