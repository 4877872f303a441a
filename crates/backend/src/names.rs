//! Which backend owns which method. Names go first to what the configuration says, then to approved tools, then to what servers list.
//! Never gives one name to two owners, so that nothing a server lists replaces what was there before.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sealwire::MethodName;

/// All methods of a service's backends, settled when the service starts.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<BTreeMap<String, String>>);

impl Names {
    fn taken(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why `owner` cannot have this method, if it cannot.
    pub(crate) fn fault(&self, method: &MethodName, owner: &str) -> Option<String> {
        if method.is_reserved() {
            return Some(format!("`{method}`: names that begin with `rpc` are reserved"));
        }
        let taken = self.taken();
        let other = taken.get(&method.in_subject()).filter(|known| *known != owner)?;
        Some(format!("`{method}` is taken by {other}"))
    }

    /// Gives the method to `owner`.
    ///
    /// # Errors
    /// Why that is impossible.
    pub(crate) fn claim(&self, method: &MethodName, owner: &str) -> Result<(), String> {
        match self.fault(method, owner) {
            Some(fault) => Err(fault),
            None => {
                // As in subjects, where `/` is written as `.`.
                self.taken().insert(method.in_subject(), owner.to_owned());
                Ok(())
            }
        }
    }
}
