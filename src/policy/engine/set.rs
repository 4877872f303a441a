//! One revision of a policy: loaded as a whole, asked many times.
//! Never changes, never panics, and never lets one principal of a delegated call stand in for the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::bounds::Bounds;
use super::charges::{self, BudgetsOf, Charge};
use super::decision::{Decision, Question, Reason, Shadow, Verdict};
use super::entity_cache::EntityCache;
use super::method::{CallFacts, MethodPolicies};
use super::principal::{Principal, principals};
use crate::auth::Caller;
use crate::files::FileTrust;
use crate::name::{MethodName, Name};
use crate::policy::cedar::BuildError;
use crate::policy::language::{CheckedPolicy, Folder, resolve};
use crate::policy::model::{
    Approval, Budget, ByPrincipal, Declarations, Finding, Location, Methods, NotApprover, Pattern, PolicyErrors,
    PrincipalKind, Report, Requester, Revision, Rule, Severity, TypedValue, pattern,
};
use crate::policy::stack;
use crate::wire::ProofAlgorithm;

/// A policy with its warnings, or everything that is wrong.
pub(crate) type Loaded = Result<(PolicySet, Vec<Finding>), PolicyErrors>;

/// A checked and compiled policy folder.
///
/// Immutable: share it in an `Arc` and replace it whole.
#[derive(Debug)]
pub struct PolicySet {
    checked: CheckedPolicy,
    pub(crate) by_method: HashMap<MethodName, MethodPolicies>,
    /// What the rules say about names that no method has, by the narrowest pattern with a star that matches the name.
    pub(crate) unregistered: BTreeMap<Pattern, MethodPolicies>,
    budgets_by_method: BudgetsOf,
    /// What each rule requires of single parameters, computed when it is first asked for.
    pub(super) bounds: Vec<OnceLock<Bounds>>,
}

impl PolicySet {
    /// Reads, checks and compiles a folder as a whole: every `*.toml` and `*.cedar` file in it and in its folders.
    /// Files that end in `.test.toml` (expected decisions) or `.md`, and names that begin with a dot, are skipped.
    ///
    /// A folder without policy files gives the set that denies everything, with a warning.
    ///
    /// # Errors
    /// Everything that is wrong in the folder, with file, line and what to write instead. The mistake is that of the
    /// operator who wrote the files, or who mounted them.
    pub fn load(dir: &Path, methods: &Methods) -> Loaded {
        Self::load_with(dir, [], methods)
    }

    /// Like [`PolicySet::load`], with these texts besides the files, by file name: for trying out what may become one.
    ///
    /// # Errors
    /// As [`PolicySet::load`].
    pub fn load_with<'a>(dir: &Path, more: impl IntoIterator<Item = (&'a str, &'a str)>, methods: &Methods) -> Loaded {
        let report = Report::default();
        let mut folder = Folder::read(dir, None, &report);
        if report.errors() > 0 {
            return Err(report.into_errors());
        }
        folder.files.extend(more.into_iter().map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())));
        Self::from_folder(&folder, methods, report, &dir.display().to_string())
    }

    /// Like [`PolicySet::load`], for a service that starts: a folder that is missing or cannot be read gives the set
    /// that denies everything, with its errors as the warnings. A running service keeps the set it has instead.
    ///
    /// # Errors
    /// Everything that is wrong in the files, as [`PolicySet::load`].
    pub fn open(dir: &Path, methods: &Methods) -> Loaded {
        Self::open_trusted(dir, None, methods)
    }

    /// Like [`PolicySet::open`]. With `trust`, files that others could have written cannot be read.
    pub(crate) fn open_trusted(dir: &Path, trust: Option<&FileTrust>, methods: &Methods) -> Loaded {
        let report = Report::default();
        let folder = Folder::read(dir, trust, &report);
        if report.errors() > 0 {
            let findings = report.into_errors().findings;
            let why = findings.first().map(ToString::to_string).unwrap_or_default();
            return Ok((Self::denying(why, methods.without_files()), findings));
        }
        Self::from_folder(&folder, methods, report, &dir.display().to_string())
    }

    /// Like [`PolicySet::load`], from texts by file name: for trying out policies that are not on disk.
    ///
    /// # Errors
    /// As [`PolicySet::load`].
    pub fn from_texts<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>, methods: &Methods) -> Loaded {
        let files = files.into_iter().map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).collect();
        Self::from_folder(&Folder { files }, methods, Report::default(), "memory")
    }

    pub(crate) fn from_folder(folder: &Folder, methods: &Methods, report: Report, name: &str) -> Loaded {
        if folder.files.is_empty() {
            let why = format!("there is no policy file in `{name}`");
            let mut warnings = report.finish()?;
            warnings.push(Finding {
                file: String::new(),
                line: 0,
                severity: Severity::Warning,
                message: format!("{why}, so everything is denied"),
                help: Some("write a `.toml` or `.cedar` file there".to_owned()),
            });
            return Ok((Self::denying(why, methods.without_files()), warnings));
        }
        let load = move || {
            let loaded = resolve::check(folder, methods, &report);
            // A folder with errors is not used, and compiling it would only report them again.
            if report.errors() > 0 {
                return Err(report.into_errors());
            }
            let set = Self::compile(loaded, &report);
            report.finish().map(|warnings| (set, warnings))
        };
        stack::with_room(load).unwrap_or_else(|error| {
            let report = Report::default();
            report.error(&Location::default(), format!("no thread to check policies on: {error}"), "");
            Err(report.into_errors())
        })
    }

    /// The set that denies everything, and why it is in use.
    #[must_use]
    pub fn deny_all(why: String) -> Self {
        Self::denying(why, Methods::new())
    }

    pub(crate) fn denying(why: String, methods: Methods) -> Self {
        let checked = CheckedPolicy {
            revision: Revision::deny_all(why),
            methods,
            declarations: Declarations::default(),
            attributes: ByPrincipal::default(),
            granted: ByPrincipal::default(),
            approvals: BTreeMap::new(),
            budgets: BTreeMap::new(),
            rules: Vec::new(),
        };
        Self {
            checked,
            by_method: HashMap::new(),
            unregistered: BTreeMap::new(),
            budgets_by_method: BudgetsOf::new(),
            bounds: Vec::new(),
        }
    }

    /// Which policy this is: a digest of the content of its files.
    #[must_use]
    pub fn revision(&self) -> &Revision {
        &self.checked.revision
    }

    /// The registered methods, those declared in files included.
    #[must_use]
    pub fn methods(&self) -> &Methods {
        &self.checked.methods
    }

    /// Answers a question.
    #[must_use]
    pub fn decide(&self, question: &Question<'_>) -> Decision {
        self.decide_approved(question, &[])
    }

    /// Like [`PolicySet::decide`] for a call for which these approvals were given: they lift the deny rules that name them, and everything
    /// else is decided anew. Whether they were given is for the caller of this to prove.
    #[must_use]
    pub fn decide_approved(&self, question: &Question<'_>, approved: &[&str]) -> Decision {
        if self.revision().why().is_some() {
            return Decision::deny(Reason::DenyAll);
        }
        match self.by_method.get(question.method) {
            Some(policies) => self.decide_in(policies, &CallFacts { approved, ..policies.facts(question) }),
            None => self.decide_unknown(question),
        }
    }

    /// The approval of this name.
    #[must_use]
    pub fn approval(&self, name: &str) -> Option<&Approval> {
        self.checked.approvals.get(name)
    }

    /// Whether some call may have to wait for one.
    #[must_use]
    pub fn has_approvals(&self) -> bool {
        !self.checked.approvals.is_empty()
    }

    /// All approvals, by name.
    pub fn approvals(&self) -> impl Iterator<Item = &Approval> {
        self.checked.approvals.values()
    }

    /// All budgets, by name.
    pub fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.checked.budgets.values()
    }

    /// Whether calls of this method are charged to any budget.
    pub(crate) fn has_budgets(&self, method: &str) -> bool {
        // Most policies have none, and every call asks.
        !self.budgets_by_method.is_empty() && self.budgets_by_method.contains_key(method)
    }

    /// The budgets that calls of this method are charged to, if they are of the budgets' callers.
    pub fn budgets_of(&self, method: &str) -> impl Iterator<Item = &Budget> {
        charges::budgets_of(&self.checked, &self.budgets_by_method, method)
    }

    /// What a call is charged if it is permitted. Whether it is does not matter here.
    ///
    /// # Errors
    /// Why it cannot be counted, if a budget adds up one of its parameters: they are not the declared ones, or the value is negative.
    pub(crate) fn charges(&self, question: &Question<'_>) -> Result<Vec<Charge<'_>>, String> {
        charges::charges(&self.checked, &self.budgets_by_method, question)
    }

    /// As whom an agent decides by this approval: two that decide as the same count once.
    #[must_use]
    pub fn decides_as<'a>(&'a self, approval: &str, agent: &'a Name) -> &'a str {
        let approval = self.approval(approval);
        approval
            .and_then(|approval| self.person(approval, PrincipalKind::Agent, agent.as_str()))
            .unwrap_or(agent.as_str())
    }

    /// The person to whom an agent or a subject belongs, if the approval asks for that and the policy says it.
    fn person(&self, approval: &Approval, kind: PrincipalKind, name: &str) -> Option<&str> {
        let known = self.checked.attributes.get(kind, name)?;
        match known.iter().find(|(attribute, _)| Some(attribute.as_str()) == approval.distinct()) {
            Some((_, TypedValue::String(person))) => Some(person),
            _ => None,
        }
    }

    /// Whether `approver`, the caller of a request that decides about a call, is one who may, by this approval. Their roles are those
    /// with which the policy would decide a call of theirs. `needs` are all approvals that the call needs: who are one person by any of
    /// them, are one.
    ///
    /// # Errors
    /// Why not: the request is not theirs to make.
    pub fn may_decide(
        &self,
        approval: &str,
        needs: &[String],
        approver: &Caller,
        of: &Requester<'_>,
    ) -> Result<(), NotApprover> {
        let approval = self.approval(approval).ok_or(NotApprover::Unknown)?;
        if approver.algorithm != ProofAlgorithm::EdDsa {
            return Err(NotApprover::SharedKey);
        }
        if approver.delegated {
            return Err(NotApprover::Delegated);
        }
        let name = approver.agent.as_str();
        // Agents and subjects are different name spaces, but somebody who decides under the very name of the subject is not taken for
        // somebody else. Nor is a person, where the policy does not say whose the name is.
        let is_approver = |by: &Approval, kind, other: &str| {
            let own = self.person(by, PrincipalKind::Agent, name);
            other == name || own == Some(self.person(by, kind, other).unwrap_or(other))
        };
        for by in needs.iter().filter_map(|name| self.approval(name)).chain([approval]) {
            if let Some(involved) = approval.excludes(of, |kind, other| is_approver(by, kind, other)) {
                return Err(NotApprover::Own(involved));
            }
        }
        if approval.distinct().is_some() && self.person(approval, PrincipalKind::Agent, name).is_none() {
            return Err(NotApprover::Nobody);
        }
        let principal = Principal::of(approver, PrincipalKind::Agent, &self.checked);
        let decides = |role: &str| approval.roles.iter().any(|one| one == role);
        principal.roles.iter().any(|role| decides(role)).then_some(()).ok_or(NotApprover::Role)
    }

    /// The roles by which a caller decides about the calls of others.
    #[must_use]
    pub fn approver_roles(&self, approver: &Caller) -> BTreeSet<&str> {
        if approver.algorithm != ProofAlgorithm::EdDsa || approver.delegated {
            return BTreeSet::new();
        }
        let held = Principal::of(approver, PrincipalKind::Agent, &self.checked).roles;
        let decides = |role: &&String| held.contains(&role.as_str());
        self.approvals().flat_map(|approval| &approval.roles).filter(decides).map(String::as_str).collect()
    }

    /// Every principal of the call must be allowed.
    pub(crate) fn decide_in(&self, policies: &MethodPolicies, facts: &CallFacts<'_>) -> Decision {
        let caller = facts.question.caller;
        let mut answer: Option<Decision> = None;
        for kind in principals(caller) {
            let decision = policies.decide(facts, &Principal::of(caller, kind, &self.checked));
            answer = Some(match answer {
                None => decision,
                Some(first) => combine_delegated(first, decision),
            });
        }
        answer.unwrap_or_else(|| Decision::deny(Reason::NoRule))
    }

    /// Decides a name that no method has. It is denied in any case; whether it would have been allowed tells the
    /// service whether it may say that the method does not exist.
    fn decide_unknown(&self, question: &Question<'_>) -> Decision {
        let would_allow = MethodName::new(question.method).is_ok()
            && self
                .unregistered_for(question.method)
                .is_some_and(|policies| self.decide_in(policies, &policies.facts(question)).is_allow());
        Decision::deny(Reason::UnknownMethod { would_allow })
    }

    fn unregistered_for(&self, name: &str) -> Option<&MethodPolicies> {
        pattern::groups_of(name).iter().rev().find_map(|group| self.unregistered.get(group))
    }

    pub(crate) fn policies_for(&self, method: &str) -> Option<&MethodPolicies> {
        self.by_method.get(method).or_else(|| self.unregistered_for(method))
    }

    /// Whether some rule of the method has a condition on its arguments. Then a call must send the declared parameters
    /// and nothing else.
    #[must_use]
    pub fn looks_at_params(&self, method: &str) -> bool {
        self.by_method.get(method).is_some_and(MethodPolicies::looks_at_params)
    }

    pub(crate) fn checked(&self) -> &CheckedPolicy {
        &self.checked
    }

    fn compile(checked: CheckedPolicy, report: &Report) -> Self {
        let mut about: HashMap<&MethodName, Vec<usize>> = HashMap::new();
        for (position, rule) in checked.rules.iter().enumerate() {
            for name in checked.methods.matching_any(&rule.methods).into_keys() {
                about.entry(name).or_default().push(position);
            }
        }
        let entities = Arc::<EntityCache>::default();
        let built = |policies: Result<MethodPolicies, (Location, BuildError)>| {
            policies.map_err(|(at, error)| report.error(&at, format!("cannot be compiled: {error}"), "")).ok()
        };
        let mut by_method = HashMap::new();
        for (name, method) in checked.methods.iter() {
            let params = method.params().map(Into::into);
            let rules = about.remove(name).unwrap_or_default();
            let policies = MethodPolicies::new(name.as_str(), params, false, &checked, rules, Arc::clone(&entities));
            by_method.extend(built(policies).map(|policies| (name.clone(), policies)));
        }
        let patterns = checked.rules.iter().flat_map(|rule| &rule.methods).map(|pattern| &pattern.value);
        let stars: BTreeSet<&Pattern> = patterns.filter(|pattern| !pattern.is_exact()).collect();
        let mut unregistered = BTreeMap::new();
        for star in stars {
            // Stars nest: a pattern with a star that matches a name also matches everything that a narrower star around
            // the name matches.
            let covers = |rule: &Rule| rule.methods.iter().any(|pattern| pattern.value.covers(star));
            let rules = (0..).zip(&checked.rules).filter(|(_, rule)| covers(rule)).map(|(at, _)| at).collect();
            let policies = MethodPolicies::new(&star.to_string(), None, true, &checked, rules, Arc::clone(&entities));
            unregistered.extend(built(policies).map(|policies| (star.clone(), policies)));
        }
        let bounds = checked.rules.iter().map(|_| OnceLock::new()).collect();
        let budgets_by_method = charges::by_method(&checked);
        Self { checked, by_method, unregistered, budgets_by_method, bounds }
    }
}

/// A delegated call is allowed if both the agent and its subject are. The first refusal is the answer, except that one
/// for the parameters counts only if both could call the method with others, and one for want of an approval only if both
/// were allowed with it; of two allowing rules, the agent's is named.
fn combine_delegated(agent: Decision, subject: Decision) -> Decision {
    let verdict = if agent.is_allow() { subject.verdict } else { Verdict::Deny };
    // A shadow rule matters if it would change the outcome of the call as a whole.
    let with =
        |own: &Decision, hit: &Shadow| own.shadow.iter().find(|known| known.rule == hit.rule).map(|known| known.would);
    let mut shadow: Vec<Shadow> = Vec::new();
    for hit in agent.shadow.iter().chain(&subject.shadow) {
        let allowed = [&agent, &subject].iter().all(|own| with(own, hit).unwrap_or(own.verdict).is_allow());
        let would = if allowed { Verdict::Allow } else { Verdict::Deny };
        if would != verdict && !shadow.iter().any(|known| known.rule == hit.rule) {
            shadow.push(Shadow { rule: hit.rule.clone(), would });
        }
    }
    let waits = |own: &Decision| own.reason == Reason::ApprovalRequired;
    let both_wait = waits(&agent) && waits(&subject);
    let agent_stands_back = agent.is_allow() || agent.reason.is_about_params() || waits(&agent);
    let mut approvals = agent.approvals.clone();
    approvals.extend(subject.approvals.iter().filter(|name| !agent.approvals.contains(name)).cloned());
    let decisive = if agent_stands_back && !subject.is_allow() && !both_wait { subject } else { agent };
    if !decisive.is_allow() && !waits(&decisive) {
        approvals.clear();
    }
    Decision { approvals, shadow, ..decisive }
}
