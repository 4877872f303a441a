//! `sealwire setup operator`: the setup of `setup cluster` for brokers in operator mode, with accounts and users as JWTs.
//! Never gives a container more than it needs, and never replaces a key of an existing setup.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::authority::PUT_AWAY;
use super::cluster::Contents;
use super::hosted;
use super::mark::SIGNING;
use super::nsc::Nsc;
use super::target::Target;
use crate::exit::{Exit, Failure};
use crate::files::at;
use crate::gate::with;
use crate::output::Output;

/// Write the same for brokers in operator mode: an operator, accounts, scoped signing keys, users with `.creds` files
///
/// What each user may do is the same as after `sealwire setup cluster`; here the account has it, in the scope of the key that signs
/// users of a kind. Brokers get the operator and a full resolver. Everything else, and what is done to an existing setup, is as there.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup operator --out /sealwire
  sealwire setup operator --out /sealwire --authd on --revocation on
  sealwire setup operator --out /sealwire --nsc-store --nsc-operator acme
  sealwire setup operator --hosted --service demo --service bank
  sealwire setup operator --hosted --authd on")]
pub(crate) struct Operator {
    /// The folder of the setup, with a folder in it for each container
    #[arg(long, value_name = "FOLDER", required_unless_present = "hosted")]
    out: Option<PathBuf>,
    /// Write nothing, and print what to create at an operator that somebody else hosts: accounts, limits, scoped signing keys
    #[arg(long, conflicts_with_all = ["out", "nsc_store", "nsc_keys", "nsc_operator"])]
    hosted: bool,
    /// Use the operator that `nsc` has in this store, and keep accounts, users and keys where `nsc` finds them; without a folder, in
    /// the store that it uses itself
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true)]
    nsc_store: Option<Option<PathBuf>>,
    /// The keys of `nsc` [default: $NKEYS_PATH, or where `nsc` keeps them]
    #[arg(long, value_name = "FOLDER", requires = "nsc_store")]
    nsc_keys: Option<PathBuf>,
    /// Which operator in the store [default: the one that is selected, or the only one]
    #[arg(long, value_name = "NAME", requires = "nsc_store")]
    nsc_operator: Option<String>,
    #[command(flatten)]
    contents: Contents,
}

impl Operator {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Some(folder) = self.out.filter(|_| !self.hosted) else {
            return hosted::print(&self.contents.services, self.contents.wants_authd(), out);
        };
        let nsc = self.nsc_store.map(|store| {
            let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            Nsc::find(store, self.nsc_keys, self.nsc_operator.as_deref(), variable)
        });
        let nsc = nsc.transpose()?;
        let with_nsc = nsc.is_some();
        let working = out.working("making keys and certificates");
        std::fs::create_dir_all(&folder).map_err(|error| at(&folder, &error))?;
        let mut target = Target::take(folder)?;
        target.with_operator(nsc)?;
        let (result, text) = self.contents.write(&mut target)?;
        drop(working);
        let made = result.get("made") == Some(&json!(true));
        let folder = target.display().to_string();
        let result = with(result, json!({ "put_away": format!("{folder}/{PUT_AWAY}") }));
        out.result(&result, || {
            if !made {
                return text;
            }
            let operator = if with_nsc { "" } else { "the operator's own key and " };
            format!(
                "{text}\n\nPut away {folder}/{PUT_AWAY}, offline: {operator}the keys of the accounts. Nothing that runs needs them.\n\
                 Keep {folder}/{SIGNING} to yourself: `sealwire setup` signs accounts and users with what is there, and so could a thief."
            )
        })?;
        Ok(Exit::Ok)
    }
}
