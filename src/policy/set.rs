//! One revision of a policy: loaded as a whole, asked many times.
//! Never changes, never panics, and never lets one party of a delegated call stand in for the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::cedar::Types;
use super::decision::{Decision, Question, Reason, Shadow, Verdict};
use super::explain::{self, Explanation};
use super::finding::{Finding, PolicyErrors, Report, Severity};
use super::folder::Folder;
use super::glob::{self, Pattern};
use super::load::{self, Loaded, Vocabulary};
use super::methods::Methods;
use super::request::Attributes;
use super::revision::Revision;
use super::rule::{Location, Rule};
use super::slice::{Facts, Party, Slice};
use super::toml_file::RoleSource;
use crate::auth::{Caller, FileTrust};
use crate::name::MethodName;

/// For reading policies, in bytes; reserved, and used only as far as needed. A policy at the bounds of `cedar_file` takes
/// a tenth of it in an unoptimized build.
const STACK: usize = 64 << 20;

/// A checked and compiled policy folder.
///
/// Immutable: share it in an `Arc` and replace it whole.
#[derive(Debug)]
pub struct PolicySet {
    revision: Revision,
    methods: Methods,
    ground: Ground,
    slices: HashMap<MethodName, Slice>,
    /// What the rules say about names that no method has, by the narrowest pattern with a star that matches the name.
    elsewhere: BTreeMap<Pattern, Slice>,
}

/// What all slices stand on.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) types: Types,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) attributes: Attributes,
    /// The roles that files grant, by the name of the agent or subject.
    pub(crate) granted: HashMap<String, BTreeSet<String>>,
    /// Ordered by file and line; everything else refers to them by position.
    pub(crate) rules: Vec<Rule>,
}

impl PolicySet {
    /// Reads, checks and compiles a folder as a whole: every `*.toml` and `*.cedar` file in it and in its folders.
    /// Files that end in `.test.toml` (expected decisions) or `.md`, and names that begin with a dot, are passed over.
    ///
    /// A folder without policy files gives the set that denies everything, with a warning.
    ///
    /// # Errors
    /// Everything that is wrong in the folder, with file, line and what to write instead. The operator who wrote the
    /// files is to blame, or the one who mounted them.
    pub fn load(dir: &Path, methods: &Methods) -> Result<(Self, Vec<Finding>), PolicyErrors> {
        let mut report = Report::default();
        let folder = Folder::read(dir, None, &mut report);
        if report.errors() > 0 {
            return Err(report.into_errors());
        }
        Self::from_folder(&folder, methods, report, &dir.display().to_string())
    }

    /// As [`PolicySet::load`] for a service that starts: a folder that is missing or cannot be read gives the set that
    /// denies everything, with its errors as the warnings. A running service keeps the set it has instead.
    ///
    /// # Errors
    /// Everything that is wrong in the files, as [`PolicySet::load`].
    pub fn open(dir: &Path, methods: &Methods) -> Result<(Self, Vec<Finding>), PolicyErrors> {
        Self::open_trusted(dir, None, methods)
    }

    /// As [`PolicySet::open`]. With `trust`, what others could have written cannot be read.
    pub(crate) fn open_trusted(
        dir: &Path,
        trust: Option<&FileTrust>,
        methods: &Methods,
    ) -> Result<(Self, Vec<Finding>), PolicyErrors> {
        let mut report = Report::default();
        let folder = Folder::read(dir, trust, &mut report);
        if report.errors() > 0 {
            let findings = report.into_errors().into_findings();
            let why = findings.first().map(ToString::to_string).unwrap_or_default();
            return Ok((Self { methods: methods.without_files(), ..Self::deny_all(why) }, findings));
        }
        Self::from_folder(&folder, methods, report, &dir.display().to_string())
    }

    /// As [`PolicySet::load`], from texts by file name: for trying out policies that are not on disk.
    ///
    /// # Errors
    /// As [`PolicySet::load`].
    pub fn from_texts<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
        methods: &Methods,
    ) -> Result<(Self, Vec<Finding>), PolicyErrors> {
        let files = files.into_iter().map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).collect();
        Self::from_folder(&Folder { files }, methods, Report::default(), "memory")
    }

    pub(crate) fn from_folder(
        folder: &Folder,
        methods: &Methods,
        mut report: Report,
        name: &str,
    ) -> Result<(Self, Vec<Finding>), PolicyErrors> {
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
            return Ok((Self { methods: methods.without_files(), ..Self::deny_all(why) }, warnings));
        }
        let load = move || {
            let loaded = load::check(folder, methods, &mut report);
            // What has errors is not used, and compiling it would only tell of them again.
            if report.errors() > 0 {
                return Err(report.into_errors());
            }
            let set = Self::compile(loaded, &mut report);
            report.finish().map(|warnings| (set, warnings))
        };
        // Parsers and checkers are recursive, and a thread of the runtime has room for some hundred levels only.
        std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().name("policy".to_owned()).stack_size(STACK).spawn_scoped(scope, load);
            match thread.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(loaded)) => loaded,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                Err(error) => {
                    let mut report = Report::default();
                    let nowhere = Location { file: "".into(), line: 0 };
                    report.error(&nowhere, format!("no thread to check policies on: {error}"), "");
                    Err(report.into_errors())
                }
            }
        })
    }

    /// The set that denies everything, and why it is in use.
    #[must_use]
    pub fn deny_all(why: String) -> Self {
        Self {
            revision: Revision::deny_all(why),
            methods: Methods::new(),
            ground: Ground {
                types: Types::new(),
                vocabulary: Vocabulary::default(),
                attributes: HashMap::new(),
                granted: HashMap::new(),
                rules: Vec::new(),
            },
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
            Some(slice) => self.decide_in(slice, &slice.facts(question)),
            None => self.decide_unknown(question),
        }
    }

    /// As [`PolicySet::decide`] for a method that exists, for parameters of which only the fault is known.
    pub(crate) fn decide_faulty(&self, question: &Question<'_>, fault: Reason) -> Decision {
        match self.slices.get(question.method) {
            Some(slice) => {
                let mut facts = slice.facts(question);
                facts.params = facts.params.map(|_| Err(fault));
                self.decide_in(slice, &facts)
            }
            None => self.decide(question),
        }
    }

    /// Answers a question and tells of every rule of the method whether it matched, and if not, why not.
    #[must_use]
    pub fn explain(&self, question: &Question<'_>) -> Explanation {
        explain::explain(self, question)
    }

    /// Every party of the call must be allowed.
    fn decide_in(&self, slice: &Slice, facts: &Facts<'_>) -> Decision {
        let caller = facts.question.caller;
        let mut answer: Option<Decision> = None;
        for name in parties(caller) {
            let decision = slice.decide(facts, &self.ground.party(caller, name), &self.ground);
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
            && self
                .slice_elsewhere(question.method)
                .is_some_and(|slice| self.decide_in(slice, &slice.facts(question)).is_allow());
        Decision::deny(Reason::UnknownMethod { would_allow })
    }

    fn slice_elsewhere(&self, name: &str) -> Option<&Slice> {
        glob::groups_of(name).iter().rev().find_map(|group| self.elsewhere.get(group))
    }

    pub(crate) fn slice_for(&self, method: &str) -> Option<&Slice> {
        self.slices.get(method).or_else(|| self.slice_elsewhere(method))
    }

    /// Whether some rule of the method has a condition on its arguments. Then a call must send the declared parameters
    /// and nothing else.
    #[must_use]
    pub fn looks_at_params(&self, method: &str) -> bool {
        self.slices.get(method).is_some_and(Slice::looks_at_params)
    }

    pub(crate) fn ground(&self) -> &Ground {
        &self.ground
    }

    fn compile(loaded: Loaded, report: &mut Report) -> Self {
        let Loaded { revision, methods, vocabulary, attributes, granted, rules } = loaded;
        let ground = Ground { types: Types::new(), vocabulary, attributes, granted, rules };
        let mut slices = HashMap::new();
        for (name, method) in methods.iter() {
            let params = method.params().map(Into::into);
            let slice = Slice::new(name.as_str(), params, false, &ground, |rule| rule.is_about(name.as_str()));
            if let Some(slice) = built(slice, &ground, report) {
                slices.insert(name.clone(), slice);
            }
        }
        let patterns = ground.rules.iter().flat_map(|rule| &rule.methods).map(|pattern| &pattern.value);
        let stars: BTreeSet<&Pattern> = patterns.filter(|pattern| !pattern.is_exact()).collect();
        let mut elsewhere = BTreeMap::new();
        for star in stars {
            // A pattern with a star that matches a name matches all of a narrower star around it too: stars nest.
            let matches = |rule: &Rule| rule.methods.iter().any(|pattern| pattern.value.covers(star));
            let slice = Slice::new(&star.to_string(), None, true, &ground, matches);
            if let Some(slice) = built(slice, &ground, report) {
                elsewhere.insert(star.clone(), slice);
            }
        }
        Self { revision, methods, ground, slices, elsewhere }
    }
}

impl Ground {
    /// One of the parties of a call, with all the roles that count for it.
    pub(crate) fn party<'a>(&'a self, caller: &'a Caller, name: &'a str) -> Party<'a> {
        let known = |role: &str| self.vocabulary.roles.get(role);
        let believed = |role: &&String| known(role).is_none_or(|role| role.source != RoleSource::Files);
        let held = self.granted.get(name).into_iter().flatten().chain(caller.roles.iter().filter(believed));
        let included = |role: &'a String| known(role).into_iter().flat_map(|role| &role.includes);
        let roles = held.flat_map(|role| [role].into_iter().chain(included(role))).map(String::as_str).collect();
        Party { name, roles }
    }
}

fn built(
    slice: Result<Slice, (usize, super::cedar::BuildError)>,
    ground: &Ground,
    report: &mut Report,
) -> Option<Slice> {
    match slice {
        Ok(slice) => Some(slice),
        Err((position, error)) => {
            let nowhere = Location { file: "".into(), line: 0 };
            let at = ground.rules.get(position).map_or(&nowhere, |rule| &rule.at);
            report.error(at, format!("cannot be compiled: {error}"), "");
            None
        }
    }
}

/// The names for which a call is judged: the agent, and the subject if it acts for one.
pub(crate) fn parties(caller: &Caller) -> impl Iterator<Item = &str> {
    [Some(caller.agent.as_str()), caller.delegated.then_some(caller.subject.as_str())].into_iter().flatten()
}

/// A delegated call is allowed when the agent and its subject both are. The first refusal is the answer, but one for the
/// parameters only if both could call the method with others; among two allowing rules the agent's is named.
fn both(agent: Decision, subject: Decision) -> Decision {
    let verdict = if agent.is_allow() { subject.verdict } else { Verdict::Deny };
    // A shadow rule matters if the call as a whole would come out differently with it.
    let with =
        |party: &Decision, hit: &Shadow| party.shadow.iter().find(|own| own.rule == hit.rule).map(|own| own.would);
    let mut shadow: Vec<Shadow> = Vec::new();
    for hit in agent.shadow.iter().chain(&subject.shadow) {
        let allowed = [&agent, &subject].iter().all(|party| with(party, hit).unwrap_or(party.verdict).is_allow());
        let would = if allowed { Verdict::Allow } else { Verdict::Deny };
        if would != verdict && !shadow.iter().any(|known| known.rule == hit.rule) {
            shadow.push(Shadow { rule: hit.rule.clone(), would });
        }
    }
    let agent_stands_back = agent.is_allow() || agent.reason.is_about_params();
    let decisive = if agent_stands_back && !subject.is_allow() { subject } else { agent };
    Decision { shadow, ..decisive }
}
