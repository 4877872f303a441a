//! Finds the tests of a rule of SPEC.md: `grep -rn 'SPEC.md §9' tests src crates`.
//! A test cites the sections whose rules it checks above its attributes; the header of a file cites for all tests in it.

use std::collections::{BTreeMap, BTreeSet};

use sealwire_testkit::{files_below, root};

const SPEC: &str = include_str!("../../SPEC.md");

/// Sections without a rule of their own.
const WITHOUT_RULES: [(&str, &str); 6] = [
    ("1", "an overview of the sections below"),
    ("2", "words, and defaults that §8 and §15 state"),
    ("21", "says what §21.1 and §21.2 show"),
    ("22", "what is not protected"),
    ("23", "a checklist of rules that other sections state"),
    ("26", "references"),
];

/// The numbers of the sections that have text of their own.
fn sections() -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let mut number = None;
    for line in SPEC.lines() {
        if let Some(heading) = line.strip_prefix("### ").or(line.strip_prefix("## ")) {
            number = heading.split(' ').next();
        } else if !line.is_empty() {
            found.extend(number);
        }
    }
    found
}

/// The sections that a line cites.
fn cited(line: &str) -> impl Iterator<Item = &str> {
    line.split("SPEC.md §").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].trim_end_matches('.')
    })
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

#[test]
fn every_rule_of_the_specification_has_a_test_that_cites_it() {
    let mut files = ["src", "tests", "crates"].map(|folder| files_below(&root().join(folder))).concat();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with(file!()));
    let sources: Vec<(String, String)> =
        files.iter().map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap())).collect();
    let sections = sections();
    let mut tests: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, text) in &sources {
        for section in text.lines().flat_map(cited) {
            assert!(sections.contains(section), "{path} cites §{section}, which SPEC.md does not have");
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
fn only_what_stands_above_a_test_or_at_the_top_of_its_file_is_its_citation() {
    let text = "/// SPEC.md §1.\nfn code() {}\n/// Both. SPEC.md §2, SPEC.md §5.1.\n#[test]\n#[ignore]\nfn test() {\n// SPEC.md §3\n}";
    assert_eq!(cited_by_tests(text).into_iter().collect::<Vec<_>>(), ["2", "5.1"]);
    assert_eq!(cited_by_tests(&format!("//! SPEC.md §7.\n{text}")).len(), 3);
    assert!(cited_by_tests("//! SPEC.md §7.\nfn code() {}").is_empty());
}
