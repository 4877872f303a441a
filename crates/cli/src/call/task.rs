//! `sealwire task`: calls for which nobody waits, begun by `sealwire call --detach`: how one is, what it came to, its end.
//! Never prints a result that the service did not sign.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sealwire::call::{Task, TaskProgress, TaskState, TaskStatus};
use sealwire::{ClientError, RpcError};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::outcome::{Outcome, shown};
use super::{Options, exit, failure, interrupted};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::when;

#[derive(Subcommand)]
pub(crate) enum Tasks {
    Get(Get),
    Wait(Wait),
    Cancel(Cancel),
}

impl Tasks {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Get(command) => command.run(out),
            Self::Wait(command) => command.run(out),
            Self::Cancel(command) => command.run(out),
        }
    }
}

/// Which task, and as which agent.
#[derive(Args)]
struct Named {
    /// The credentials file of the agent that has begun it
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    /// How long one answer of the service may take; default 10s
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    deadline: Option<Duration>,
    /// The service
    #[arg(value_name = "SERVICE")]
    service: String,
    /// The method
    #[arg(value_name = "METHOD")]
    method: String,
    /// The task's key, which `sealwire call --detach` has printed
    #[arg(value_name = "KEY", allow_hyphen_values = true)]
    key: String,
}

/// Show how a task is, and what it came to
#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 if there is such a task, however it is; 21 if there is none.

Examples:
  sealwire task get video video/render film-17
  sealwire task get video video/render film-17 --json")]
pub(crate) struct Get {
    #[command(flatten)]
    task: Named,
}

/// Wait for the end of a task, and print its result
#[derive(Args)]
#[command(after_help = "\
Exit codes: 0 with a result; 21 if it has an error, was cancelled, or is not
there; 23 if it still runs, or nobody knows what it came to.

Examples:
  sealwire task wait video video/render film-17
  sealwire task wait video video/render film-17 --limit 1h --json")]
pub(crate) struct Wait {
    #[command(flatten)]
    task: Named,
    /// How long to wait; default 10m
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    limit: Option<Duration>,
}

/// Have a task end, wherever it runs
#[derive(Args)]
#[command(after_help = "\
It ends within seconds; `sealwire task wait` tells when. What it did until then
is done.

Examples:
  sealwire task cancel video video/render film-17")]
pub(crate) struct Cancel {
    #[command(flatten)]
    task: Named,
}

impl Get {
    fn run(self, out: &Output) -> Result<Exit, Failure> {
        let status = self.task.ask(out, async |task| task.status().await)?;
        told(&status, out)
    }
}

impl Cancel {
    fn run(self, out: &Output) -> Result<Exit, Failure> {
        let status = self.task.ask(out, async |task| task.cancel().await)?;
        told(&status, out)
    }
}

impl Wait {
    fn run(self, out: &Output) -> Result<Exit, Failure> {
        let limit = self.limit.unwrap_or(LIMIT);
        let status = self.task.ask(out, async |task| {
            let _working = out.working(&format!("waiting for the task `{}`", task.key()));
            task.wait(limit).await
        })?;
        match status.result::<Box<RawValue>>() {
            Ok(result) => {
                out.result(&Outcome::Result(&result), || shown(&result))?;
                Ok(Exit::Ok)
            }
            Err(error @ ClientError::Task(TaskState::Working)) => {
                let how =
                    status.progress.as_ref().map_or_else(String::new, |progress| format!(": {}", words(progress)));
                Err(failure(error).help(format!("`--limit` waits longer{how}")))
            }
            Err(error) => Err(failure(error)),
        }
    }
}

impl Named {
    fn ask(
        &self,
        out: &Output,
        asked: impl AsyncFnOnce(Task) -> Result<TaskStatus, ClientError>,
    ) -> Result<TaskStatus, Failure> {
        let options = Options { creds: self.creds.clone(), deadline: self.deadline, wait: None, idempotent: true };
        let reached = options.run(&self.service, out, async |client, signals| {
            let task = options.request(&client, &self.service).task(&self.method, &self.key)?;
            signals.unless_stopped(asked(task)).await.transpose()
        });
        reached?.ok_or_else(interrupted)
    }
}

/// Prints how a task is.
fn told(status: &TaskStatus, out: &Output) -> Result<Exit, Failure> {
    out.result(&json!({ "task": object(status) }), || text(status, when::now_s()))?;
    let is_there = status.state != TaskState::Absent;
    Ok(if is_there { Exit::Ok } else { exit(&ClientError::Task(TaskState::Absent)) })
}

/// For scripts.
pub(super) fn object(status: &TaskStatus) -> Value {
    let progress = status
        .progress
        .as_ref()
        .map(|progress| json!({ "progress": progress.progress, "total": progress.total, "message": progress.message }));
    let outcome = match &status.outcome {
        None => Value::Null,
        Some(Ok(result)) => json!({ "result": result }),
        Some(Err(error)) => json!({ "error": error, "application_error": error.is_application() }),
    };
    let members = json!({
        "state": status.state.as_str(),
        "started": status.started,
        "limit": status.limit,
        "ended": status.ended,
        "expires": status.expires,
        "progress": progress,
        "cancelling": status.is_cancelling.then_some(true),
        "outcome": outcome,
    });
    match members {
        Value::Object(members) => members.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        other => other,
    }
}

fn text(status: &TaskStatus, now_s: u64) -> String {
    let state = match status.state {
        TaskState::Working if status.is_cancelling => "working, and is to end".to_owned(),
        TaskState::Unknown => "unknown: it had begun, and nobody knows what it did".to_owned(),
        TaskState::NotKept => "not_kept: it was executed, and its outcome was not kept".to_owned(),
        TaskState::Absent => "absent: the service knows no such task of this agent".to_owned(),
        state => state.as_str().to_owned(),
    };
    let mut lines = vec![("state", state)];
    let time = |at: u64| when::both(at, now_s);
    lines.extend(status.started.map(|at| ("started", time(at))));
    lines.extend(status.progress.as_ref().map(|progress| ("progress", words(progress))));
    lines.extend(status.limit.map(|at| ("stopped", format!("{} at the latest", time(at)))));
    lines.extend(status.ended.map(|at| ("ended", time(at))));
    lines.extend(status.expires.map(|at| ("kept until", time(at))));
    match &status.outcome {
        None => {}
        Some(Ok(result)) => lines.push(("result", shown(result))),
        Some(Err(error)) => lines.push(("error", RpcError::to_string(error))),
    }
    let lines = lines.into_iter().map(|(name, value)| format!("{name:<10}  {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn words(progress: &TaskProgress) -> String {
    let total = progress.total.map_or_else(String::new, |total| format!(" of {total}"));
    let message = progress.message.as_ref().map_or_else(String::new, |message| format!(": {message}"));
    format!("{}{total}{message}", progress.progress)
}

/// How long `wait` waits unless it is told.
const LIMIT: Duration = Duration::from_secs(600);
