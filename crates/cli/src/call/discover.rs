//! `sealwire discover`: which methods of a service the agent may call, and with which parameters.
//! Never claims to know a service's other methods: the service does not reveal them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::call::MethodInfo;
use serde_json::Value;

use super::{Options, interrupted};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::term;
use crate::when;

/// Ask a service which of its methods an agent may call, and with which parameters
///
/// The service answers from its policy, for this agent at this moment, and decides anew when a method is called. With `--json`,
/// prints an OpenRPC document with JSON Schemas of parameters and results.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire discover --creds planner.creds.json math
  sealwire discover math --json | jq '.methods[].name'")]
pub(crate) struct Discover {
    /// The agent's credentials file
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    /// How long to wait for a service that is not listening yet
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    wait: Option<Duration>,
    /// The service
    #[arg(value_name = "SERVICE")]
    service: String,
}

impl Discover {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Self { creds, wait, service } = self;
        let options = Options { creds, deadline: None, wait, idempotent: false };
        let found = options.run(&service, out, async |client, signals| {
            signals.unless_stopped(client.discover(&service)).await.transpose()
        })?;
        let found = found.ok_or_else(interrupted)?;
        let methods = &found.methods;
        out.result(&found.document(), || {
            if methods.is_empty() {
                return format!("there is no method of `{service}` that this agent may call");
            }
            methods.iter().map(line).collect::<Vec<_>>().join("\n")
        })?;
        Ok(Exit::Ok)
    }
}

/// `math/add(a: number, b: number)  Adds two numbers.`
fn line(method: &MethodInfo) -> String {
    let params: Value = serde_json::from_str(method.params.get()).unwrap_or_default();
    let required = params.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|required| required.iter().any(|known| known == name));
    let known = params.get("properties").and_then(Value::as_object);
    let params = known.map(|known| {
        let param = |(name, schema): (&String, &Value)| {
            let mark = if is_required(name) { "" } else { "?" };
            format!("{name}{mark}: {}", kind(schema))
        };
        known.iter().map(param).collect::<Vec<_>>().join(", ")
    });
    let params = params.unwrap_or_else(|| "…".to_owned());
    let about = method.description.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
    let listen = if method.is_subscription { " [to watch]" } else { "" };
    let line = format!("{}({params}){listen}  {about}", method.name);
    term::safe_text(line.trim_end()).into_owned()
}

fn kind(schema: &Value) -> String {
    match schema.get("type") {
        Some(Value::String(kind)) if kind == "array" => {
            format!("{}[]", schema.get("items").map(kind_of_items).unwrap_or_default())
        }
        Some(Value::String(kind)) => kind.clone(),
        _ => "any".to_owned(),
    }
}

fn kind_of_items(items: &Value) -> String {
    items.get("type").and_then(Value::as_str).unwrap_or_default().to_owned()
}
