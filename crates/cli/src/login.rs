//! The login of a program at the broker that is no agent's: a JSON file with the members of `nats` in credentials.
//! Never quotes what is in it, which may be a password.

use std::path::Path;

use sealwire::BusConfig;
use sealwire::internal::files::read_secret;

use crate::exit::{Exit, Failure, OrFail as _};

/// Reads the file. Relative names in it are relative to its folder.
pub(crate) fn read(file: &Path) -> Result<BusConfig, Failure> {
    let text = read_secret(file).or_fail(Exit::Input)?;
    let bus: BusConfig = serde_json::from_str(&text).map_err(|error| {
        // Serde's own message is left out: it may quote a password.
        let (line, column) = (error.line(), error.column());
        let failure = Failure::input(format!("`{}`, line {line}, column {column}: not a broker login", file.display()));
        failure.help(
            r#"for example {"urls": ["nats://127.0.0.1:4222"], "user": "tools", "password_file": "tools.password"}"#,
        )
    })?;
    Ok(bus.relative_to(file.parent().unwrap_or(Path::new(""))))
}
