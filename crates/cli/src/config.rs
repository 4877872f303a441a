//! `sealwire config`: describes what a configuration file may contain.
//! Never checks one: that is what `sealwire serve --check` does.

mod page;
mod schema;

use clap::{Args, Subcommand};
use sealwire::internal::settings::Table;
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// The configuration file of a service or a gateway: its JSON Schema, and every key of it.
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
pub(crate) struct Schema {
    #[command(flatten)]
    file: File,
}

/// Print a reference of all keys of the configuration file: type, unit, range, default, meaning
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire config reference > configuration.md
  sealwire config reference --gateway")]
pub(crate) struct Reference {
    #[command(flatten)]
    file: File,
}

#[derive(Args)]
struct File {
    /// Of gateway.toml, which `sealwire gateway` reads, instead of sealwire.toml
    #[arg(long)]
    gateway: bool,
}

impl File {
    fn keys(&self) -> Table {
        if self.gateway { sealwire_gateway::http::keys() } else { sealwire_backend::keys() }
    }
}

impl Commands {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Schema(Schema { file }) => {
                let title = if file.gateway { "Sealwire gateway configuration" } else { "Sealwire configuration" };
                let schema = schema::json_schema(title, &file.keys());
                let text = serde_json::to_string_pretty(&schema).or_fail(Exit::Bug)?;
                out.result(&schema, || text)?;
            }
            Self::Reference(Reference { file }) => {
                let head = if file.gateway { page::GATEWAY } else { page::SERVICE };
                let page = page::reference_page(head, &file.keys());
                out.result(&json!({ "markdown": page }), || page.clone())?;
            }
        }
        Ok(Exit::Ok)
    }
}
