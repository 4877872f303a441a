//! `sealwire call`: one call, and its verified result on stdout.
//! Never prints a result that the service did not sign for this very call.

use clap::Args;
use sealwire::client::Client;
use serde::Serialize;
use serde_json::value::RawValue;

use super::repeat::Often;
use super::{Options, check_words, params};
use crate::exit::{ErrorObject, Exit, Failure};
use crate::output::Output;
use crate::term;

/// Call a method, and print its result
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire call --creds planner.creds.json math math/add '{\"a\":2,\"b\":3}'
  export SEALWIRE_CREDS=planner.creds.json
  sealwire call math math/add '[2,3]' --deadline 2s --idempotent
  echo '{\"to\":\"bob\",\"amount\":500}' | sealwire call bank bank/transfer - --json
  sealwire call math math/add '[2,3]' --method-subject
  sealwire call math math/add '[2,3]' --wait 10s    # it has just been started")]
pub(crate) struct Call {
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
    /// A key that the method can tell repetitions by
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    often: Often,
}

/// What a call came to, for scripts.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome<'a> {
    Result(&'a RawValue),
    Error(ErrorObject<'a>),
}

impl Call {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        check_words("call", &self.service, &self.method, self.params.as_deref(), &self.more)?;
        let params = params(self.params.clone())?;
        let call = async |client: &Client| {
            let mut request = self.options.request(client, &self.service);
            if self.method_subject {
                request = request.on_method_subject();
            }
            if let Some(key) = &self.idempotency_key {
                request = request.idempotency_key(key);
            }
            request.call::<Box<RawValue>>(&self.method, &params).await
        };
        if let Some(every) = self.often.every {
            let repeat = async |client, signals| self.often.repeat(every, out, &client, &signals, call).await;
            return self.options.run_until_stopped(&self.service, out, repeat);
        }
        let answer = self.options.run(&self.service, out, async |client| call(&client).await);
        let result =
            answer.map_err(|failure| if failure.exit() == Exit::Denied { self.denied(failure) } else { failure })?;
        out.result(&Outcome::Result(&result), || shown(&result))?;
        Ok(Exit::Ok)
    }

    /// The service must not say why.
    fn denied(&self, failure: Failure) -> Failure {
        failure.help(format!(
            "`sealwire call {service} rpc.can '{{\"method\": \"{method}\", \"params\": …}}'` asks without calling; the rule \
             stands in the service's log, and an operator asks with `sealwire policy explain`",
            service = self.service,
            method = self.method,
        ))
    }
}

/// A result as people read it.
pub(super) fn shown(result: &RawValue) -> String {
    term::safe_json(&term::indented(result.get())).into_owned()
}
