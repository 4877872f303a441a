//! One revision of a policy: loaded as a whole, asked many times.
//! Never changes, never panics, and never lets one party of a delegated call stand in for the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use cedar_policy::{ValidationMode, Validator};

use super::cedar::{self, Scope, Types};
use super::decision::{Decision, Question, Reason, Verdict};
use super::explain::{self, Explanation};
use super::finding::{Finding, PolicyErrors, Report, Severity};
use super::glob::Pattern;
use super::load::{self, Loaded};
use super::methods::Methods;
use super::revision::Revision;
use super::rule::Rule;
use super::slice::{Party, Slice};
use crate::auth::Caller;
use crate::name::MethodName;

/// A checked and compiled policy folder.
///
/// Immutable: share it in an `Arc` and replace it whole.
#[derive(Debug)]
pub struct PolicySet {
    revision: Revision,
    types: Types,
    methods: Methods,
    granted: HashMap<String, BTreeSet<String>>,
    /// Ordered by file and line; everything else refers to them by position.
    rules: Vec<Rule>,
    slices: HashMap<MethodName, Slice>,
    /// What the rules say about names that no method has, by the narrowest pattern with a star that matches the name.
    elsewhere: BTreeMap<Pattern, Slice>,
}

impl PolicySet {
    /// Reads, checks and compiles a folder as a whole: every `*.toml` file in it and in its folders. Files that end in
    /// `.test.toml` (expected decisions) or `.md`, and names that begin with a dot, are passed over.
    ///
    /// A folder without policy files gives the set that denies everything, with a warning.
    ///
    /// # Errors
    /// Everything that is wrong in the folder, with file, line and what to write instead. The operator who wrote the
    /// files is to blame, or the one who mounted them.
    pub fn load(dir: &Path, methods: &Methods) -> Result<(Self, Vec<Finding>), PolicyErrors> {
        let (loaded, mut warnings) = load::load(dir, methods)?;
        if let Some(loaded) = loaded {
            let mut report = Report::default();
            let set = Self::compile(loaded, &mut report);
            warnings.extend(report.finish()?);
            Ok((set, warnings))
        } else {
            let why = format!("there is no policy file in `{}`", dir.display());
            warnings.push(Finding {
                file: String::new(),
                line: 0,
                severity: Severity::Warning,
                message: format!("{why}, so everything is denied"),
                help: Some("write a `.toml` file there".to_owned()),
            });
            Ok((Self::deny_all(why), warnings))
        }
    }

    /// The set that denies everything, and why it is in use.
    #[must_use]
    pub fn deny_all(why: String) -> Self {
        Self {
            revision: Revision::deny_all(why),
            types: Types::new(),
            methods: Methods::new(),
            granted: HashMap::new(),
            rules: Vec::new(),
            slices: HashMap::new(),
            elsewhere: BTreeMap::new(),
        }
    }

    /// Which policy this is: a digest of the content of its files.
    #[must_use]
    pub fn revision(&self) -> &Revision {
        &self.revision
    }

    /// The registered methods, those declared in files included.
    #[must_use]
    pub fn methods(&self) -> &Methods {
        &self.methods
    }

    /// Answers a question.
    #[must_use]
    pub fn decide(&self, question: &Question<'_>) -> Decision {
        if self.revision.why().is_some() {
            return Decision::deny(Reason::DenyAll);
        }
        match self.slices.get(question.method) {
            Some(slice) => self.decide_in(slice, question),
            None => self.decide_unknown(question),
        }
    }

    /// Answers a question and tells of every rule of the method whether it matched, and if not, why not.
    #[must_use]
    pub fn explain(&self, question: &Question<'_>) -> Explanation {
        explain::explain(self, question)
    }

    /// Every party of the call must be allowed.
    fn decide_in(&self, slice: &Slice, question: &Question<'_>) -> Decision {
        let mut answer: Option<Decision> = None;
        for name in parties(question.caller) {
            let decision =
                self.with_party(question.caller, name, |party| slice.decide(party, &self.rules, &self.types));
            answer = Some(match answer {
                None => decision,
                Some(first) => both(first, decision),
            });
        }
        answer.unwrap_or_else(|| Decision::deny(Reason::NoRule))
    }

    /// A name that no method has. It is denied in any case; whether it would have been allowed tells the service
    /// whether it may say that the method does not exist.
    fn decide_unknown(&self, question: &Question<'_>) -> Decision {
        let would_allow = MethodName::new(question.method).is_ok()
            && self.slice_elsewhere(question.method).is_some_and(|slice| self.decide_in(slice, question).is_allow());
        Decision::deny(Reason::UnknownMethod { would_allow })
    }

    fn slice_elsewhere(&self, name: &str) -> Option<&Slice> {
        super::glob::groups_of(name).iter().rev().find_map(|group| self.elsewhere.get(group))
    }

    pub(crate) fn with_party<T>(&self, caller: &Caller, name: &str, ask: impl FnOnce(&Party<'_>) -> T) -> T {
        let granted = self.granted.get(name);
        let has_role =
            |role: &str| caller.roles.contains(role) || granted.is_some_and(|granted| granted.contains(role));
        ask(&Party { name, has_role: &has_role, delegated: caller.delegated })
    }

    pub(crate) fn slice_for(&self, method: &str) -> Option<&Slice> {
        self.slices.get(method).or_else(|| self.slice_elsewhere(method))
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(crate) fn types(&self) -> &Types {
        &self.types
    }

    fn compile(loaded: Loaded, report: &mut Report) -> Self {
        let Loaded { revision, methods, granted, rules } = loaded;
        let types = Types::new();
        validate(&rules, &methods, report);
        let mut cut = |action: &str, matches: &dyn Fn(&Rule) -> bool| match Slice::new(action, &rules, matches, &types)
        {
            Ok(slice) => Some(slice),
            Err((position, error)) => {
                if let Some(rule) = rules.get(position) {
                    report.error(&rule.at, format!("cannot be compiled: {error}"), "");
                }
                None
            }
        };
        let slices = methods
            .names()
            .filter_map(|name| {
                let matches = |rule: &Rule| rule.methods.iter().any(|pattern| pattern.value.matches(name.as_str()));
                Some((name.clone(), cut(name.as_str(), &matches)?))
            })
            .collect();
        let stars: BTreeSet<Pattern> = rules
            .iter()
            .flat_map(|rule| &rule.methods)
            .filter(|pattern| !pattern.value.is_exact())
            .map(|pattern| pattern.value.clone())
            .collect();
        let elsewhere = stars
            .into_iter()
            .filter_map(|star| {
                // A pattern with a star that matches the name matches the whole star too: stars nest.
                let matches = |rule: &Rule| rule.methods.iter().any(|pattern| pattern.value.covers(&star));
                let slice = cut(&star.to_string(), &matches)?;
                Some((star, slice))
            })
            .collect();
        Self { revision, types, methods, granted, rules, slices, elsewhere }
    }
}

/// The names for which a call is judged: the agent, and the subject if it acts for one.
pub(crate) fn parties(caller: &Caller) -> impl Iterator<Item = &str> {
    [Some(caller.agent.as_str()), caller.delegated.then_some(caller.subject.as_str())].into_iter().flatten()
}

/// A delegated call is allowed when the agent and its subject both are. The first refusal is the answer; among two
/// allowing rules the agent's is named.
fn both(agent: Decision, subject: Decision) -> Decision {
    let mut shadow = agent.shadow;
    for hit in subject.shadow {
        if !shadow.contains(&hit) {
            shadow.push(hit);
        }
    }
    let (verdict, rule, reason) = if agent.verdict == Verdict::Allow && subject.verdict == Verdict::Deny {
        (subject.verdict, subject.rule, subject.reason)
    } else {
        (agent.verdict, agent.rule, agent.reason)
    };
    Decision { verdict, rule, reason, shadow }
}

/// Cedar's own strict check of the whole set against the schema.
fn validate(rules: &[Rule], methods: &Methods, report: &mut Report) {
    let mut set = cedar_policy::PolicySet::new();
    let mut by_name: HashMap<String, &Rule> = HashMap::new();
    for rule in rules {
        if let Some(first) = by_name.insert(rule.id.name().to_owned(), rule) {
            let message = format!("two rules are named `{}`", super::finding::shown(rule.id.name()));
            report.error(&rule.at, message, format!("the first is at {}:{}", first.at.file, first.at.line));
            continue;
        }
        let added =
            cedar::policy(rule, Scope::Full).and_then(|policy| set.add(policy).map_err(|error| Box::new(error).into()));
        if let Err(error) = added {
            report.error(&rule.at, format!("cannot be compiled: {error}"), "");
        }
    }
    let schema = match cedar::schema(methods) {
        Ok(schema) => schema,
        Err(error) => {
            let at = super::rule::Location { file: "".into(), line: 0 };
            report.error(&at, format!("the schema of the methods cannot be built: {error}"), "");
            return;
        }
    };
    let result = Validator::new(schema).validate(&set, ValidationMode::Strict);
    for error in result.validation_errors() {
        if let Some(rule) = by_name.get::<str>(error.policy_id().as_ref()) {
            report.error(&rule.at, error.to_string(), "");
        }
    }
}
