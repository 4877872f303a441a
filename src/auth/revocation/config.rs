//! `[revocation]`: whose revocations hold, where they are read, and what happens while they cannot be.
//! Never optional in parts: revocations have operators and a bus.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::files::FileTrust;
use crate::nats::BusConfig;
use crate::settings::Setting;

/// `[revocation]`
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RevocationConfig {
    /// An operator's public key, as `sealwire keys new-operator` prints it; there may be several.
    pub operator: Vec<OperatorConfig>,
    /// How many of the operators must have signed a list.
    #[serde(default = "usual_signatures")]
    #[setting(unit = "signatures", min = 1, max = 8)]
    pub signatures: usize,
    /// For how long the bucket may be out of sight before everything is refused (`-32014`) until it is seen again. An election among
    /// brokers takes up to 10 s.
    #[serde(default = "usual_refuse_after_s")]
    #[setting(unit = "seconds", min = 2, max = 86_400)]
    pub refuse_after_s: u64,
    /// Whether calls go on, under the last list, however long the bucket is out of sight. At the start, it must be seen all the same,
    /// unless `state` has a list.
    #[serde(default)]
    pub serve_stale: bool,
    /// Where the last list is kept across restarts: a list with a lower number is refused then. A service does not start if anybody else
    /// could write the file or its folder.
    #[setting(left_out = "`<name>.revocation`")]
    pub state: Option<PathBuf>,
    /// The broker, and the login in the account of the bucket, which no agent can reach.
    pub nats: BusConfig,
}

/// `[[revocation.operator]]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OperatorConfig {
    /// Its id.
    pub kid: String,
    /// The public key (Ed25519), in base64url.
    pub x: String,
}

fn usual_signatures() -> usize {
    1
}

fn usual_refuse_after_s() -> u64 {
    15
}

impl RevocationConfig {
    /// With paths relative to `folder`, the files of these users, and a state file of this name unless one is given.
    #[must_use]
    pub fn relative_to(mut self, folder: &Path, trust: &FileTrust, name: &str) -> Self {
        self.nats.files = trust.clone();
        self.nats = self.nats.relative_to(folder);
        self.state = Some(folder.join(self.state.unwrap_or_else(|| format!("{name}.revocation").into())));
        self
    }
}
