//! `sealwire policy`: the access policies of a folder, looked at before they are put to use.
//! Never changes what a file says: `fmt` writes the layout alone, `skeleton` and `learn` new files only.

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

/// Access policies: check, test, explain, review, compare and lay out the files.
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

/// Where policy files are looked for when no folder is named.
const FOLDER: &str = "policies";

/// The folder exists: a mistyped one is a wrong input, and no policy that denies everything.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        return Ok(());
    }
    let message = format!("`{}` is no folder", folder.display());
    Err(Failure::input(message).help("name the folder that holds the policy files (*.toml, *.cedar)"))
}

/// What a service without methods of its own has; the files declare the others.
///
/// A `*` in a file covers the built-in methods of every service, so whoever reviews it has to see them.
pub(crate) fn known_methods() -> Methods {
    let builtin = BUILTIN_METHODS.into_iter().filter_map(|name| MethodName::new(name).ok());
    builtin.fold(Methods::from_files(), Methods::with)
}

/// The policy of a folder, with these methods and those that its files declare, and warnings.
pub(crate) fn read(folder: &Path, methods: &Methods) -> Result<(PolicySet, Vec<Finding>), Failure> {
    PolicySet::load(folder, methods).map_err(|errors| refused(folder, &errors))
}

/// What is wrong in a folder, each with its place; or that there is none.
pub(crate) fn refused(folder: &Path, errors: &PolicyErrors) -> Failure {
    let wrong = || Failure::new(Exit::PolicyInvalid, format!("`{}` cannot be used", folder.display())).findings(errors);
    check_folder(folder).err().unwrap_or_else(wrong)
}

/// The policy of a folder, with the methods that its files declare. Warnings are told to people.
fn load(folder: &Path, out: &Output) -> Result<PolicySet, Failure> {
    load_with(folder, &known_methods(), out)
}

/// As [`load`], with `methods` beside those that the files declare.
fn load_with(folder: &Path, methods: &Methods, out: &Output) -> Result<PolicySet, Failure> {
    let (set, warnings) = read(folder, methods)?;
    for finding in warnings {
        // The line begins with the place and `warning:`.
        out.note(&finding.to_string());
    }
    Ok(set)
}

/// A role that no policy names would be a mistake that shows as a denial only.
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

/// What callers can do with a method, in a line, and by which rules, in lines below.
fn cell_text(heading: &str, cell: &AccessCell) -> String {
    let mut text = format!("{:<11}  {heading}\n", cell.access);
    for rule in &cell.rules {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {rule}");
    }
    text
}
