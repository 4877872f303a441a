//! Turns recorded calls into rules: who, what, and within which bounds.
//! Never lets what callers sent become anything but a value in a text for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use sealwire::decide::{Methods, Param, ParamType, ScalarType, Verdict};
use sealwire::{DecisionRecord, PolicySet};

use super::seen::ValueSummary;
use crate::policies;
use crate::toml_text::{self, key, text};

/// The most rules: nobody reviews more.
const RULES: usize = 200;
/// A policy file may have at most 1 MiB.
const BYTES: usize = 1 << 20;
/// How many combinations of optional parameters get their own rule, for each caller and method.
const FORMS: usize = 8;

#[derive(Debug)]
pub(super) struct Proposal<'a> {
    set: &'a PolicySet,
    /// The methods that files declare, if that is known.
    filed: Option<&'a Methods>,
    by_role: bool,
    groups: BTreeMap<Group, Rule>,
    /// What services declared for methods that no file declares.
    declared: BTreeMap<String, Option<Vec<String>>>,
    /// How many calls have no rule, and why.
    left_out: BTreeMap<&'static str, usize>,
}

/// A proposal as text.
#[derive(Debug)]
pub(super) struct ProposalText {
    pub(super) text: String,
    /// The line where each rule's part begins.
    rules: Vec<(u32, Group)>,
}

impl ProposalText {
    pub(super) fn rules(&self) -> usize {
        self.rules.len()
    }
}

/// So many of these.
pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

const NO_ROOM: &str = "the proposal has no room for more rules; use --agent or --method";
const DECLARED_OTHERWISE: &str = "they were recorded with other parameters than are declared";
const HIDDEN: &str = "the record does not show the values of their parameters (`audit` of a method's parameter)";
const ANY_SUBJECT: &str = "they are for a subject with a `*`, which would stand for any text";
const NOT_LOADED: &str = "their rule cannot be used";

/// Calls that one rule allows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    method: String,
    who: Party,
    /// The subject that the agent acted for, if any.
    subject: Option<String>,
    /// The optional parameters that are present; `None` for all further combinations together.
    form: Option<BTreeSet<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Agent(String),
    /// The roles of a token, any of which will do.
    Roles(BTreeSet<String>),
}

#[derive(Debug, Clone)]
struct Rule {
    calls: usize,
    allowed: usize,
    /// The place of the first call in the recordings.
    first: String,
    params: Option<Vec<(Param, ValueSummary)>>,
    /// Whether the files would have to declare the parameters.
    undeclared: bool,
}

impl<'a> Proposal<'a> {
    pub(super) fn new(set: &'a PolicySet, filed: Option<&'a Methods>, by_role: bool) -> Self {
        Self { set, filed, by_role, groups: BTreeMap::new(), declared: BTreeMap::new(), left_out: BTreeMap::new() }
    }

    /// Adds a call that a rule should allow.
    pub(super) fn add(&mut self, place: &str, record: &DecisionRecord) {
        if record.hidden().is_some() {
            return self.leave_out(HIDDEN, 1);
        }
        let Some((params, undeclared)) = self.params(record) else { return self.leave_out(DECLARED_OTHERWISE, 1) };
        if record.subject.as_ref().is_some_and(|subject| subject.contains('*')) {
            return self.leave_out(ANY_SUBJECT, 1);
        }
        // A rule for a delegated call names agent and subject: otherwise anybody with the role could call for the subject.
        let who = if self.by_role && record.subject.is_none() && !record.roles.is_empty() {
            Party::Roles(record.roles.clone())
        } else {
            Party::Agent(record.agent.to_string())
        };
        let sent = record.params.clone().unwrap_or_default();
        let is_there = |param: &&Param| param.is_optional() && sent.contains_key(param.name());
        let form = params.iter().flatten().filter(is_there).map(|param| param.name().to_owned()).collect();
        let mut group = Group { method: record.method.clone(), who, subject: record.subject.clone(), form: Some(form) };
        if !self.groups.contains_key(&group) {
            let is_same = |known: &&Group| {
                (&known.method, &known.who, &known.subject) == (&group.method, &group.who, &group.subject)
            };
            if self.groups.keys().filter(is_same).count() >= FORMS {
                group.form = None;
            }
        }
        if self.groups.len() >= RULES && !self.groups.contains_key(&group) {
            return self.leave_out(NO_ROOM, 1);
        }
        let rule = self.groups.entry(group).or_insert_with(|| Rule {
            calls: 0,
            allowed: 0,
            first: place.to_owned(),
            params: params.map(|params| {
                params.into_iter().map(|param| (param.clone(), ValueSummary::new(param.kind()))).collect()
            }),
            undeclared,
        });
        rule.calls += 1;
        rule.allowed += usize::from(record.verdict == Verdict::Allow);
        for (param, seen) in rule.params.iter_mut().flatten() {
            if let Some(value) = sent.get(param.name()) {
                seen.add(value);
            }
        }
    }

    fn leave_out(&mut self, why: &'static str, calls: usize) {
        *self.left_out.entry(why).or_default() += calls;
    }

    pub(super) fn left_out(&self) -> &BTreeMap<&'static str, usize> {
        &self.left_out
    }

    /// The method's parameters, and whether only the record declares them; `None` if the record's differ from those declared now.
    fn params(&mut self, record: &DecisionRecord) -> Option<(Option<Vec<Param>>, bool)> {
        let recorded = record.params.as_ref().and(record.declared.as_deref());
        let in_files = self.set.methods().params(&record.method);
        if in_files.is_none() {
            let recorded = recorded.map(<[String]>::to_vec);
            let known = self.declared.entry(record.method.clone()).or_insert_with(|| recorded.clone());
            if *known != recorded {
                return None;
            }
        }
        match (in_files, recorded) {
            (Some(declared), Some(recorded)) => {
                let is_same = declared.iter().map(ToString::to_string).eq(recorded.iter().cloned());
                is_same.then(|| (Some(declared.to_vec()), false))
            }
            (Some([]) | None, None) => Some((None, false)),
            (Some(_), None) => None,
            (None, Some(recorded)) => {
                let is_filed = self.filed.is_some_and(|filed| filed.contains(&record.method));
                let read = recorded.iter().map(|text| declared(text)).collect::<Option<Vec<_>>>().filter(|_| !is_filed);
                Some((read.clone(), read.is_some()))
            }
        }
    }

    /// Leaves out the rule on this line, and returns what it is about.
    pub(super) fn remove(&mut self, written: &ProposalText, line: u32) -> Option<String> {
        let (_, group) = written.rules.iter().rev().find(|(first, _)| *first <= line)?;
        let rule = self.groups.remove(group)?;
        self.leave_out(NOT_LOADED, rule.calls);
        let who = match &group.who {
            Party::Agent(name) => format!("the agent `{}`", one_line(name)),
            Party::Roles(roles) => format!("`{}`", one_line(&roles.iter().cloned().collect::<Vec<_>>().join(", "))),
        };
        Some(format!("{} of {who} ({})", one_line(&group.method), one_line(&rule.first)))
    }

    /// The proposal as text. Rules that do not fit are left out for good.
    pub(super) fn write(&mut self) -> ProposalText {
        if std::mem::take(&mut self.by_role) {
            self.groups = by_one_role(std::mem::take(&mut self.groups));
        }
        let revision: String = self.set.revision().to_string().chars().take(6).collect();
        let mut body = String::new();
        let known: BTreeSet<String> = policies::roles(self.set).collect();
        let (mut methods, mut roles) = (BTreeSet::new(), BTreeSet::new());
        let mut rules = Vec::new();
        let mut line = 1 + lines(HEAD);
        let mut no_room = Vec::new();
        for (group, rule) in &self.groups {
            let mut part = String::new();
            if rule.undeclared && !methods.contains(&group.method) {
                let params: Vec<Param> = rule.params.iter().flatten().map(|(param, _)| param.clone()).collect();
                let _ = writeln!(part, "{}", toml_text::method(&group.method, Some(&params)));
            }
            if let Party::Roles(needed) = &group.who {
                for role in needed.iter().filter(|role| !known.contains(*role) && !roles.contains(*role)) {
                    let _ = writeln!(
                        part,
                        "[role.{}]\ndescription = \"Named by tokens, and by no policy so far.\"\n",
                        text(role)
                    );
                }
            }
            group.write(rule, &format!("learned-{revision}-{}", rules.len() + 1), &mut part);
            if body.len() + part.len() + HEAD.len() > BYTES {
                no_room.push((group.clone(), rule.calls));
                continue;
            }
            body.push_str(&part);
            rules.push((line, group.clone()));
            line += lines(&part);
            methods.insert(group.method.clone());
            if let Party::Roles(needed) = &group.who {
                roles.extend(needed.iter().cloned());
            }
        }
        for (group, calls) in no_room {
            self.groups.remove(&group);
            self.leave_out(NO_ROOM, calls);
        }
        let text = if rules.is_empty() { String::new() } else { format!("{HEAD}{}\n", body.trim_end()) };
        ProposalText { text, rules }
    }
}

const HEAD: &str = "\
# Proposed by `sealwire policy learn`, and in force nowhere. Names and values are what callers sent, and a caller may have been an
# attacker: keep what you would have allowed without having seen it, and leave out the rest.

";

impl Group {
    fn write(&self, rule: &Rule, name: &str, text_of_rule: &mut String) {
        let calls = counted(rule.calls, "call");
        let mut lines = vec![
            format!(
                "# Rests on {calls}, {} allowed when recorded; the first is {}.",
                rule.allowed,
                one_line(&rule.first)
            ),
            format!("[rule.{name}]"),
            format!("description = \"Learned from {calls}.\""),
        ];
        let list = |names: &BTreeSet<String>| names.iter().map(|name| text(name)).collect::<Vec<_>>().join(", ");
        match &self.who {
            Party::Agent(agent) => {
                lines.push(format!("agents = [{}]", text(agent)));
                lines.extend(self.subject.iter().map(|subject| format!("subjects = [{}]", text(subject))));
            }
            Party::Roles(roles) => lines.push(format!("roles = [{}]", list(roles))),
        }
        lines.push(format!("allow = [{}]", text(&self.method)));
        if let (Party::Agent(agent), Some(subject)) = (&self.who, &self.subject) {
            // A rule must allow each of the two names, but neither may call for anybody else, nor the subject for the agent.
            lines.push("delegated = \"only\"".to_owned());
            lines.push(format!("when.agent = {}", text(agent)));
            lines.push(format!("when.subject = {}", text(subject)));
        }
        match &rule.params {
            None => lines.push(
                "# No parameters were recorded, so it has no conditions: declare them in the policies, and record again."
                    .to_owned(),
            ),
            Some(params) => {
                for (param, seen) in params {
                    seen.conditions(&key(param.name()), param.is_optional(), rule.calls, &mut lines);
                }
            }
        }
        for line in lines {
            text_of_rule.push_str(&line);
            text_of_rule.push('\n');
        }
        text_of_rule.push('\n');
    }
}

fn lines(text: &str) -> u32 {
    u32::try_from(text.lines().count()).unwrap_or(u32::MAX)
}

fn one_line(text: &str) -> String {
    text.escape_debug().to_string()
}

/// Chooses one role for each rule: of the roles in the calls' tokens, the one that most calls of the method have.
fn by_one_role(groups: BTreeMap<Group, Rule>) -> BTreeMap<Group, Rule> {
    let mut calls: BTreeMap<(String, String), usize> = BTreeMap::new();
    for (group, rule) in &groups {
        if let Party::Roles(roles) = &group.who {
            for role in roles {
                *calls.entry((group.method.clone(), role.clone())).or_default() += rule.calls;
            }
        }
    }
    let mut merged: BTreeMap<Group, Rule> = BTreeMap::new();
    for (mut group, rule) in groups {
        if let Party::Roles(roles) = &group.who {
            let count = |role: &&String| calls.get(&(group.method.clone(), (*role).clone())).copied();
            // Among equals, the first by name.
            let most = roles.iter().rev().max_by_key(count).cloned();
            group.who = Party::Roles(most.into_iter().collect());
        }
        match merged.get_mut(&group) {
            None => drop(merged.insert(group, rule)),
            Some(known) => {
                known.calls += rule.calls;
                known.allowed += rule.allowed;
                for ((_, mine), (_, theirs)) in known.params.iter_mut().flatten().zip(rule.params.into_iter().flatten())
                {
                    mine.merge(theirs);
                }
            }
        }
    }
    merged
}

/// Parses a declaration as written in records: `amount?: integer`. Objects are not supported.
fn declared(text: &str) -> Option<Param> {
    let scalars = [ScalarType::String, ScalarType::Integer, ScalarType::Boolean].map(ParamType::List);
    let kinds = [ParamType::String, ParamType::Integer, ParamType::Boolean, ParamType::Number, ParamType::Any];
    let (name, kind) = text.rsplit_once(": ")?;
    let kind = kinds.into_iter().chain(scalars).find(|known| known.to_string() == kind)?;
    Some(match name.strip_suffix('?') {
        Some(name) => Param::new(name, kind).optional(),
        None => Param::new(name, kind),
    })
}
