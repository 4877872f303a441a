//! `sealwire policy learn`: proposes the narrowest rules that would have allowed recorded calls, for a person to review.
//! Never puts anything into effect, and never learns from a call that a rule forbids.

mod proposal;
mod records;
mod seen;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use sealwire::decide::{Methods, Reason, Severity, Verdict};
use sealwire::{Decision, DecisionRecord, MethodName, Name, PolicySet};
use serde::Serialize;

use self::proposal::{Proposal, ProposalText, counted};
use self::records::{Records, Unreadable};
use crate::exit::{Exit, Failure};
use crate::files::{at, write_new};
use crate::output::Output;
use crate::policies::{FOLDER, check_folder, known_methods, load_with, refused};

/// Propose the narrowest rules that would have allowed recorded calls, for a person to review
///
/// Considers calls that no rule allows and none forbids. A proposed rule is about one agent, or one role (`--by role`), and one
/// method. Its conditions cover the arguments that were seen: a value, up to 8 values, a range of numbers, texts with a common
/// prefix. The proposal is then tried on all recordings, and stderr says how their calls would be decided.
///
/// Names and values in the proposal are what callers sent, and any of them may have been an attacker. Nothing takes effect: read
/// the proposal, and move into the policies what you would have allowed even without it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy learn records/*.jsonl > proposal.toml
  sealwire policy learn records/*.jsonl --agent planner --out proposal.toml
  sealwire policy learn staging.jsonl --only allowed --by role

Recordings are the files of the service's record, see docs/records.md.")]
pub(crate) struct Learn {
    /// The recordings
    #[arg(value_name = "FILE", required = true)]
    recordings: Vec<PathBuf>,
    /// The policies that do not allow these calls yet
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    policies: PathBuf,
    /// Learn only from calls that were decided this way when they were recorded
    #[arg(long, value_enum, value_name = "VERDICT")]
    only: Option<RecordedVerdict>,
    /// Learn only from calls by this agent; repeat for several
    #[arg(long = "agent", value_name = "AGENT")]
    agents: Vec<Name>,
    /// Learn only from calls of this method; repeat for several
    #[arg(long = "method", value_name = "METHOD")]
    methods: Vec<MethodName>,
    /// Whom rules are about: the agent by name, or a role in its token; for delegated calls, always agent and subject by name
    #[arg(long, value_enum, value_name = "WHOM", default_value = "agent")]
    by: Grouping,
    /// Write the proposal into this new file, outside the policies, instead of on stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RecordedVerdict {
    Allowed,
    Denied,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Grouping {
    Agent,
    Role,
}

/// How the recorded calls would be decided with the proposal.
#[derive(Debug, Default, Serialize)]
struct Trial {
    calls: usize,
    allowed_before: usize,
    become_allowed: usize,
    /// Of these, the ones that the rules are not based on.
    allowed_beside: usize,
    become_denied: usize,
    remain_denied: usize,
    cannot_be_told: usize,
    unreadable: usize,
    /// Which kinds of calls are denied even with the proposal, and how often.
    denied: BTreeMap<String, usize>,
    /// The first calls that would become allowed although no rule is based on them, or denied although they are allowed now.
    surprises: Vec<String>,
}

/// The file name by which errors refer to the proposal.
const PROPOSAL: &str = "(proposal).toml";

/// How many kinds of denied calls are listed, and how many surprises.
const TOLD: usize = 20;

#[derive(Serialize)]
struct LearnResult<'a> {
    proposal: &'a str,
    rules: usize,
    #[serde(flatten)]
    tried: &'a Trial,
    left_out: usize,
}

impl Learn {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        check_folder(&self.policies)?;
        let working = out.working("reading the recordings");
        let (set, declared) = self.policy(out)?;
        if let Some(path) = &self.out {
            outside(path, &self.policies)?;
        }
        let mut proposal = Proposal::new(&set, declared.as_ref(), self.by == Grouping::Role);
        Records::open(&self.recordings)?.each(|place, record| {
            if let Ok(record) = record {
                let (now, why) = record.again(&set);
                if self.learns(&record, &now, why.as_deref()) {
                    proposal.add(place, &record);
                }
            }
        })?;
        let (written, after, unusable) = self.load(&set, &mut proposal)?;
        let (text, rules, left_out) = (written.text.as_str(), written.rules(), proposal.left_out());
        let tried = self.try_out(&set, &after)?;
        drop(working);
        unusable.iter().for_each(|line| out.note(line));

        if rules == 0 {
            out.note("there is nothing to propose: no recorded call is denied only because no rule allows it");
        } else if let Some(path) = &self.out {
            write_new(path, text)?;
        }
        let learned = LearnResult { proposal: text, rules, tried: &tried, left_out: left_out.values().sum() };
        match &self.out {
            Some(path) if rules > 0 => {
                out.result(&learned, || format!("{} has {}", path.display(), counted(rules, "rule")))?;
            }
            _ if rules > 0 || out.is_json() => out.result(&learned, || text.to_owned())?,
            _ => {}
        }
        out.note(tried.to_text(left_out).trim_end());
        Ok(Exit::Ok)
    }

    /// The policies, with the methods that the recording services had; and the methods that files declare, if that is known.
    fn policy(&self, out: &Output) -> Result<(PolicySet, Option<Methods>), Failure> {
        let mut methods = BTreeSet::new();
        Records::open(&self.recordings)?.each(|_, record| {
            if let Ok(record) = record
                && record.reason != "unknown_method"
                && methods.len() < METHODS
            {
                methods.insert(record.method);
            }
        })?;
        let names = methods.iter().filter_map(|name| MethodName::new(name.as_str()).ok());
        let set = load_with(&self.policies, &names.fold(known_methods(), Methods::with), out)?;
        // Files that refer to methods which only the service knows do not load on their own.
        let alone = PolicySet::load(&self.policies, &known_methods()).ok();
        Ok((set, alone.map(|(set, _)| set.methods().clone())))
    }

    /// Whether a rule may be based on this call: no rule forbids or allows it, and the options select it.
    fn learns(&self, record: &DecisionRecord, now: &Decision, why: Option<&str>) -> bool {
        let recorded = match self.only {
            None => true,
            Some(RecordedVerdict::Allowed) => record.verdict == Verdict::Allow,
            Some(RecordedVerdict::Denied) => record.verdict == Verdict::Deny,
        };
        let is_agent = |name: &str| self.agents.is_empty() || self.agents.iter().any(|known| known.as_str() == name);
        let is_method = |name: &str| self.methods.is_empty() || self.methods.iter().any(|known| known.as_str() == name);
        recorded
            && why.is_none()
            && record.fault.is_none()
            && matches!(now.reason, Reason::NoRule)
            && is_agent(record.agent.as_str())
            && is_method(&record.method)
    }

    /// The policies with the proposal, and the rules that had to be left out so that it can be loaded.
    fn load(
        &self,
        before: &PolicySet,
        proposal: &mut Proposal<'_>,
    ) -> Result<(ProposalText, PolicySet, Vec<String>), Failure> {
        // The names suffice: the files bring their own declarations.
        let names = before.methods().names().cloned().fold(known_methods(), Methods::with);
        let mut unusable = Vec::new();
        loop {
            let written = proposal.write();
            let more = [(PROPOSAL, written.text.as_str())].into_iter().filter(|(_, text)| !text.is_empty());
            let errors = match PolicySet::load_with(&self.policies, more, &names) {
                Ok((after, _)) => return Ok((written, after, unusable)),
                Err(errors) => errors,
            };
            let known = unusable.len();
            for finding in errors.findings().iter().filter(|finding| finding.file == PROPOSAL) {
                if finding.severity == Severity::Error
                    && let Some(rule) = proposal.remove(&written, finding.line)
                {
                    unusable.push(format!("there is no rule for {rule}: {}", finding.message));
                }
            }
            // INVARIANT: every round has one rule fewer.
            if unusable.len() == known {
                return Err(refused(&self.policies, &errors));
            }
        }
    }

    /// Decides all recorded calls with and without the proposal.
    fn try_out(&self, before: &PolicySet, after: &PolicySet) -> Result<Trial, Failure> {
        let mut tried = Trial::default();
        Records::open(&self.recordings)?.each(|place, record| match record {
            Err(Unreadable) => tried.unreadable += 1,
            Ok(record) => {
                let ((old, why), (new, new_why)) = (record.again(before), record.again(after));
                let learned = self.learns(&record, &old, why.as_deref());
                tried.add(place, &record, &old, &new, why.or(new_why).as_deref(), learned);
            }
        })?;
        Ok(tried)
    }
}

impl Trial {
    fn add(
        &mut self,
        place: &str,
        record: &DecisionRecord,
        old: &Decision,
        new: &Decision,
        why: Option<&str>,
        learned: bool,
    ) {
        self.calls += 1;
        let (agent, method) = (&record.agent, record.method.escape_debug());
        if let Some(why) = why {
            self.cannot_be_told += 1;
            return self.deny(format!("{method} of {agent}: cannot be told: {why}"));
        }
        match (old.is_allow(), new.is_allow()) {
            (true, true) => self.allowed_before += 1,
            (false, true) => {
                self.become_allowed += 1;
                if !learned {
                    self.allowed_beside += 1;
                    self.surprise(format!("{place}: {method} of {agent} would be allowed, too"));
                }
            }
            (true, false) => {
                self.become_denied += 1;
                self.surprise(format!("{place}: {method} of {agent} would no longer be allowed: {new}"));
            }
            (false, false) => {
                self.remain_denied += 1;
                self.deny(format!("{method} of {agent}: {new}"));
            }
        }
    }

    fn deny(&mut self, what: String) {
        if self.denied.len() < METHODS || self.denied.contains_key(&what) {
            *self.denied.entry(what).or_default() += 1;
        }
    }

    fn surprise(&mut self, what: String) {
        if self.surprises.len() < TOLD {
            self.surprises.push(what);
        }
    }

    fn to_text(&self, left_out: &BTreeMap<&str, usize>) -> String {
        let mut text = format!(
            "with the proposal, of {}: {} allowed as before, {} become allowed, {} remain denied\n",
            counted(self.calls, "call"),
            self.allowed_before,
            self.become_allowed,
            self.remain_denied
        );
        let mut denied: Vec<_> = self.denied.iter().collect();
        denied.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (what, count) in denied.iter().take(TOLD) {
            text.push_str(&format!("{count:>6}  {what}\n"));
        }
        if denied.len() > TOLD {
            text.push_str(&format!("        and {} more kinds\n", denied.len() - TOLD));
        }
        for (count, what) in [
            (self.cannot_be_told, "calls cannot be told"),
            (self.unreadable, "lines are no recorded decisions"),
            (self.allowed_beside, "calls that no rule rests on would be allowed, too: look at them first"),
            (self.become_denied, "calls would no longer be allowed: they do not send the declared parameters alone"),
        ] {
            if count > 0 {
                text.push_str(&format!("{count} {what}\n"));
            }
        }
        for (why, count) in left_out {
            text.push_str(&format!("{count} calls are left out: {why}\n"));
        }
        self.surprises.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        text
    }
}

/// The most methods of a recording, and the most kinds of denied calls, that are tracked separately.
const METHODS: usize = 1_000;

/// Checks that the proposal is outside the policies, links included: in the folder of a running service it would take effect
/// within a second.
fn outside(path: &Path, policies: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let folder = folder.canonicalize().map_err(|error| at(folder, &error))?;
    if is_below(&folder, policies, &mut BTreeSet::new())? {
        let message = format!("`{}` is among the policies, where it would be in force unread", path.display());
        return Err(Failure::input(message).help("write the proposal elsewhere, read it, and then move it there"));
    }
    Ok(())
}

/// Whether a folder is in the policy folder, or in one that is read along with it.
fn is_below(folder: &Path, policies: &Path, seen: &mut BTreeSet<PathBuf>) -> Result<bool, Failure> {
    let failed = |error| at(policies, &error);
    let real = policies.canonicalize().map_err(failed)?;
    if folder.starts_with(&real) {
        return Ok(true);
    }
    // Links may form a cycle.
    if !seen.insert(real) {
        return Ok(false);
    }
    for entry in std::fs::read_dir(policies).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_read = !entry.file_name().as_encoded_bytes().starts_with(b".") && entry.path().is_dir();
        if is_read && is_below(folder, &entry.path(), seen)? {
            return Ok(true);
        }
    }
    Ok(false)
}
