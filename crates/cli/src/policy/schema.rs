//! `sealwire policy schema`: what editors need to complete and check policy files as they are typed.
//! Never checks a file: that is what `sealwire policy check` does.

use clap::Args;
use sealwire::internal::policy::{json_schema, test_json_schema};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// Print the JSON Schema of policy files, for editors
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy schema > policy.schema.json
  sealwire policy schema --tests > policy-test.schema.json

With Taplo or Even Better TOML, the first line of a policy file:
  #:schema ./policy.schema.json")]
pub(crate) struct Schema {
    /// Print the schema of tables of expected decisions (`*.test.toml`) instead
    #[arg(long)]
    tests: bool,
}

impl Schema {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let schema = if self.tests { test_json_schema() } else { json_schema() };
        let text = serde_json::to_string_pretty(&schema).or_fail(Exit::Bug)?;
        out.result(&schema, || text)?;
        Ok(Exit::Ok)
    }
}
