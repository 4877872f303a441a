//! The configuration file of `sealwire serve`: the service's own keys, which the library reads, and `[[backend]]` beside them.
//! Never reads a key of the service.

use std::path::Path;

use sealwire::internal::config::load_with;
use sealwire::internal::settings::Table;
use sealwire::{Config, ConfigError};

use crate::tables::{BackendConfig, BackendTables};

/// Reads a configuration file: the service that it describes, and the backends. Relative paths in it are relative to its folder.
///
/// # Errors
/// As for [`Config::load`].
pub fn load(path: &Path) -> Result<(Config, Vec<BackendConfig>), ConfigError> {
    let (config, BackendTables { mut backend }) = load_with::<BackendTables>(path)?;
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    for one in &mut backend {
        one.files = config.files.clone();
        one.relative_to(folder);
    }
    Ok((config, backend))
}

/// Every key of such a file.
#[must_use]
pub fn keys() -> Table {
    let mut file = Table::of::<Config>();
    file.keys.extend(Table::of::<BackendTables>().keys);
    file
}
