//! Whom the commands about approvals ask, and as which agent.
//! Never prints anything.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::errors::code;
use sealwire::{Client, ClientError, RequestBuilder};
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
        self.reach(method, out, async |client| self.request(&client).call::<T>(method, params).await)
    }

    /// Connects, and does `work`, which calls this method, unless a signal comes first.
    pub(super) fn reach<T, F>(&self, method: &str, out: &Output, work: impl FnOnce(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let reached = self
            .options()
            .run(&self.service, out, async |client, signals| signals.unless_stopped(work(client)).await.transpose());
        reached.map_err(|failure| self.explained(failure, method))?.ok_or_else(interrupted)
    }

    pub(super) fn options(&self) -> Options {
        Options { creds: self.creds.clone(), deadline: None, wait: self.wait, idempotent: false }
    }

    pub(super) fn request(&self, client: &Client) -> RequestBuilder {
        self.options().request(client, &self.service)
    }

    /// Adds help if the policy does not allow the method.
    pub(super) fn explained(&self, failure: Failure, method: &str) -> Failure {
        match failure.profile_code() {
            Some(code::METHOD_NOT_FOUND | code::PERMISSION_DENIED) => {
                let service = &self.service;
                failure.help(format!("the policy of `{service}` must allow this agent `{method}`"))
            }
            _ => failure,
        }
    }
}
