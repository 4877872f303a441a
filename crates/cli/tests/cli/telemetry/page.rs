//! The page docs/observability.md has the families of the code, and the labels of a running service.

use std::collections::{BTreeMap, BTreeSet};

use sealwire_testkit::{files_below, root};
use serde_json::json;

use super::stage::{BACKEND, Listener};
use crate::backends::stage::Stage;

/// A family as its code writes it: name, type and help text.
type Family = (String, &'static str, String);

/// The families that the sources write.
fn families() -> BTreeSet<Family> {
    let kinds = [
        ("counters", "counter", "_total"),
        ("counter", "counter", "_total"),
        ("gauges", "gauge", ""),
        ("gauge", "gauge", ""),
        ("level", "gauge", ""),
        ("info", "gauge", "_info"),
        ("durations", "histogram", ""),
        ("histogram", "histogram", ""),
        ("exemplars", "histogram", ""),
    ];
    let mut found = BTreeSet::new();
    for folder in ["src", "crates/backend/src", "crates/cli/src", "crates/gateway/src", "crates/survey/src"] {
        for file in files_below(&root().join(folder)) {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            for (function, kind, suffix) in kinds {
                for (at, _) in text.match_indices(&format!(".{function}(")) {
                    let rest = text[at..].split_once('(').unwrap().1.trim_start();
                    let Some(rest) = rest.strip_prefix('"') else { continue };
                    let (name, rest) = rest.split_once('"').unwrap();
                    let Some(help) = rest.trim_start_matches([',', ' ', '\n']).strip_prefix('"') else { continue };
                    found.insert((format!("{name}{suffix}"), kind, help.split_once('"').unwrap().0.to_owned()));
                }
            }
        }
    }
    found
}

/// The rows of the page: family, type, labels, meaning.
fn rows() -> Vec<[String; 4]> {
    let page = std::fs::read_to_string(root().join("docs/observability.md")).unwrap();
    let begins = ["| `sealwire_", "| `rpc_", "| `nats_micro_"];
    let rows = page.lines().filter(|line| begins.iter().any(|begin| line.starts_with(begin)));
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    rows.map(|line| cells(line).try_into().unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// The labels of the families on the page.
pub(super) fn labels() -> BTreeMap<String, BTreeSet<String>> {
    rows()
        .into_iter()
        .map(|[name, _, labels, _]| {
            let labels = labels.split(", ").map(|label| label.trim_matches('`').to_owned()).collect();
            (name.trim_matches('`').to_owned(), labels)
        })
        .collect()
}

/// The family of a sample's name.
pub(super) fn family(name: &str) -> &str {
    ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

#[test]
fn families_on_the_page_are_those_of_the_code() {
    let listed: BTreeSet<_> =
        rows().into_iter().map(|[name, kind, _, meaning]| (name.trim_matches('`').to_owned(), kind, meaning)).collect();
    let found: BTreeSet<_> = families().into_iter().map(|(name, kind, help)| (name, kind.to_owned(), help)).collect();
    assert!(found.len() > 50, "{found:#?}");
    assert_eq!(found.symmetric_difference(&listed).collect::<Vec<_>>(), Vec::<&(String, String, String)>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_of_a_running_service_are_those_of_the_page() {
    let at = Listener::free();
    let stage = Stage::new("[role.user]\nallow = [\"words/*\"]\n", &format!("{}{BACKEND}", at.section())).await;
    stage.call("words/say", json!({})).await.unwrap();
    stage.call("words/none", json!({})).await.unwrap_err();
    check_labels(&at.samples().await);
}

/// The families and labels of these samples are on the page.
pub(crate) fn check_labels(samples: &BTreeMap<String, f64>) {
    let labels = labels();
    for sample in samples.keys() {
        let (name, rest) = sample.split_once('{').unwrap_or((sample, ""));
        let family = family(name);
        let rest = rest.trim_end_matches('}');
        let found: BTreeSet<_> = rest
            .split("\",")
            .filter_map(|label| Some(label.split_once('=')?.0.to_owned()))
            .filter(|label| label != "le")
            .collect();
        let listed = labels.get(family).unwrap_or_else(|| panic!("{family} is not on the page"));
        assert!(found.is_subset(listed), "{sample}: {listed:?}");
        assert_eq!(found.is_empty(), listed.contains("none"), "{sample}: {listed:?}");
    }
}
