//! Which module of which package may use which, read from the sources: imports and paths, without comments, string literals and tests.
//!
//! A name counts as a use of the file that defines it, whichever module re-exports it. A re-export from a module's own
//! submodule does not count as a use. So a helper that a module keeps in its parent is a circle: the parent uses the
//! module, and the module uses the parent.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use sources::{Module, Sources, name};
use tables::{PACKAGES, Package, Rows, SCATTERED};
use tokens::{implemented, lex, uses, without_tests};

mod sources;
mod tables;
mod tokens;

/// What only services need. A program that only calls must not have to compile it.
const NOT_FOR_CLIENTS: &[&str] =
    &["cedar_policy", "governor", "hyper", "jetstream", "jsonwebtoken", "moka", "sealwire_http", "tower"];

/// In how many files a type's `impl` may stand.
const MOST_FILES: usize = 3;

#[test]
fn packages_depend_on_each_other_as_the_table_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let below = |folder: &str| root.join(folder).read_dir().unwrap().map(|entry| entry.unwrap().path());
    let folders = below("bindings")
        .chain(below("crates"))
        .chain([".", "benches/compare", "fuzz"].map(|folder| root.join(folder)));
    let found: BTreeSet<_> = folders.filter(|folder| folder.join("Cargo.toml").exists()).collect();
    let listed: BTreeSet<_> = PACKAGES.iter().map(|package| root.join(package.folder)).collect();
    assert_eq!(found, listed, "every package has a row");
    let rows: Vec<_> = PACKAGES.iter().map(|package| (package.name, package.may_use)).collect();
    assert_eq!(circular(&rows), String::new());
    let mut wrong = String::new();
    for package in PACKAGES {
        let manifest = std::fs::read_to_string(root.join(package.folder).join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("\nname = \"{}\"\n", package.name)), "{}", package.folder);
        for used in dependencies(&manifest) {
            if !lists(package.may_use, used) {
                writeln!(wrong, "`{}` must not depend on `{used}`", package.name).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn modules_use_each_other_as_the_table_says() {
    let mut wrong = String::new();
    for (package, sources) in sources() {
        wrong += &circular(package.modules);
        let part = |module: &Module| Some(name(&module.first().cloned().into_iter().collect()));
        wrong += &against(package, sources, "", package.modules, part);
        for (module, rooms) in package.rooms {
            wrong += &circular(rooms);
            let room = |path: &Module| {
                (path.first()? == module).then(|| path.get(1).map_or_else(|| ".".to_owned(), String::clone))
            };
            wrong += &against(package, sources, &format!("{module}::"), rooms, room);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn files_do_not_use_each_other_in_a_circle() {
    let mut wrong = String::new();
    for (package, sources) in sources() {
        for file in sources.in_a_circle() {
            writeln!(wrong, "{}: `{}` stands in a circle:\n{}", package.name, name(file), sources.circle(file))
                .unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn impls_of_a_type_stand_in_few_files() {
    let (mut wrong, mut excused) = (String::new(), BTreeSet::new());
    for (package, sources) in sources() {
        for (path, files) in sources.implementations() {
            if let Some(entry) = SCATTERED.iter().find(|(name, of, ..)| *name == package.name && *of == path)
                && files.len() > MOST_FILES
            {
                excused.insert(entry);
                if files.len() < entry.2 {
                    writeln!(wrong, "fewer by now, write {} in `SCATTERED`: {entry:?}", files.len()).unwrap();
                }
                if files.len() <= entry.2 {
                    continue;
                }
            }
            if files.len() > MOST_FILES {
                writeln!(wrong, "{}: `{path}` in {} files: {files:?}", package.name, files.len()).unwrap();
            }
        }
    }
    for entry in SCATTERED.iter().filter(|entry| !excused.contains(entry)) {
        writeln!(wrong, "no longer so, take it from `SCATTERED`: {entry:?}").unwrap();
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn clients_need_nothing_that_only_services_need() {
    let (_, sources) = sources().iter().find(|(package, _)| package.name == "sealwire").unwrap();
    let clients = sources.uses.keys().filter(|file| file.first().is_some_and(|module| module == "client"));
    let reached: BTreeSet<_> = clients.flat_map(|file| sources.reached(file)).collect();
    assert!(reached.len() > 20, "{reached:?}");
    for file in reached {
        for token in &sources.files[&file].tokens {
            let shown = sources.files[&file].path.display();
            assert!(!NOT_FOR_CLIENTS.contains(&token.text.as_str()), "{shown}:{}: `{}`", token.line, token.text);
        }
    }
}

#[test]
fn the_reader_finds_what_a_source_uses() {
    let text = "//! use crate::comment::No;\nuse crate::a::{self, B as C, d::{E}};\npub(in crate::x) fn f() { C::g(); super::h::i() }\n\
                const T: &str = \"crate::text::No\"; const Q: char = '\"'; fn g<'a>(_: &'a str) {}\n\
                #[cfg(test)]\nmod tests { use crate::test::No; }\nuse crate::last::One;\n";
    let tokens = without_tests(lex(text));
    let (imports, paths) = uses(&tokens);
    let imported: Vec<_> =
        imports.iter().map(|found| format!("{} {} {}", found.line, found.name, found.path.join("::"))).collect();
    assert_eq!(imported, ["2 a crate::a", "2 C crate::a::B", "2 E crate::a::d::E", "7 One crate::last::One"]);
    let named: Vec<_> = paths.iter().map(|found| format!("{} {}", found.line, found.path.join("::"))).collect();
    assert_eq!(named, ["3 C::g", "3 super::h::i"]);
    let text = "impl A {}\nimpl<T: Fn() -> u8> b::C<T> where for<'a> T: D<'a> {}\nfn f(_: impl E) -> impl E {}\n\
                impl F for G {}\nunsafe impl<T> H<T> for &T {}\n#[cfg(test)]\nimpl I {}\nimpl dyn J {}\n";
    let types: Vec<_> = implemented(&without_tests(lex(text))).iter().map(|path| path.join("::")).collect();
    assert_eq!(types, ["A", "b::C", "J"]);
}

/// The sources of every package.
fn sources() -> &'static [(&'static Package, Sources)] {
    static SOURCES: OnceLock<Vec<(&Package, Sources)>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        PACKAGES.iter().map(|package| (package, Sources::read(&root.join(package.folder)))).collect()
    })
}

/// Every use that the table does not allow, and every part that the table lacks or has in vain.
fn against(
    package: &Package,
    sources: &Sources,
    front: &str,
    table: Rows,
    part: impl Fn(&Module) -> Option<String>,
) -> String {
    let mut wrong = String::new();
    let mut missing: BTreeSet<_> = table.iter().map(|(name, _)| *name).collect();
    for (module, uses) in &sources.uses {
        let Some(from) = part(module) else { continue };
        missing.remove(from.as_str());
        let path = sources.files[module].path.display();
        let Some((_, may)) = table.iter().find(|(name, _)| *name == from) else {
            writeln!(wrong, "{path}: `{from}` is not in the table").unwrap();
            continue;
        };
        for (to, line) in uses.iter().filter_map(|(used, line)| Some((part(used)?, line))) {
            if to == from || lists(may, &to) {
                continue;
            }
            writeln!(wrong, "{path}:{line}: `{front}{from}` must not use `{front}{to}`").unwrap();
        }
    }
    for name in missing {
        writeln!(wrong, "{}: no `{front}{name}`, but a row for it", package.name).unwrap();
    }
    wrong
}

/// The rows of a table that name themselves or a row below them.
fn circular(table: &[(&str, &str)]) -> String {
    let mut wrong = String::new();
    for (row, (name, may)) in table.iter().enumerate() {
        for used in may.split_whitespace() {
            if !table[..row].iter().any(|(above, _)| *above == used) {
                writeln!(wrong, "`{name}` names `{used}`, which is not above it").unwrap();
            }
        }
    }
    wrong
}

fn lists(names: &str, wanted: &str) -> bool {
    names.split_whitespace().any(|name| name == wanted)
}

/// The packages of the project that a package depends on.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_one = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_one = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        } else if is_one && line.contains("path = \"") {
            found.extend(line.split_whitespace().next());
        }
    }
    found
}
