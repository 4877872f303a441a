//! The policy of the demonstration's methods.
//! Never one for other methods.

use sealwire::decide::{Finding, Methods};
use sealwire::internal::service::BUILTIN_METHODS;
use sealwire::{Config, MethodName, PolicySet};

use crate::exit::Failure;
use crate::policies;
use sealwire_lab::demo_methods::router;

/// The policy of a configuration, for the demonstration methods.
pub(crate) fn policy(config: &Config) -> Result<(PolicySet, Vec<Finding>), Failure> {
    policies::read(&config.policy.folder, &demo_methods())
}

/// Its methods, and those that every service has.
pub(super) fn demo_methods() -> Methods {
    let builtin = BUILTIN_METHODS.into_iter().filter_map(|name| MethodName::new(name).ok());
    builtin.fold(router().policy_methods(), Methods::with)
}
