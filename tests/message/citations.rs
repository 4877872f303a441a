//! The specification's sections, and what cites them: `grep -rn 'SPEC.md §9' tests src crates` finds the tests of a rule.
//! A test cites the sections whose rules it checks above its attributes; the header of a file cites for all tests in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use sealwire_testkit::{files_below, root};

/// The entry, which has the table of all sections, and the three parts.
const PAGES: [(&str, &str); 4] = [
    ("SPEC.md", include_str!("../../SPEC.md")),
    ("docs/spec/client.md", include_str!("../../docs/spec/client.md")),
    ("docs/spec/service.md", include_str!("../../docs/spec/service.md")),
    ("docs/spec/extensions.md", include_str!("../../docs/spec/extensions.md")),
];

/// Sections without a rule of their own.
const WITHOUT_RULES: [(&str, &str); 6] = [
    ("1", "an overview of the sections below"),
    ("2", "words, and defaults that §8 and §15 state"),
    ("21", "says what §21.1 and §21.2 show"),
    ("22", "what is not protected"),
    ("23", "a checklist of rules that other sections state"),
    ("26", "references"),
];

struct Section {
    page: &'static str,
    number: &'static str,
    title: &'static str,
    has_text: bool,
}

/// The numbered sections of all pages.
fn sections() -> Vec<Section> {
    let mut found: Vec<Section> = Vec::new();
    for (page, text) in PAGES {
        let mut is_numbered = false;
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("### ").or(line.strip_prefix("## ")) {
                let (number, title) = heading.split_once(' ').unwrap_or((heading, ""));
                is_numbered = number.starts_with(|c: char| c.is_ascii_digit());
                if is_numbered {
                    found.push(Section { page, number, title, has_text: false });
                }
            } else if is_numbered && !line.is_empty() {
                found.last_mut().unwrap().has_text = true;
            }
        }
    }
    found
}

/// The number at the start of a text, and what follows it.
fn number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].trim_end_matches('.');
    (number, &text[number.len()..])
}

/// The sections that a line cites, including the further ones of `SPEC.md §6.1 and §14.2`.
fn cited(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for mut rest in line.split("SPEC.md §").skip(1) {
        loop {
            let (section, after) = number(rest);
            found.push(section);
            let next = [", §", " and §"].into_iter().find_map(|joint| after.strip_prefix(joint));
            match next {
                Some(next) => rest = next,
                None => break,
            }
        }
    }
    found
}

/// The sections that the tests of a file cite.
fn cited_by_tests(text: &str) -> BTreeSet<&str> {
    let is_comment = |line: &&str| line.starts_with("//");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_test = |line: &str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let tests: Vec<usize> = (0..lines.len()).filter(|&at| is_test(lines[at])).collect();
    let above = |at: &usize| {
        let before = lines[..*at].iter().rev().copied();
        before.skip_while(|line| line.starts_with("#[")).take_while(is_comment).collect::<Vec<_>>()
    };
    let of_file = lines.iter().copied().take_while(|line| line.starts_with("//!")).filter(|_| !tests.is_empty());
    of_file.chain(tests.iter().flat_map(above)).flat_map(cited).collect()
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase().replace(' ', "-");
    heading.chars().filter(|c| c.is_alphanumeric() || ['-', '_'].contains(c)).collect()
}

#[test]
fn every_rule_of_the_specification_has_a_test_that_cites_it() {
    let mut files = ["src", "tests", "crates"].map(|folder| files_below(&root().join(folder))).concat();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with(file!()));
    let sources: Vec<(String, String)> =
        files.iter().map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap())).collect();
    let sections: BTreeSet<&str> =
        sections().into_iter().filter(|section| section.has_text).map(|section| section.number).collect();
    let mut tests: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in &sources {
        for section in text.lines().flat_map(cited) {
            assert!(sections.contains(section), "{path} cites §{section}, which the specification does not have");
        }
        cited_by_tests(text).into_iter().for_each(|section| *tests.entry(section).or_default() += 1);
    }
    let without: BTreeMap<_, _> = WITHOUT_RULES.into();
    for section in &sections {
        let (is_cited, has_no_rule) = (tests.contains_key(section), without.contains_key(section));
        assert!(is_cited || has_no_rule, "no test cites SPEC.md §{section}");
        assert!(!(is_cited && has_no_rule), "§{section} has a test, so it needs no excuse");
    }
    assert!(without.keys().all(|section| sections.contains(section)));
}

#[test]
fn table_of_the_specification_names_each_section_once() {
    let part = |page: &str| ["here", "A", "B", "C"][PAGES.iter().position(|(name, _)| *name == page).unwrap()];
    let mut sections = sections();
    sections.sort_by_key(|section| section.number.split('.').map(|n| n.parse().unwrap()).collect::<Vec<u32>>());
    let expected = sections.iter().map(|Section { page, number, title, .. }| {
        let file = if *page == "SPEC.md" { "" } else { *page };
        format!("| {number} | [{title}]({file}#{}) | {} |", anchor(&format!("{number} {title}")), part(page))
    });
    let table = PAGES[0].1.lines().skip_while(|line| *line != "| § | section | part |").skip(2);
    let table: Vec<&str> = table.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(table, expected.collect::<Vec<_>>());
    let numbers: BTreeSet<_> = sections.iter().map(|section| section.number).collect();
    assert_eq!(numbers.len(), sections.len(), "a number stands in two parts");
}

#[test]
fn sections_that_the_specification_refers_to_exist() {
    let numbers: BTreeSet<_> = sections().into_iter().map(|section| section.number).collect();
    for (page, text) in PAGES {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut referred = 0;
        for (at, sign) in text.match_indices('§') {
            let (section, _) = number(&text[at + sign.len()..]);
            // Those of another specification follow its name: `RFC 9449 §6.1`, `RFC 3986 §6.2.2.1 and §6.2.3`, `JSON-RPC 2.0 §5.1`.
            let before: Vec<&str> = text[..at].trim_end().rsplit(' ').take(4).collect();
            let is_rfc = |at: usize| before.get(at).is_some_and(|word| word.ends_with("RFC"));
            let is_foreign = is_rfc(1) || (before[0] == "and" && is_rfc(3)) || before[0] == "2.0";
            assert!(is_foreign || section.is_empty() || numbers.contains(section), "{page} refers to §{section}");
            referred += usize::from(!is_foreign);
        }
        assert!(referred > 5, "{page}: {referred}");
    }
}

#[test]
fn links_to_the_specification_lead_to_a_section() {
    let anchors: BTreeSet<(PathBuf, String)> = sections()
        .iter()
        .map(|section| (PathBuf::from(section.page), anchor(&format!("{} {}", section.number, section.title))))
        .collect();
    let mut files = ["docs", "tests", "crates"].map(|folder| files_below(&root().join(folder))).concat();
    files.extend(std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path()));
    files.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut checked = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let file = file.strip_prefix(root()).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { file.to_owned() } else { resolved(file, path) };
            if PAGES.iter().any(|(page, _)| target == Path::new(page)) {
                let is_there = anchor.is_empty() || anchors.contains(&(target, anchor.to_owned()));
                assert!(is_there, "{}: no such section: {link}", file.display());
                checked += 1;
            } else {
                let is_old = Path::new(path).file_name().is_some_and(|name| name == "SPEC.md");
                assert!(!is_old, "{}: no such file: {link}", file.display());
            }
        }
    }
    assert!(checked > 70, "{checked}");
}

/// The file that a relative link in `from` names, relative to the root of the repository.
fn resolved(from: &Path, link: &str) -> PathBuf {
    let mut found = from.parent().unwrap().to_owned();
    for component in Path::new(link).components() {
        match component {
            Component::ParentDir => drop(found.pop()),
            component => found.push(component),
        }
    }
    found
}

/// A client's author reads this page alone, so it stays short.
#[test]
fn client_part_of_the_specification_has_at_most_15_kib() {
    let (page, text) = PAGES[1];
    assert!(text.len() <= 15 * 1024, "{page} has {} bytes", text.len());
}

#[test]
fn only_what_stands_above_a_test_or_at_the_top_of_its_file_is_its_citation() {
    let text = "/// SPEC.md §1.\nfn code() {}\n/// Both. SPEC.md §2, SPEC.md §5.1.\n#[test]\n#[ignore]\nfn test() {\n// SPEC.md §3\n}";
    assert_eq!(cited_by_tests(text).into_iter().collect::<Vec<_>>(), ["2", "5.1"]);
    assert_eq!(cited_by_tests(&format!("//! SPEC.md §7.\n{text}")).len(), 3);
    assert!(cited_by_tests("//! SPEC.md §7.\nfn code() {}").is_empty());
    assert_eq!(cited("SPEC.md §6.1 and §14.2, with §3; SPEC.md §9, §25."), ["6.1", "14.2", "9", "25"]);
}
