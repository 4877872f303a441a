//! From a folder to a checked set of rules: reading, merging, and everything that is checked across files.
//! Never loads a part: one error anywhere and the folder is refused as a whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Read;
use std::path::Path;

use super::finding::{Finding, PolicyErrors, Report, did_you_mean, shown};
use super::methods::Methods;
use super::revision::Revision;
use super::rule::{Location, Rule};
use super::toml_file::{self, Statements};

/// A policy file of more than 1 MiB is a mistake, and a bound on what a reload can cost.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// As many files as anyone reviews, with room to spare.
const MAX_FILES: usize = 1000;
/// Folders below the policy folder.
const MAX_DEPTH: usize = 8;
/// The ending of the tables of expected decisions, which lie beside the policies and are none.
const TEST_ENDING: &str = ".test.toml";

/// The content of a policy folder, read in one go and not yet understood.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// Content by name relative to the folder, with `/` as separator.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Folder {
    /// Reads every policy file below `dir`. Names that begin with a dot are passed over.
    pub(crate) fn read(dir: &Path, report: &mut Report) -> Self {
        let mut folder = Self::default();
        folder.descend(dir, "", 0, report);
        folder
    }

    fn descend(&mut self, dir: &Path, prefix: &str, depth: usize, report: &mut Report) {
        let here = Location { file: prefix.trim_end_matches('/').into(), line: 0 };
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => {
                let message = format!("the policy folder `{}` cannot be read: {error}", dir.display());
                report.error(&here, message, "everything is denied until it can");
                return;
            }
        };
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    report.error(&here, format!("the policy folder `{}` cannot be listed: {error}", dir.display()), "");
                    return;
                }
            };
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                report.error(&here, format!("the file name `{}` is not UTF-8", path.display()), "rename the file");
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let relative = format!("{prefix}{name}");
            let at = Location { file: relative.as_str().into(), line: 0 };
            if path.is_dir() {
                if depth >= MAX_DEPTH {
                    report.error(&at, format!("folders are nested deeper than {MAX_DEPTH}"), "move the files up");
                } else {
                    self.descend(&path, &format!("{relative}/"), depth + 1, report);
                }
            } else if name.ends_with(TEST_ENDING) {
                continue;
            } else if name.ends_with(".toml") {
                self.file(&path, relative, &at, report);
            } else if !name.ends_with(".md") {
                report.warning(&at, "this is not a policy file and is not read", "policy files end in `.toml`");
            }
        }
    }

    fn file(&mut self, path: &Path, relative: String, at: &Location, report: &mut Report) {
        if self.files.len() >= MAX_FILES {
            report.error(at, format!("there are more than {MAX_FILES} policy files"), "put rules together");
            return;
        }
        let mut content = Vec::new();
        // One byte more than allowed tells a file that is too large from one that just fits.
        match fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)) {
            Err(error) => report.error(at, format!("cannot be read: {error}"), "check its permissions"),
            Ok(_) if content.len() as u64 > MAX_FILE_BYTES => {
                report.error(at, format!("is larger than {MAX_FILE_BYTES} bytes"), "split the file");
            }
            Ok(_) => {
                self.files.insert(relative, content);
            }
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        Revision::of(self.files.iter().map(|(name, content)| (name.as_str(), content.as_slice())))
    }
}

/// Everything that a folder says, checked.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) revision: Revision,
    pub(crate) methods: Methods,
    /// The roles that files grant, by the name of the agent or subject.
    pub(crate) granted: HashMap<String, BTreeSet<String>>,
    /// Ordered by file and line.
    pub(crate) rules: Vec<Rule>,
}

/// Reads and checks a folder. `None` when there is no policy file in it.
pub(crate) fn load(dir: &Path, methods: &Methods) -> Result<(Option<Loaded>, Vec<Finding>), PolicyErrors> {
    let mut report = Report::default();
    let folder = Folder::read(dir, &mut report);
    if folder.files.is_empty() {
        return report.finish().map(|warnings| (None, warnings));
    }
    let loaded = check(&folder, methods, &mut report);
    report.finish().map(|warnings| (Some(loaded), warnings))
}

/// Checks the content of a folder; `report` tells whether the result may be used.
pub(crate) fn check(folder: &Folder, methods: &Methods, report: &mut Report) -> Loaded {
    let mut all = Statements::default();
    for (name, content) in &folder.files {
        let at = Location { file: name.as_str().into(), line: 0 };
        match std::str::from_utf8(content) {
            Ok(text) => {
                let one = toml_file::read(name, text, report);
                all.roles.extend(one.roles);
                all.agents.extend(one.agents);
                all.methods.extend(one.methods);
                all.rules.extend(one.rules);
            }
            Err(_) => report.error(&at, "is not UTF-8 text", ""),
        }
    }
    let mut methods = methods.clone();
    declare_methods(&all, &mut methods, report);
    let roles = declare_roles(&all, report);
    let granted = grant_roles(&all, &roles, report);
    check_patterns(&all.rules, &methods, report);
    all.rules.sort_by(|left, right| left.at.cmp(&right.at));
    Loaded { revision: folder.revision(), methods, granted, rules: all.rules }
}

fn declare_methods(all: &Statements, methods: &mut Methods, report: &mut Report) {
    let mut seen: HashMap<&str, &Location> = HashMap::new();
    for table in &all.methods {
        let name = &table.name;
        if let Some(first) = seen.insert(name.value.as_str(), &name.at) {
            report.error(
                &name.at,
                format!("the method `{}` is declared twice", name.value),
                format!("the first is at {}:{}", first.file, first.line),
            );
        }
        match methods.declared_in_file(&name.value) {
            Some(method) => method.description = table.description.clone(),
            None => unknown_method(&name.at, name.value.as_str(), methods, report),
        }
    }
    let mut in_subjects: HashMap<String, String> = HashMap::new();
    for name in methods.names() {
        if let Some(other) = in_subjects.insert(name.in_subject(), name.to_string()) {
            let at = all
                .methods
                .iter()
                .find(|table| table.name.value == *name)
                .map_or(Location { file: "".into(), line: 0 }, |table| table.name.at.clone());
            let message = format!("the methods `{other}` and `{name}` are the same in a subject");
            report.error(&at, message, "rename one of them");
        }
    }
}

fn declare_roles<'a>(all: &'a Statements, report: &mut Report) -> BTreeSet<&'a str> {
    let mut seen: HashMap<&str, &Location> = HashMap::new();
    for role in &all.roles {
        if let Some(first) = seen.insert(&role.name.value, &role.name.at) {
            report.error(
                &role.name.at,
                format!("the role `{}` is described twice", shown(&role.name.value)),
                format!("put it together with {}:{}", first.file, first.line),
            );
        }
    }
    seen.into_keys().collect()
}

fn grant_roles(all: &Statements, roles: &BTreeSet<&str>, report: &mut Report) -> HashMap<String, BTreeSet<String>> {
    let mut seen: HashMap<&str, &Location> = HashMap::new();
    let mut granted = HashMap::new();
    for agent in &all.agents {
        if let Some(first) = seen.insert(&agent.name.value, &agent.name.at) {
            report.error(
                &agent.name.at,
                format!("the agent `{}` is described twice", shown(&agent.name.value)),
                format!("put it together with {}:{}", first.file, first.line),
            );
        }
        for role in &agent.roles {
            if !roles.contains(role.value.as_str()) {
                let help = did_you_mean(&role.value, roles.iter().copied())
                    .unwrap_or_else(|| format!("describe it: `[role.\"{}\"]`", shown(&role.value)));
                report.error(&role.at, format!("unknown role `{}`", shown(&role.value)), help);
            }
        }
        granted.insert(agent.name.value.clone(), agent.roles.iter().map(|role| role.value.clone()).collect());
    }
    granted
}

/// A pattern that matches no registered method would silently never apply.
fn check_patterns(rules: &[Rule], methods: &Methods, report: &mut Report) {
    for pattern in rules.iter().flat_map(|rule| &rule.methods) {
        if pattern.value == super::glob::Pattern::All
            || methods.names().any(|name| pattern.value.matches(name.as_str()))
        {
            continue;
        }
        if pattern.value.is_exact() {
            unknown_method(&pattern.at, &pattern.value.to_string(), methods, report);
        } else {
            report.error(
                &pattern.at,
                format!("no registered method matches `{}`", pattern.value),
                "remove it, or register the methods it is for",
            );
        }
    }
}

fn unknown_method(at: &Location, name: &str, methods: &Methods, report: &mut Report) {
    let help = did_you_mean(name, methods.names().map(|name| name.as_str())).unwrap_or_else(|| {
        if methods.is_open() {
            format!("declare it: `[method.\"{name}\"]`")
        } else {
            "the service has no method of that name".to_owned()
        }
    });
    report.error(at, format!("unknown method `{name}`"), help);
}
