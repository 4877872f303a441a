//! `sealwire serve --check`: reads everything that a service would read, once.
//! Never connects to anything, and never starts a program.

use std::path::Path;

use sealwire::configure::PolicySource;
use sealwire::decide::{Finding, Methods};
use sealwire::internal::config::ending_logins;
use sealwire::internal::service::with_builtin_methods;
use sealwire::{Config, PolicySet};
use sealwire_backend::BackendConfig;
use sealwire_backend::Lock;
use serde_json::json;

use super::demo_policy::{self, demo_methods};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::policies::{self, known_methods};

/// Reads everything as the service would: one with these backends, the demonstration, or one with the methods that the policies
/// declare.
pub(super) fn run(
    config: &Config,
    backends: &[BackendConfig],
    lock: &Path,
    demonstration: bool,
    out: &Output,
) -> Result<Exit, Failure> {
    config.check().or_fail(Exit::Input)?;
    let folder = &config.policy.folder;
    let (policy, warnings, whose) = if !backends.is_empty() {
        let (policy, warnings) = policies::read(folder, &methods(backends, lock)?)?;
        (policy, warnings, "")
    } else if demonstration {
        let (policy, warnings) = demo_policy::policy(config)?;
        (policy, warnings, " for the demonstration's methods")
    } else {
        of_others(config, out)?
    };
    for why in sealwire_backend::missing(backends) {
        out.warning(&format!("{why}: on this machine, the service could not start it"));
    }
    if config.policy.source == PolicySource::Bucket {
        let folder = folder.display();
        out.warning(&format!(
            "policies come from the bucket: those in `{folder}` decide only until there is a package"
        ));
    }
    for warning in ending_logins(config) {
        out.warning(&warning);
    }
    for warning in warnings {
        out.warning(&warning.to_string());
    }
    let (audience, revision) = (format!("{}/{}", config.environment, config.service), policy.revision().to_string());
    let result = json!({ "audience": audience, "policy": revision });
    out.result(&result, || format!("{audience}: everything is valid; policy {revision}{whose}"))?;
    Ok(Exit::Ok)
}

/// For a program of the user's own or for the demonstration's methods, whichever fits.
fn of_others(config: &Config, out: &Output) -> Result<(PolicySet, Vec<Finding>, &'static str), Failure> {
    let folder = &config.policy.folder;
    let declared = PolicySet::load(folder, &known_methods());
    let demonstration = PolicySet::load(folder, &demo_methods());
    let ((policy, warnings), whose) = match (declared, demonstration) {
        (Ok(declared), Ok(_)) => (declared, ""),
        (Ok(declared), Err(errors)) => {
            let first = errors.findings().first().map(ToString::to_string).unwrap_or_default();
            out.warning(&format!(
                "`sealwire serve demo` has the demonstration's methods and would not start with these policies, which are for a \
                 program of your own ({})",
                first.trim_end()
            ));
            (declared, " for the methods that its files declare")
        }
        (Err(_), Ok(demonstration)) => (demonstration, " for the demonstration's methods"),
        // Report the errors of the one that fits better: probably it is the one meant.
        (Err(declared), Err(demonstration)) => {
            let fits = declared.findings().len() <= demonstration.findings().len();
            return Err(policies::refused(folder, if fits { &declared } else { &demonstration }));
        }
    };
    Ok((policy, warnings, whose))
}

/// The methods that backends offer, for checking a policy against them.
fn methods(backends: &[BackendConfig], lock: &Path) -> Result<Methods, Failure> {
    let lock = Lock::load(lock).or_fail(Exit::Input)?;
    let offered = sealwire_backend::offered(backends, &lock).or_fail(Exit::Input)?;
    let builtin = with_builtin_methods(Methods::new());
    Ok(offered.into_iter().fold(builtin, |methods, tool| match tool.declared {
        Some(declared) if tool.by_name => methods.with_named_params(tool.method, declared),
        Some(declared) => methods.with_params(tool.method, declared),
        None => methods.with(tool.method),
    }))
}
