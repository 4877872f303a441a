//! `sealwire records report`: who used what, what was denied, who approved, and which permissions nobody used.
//! Never says that a permission is not needed: only that this record shows no use of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use sealwire::decide::Verdict;
use sealwire::internal::policy::{Access, CallerGroup};
use serde::Serialize;

use super::approvers::{Approver, Decisions};
use super::calls::{Call, Calls, read};
use super::filter::Filter;
use super::reader::{FOLDER, Reader};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::policies::load;
use crate::when;

/// Report who used what, what was denied and why, who approved how soon, and which permissions nobody used
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire records report
  sealwire records report --since 30d --policies policies")]
pub(crate) struct Report {
    /// The folder of a record, or files of it
    #[arg(value_name = "PATH", default_value = FOLDER)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    filter: Filter,
    /// The policies whose permissions are looked for in the record
    #[arg(long, value_name = "DIR")]
    policies: Option<PathBuf>,
}

/// What the record shows.
#[derive(Debug, Default, Serialize)]
struct Used {
    calls: u64,
    used: Vec<Use>,
    denied: Vec<Denial>,
    /// Those who decided about calls that waited.
    approvers: Vec<Approver>,
    /// Permissions without a recorded use; absent without `--policies`.
    #[serde(skip_serializing_if = "Option::is_none")]
    unused: Option<Vec<Permission>>,
}

#[derive(Debug, Serialize)]
struct Use {
    agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    method: String,
    calls: u64,
    /// Those that ended with an error, or without an outcome.
    failed: u64,
    /// When the last one was decided, in milliseconds since the Unix epoch.
    last_ms: u64,
}

#[derive(Debug, Serialize)]
struct Denial {
    agent: String,
    method: String,
    /// The rule, or the reason if no rule decided.
    why: String,
    calls: u64,
}

#[derive(Debug, Serialize)]
struct Permission {
    caller: String,
    method: String,
}

/// The most rows of a part; callers choose the names of methods that do not exist.
const ROWS: usize = 10_000;

/// Agent, subject and method.
type UseKey = (String, Option<String>, String);
/// Calls, those that failed, and when the last one was decided.
type UseCounts = (u64, u64, u64);

#[derive(Default)]
struct Tally {
    calls: u64,
    used: BTreeMap<UseKey, UseCounts>,
    denied: BTreeMap<(String, String, String), u64>,
    decisions: Decisions,
    /// Who was allowed to call what: groups of callers, and the method.
    groups: BTreeSet<(CallerGroup, String)>,
}

impl Report {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let working = out.working("reading the record");
        let (mut calls, mut tally) = (Calls::default(), Tally::default());
        let mut take = |call: Call| -> Result<(), Failure> {
            tally.decisions.note(&call);
            if self.filter.matches(&call) {
                tally.decisions.add(&call);
                tally.add(call);
            }
            Ok(())
        };
        Reader::new(&self.paths, false).pass(|line| match read(line.text) {
            Ok((head, event)) => calls.add(&head, event, &mut take),
            Err(_) => Ok(()),
        })?;
        calls.finish(&mut take)?;
        let unused = self.policies.as_deref().map(|folder| load(folder, out)).transpose()?.map(|set| {
            let matrix = set.matrix();
            let mut unused = Vec::new();
            for row in &matrix.rows {
                for (caller, cell) in matrix.callers.iter().zip(&row.cells) {
                    // What everybody may do is no permission of somebody's.
                    let is_own = matrix.callers.first() == Some(caller)
                        || row.cells.first().is_none_or(|anyone| anyone.access == Access::Denied);
                    let is_used = tally.groups.contains(&(caller.clone(), row.method.clone()));
                    if cell.access != Access::Denied && is_own && !is_used {
                        unused.push(Permission { caller: caller.to_string(), method: row.method.clone() });
                    }
                }
            }
            unused
        });
        drop(working);
        let used = tally.into_used(unused);
        out.result(&used, || used.to_text())?;
        Ok(Exit::Ok)
    }
}

impl Tally {
    fn add(&mut self, call: Call) {
        self.calls += 1;
        if call.decision == Verdict::Deny {
            let why = call.rule.unwrap_or(call.reason);
            return count(&mut self.denied, (call.agent, call.method, why));
        }
        if self.groups.len() < ROWS * 10 {
            let roles = call.roles.into_iter().map(CallerGroup::Role);
            let subject = call.subject.clone().map(CallerGroup::Subject);
            let known = [CallerGroup::Anyone, CallerGroup::Agent(call.agent.clone())];
            let groups = roles.chain(subject).chain(known);
            self.groups.extend(groups.map(|group| (group, call.method.clone())));
        }
        let key = (call.agent, call.subject, call.method);
        if self.used.len() < ROWS || self.used.contains_key(&key) {
            let (calls, failed, last_ms) = self.used.entry(key).or_default();
            *calls += 1;
            *failed += u64::from(call.outcome != "ok");
            *last_ms = call.at_ms.max(*last_ms);
        }
    }

    fn into_used(self, unused: Option<Vec<Permission>>) -> Used {
        let used = self.used.into_iter().map(|((agent, subject, method), (calls, failed, last_ms))| Use {
            agent,
            subject,
            method,
            calls,
            failed,
            last_ms,
        });
        let denied = self.denied.into_iter().map(|((agent, method, why), calls)| Denial { agent, method, why, calls });
        let approvers = self.decisions.approvers();
        Used { calls: self.calls, used: used.collect(), denied: denied.collect(), approvers, unused }
    }
}

fn count(counts: &mut BTreeMap<(String, String, String), u64>, key: (String, String, String)) {
    if counts.len() < ROWS || counts.contains_key(&key) {
        *counts.entry(key).or_default() += 1;
    }
}

impl Used {
    fn to_text(&self) -> String {
        let mut text = format!("{} calls\n\nUSED\n", self.calls);
        // Writing to a string cannot fail.
        for Use { agent, subject, method, calls, failed, last_ms } in &self.used {
            let who = subject.as_ref().map_or_else(|| agent.clone(), |subject| format!("{agent} for {subject}"));
            let last = when::absolute(last_ms / 1_000);
            let _ = writeln!(
                text,
                "  {who:<20}  {:<28}  {calls:>8} calls, {failed} failed, the last at {last}",
                method.escape_debug().to_string()
            );
        }
        text.push_str("\nDENIED\n");
        for Denial { agent, method, why, calls } in &self.denied {
            let method = method.escape_debug().to_string();
            let _ = writeln!(text, "  {agent:<20}  {method:<28}  {calls:>8} by {why}");
        }
        if !self.approvers.is_empty() {
            text.push_str("\nAPPROVERS\n");
            for approver in &self.approvers {
                text.push_str(&(approver.to_line() + "\n"));
            }
        }
        if let Some(unused) = &self.unused {
            text.push_str("\nNEVER USED\n");
            for Permission { caller, method } in unused {
                let _ = writeln!(text, "  {caller:<20}  {method}");
            }
        }
        text
    }
}
