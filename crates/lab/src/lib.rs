//! What shows and measures Sealwire, for the commands `sealwire demo`, `dev`, `bench` and `setup`: throw-away keys and folders, a
//! service with small methods, attackers, load.
//! Never used by the library, a backend or a gateway.

pub mod audience;
pub mod bench;
pub mod demo;
pub mod demo_methods;
mod error;
pub mod layout;
pub mod parties;
pub mod permissions;
pub mod sandbox;

pub use error::{Blame, LabError};
