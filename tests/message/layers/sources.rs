//! Which file of a package uses which.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::tokens::{Found, Token, implemented, lex, uses, without_tests};

/// The files that are a crate's root.
const ROOTS: [&str; 2] = ["lib", "main"];

/// The path of a module from the crate's root, which is the empty path: `lib.rs` or `main.rs`.
pub(super) type Module = Vec<String>;

/// The sources of one package.
pub(super) struct Sources {
    pub(super) files: BTreeMap<Module, File>,
    /// What each file uses, and the line.
    pub(super) uses: BTreeMap<Module, BTreeMap<Module, usize>>,
}

pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) tokens: Vec<Token>,
    imports: Vec<Found>,
    paths: Vec<Found>,
}

impl Sources {
    /// The sources of the package in a folder.
    pub(super) fn read(package: &Path) -> Self {
        let root = package.join("src");
        let mut files = BTreeMap::new();
        for path in sealwire_testkit::files_below(&root) {
            let below = path.strip_prefix(&root).unwrap().with_extension("");
            let mut module: Module = below.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
            if path.extension().is_some_and(|end| end == "rs") && !module.contains(&"tests".to_owned()) {
                module.retain(|_| !ROOTS.contains(&below.to_str().unwrap()));
                let tokens = without_tests(lex(&std::fs::read_to_string(&path).unwrap()));
                let (imports, paths) = uses(&tokens);
                let path = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_owned();
                files.insert(module, File { path, tokens, imports, paths });
            }
        }
        assert!(files.contains_key(&Module::new()), "no `lib.rs` and no `main.rs` in {}", root.display());
        let mut sources = Self { files, uses: BTreeMap::new() };
        sources.uses = sources.files.iter().map(|(module, file)| (module.clone(), sources.of(module, file))).collect();
        sources
    }

    fn of(&self, module: &Module, file: &File) -> BTreeMap<Module, usize> {
        let re_exported = |found: &&Found| {
            found.public
                && self.absolute(module, &found.path).is_some_and(|path| {
                    path.starts_with(module)
                        && !file.paths.iter().any(|used| used.path[0] == found.name)
                        && !file
                            .tokens
                            .iter()
                            .any(|token| token.lone && token.text == found.name && token.line > found.line)
                })
        };
        let imports = file.imports.iter().filter(|found| !re_exported(found));
        let mut used = BTreeMap::new();
        for found in imports.chain(&file.paths) {
            let target = self.absolute(module, &found.path).and_then(|path| self.definition(path, 0));
            if let Some(target) = target.filter(|target| target != module) {
                used.entry(target).or_insert(found.line);
            }
        }
        used
    }

    /// A path as seen from the root; `None` if it leads out of the crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let (head, rest) = path.split_first()?;
        let mut from = match head.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            name => {
                let child = [module.as_slice(), &[name.to_owned()]].concat();
                if self.files.contains_key(&child) {
                    child
                } else {
                    let import = self.files[module].imports.iter().find(|import| import.name == name)?;
                    (import.path[0] != *name).then(|| self.absolute(module, &import.path))??
                }
            }
        };
        for name in rest {
            if name == "super" {
                from.pop();
            } else {
                from.push(name.clone());
            }
        }
        Some(from)
    }

    /// The file in which the last name of a path is defined.
    fn definition(&self, path: Module, depth: usize) -> Option<Module> {
        let file = (0..=path.len()).rev().map(|len| &path[..len]).find(|front| self.files.contains_key(*front))?;
        let rest = &path[file.len()..];
        let import = rest.first().and_then(|name| self.files[file].imports.iter().find(|import| import.name == *name));
        match import.and_then(|import| self.absolute(&file.to_vec(), &import.path)) {
            Some(further) if depth < 8 && !further.starts_with(&path) => {
                self.definition([further.as_slice(), &rest[1..]].concat(), depth + 1)
            }
            _ => Some(file.to_vec()),
        }
    }

    /// All files that a file uses, directly or indirectly, including itself.
    pub(super) fn reached(&self, from: &Module) -> BTreeSet<Module> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(next) = open.pop() {
            if reached.insert(next.clone()) {
                open.extend(self.uses[&next].keys().cloned());
            }
        }
        reached
    }

    /// The files that use each other in a circle, all of them.
    pub(super) fn in_a_circle(&self) -> BTreeSet<&Module> {
        let reached =
            |file: &Module| self.uses[file].keys().flat_map(|used| self.reached(used)).collect::<BTreeSet<_>>();
        self.uses.keys().filter(|file| reached(file).contains(*file)).collect()
    }

    /// The chain of uses that leads from one file back to it, if there is one.
    pub(super) fn circle(&self, start: &Module) -> String {
        let (mut before, mut open) = (BTreeMap::new(), VecDeque::from([start]));
        while let Some(next) = open.pop_front() {
            for (used, line) in &self.uses[next] {
                if !before.contains_key(used) {
                    before.insert(used, (next, line));
                    open.push_back(used);
                }
            }
        }
        let mut shown = String::new();
        let mut at = start;
        while let Some((user, line)) = before.get(at) {
            writeln!(shown, "{}:{line}: uses `{}`", self.files[*user].path.display(), name(at)).unwrap();
            at = user;
            if at == start {
                break;
            }
        }
        shown
    }

    /// The files that implement a type of this package, by the type's path.
    pub(super) fn implementations(&self) -> BTreeMap<String, BTreeSet<&Path>> {
        let mut found = BTreeMap::<_, BTreeSet<_>>::new();
        for (module, file) in &self.files {
            for path in implemented(&file.tokens) {
                let Some(last) = path.last() else { continue };
                let defines = |word: &Token| ["struct", "enum", "union", "trait"].contains(&word.text.as_str());
                let is_own = file.tokens.windows(2).any(|words| defines(&words[0]) && words[1].text == path[0]);
                let home = if is_own {
                    Some(module.clone())
                } else {
                    self.absolute(module, &path).and_then(|path| self.definition(path, 0))
                };
                if let Some(home) = home {
                    let home = if home.is_empty() { last.clone() } else { format!("{}::{last}", home.join("::")) };
                    found.entry(home).or_default().insert(file.path.as_path());
                }
            }
        }
        found
    }
}

/// How a table writes a module: `.` is the crate's root.
pub(super) fn name(module: &Module) -> String {
    if module.is_empty() { ".".to_owned() } else { module.join("::") }
}
