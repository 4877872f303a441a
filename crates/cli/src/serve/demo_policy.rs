//! The policy of the demonstration's methods.
//! Never one for other methods.

use sealwire::decide::{Finding, Methods};
use sealwire::internal::service::with_builtin_methods;
use sealwire::{Config, PolicySet};

use crate::exit::Failure;
use crate::policies;
use sealwire_lab::demo_methods::router;

/// The policy of a configuration, for the demonstration methods.
pub(crate) fn policy(config: &Config) -> Result<(PolicySet, Vec<Finding>), Failure> {
    policies::read(&config.policy.folder, &demo_methods())
}

/// Its methods, and those that every service has.
pub(super) fn demo_methods() -> Methods {
    with_builtin_methods(router().policy_methods())
}
