//! Runs a command for each call: the parameters in its arguments or on its standard input, the result on its standard output.
//! Never runs a shell, and never gives a command a caller's text without the operator's word that the command takes it for data.

mod config;
mod template;

use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sealwire::RpcError;
use sealwire::internal::service::FairPermit;
use sealwire::internal::trace::Span;
use sealwire_mcp::MAX_LINE;
use serde_json::value::{RawValue, to_raw_value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::config::ExecCommand;
pub(crate) use self::config::ExecConfig;
use crate::backend::{Backend, Call, Health, value};
use crate::child::{Child, Launch};
use crate::form;
use crate::talk::plain;
use crate::tally::Tallied;
use crate::tool::Tool;

/// The commands of one backend.
#[derive(Debug)]
pub(crate) struct Exec {
    launch: Launch,
    commands: Vec<ExecCommand>,
    timeout: Duration,
    health: watch::Sender<Health>,
    /// Commands that nobody waits for any more and that are being ended.
    ending: Mutex<JoinSet<()>>,
}

/// The most that a command may print, in bytes; the same as a line of a program.
const MAX_OUTPUT: usize = MAX_LINE;

impl Exec {
    pub(crate) fn new(launch: Launch, commands: Vec<ExecCommand>, timeout: Duration) -> Self {
        Self { launch, commands, timeout, health: watch::Sender::new(Health::Up), ending: Mutex::default() }
    }

    async fn run(&self, call: Call) -> Result<Box<RawValue>, RpcError> {
        let method = call.tool.method.as_str();
        let command = self.commands.iter().find(|command| command.method == method);
        let command = command.ok_or_else(|| RpcError::internal("no command"))?;
        let args = command.args.fill(call.params.as_deref()).map_err(RpcError::invalid_params)?;
        let mut launch = self.launch.clone();
        launch.command.extend(args);
        let caller = call.ctx.caller();
        let who = [
            ("SEALWIRE_AGENT", caller.agent.as_str()),
            ("SEALWIRE_SUBJECT", &caller.subject),
            ("SEALWIRE_METHOD", method),
            ("SEALWIRE_MESSAGE_ID", call.ctx.message_id()),
        ];
        launch.env.extend(who.map(|(name, value)| (name.into(), value.into())));
        let mut running = RunningCommand { exec: self, command: None };
        let (child, _) = running.command.insert((launch.start().await.map_err(RpcError::dependency)?, call.permit));
        let (printed, status) =
            converse(child, call.params.as_deref().filter(|_| command.stdin)).await.map_err(RpcError::dependency)?;
        let words = child.last_words();
        // The command has ended by itself.
        running.command = None;
        match status.code() {
            Some(0) => {}
            // Not the command's own code: it could not be started, or a signal ended it.
            Some(code @ 1..=125) => return Err(RpcError::application(code, format!("exit code {code}"))),
            _ => {
                return Err(RpcError::dependency(format!("the command has failed: {status}; its last words: {words}")));
            }
        }
        let printed = std::str::from_utf8(plain(&printed)).map_err(|_| form::no_text(&printed))?;
        if command.text {
            let text = printed.strip_suffix('\n').map_or(printed, |text| text.strip_suffix('\r').unwrap_or(text));
            return to_raw_value(text).map_err(RpcError::internal);
        }
        value(printed)
    }
}

/// A command and its place among the calls. When dropped, the command is ended, and keeps its place until it is gone.
struct RunningCommand<'a> {
    exec: &'a Exec,
    command: Option<(Child, Arc<FairPermit>)>,
}

impl Drop for RunningCommand<'_> {
    fn drop(&mut self) {
        // Without a runtime, the service is ending, and the guard notices that.
        if let Some((child, permit)) = self.command.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let mut ending = self.exec.ending.lock().unwrap_or_else(PoisonError::into_inner);
            while ending.try_join_next().is_some() {}
            let end = async move {
                child.stop().await;
                drop(permit);
            };
            ending.spawn_on(end, &runtime);
        }
    }
}

/// Writes the parameters, if there are any, to the command and reads all that it prints, until it ends.
pub(crate) async fn converse(child: &mut Child, params: Option<&RawValue>) -> std::io::Result<(Vec<u8>, ExitStatus)> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A command may ignore its parameters.
            let _ = stdin.write_all(params.map_or("", RawValue::get).as_bytes()).await;
        }
    };
    let read = async {
        let mut printed = Vec::new();
        let most = u64::try_from(MAX_OUTPUT).unwrap_or(u64::MAX) + 1;
        if let Some(stdout) = stdout {
            stdout.take(most).read_to_end(&mut printed).await?;
        }
        if printed.len() > MAX_OUTPUT {
            return Err(std::io::Error::other("it has printed more than 1 MiB"));
        }
        Ok(printed)
    };
    let (printed, ()) = futures_util::future::join(read, write).await;
    Ok((printed?, child.wait().await?))
}

impl Backend for Exec {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Box<RawValue>, RpcError>> {
        async move {
            let late = || RpcError::dependency(format!("no result within {} s", self.timeout.as_secs()));
            tokio::time::timeout_at(call.until, self.run(call)).await.unwrap_or_else(|_| Err(late()))
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    fn describe_span(&self, span: &mut Span, tool: &Tool) {
        span.name(&format!("exec {}", tool.method));
    }

    fn tallied(&self) -> Tallied {
        self.launch.tally.read()
    }

    /// Each command ends with its call, or with the service.
    fn stop(&self) -> BoxFuture<'_, ()> {
        async move {
            let mut ending = std::mem::take(&mut *self.ending.lock().unwrap_or_else(PoisonError::into_inner));
            while ending.join_next().await.is_some() {}
        }
        .boxed()
    }
}
