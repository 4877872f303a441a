//! `sealwire notify`: sends a notification, which the service does not answer.
//! Never claims that it was executed: nobody says so.

use clap::Args;
use serde_json::json;

use super::{Options, Words};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Send a notification; there is no answer, so you do not learn whether it was executed, or even accepted
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire notify --creds planner.creds.json math log/append '{\"msg\":\"hello\"}'")]
pub(crate) struct Notify {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    words: Words,
}

impl Notify {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let params = self.words.params("notify")?;
        let service = &self.words.service;
        let sent = self.options.run(service, out, async |client, signals| {
            let request = self.words.request(self.options.request(&client, service));
            signals.unless_stopped(request.notify(&self.words.method, &params)).await.transpose()
        })?;
        sent.ok_or_else(|| {
            Failure::new(Exit::Interrupted, "stopped by a signal; the notification may have been sent")
        })?;
        out.result(&json!({ "sent": true }), || "sent; nobody says whether it was executed".to_owned())?;
        Ok(Exit::Ok)
    }
}
