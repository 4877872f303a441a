//! What is shown, as tables of texts and numbers.
//! Never shows a character that hides or moves others.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use sealwire_survey::{Endpoint, meaning};

use super::tally::{Flow, Growing, Pair, Tally};
use crate::term::safe_text;

/// What can be looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Services,
    Replicas,
    Methods,
    Refusals,
}

impl View {
    pub(super) const ALL: [Self; 4] = [Self::Services, Self::Replicas, Self::Methods, Self::Refusals];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Services => "Services",
            Self::Replicas => "Replicas",
            Self::Methods => "Methods",
            Self::Refusals => "Refusals",
        }
    }

    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Services => &[
                "SERVICE",
                "PROVED",
                "REPLICAS",
                "CALLS/s",
                "ERRORS/s",
                "MEAN",
                "CALLS",
                "ERRORS",
                "REFUSED/s",
                "REFUSED",
            ],
            Self::Replicas => {
                &["SERVICE", "REPLICA", "VERSION", "STATE", "GUARD", "POLICY", "CALLS/s", "ERRORS/s", "MEAN", "CALLS"]
            }
            Self::Methods => {
                &["SERVICE", "METHOD", "CALLS/s", "ERRORS/s", "MEAN", "CALLS", "ERRORS", "DENIED", "LAST ERROR"]
            }
            Self::Refusals => &["SERVICE", "AGENT", "REASON", "REFUSED/s", "REFUSED"],
        }
    }

    /// The column by which it is sorted at first: what happens most.
    pub(super) fn first_sort(self) -> usize {
        match self {
            Self::Services | Self::Refusals => 3,
            Self::Replicas => 6,
            Self::Methods => 2,
        }
    }
}

/// A table.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) view: View,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Vec<Row>,
}

/// One line of it.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    /// The service, as it is filtered by.
    pub(super) service: String,
    /// What else is filtered by like the service.
    pub(super) what: String,
    /// The agent; empty if none is known.
    pub(super) agent: String,
    /// What a refusal means.
    pub(super) why: Option<&'static str>,
    /// Whether its service has proved what it says.
    pub(super) is_proved: bool,
}

/// What stands in a line.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Text(String),
    Count(u64),
    Rate(Option<f64>),
    /// In nanoseconds.
    Time(Option<f64>),
}

impl Cell {
    /// A text, from wherever.
    fn text(text: &str) -> Self {
        let line: String = text.chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { c }).collect();
        Self::Text(safe_text(&line).into_owned())
    }

    pub(super) fn is_number(&self) -> bool {
        !matches!(self, Self::Text(_))
    }

    pub(super) fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Rate(None) | Self::Time(None) => "-".to_owned(),
            Self::Rate(Some(rate)) if *rate >= 100.0 => format!("{rate:.0}"),
            Self::Rate(Some(rate)) => format!("{rate:.1}"),
            Self::Time(Some(ns)) if *ns < 1e6 => format!("{:.0} µs", ns / 1e3),
            Self::Time(Some(ns)) if *ns < 1e9 => format!("{:.1} ms", ns / 1e6),
            Self::Time(Some(ns)) => format!("{:.1} s", ns / 1e9),
        }
    }

    /// The order in which texts rise and numbers fall: what is looked for comes first.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let float = |value: &Option<f64>| value.unwrap_or(-1.0);
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Count(one), Self::Count(other)) => other.cmp(one),
            (Self::Rate(one) | Self::Time(one), Self::Rate(other) | Self::Time(other)) => {
                float(other).total_cmp(&float(one))
            }
            _ => Ordering::Equal,
        }
    }
}

/// A service's name as it is shown: with its environment, if that is proved.
pub(super) fn name(pair: &Pair) -> String {
    let key = &pair.now.key;
    if key.is_proved() { format!("{}/{}", key.environment, key.service) } else { key.service.clone() }
}

/// A method's name, or an endpoint's with its subject, since several may have one name.
fn method(endpoint: &Endpoint) -> String {
    endpoint.method.clone().unwrap_or_else(|| match endpoint.subject == endpoint.name {
        true => endpoint.name.clone(),
        false => format!("{} ({})", endpoint.name, endpoint.subject),
    })
}

impl Sheet {
    pub(super) fn new(view: View, tally: &Tally) -> Self {
        let rows = match view {
            View::Services => services(tally),
            View::Replicas => tally.pairs().map(replica).collect(),
            View::Methods => methods(tally),
            View::Refusals => refusals(tally),
        };
        Self { view, columns: view.columns(), rows }
    }

    /// Sorted by one column, and then by the first ones.
    pub(super) fn sort(&mut self, column: usize, is_reversed: bool) {
        let texts = |row: &Row| row.cells.iter().filter(|cell| !cell.is_number()).cloned().collect::<Vec<_>>();
        self.rows.sort_by(|one, other| {
            let order = one.cells.get(column).zip(other.cells.get(column)).map(|(one, other)| one.order(other));
            let order = order.unwrap_or(Ordering::Equal);
            let order = if is_reversed { order.reverse() } else { order };
            order.then_with(|| {
                let texts = texts(one).into_iter().zip(texts(other));
                texts.map(|(one, other)| one.order(&other)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
            })
        });
    }

    /// For a pipe or a file: all of it, in columns.
    pub(super) fn text(&self) -> String {
        let lines: Vec<Vec<String>> = self.rows.iter().map(|row| row.cells.iter().map(Cell::shown).collect()).collect();
        let width = |column: usize, title: &str| {
            let widest = lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max();
            widest.unwrap_or(0).max(title.len())
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(|(column, title)| width(column, title)).collect();
        let is_number =
            |column: usize| self.rows.first().and_then(|row| row.cells.get(column)).is_some_and(Cell::is_number);
        let line = |texts: Vec<String>| {
            let padded = texts.into_iter().zip(&widths).enumerate().map(|(column, (text, width))| {
                if is_number(column) { format!("{text:>width$}") } else { format!("{text:<width$}") }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let titles = self.columns.iter().map(|title| (*title).to_owned()).collect();
        std::iter::once(titles).chain(lines.iter().cloned()).map(line).collect()
    }
}

/// How often anything was refused.
fn refused(pair: &Pair) -> Growing {
    pair.growing(|replica| {
        Some(replica.stats.sealwire.as_ref()?.refusals.values().copied().fold(0, u64::saturating_add))
    })
}

fn services(tally: &Tally) -> Vec<Row> {
    let mut groups: BTreeMap<(bool, String), Vec<&Pair>> = BTreeMap::new();
    for pair in tally.pairs() {
        groups.entry((pair.now.key.is_proved(), name(pair))).or_default().push(pair);
    }
    let row = |((is_proved, service), pairs): ((bool, String), Vec<&Pair>)| {
        let flow: Flow = pairs.iter().map(|pair| pair.total()).sum();
        let refused: Growing = pairs.iter().map(|pair| refused(pair)).sum();
        let ready =
            pairs.iter().filter(|it| it.now.stats.sealwire.as_ref().is_none_or(|own| own.state == "ready")).count();
        let replicas = if ready == pairs.len() { ready.to_string() } else { format!("{ready} of {}", pairs.len()) };
        let cells = vec![
            Cell::text(&service),
            Cell::text(if is_proved { "yes" } else { "no" }),
            Cell::text(&replicas),
            Cell::Rate(flow.calls.a_second),
            Cell::Rate(flow.errors.a_second),
            Cell::Time(flow.mean_ns()),
            Cell::Count(flow.calls.count),
            Cell::Count(flow.errors.count),
            Cell::Rate(refused.a_second),
            Cell::Count(refused.count),
        ];
        Row { cells, service, what: String::new(), agent: String::new(), why: None, is_proved }
    };
    groups.into_iter().map(row).collect()
}

fn replica(pair: &Pair) -> Row {
    let (flow, stats) = (pair.total(), &pair.now.stats);
    let own = stats.sealwire.clone().unwrap_or_default();
    let cells = vec![
        Cell::text(&name(pair)),
        Cell::text(&pair.now.key.id),
        Cell::text(&stats.version),
        Cell::text(&own.state),
        Cell::text(&own.guard),
        Cell::text(&own.policy),
        Cell::Rate(flow.calls.a_second),
        Cell::Rate(flow.errors.a_second),
        Cell::Time(flow.mean_ns()),
        Cell::Count(flow.calls.count),
    ];
    let (id, is_proved) = (pair.now.key.id.clone(), pair.now.key.is_proved());
    Row { cells, service: name(pair), what: id, agent: String::new(), why: None, is_proved }
}

fn methods(tally: &Tally) -> Vec<Row> {
    let mut groups: BTreeMap<(bool, String, String), (Vec<Flow>, &str)> = BTreeMap::new();
    for pair in tally.pairs() {
        for endpoint in &pair.now.stats.endpoints {
            let key = (pair.now.key.is_proved(), name(pair), method(endpoint));
            let (flows, error) = groups.entry(key).or_default();
            flows.push(pair.flow(endpoint));
            if !endpoint.last_error.is_empty() {
                *error = &endpoint.last_error;
            }
        }
    }
    let row = |((is_proved, service, method), (flows, error)): ((bool, String, String), (Vec<Flow>, &str))| {
        let flow: Flow = flows.into_iter().sum();
        let cells = vec![
            Cell::text(&service),
            Cell::text(&method),
            Cell::Rate(flow.calls.a_second),
            Cell::Rate(flow.errors.a_second),
            Cell::Time(flow.mean_ns()),
            Cell::Count(flow.calls.count),
            Cell::Count(flow.errors.count),
            Cell::Count(flow.denied.count),
            Cell::text(error),
        ];
        Row { cells, service, what: method, agent: String::new(), why: None, is_proved }
    };
    groups.into_iter().map(row).collect()
}

/// By service and reason, and below that by agent, as far as services tell.
fn refusals(tally: &Tally) -> Vec<Row> {
    let mut groups: BTreeMap<(bool, String, String, String), Vec<Growing>> = BTreeMap::new();
    for pair in tally.pairs() {
        let Some(own) = &pair.now.stats.sealwire else { continue };
        let of =
            |agent: &str, reason: &str| (pair.now.key.is_proved(), name(pair), agent.to_owned(), reason.to_owned());
        for reason in own.refusals.keys() {
            let growing = pair.growing(|it| it.stats.sealwire.as_ref()?.refusals.get(reason).copied());
            groups.entry(of("", reason)).or_default().push(growing);
        }
        for one in &own.agents {
            let growing = pair.growing(|it| {
                let agents = &it.stats.sealwire.as_ref()?.agents;
                agents.iter().find(|it| it.agent == one.agent && it.reason == one.reason).map(|it| it.count)
            });
            groups.entry(of(&one.agent, &one.reason)).or_default().push(growing);
        }
    }
    let row = |((is_proved, service, agent, reason), counts): ((bool, String, String, String), Vec<Growing>)| {
        let growing: Growing = counts.into_iter().sum();
        let cells = vec![
            Cell::text(&service),
            Cell::text(if agent.is_empty() { "(all)" } else { &agent }),
            Cell::text(&reason),
            Cell::Rate(growing.a_second),
            Cell::Count(growing.count),
        ];
        Row { cells, service, why: meaning(&reason), what: reason, agent, is_proved }
    };
    groups.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::super::tally::tests::{found, replica};
    use super::*;

    fn tally() -> Tally {
        let (mut tally, now) = (Tally::default(), Instant::now());
        for (calls, now) in [(100, now), (300, now + Duration::from_secs(2))] {
            tally.add(found(vec![
                replica("dev", "math", "A", calls, now),
                replica("dev", "math", "B", 2 * calls, now),
                replica("", "orders", "C", 5, now),
            ]));
        }
        tally
    }

    #[test]
    fn tables_have_services_replicas_methods_and_refusals() {
        let tally = tally();
        let text = |view| Sheet::new(view, &tally).text();
        assert_eq!(
            text(View::Services),
            "SERVICE   PROVED  REPLICAS  CALLS/s  ERRORS/s    MEAN  CALLS  ERRORS  REFUSED/s  REFUSED\n\
             orders    no      1             0.0       0.0  2.0 ms      5       0        0.0        0\n\
             dev/math  yes     2             300      30.0  2.0 ms    900      90        300      900\n"
        );
        assert!(text(View::Replicas).contains("dev/math  B        1.2.3    ready  shared"), "{}", text(View::Replicas));
        let refusals = text(View::Refusals);
        assert_eq!(
            refusals,
            "SERVICE   AGENT    REASON    REFUSED/s  REFUSED\n\
             dev/math  (all)    replayed        300      900\n\
             dev/math  planner  replayed        150      450\n"
        );
        assert!(Sheet::new(View::Refusals, &tally).rows.iter().all(|row| row.why.is_some()));
    }

    #[test]
    fn a_text_from_the_wire_is_escaped() {
        let text = Sheet::new(View::Methods, &tally()).text();
        assert!(text.contains("bad\\u{1b}[2J\\u{202e}"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        assert_eq!(Cell::text("a\nb\tc"), Cell::Text("a b c".to_owned()));
    }

    #[test]
    fn numbers_fall_and_texts_rise_unless_reversed() {
        let mut sheet = Sheet::new(View::Replicas, &tally());
        let ids = |sheet: &Sheet| sheet.rows.iter().map(|row| row.what.clone()).collect::<String>();
        sheet.sort(6, false);
        assert_eq!(ids(&sheet), "BAC");
        sheet.sort(6, true);
        assert_eq!(ids(&sheet), "CAB");
        sheet.sort(1, false);
        assert_eq!(ids(&sheet), "ABC");
    }
}
