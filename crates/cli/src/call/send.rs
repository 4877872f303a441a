//! `sealwire send`: signs any bytes as they are, to test what a service does with them.
//! Never looks at what it sends.

use clap::Args;

use super::Options;
use crate::exit::{Exit, Failure};
use crate::files;
use crate::output::Output;
use crate::term;

/// Sign and send a raw payload unchanged, and print the verified answer unchanged
#[derive(Args)]
#[command(after_help = "\
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
        match answer {
            Some(answer) => out.print(&term::safe_json(&answer))?,
            None => out.note("sent; there is no answer to say what became of it"),
        }
        // With a signal, the printed answer says what became of the call.
        Ok(if is_stopped { Exit::Interrupted } else { Exit::Ok })
    }
}
