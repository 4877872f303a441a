//! Reads the access policies of a folder.
//! Never takes a folder that is not there for one without rules.

use std::path::Path;

use sealwire::PolicySet;
use sealwire::decide::{Finding, Methods};
use sealwire::errors::PolicyErrors;
use sealwire::internal::policy::CallerGroup;
use sealwire::internal::service::with_builtin_methods;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// The default folder of policy files.
pub(crate) const FOLDER: &str = "policies";

/// Checks that the folder exists: a mistyped name is an input error, not a policy that denies everything.
pub(crate) fn check_folder(folder: &Path) -> Result<(), Failure> {
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
    with_builtin_methods(Methods::from_files())
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
pub(crate) fn load(folder: &Path, out: &Output) -> Result<PolicySet, Failure> {
    load_with(folder, &known_methods(), out)
}

/// Like [`load`], with `methods` in addition to those that the files declare.
pub(crate) fn load_with(folder: &Path, methods: &Methods, out: &Output) -> Result<PolicySet, Failure> {
    let (set, warnings) = read(folder, methods)?;
    for finding in warnings {
        // The line begins with the place and `warning:`.
        out.note(&finding.to_string());
    }
    Ok(set)
}

/// Checks that policies name these roles: otherwise the mistake would only show as a denial.
pub(crate) fn check_roles(set: &PolicySet, roles: &[String]) -> Result<(), Failure> {
    let known: Vec<String> = self::roles(set).collect();
    match roles.iter().find(|role| !known.contains(role)) {
        Some(role) => {
            let failure = Failure::input(format!("no policy names the role `{}`", role.escape_debug()));
            Err(failure.help(format!("there are: {}", known.join(", "))))
        }
        None => Ok(()),
    }
}

/// The roles that the policies name.
pub(crate) fn roles(set: &PolicySet) -> impl Iterator<Item = String> {
    let mut roles: Vec<String> = set
        .callers()
        .into_iter()
        .filter_map(|callers| if let CallerGroup::Role(role) = callers { Some(role) } else { None })
        .collect();
    roles.sort();
    roles.into_iter()
}
