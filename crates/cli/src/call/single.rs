//! `sealwire call`: makes one call and prints its verified result on stdout.
//! Never prints a result that the service did not sign for this very call.

use std::time::Duration;

use clap::Args;
use sealwire::errors::code;
use sealwire::internal::client::MessageId;
use sealwire::internal::wire::Nonce;
use sealwire::{Client, RequestBuilder};
use serde_json::json;
use serde_json::value::RawValue;

use super::attach::{Attach, Attached, attach};
use super::await_approval::AwaitApproval;
use super::outcome::{Outcome, shown};
use super::repeat::Repeat;
use super::{Options, STREAM_DEADLINE, Words, failed, stream};
use crate::completions::methods;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::when;

/// Call a method, and print its result
#[derive(Args)]
#[command(after_help = "\
Ctrl-C and SIGTERM cancel the call at the service, and the command says whether
the service confirmed it; if the call has ended in another way by then, that is
its outcome. A second one ends the command at once.

Examples:
  sealwire call --creds planner.creds.json math math/add '{\"a\":2,\"b\":3}'
  export SEALWIRE_CREDS=planner.creds.json
  sealwire call math math/add '[2,3]' --deadline 2s --idempotent
  echo '{\"to\":\"bob\",\"amount\":500}' | sealwire call bank bank/transfer - --json
  sealwire call math math/add '[2,3]' --method-subject
  sealwire call math math/add '[2,3]' --wait 10s    # it has just been started
  sealwire call bank bank/transfer '{\"to\":\"bob\",\"amount\":250000}' \\
      --wait-approval 10m                           # people approve it first
  sealwire call writer writer/tell '[\"a story\"]' --stream
  sealwire call video video/render '[\"film.mov\"]' --detach
  sealwire call archive archive/store --attach document=report.pdf")]
pub(crate) struct Call {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    words: Words,
    /// A key by which the method can recognize repeated calls
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    idempotency_key: Option<String>,
    /// Print what the method sends while it runs, as it arrives: texts directly after each other, anything else on its own line,
    /// progress as a bar on a terminal. The result comes last and may be larger than a message
    #[arg(long, conflicts_with = "every")]
    stream: bool,
    /// With --stream: the largest result to accept, in bytes; default 16777216 (16 MiB)
    #[arg(long, value_name = "BYTES", requires = "stream")]
    max_bytes: Option<usize>,
    /// Pass a file, of any size, as the parameter NAME, for methods that take attachments. The call contains its digest and size,
    /// and the method fetches the bytes while it runs. Append `;type=text/plain` to give its media type; repeat for several
    #[arg(long, value_name = "NAME=FILE", value_parser = attach)]
    attach: Vec<Attach>,
    /// Do not wait for the method: print the key of the task that the call begins, for `sealwire task`. The service runs it on, and
    /// keeps what it comes to. The key is that of --idempotency-key, or made at random
    #[arg(long, conflicts_with_all = ["every", "stream", "attach"])]
    detach: bool,
    /// With --detach: how long the task may run; at most as long as the method allows, which is the default
    #[arg(long, value_name = "TIME", value_parser = when::interval, requires = "detach")]
    task_limit: Option<Duration>,
    #[command(flatten)]
    approval: AwaitApproval,
    #[command(flatten)]
    often: Repeat,
}

impl Call {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let params = self.words.params("call")?;
        let attached = Attached::open(&self.attach)?;
        let params = attached.among(params)?;
        let (service, method) = (&self.words.service, &self.words.method);
        let id = MessageId::default();
        let request = |client: &Client| {
            let mut request = attached
                .to(self.words.request(self.options.request(client, service)))
                .relay()
                .capture_id(&id)
                .request();
            if let (None, false) = (self.options.deadline, attached.is_empty()) {
                request = request.deadline(STREAM_DEADLINE);
            }
            match &self.idempotency_key {
                Some(key) => request.idempotency_key(key),
                None => request,
            }
        };
        let call = async |client: &Client| request(client).call::<Box<RawValue>>(method, &params).await;
        if let Some(every) = self.often.every {
            let repeat = async |client, signals, credentials| {
                let told = async |error| failed(error, &credentials, service).await;
                self.often.repeat(every, out, &client, &signals, call, told).await
            };
            return self.options.run_until_stopped(service, out, repeat);
        }
        let explained = |failure: Failure| self.words.explained(failure, &id);
        if self.stream {
            let streamed = async |client: Client, signals, credentials| {
                let told = async |error| failed(error, &credentials, service).await;
                let mut request = request(&client).deadline(self.options.deadline.unwrap_or(STREAM_DEADLINE));
                if let Some(bytes) = self.max_bytes {
                    request = request.max_bytes(bytes);
                }
                stream::call(request, method, &params, out, &signals, told).await
            };
            return self.options.run_until_stopped(service, out, streamed).map_err(explained);
        }
        if self.detach {
            return self.detached(&params, out, &id, request);
        }
        let answer = self.options.run(service, out, async |client, signals| {
            let request = self.approval.of(request(&client).cancel_on(signals.stop()), service, out);
            request.call::<Box<RawValue>>(method, &params).await
        });
        let result = answer.map_err(explained)?;
        out.result(&Outcome::Result(&result), || shown(&result))?;
        Ok(Exit::Ok)
    }
}

impl Call {
    /// Begins a task, and prints its key.
    fn detached(
        &self,
        params: &Option<Box<RawValue>>,
        out: &Output,
        id: &MessageId,
        request: impl Fn(&Client) -> RequestBuilder,
    ) -> Result<Exit, Failure> {
        let (service, method) = (&self.words.service, &self.words.method);
        // Known beforehand: if the answer is lost, it finds the task.
        let key = self.idempotency_key.clone().unwrap_or_else(|| Nonce::random().to_text());
        let find = |verb: &str| format!("sealwire task {verb} {service} {method} {}", quoted(&key));
        let begun = self.options.run(service, out, async |client, signals| {
            let request = self.approval.of(request(&client).cancel_on(signals.stop()), service, out);
            let request = match self.task_limit {
                Some(limit) => request.task_limit(limit),
                None => request,
            };
            request.idempotency_key(&key).detach(method, params).await
        });
        begun.map_err(|failure| match failure.exit() {
            Exit::Timeout | Exit::Transport | Exit::Interrupted | Exit::Protocol | Exit::Unverified => {
                failure.help(format!("it may have begun: {}", find("get")))
            }
            _ => self.words.explained(failure, id),
        })?;
        let task = json!({ "task": { "service": service, "method": method, "key": key } });
        out.result(&task, || key.clone())?;
        out.note(&format!("it runs, whether or not anybody waits: {}", find("wait")));
        Ok(Exit::Ok)
    }
}

/// A key as a shell takes it for one word.
fn quoted(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._:@%+,=-".contains(&byte);
    if key.bytes().all(is_plain) && !key.starts_with('-') {
        key.to_owned()
    } else {
        format!("'{}'", key.replace('\'', r"'\''"))
    }
}

impl Words {
    /// Adds help to errors that the service does not explain.
    pub(super) fn explained(&self, failure: Failure, id: &MessageId) -> Failure {
        match failure.profile_code() {
            Some(code::PERMISSION_DENIED) => self.denied(failure, id),
            Some(code::METHOD_NOT_FOUND) => self.not_found(failure),
            Some(code::APPROVAL_REQUIRED) => {
                let service = &self.service;
                failure.help(format!(
                    "send the same call again once it is approved: those who may do that see it with `sealwire approvals list {service}`"
                ))
            }
            Some(code::INVALID_REQUEST) if failure.says("as a task only") => {
                failure.help("`--detach` begins it, and `sealwire task wait` waits for it")
            }
            Some(code::INVALID_REQUEST) if failure.says("is a subscription") => {
                let (service, method) = (&self.service, &self.method);
                failure.help(format!("`sealwire watch {service} {method}` listens to it"))
            }
            _ => failure,
        }
    }

    /// A denial: the service must not say why.
    fn denied(&self, failure: Failure, id: &MessageId) -> Failure {
        let (service, method) = (&self.service, &self.method);
        // People have denied it, not the policy.
        if let Some(request) = failure.data_text("approval") {
            return failure
                .help(format!("`sealwire approvals show {service} {request}` says who has denied it, and why"));
        }
        let id = id.get().unwrap_or_default();
        let ask = if is_builtin(method) {
            String::new()
        } else if let Some(others) = self.others() {
            format!("the policy files here name no `{method}`, but {others}; ")
        } else {
            format!(
                "`sealwire call {service} rpc.can '{{\"method\": \"{method}\", \"params\": …}}'` asks without calling; "
            )
        };
        failure.help(format!(
            "{ask}the service's log names the rule, with message_id {id}, and its operator can ask `sealwire policy \
             explain`"
        ))
    }

    /// A service reveals methods only to those who may call them, but the policy files here name them.
    fn not_found(&self, failure: Failure) -> Failure {
        let (service, method) = (&self.service, &self.method);
        failure.help(match self.others() {
            Some(others) => format!("`{service}` has no method `{method}`; the policy files here name {others}"),
            None => format!(
                "`{service}` has no method `{method}`: where its policy files are, `sealwire policy matrix FOLDER` lists \
                 its methods"
            ),
        })
    }

    /// The methods that policy files nearby name: those of the method's own group, or if there are none, all. `None` if there
    /// are no such files, or if they name this method.
    fn others(&self) -> Option<String> {
        let known: Vec<String> = methods().into_iter().filter(|name| !is_builtin(name)).collect();
        if known.is_empty() || known.contains(&self.method) {
            return None;
        }
        let group = |name: &str| name.split(['/', '.']).next().map(str::to_owned);
        let near: Vec<&str> =
            known.iter().filter(|name| group(name) == group(&self.method)).map(String::as_str).collect();
        let shown = if near.is_empty() { known.iter().map(String::as_str).collect() } else { near };
        let more = if shown.len() > SHOWN { ", …" } else { "" };
        Some(shown.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ") + more)
    }
}

/// Whether this names a method that every service has: JSON-RPC reserves `rpc.` for those.
fn is_builtin(name: &str) -> bool {
    name.starts_with("rpc.")
}

/// The most methods that are named.
const SHOWN: usize = 12;
