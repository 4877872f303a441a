//! `--alg` of the command line.
//! Never chooses for whoever leaves it out anything but the default of all commands.

use clap::ValueEnum;
use sealwire::configure::ProofAlgorithm;

/// The proof algorithms, as written on the command line.
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum Alg {
    /// HMAC-SHA256 under a key derived for each service
    #[default]
    Hs256,
    /// Ed25519: no secret is shared with a service
    Eddsa,
}

impl From<Alg> for ProofAlgorithm {
    fn from(alg: Alg) -> Self {
        match alg {
            Alg::Hs256 => Self::Hs256,
            Alg::Eddsa => Self::EdDsa,
        }
    }
}
