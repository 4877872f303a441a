//! `sealwire send`: signs any bytes as they are, to test what a service does with them.
//! Never looks at what it sends.

use clap::Args;
use sealwire::ClientError;
use sealwire::errors::code;
use sealwire::internal::rpc::{Limits, Responses};

use super::Options;
use crate::exit::{Exit, Failure};
use crate::files;
use crate::output::Output;
use crate::term;

/// Sign and send a raw payload unchanged, and print the verified answer unchanged
#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 if the answer is a result, or the message has none; 10 if it says
that the policy denies the call, 21 for another error. The answer is printed.

Examples:
  sealwire send --creds planner.creds.json math \\
      '{\"jsonrpc\":\"2.0\",\"method\":\"math/add\",\"params\":[1,2],\"id\":1}'
  printf '{\"jsonrpc\":' | sealwire send math -    # what a broken payload gets
  sealwire send math '[]' --subject-of math/add
  sealwire send math - --no-reply < payload.bin")]
pub(crate) struct Send {
    #[command(flatten)]
    options: Options,
    /// The service
    #[arg(value_name = "SERVICE")]
    service: String,
    /// The payload; its bytes are read from stdin if `-` or absent
    #[arg(value_name = "PAYLOAD", allow_hyphen_values = true)]
    payload: Option<String>,
    /// Publish on the subject of this method, whatever the payload contains
    #[arg(long, value_name = "METHOD")]
    subject_of: Option<String>,
    /// Send without a reply subject, and wait for nothing
    #[arg(long)]
    no_reply: bool,
}

impl Send {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let payload = match self.payload {
            Some(text) if text != "-" => text.into_bytes(),
            _ => files::stdin("the payload")?,
        };
        let (answer, is_stopped) = self.options.run(&self.service, out, async |client, signals| {
            let mut request = self.options.cancellable(&client, &self.service, &signals);
            if let Some(method) = self.subject_of {
                request = request.on_subject_of(method);
            }
            let answer = if self.no_reply {
                request.publish_raw(payload).await.map(|()| None)
            } else {
                request.send_raw(payload).await.map(Some)
            };
            Ok((answer?, signals.has_come()))
        })?;
        let Some(answer) = answer else {
            out.note("sent; there is no answer to say what became of it");
            return Ok(Exit::Ok);
        };
        out.print(&term::safe_json(&answer))?;
        Ok(verdict(&answer, is_stopped))
    }
}

/// What an answer says, as `batch` reports it: `Ok` if every part of it is a result. If the service has answered a signal in another way than by
/// cancelling, the signal came too late.
fn verdict(answer: &str, is_stopped: bool) -> Exit {
    let responses = match Responses::parse(answer.as_bytes(), &Limits::default()) {
        Ok(Responses::Single(response)) => vec![response],
        Ok(Responses::Batch(responses)) => responses,
        Err(fault) => return super::exit(&ClientError::Protocol(fault.into())),
    };
    let errors: Vec<_> = responses.into_iter().filter_map(|response| response.outcome.err()).collect();
    if is_stopped && errors.iter().any(|error| error.profile_code() == Some(code::CANCELLED)) {
        return Exit::Interrupted;
    }
    super::of_several(errors.into_iter().map(|error| super::exit(&ClientError::Remote(error))))
}
