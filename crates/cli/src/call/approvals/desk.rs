//! Whom the commands about approvals ask, and as which agent.
//! Never prints anything.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::errors::code;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::call::{Options, interrupted};
use crate::exit::Failure;
use crate::output::Output;
use crate::when;

/// The agent that looks and decides, and the service whose calls wait.
#[derive(Args)]
pub(super) struct Desk {
    /// The agent's credentials file
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    pub(super) creds: Option<PathBuf>,
    /// How long to wait for a service that is not listening yet
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    wait: Option<Duration>,
    /// The service
    #[arg(value_name = "SERVICE")]
    pub(super) service: String,
}

impl Desk {
    /// Calls a method of the service.
    pub(super) fn ask<T: DeserializeOwned>(&self, method: &str, params: &Value, out: &Output) -> Result<T, Failure> {
        let options = Options { creds: self.creds.clone(), deadline: None, wait: self.wait, idempotent: false };
        let asked = options.run(&self.service, out, async |client, signals| {
            let request = options.request(&client, &self.service);
            signals.unless_stopped(request.call::<T>(method, params)).await.transpose()
        });
        let answer: Result<Option<T>, Failure> = asked.map_err(|failure| match failure.profile_code() {
            Some(code::METHOD_NOT_FOUND | code::PERMISSION_DENIED) => {
                let service = &self.service;
                failure.help(format!("the policy of `{service}` must allow this agent `{method}`"))
            }
            _ => failure,
        });
        answer?.ok_or_else(interrupted)
    }
}
