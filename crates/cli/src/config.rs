//! `sealwire config`: describes what a configuration file may contain.
//! Never checks one: that is what `sealwire serve --check` does.

use clap::{Args, Subcommand};
use sealwire::Config;
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// The configuration file of a service: its JSON Schema, and every key of it.
#[derive(Subcommand)]
pub(crate) enum Commands {
    Schema(Schema),
    Reference(Reference),
}

/// Print the JSON Schema of the configuration file, for editors
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire config schema > sealwire.schema.json

With Taplo or Even Better TOML, the first line of the configuration:
  #:schema ./sealwire.schema.json")]
pub(crate) struct Schema {}

/// Print a reference of all keys of the configuration file: type, unit, range, default, meaning
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire config reference > configuration.md")]
pub(crate) struct Reference {}

impl Commands {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Schema(Schema {}) => {
                let schema = Config::json_schema();
                let text = serde_json::to_string_pretty(&schema).or_fail(Exit::Bug)?;
                out.result(&schema, || text)?;
            }
            Self::Reference(Reference {}) => {
                let page = Config::reference();
                out.result(&json!({ "markdown": page }), || page.clone())?;
            }
        }
        Ok(Exit::Ok)
    }
}
