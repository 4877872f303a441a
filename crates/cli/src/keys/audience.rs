//! `ENVIRONMENT/SERVICE` of the command line.
//! Never half of it.

use std::str::FromStr;

use sealwire::internal::wire::Audience;

/// `ENVIRONMENT/SERVICE` on the command line.
#[derive(Clone)]
pub(crate) struct AudienceArg(pub(super) Audience);

impl FromStr for AudienceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Audience::parse(text).map(Self).ok_or_else(|| "write ENVIRONMENT/SERVICE, such as dev/math".to_owned())
    }
}
