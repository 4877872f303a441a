//! The packages of policies as an operator sees them: the latest, and what replicas report of it.
//! Never shows one as signed that too few operators have signed.

pub(super) mod draft;
pub(super) mod latest;
pub(super) mod merged;
pub(super) mod reported;
pub(super) mod reports;
pub(super) mod shadowed;
