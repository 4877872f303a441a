//! `sealwire revocations`: what is revoked, who follows, and what is left to do with lists.
//! Never shows a list as in force that too few operators have signed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sealwire::internal::auth::{Revocation, RevocationList, SignedList};
use sealwire::{Clock as _, SystemClock};
use serde_json::json;

use super::act::{act, draft, enough, put, sign};
use super::desk::{Desk, Latest, failed};
use super::report::Reports;
use super::{CONFIG, Signing};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::read_if_there;
use crate::output::Output;
use crate::runtime::block_on;
use crate::when;

/// List what is revoked, and which replicas follow; make the bucket, sign drafts
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  sealwire revocations
  sealwire revocations init --key op-1.json
  sealwire revocations sign draft.json --key op-2.json
  sealwire revocations renew --key op-1.json"
)]
pub(crate) struct Revocations {
    #[command(subcommand)]
    command: Option<Command>,
    /// The operator's file
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    Init(Init),
    Sign(Sign),
    Renew(Renew),
}

/// Make the bucket, and the first list, in which nothing is revoked
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire revocations init --key op-1.json
  sealwire revocations init --key op-1.json --copies 3")]
struct Init {
    /// How many brokers of a cluster keep the bucket
    #[arg(long, value_name = "N", default_value_t = 1)]
    copies: usize,
    #[command(flatten)]
    signing: Signing,
}

/// Sign a draft of another operator, and put it in force once enough have signed
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire revoke agent planner --key op-1.json --draft draft.json
  sealwire revocations sign draft.json --key op-2.json")]
struct Sign {
    /// The draft
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    signing: Signing,
}

/// Sign the same revocations under the next number: after a change of operators' keys, or if the bucket was lost or rolled back
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire revocations renew --key op-1.json
  sealwire revocations renew --key op-1.json --after 17")]
struct Renew {
    /// A higher number that a replica has reported
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,
    #[command(flatten)]
    signing: Signing,
}

impl Revocations {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self.command {
            None => show(&self.config, out),
            Some(Command::Init(command)) => command.run(out),
            Some(Command::Sign(command)) => command.run(out),
            Some(Command::Renew(Renew { after, signing })) => act(&signing, out, |latest, now_ms| {
                let next = latest.next(now_ms);
                Ok(RevocationList { number: next.number.max(after.saturating_add(1)), ..next })
            }),
        }
    }
}

fn show(config: &std::path::Path, out: &Output) -> Result<Exit, Failure> {
    let desk = Desk::open(config)?;
    let (latest, reports) = block_on(async {
        let mut bucket = desk.connect().await?;
        let latest = desk.latest(&mut bucket).await?;
        Ok::<_, Failure>((latest, Reports::listen(&mut bucket).await?))
    })??;
    let Latest { list, signed, problem, .. } = latest;
    if let Some(problem) = &problem {
        out.warning(problem);
    }
    let (lines, replicas) = reports.shown(list.number);
    let signers = signed.signers(&desk.operators);
    let result = json!({ "number": list.number, "signers": signers, "revoked": list.revoked, "replicas": replicas, "problem": problem });
    out.result(&result, || {
        let now_s = when::now_s();
        let head =
            format!("list {}, signed by {} {}", list.number, signers.join(", "), when::both(list.at_ms / 1_000, now_s));
        let entry = |entry: &Revocation| {
            let end = match entry.until {
                Some(_) if entry.has_ended(now_s) => "ended".to_owned(),
                Some(until) => format!("until {}", when::both(until, now_s)),
                None => "until it is restored".to_owned(),
            };
            let reason = if entry.reason.is_empty() { String::new() } else { format!(": {}", entry.reason) };
            format!("  {}  {end}{reason}", entry.shown())
        };
        let entries = list.revoked.iter().map(entry);
        let nothing = list.revoked.is_empty().then(|| "  nothing is revoked".to_owned());
        std::iter::once(head).chain(entries).chain(nothing).chain(lines).collect::<Vec<_>>().join("\n")
    })?;
    Ok(Exit::Ok)
}

impl Init {
    fn run(self, out: &Output) -> Result<Exit, Failure> {
        let desk = Desk::open(&self.signing.config)?;
        let keys = desk.keys(&self.signing.keys)?;
        block_on(async {
            let mut bucket = desk.connect().await?;
            bucket.create(self.copies).await.map_err(|error| failed(&error))?;
            if let Ok(latest) = desk.latest(&mut bucket).await {
                return Err(Failure::input(format!("there is a list already, with the number {}", latest.list.number))
                    .help("to write it again under the next number: sealwire revocations renew"));
            }
            let list = RevocationList::first(desk.environment.clone(), SystemClock.now_ms());
            let first = || sign(SignedList::new(&list), &keys);
            let sequence = bucket.read().await.map_err(|error| failed(&error))?.map(|stored| stored.sequence);
            let latest = Latest { list: list.clone(), signed: first(), sequence, problem: None };
            enough(&desk, &latest.signed)?;
            put(&desk, &mut bucket, (first(), latest), |_| Ok(first()), &self.signing.waiting, out).await
        })?
    }
}

impl Sign {
    fn run(self, out: &Output) -> Result<Exit, Failure> {
        let desk = Desk::open(&self.signing.config)?;
        let keys = desk.keys(&self.signing.keys)?;
        let shown = self.file.display().to_string();
        let missing = || Failure::input(format!("`{shown}` is not there"));
        let text = read_if_there(&self.file)?.ok_or_else(missing)?;
        let unfinished = SignedList::parse(text.as_bytes()).or_fail(Exit::Input)?;
        let list = unfinished.unverified().or_fail(Exit::Input)?;
        block_on(async {
            let mut bucket = desk.connect().await?;
            let latest = desk.latest(&mut bucket).await?;
            if list.environment != desk.environment || list.number != latest.list.number + 1 {
                let failure = Failure::input(format!(
                    "`{shown}` is list {} of {}, and the next one of {} is {}",
                    list.number,
                    list.environment,
                    desk.environment,
                    latest.list.number + 1
                ));
                return Err(failure.help("somebody else has signed meanwhile, or the draft is old: make it again"));
            }
            for (what, entries) in [("revokes", list.beyond(&latest.list)), ("restores", latest.list.beyond(&list))] {
                entries.iter().for_each(|entry| out.note(&format!("{what} {entry}")));
            }
            let signed = sign(unfinished, &keys);
            if let Some(path) = &self.signing.draft {
                return draft(&desk, path, &signed, out);
            }
            enough(&desk, &signed)?;
            let overtaken =
                |_: &Latest| Err(Failure::input("somebody else has signed meanwhile: make the draft again"));
            put(&desk, &mut bucket, (signed, latest), overtaken, &self.signing.waiting, out).await
        })?
    }
}
