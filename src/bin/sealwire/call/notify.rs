//! `sealwire notify`: a call that nobody answers.
//! Never claims that it was executed: nobody says so.

use clap::Args;
use serde_json::json;

use super::{Options, check_words, params};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Send a notification: nobody says whether it was executed, or even accepted
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire notify --creds planner.creds.json math log/append '{\"msg\":\"hello\"}'")]
pub(crate) struct Notify {
    #[command(flatten)]
    options: Options,
    /// The service
    #[arg(value_name = "SERVICE")]
    service: String,
    /// The method
    #[arg(value_name = "METHOD")]
    method: String,
    /// The parameters: a JSON object (by name) or array (by position); `-` reads them from stdin
    #[arg(value_name = "PARAMS", allow_hyphen_values = true)]
    params: Option<String>,
    /// What is left of parameters that were not quoted
    #[arg(value_name = "MORE", hide = true)]
    more: Vec<String>,
    /// Publish on the method's own subject
    #[arg(long)]
    method_subject: bool,
}

impl Notify {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        check_words("notify", &self.service, &self.method, self.params.as_deref(), &self.more)?;
        let params = params(self.params)?;
        self.options.run(&self.service, out, async |client| {
            let request = self.options.request(&client, &self.service);
            let request = if self.method_subject { request.on_method_subject() } else { request };
            request.notify(&self.method, &params).await
        })?;
        out.result(&json!({ "sent": true }), || "sent; nobody says whether it was executed".to_owned())?;
        Ok(Exit::Ok)
    }
}
