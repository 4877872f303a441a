//! Random rules over one vocabulary, as data, as TOML and as Cedar; and random calls.

mod sound;

use std::fmt::Write;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use sealwire::configure::ProofAlgorithm;
use sealwire::{Caller, Name};

use sound::{conditions, implies};

/// Three methods with the same parameters, two of them below `m/`.
pub(crate) const BASE: &str = r#"
[method."m/a"]
params = [ { name = "amount", type = "integer" }, { name = "to", type = "string", optional = true }, { name = "ids", type = "integer[]", optional = true }, { name = "price", type = "number", optional = true } ]
[method."m/b"]
params = [ { name = "amount", type = "integer" }, { name = "to", type = "string", optional = true }, { name = "ids", type = "integer[]", optional = true }, { name = "price", type = "number", optional = true } ]
[method."n/c"]
params = [ { name = "amount", type = "integer" }, { name = "to", type = "string", optional = true }, { name = "ids", type = "integer[]", optional = true }, { name = "price", type = "number", optional = true } ]
[claims]
tenant = "string"
[role.r0]
[role.r1]
[role.r2]
includes = ["r0"]
[role.files]
from = "files"
[agent.a1]
roles = ["r1", "files"]
[subject.a0]
roles = ["r2"]
[subject.alice]
roles = ["files"]
[approval.x]
from = ["r0"]
[approval.y]
from = ["r0"]
"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Allow,
    Deny,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Who {
    Everyone,
    Role(&'static str),
    Agent(&'static str),
    Agents(&'static str),
    Subject(&'static str),
    Subjects(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    AmountMin(i64),
    AmountMax(i64),
    AmountNot(i64),
    ToIs(&'static str),
    ToGlob(&'static str),
    ToIn(Vec<&'static str>),
    ToAbsent,
    ToIsAgent,
    IdsMaxSize(usize),
    IdsContains(i64),
    IdsEachIn(Vec<i64>),
    PriceMin(&'static str),
    PriceMax(&'static str),
    SubjectIs(&'static str),
    Hours(u32, u32),
    Days(usize, usize),
    TokenAge(u64),
    Own,
    Tenant(&'static str),
}

#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) effect: Effect,
    pub(crate) who: Vec<Who>,
    pub(crate) methods: Vec<&'static str>,
    pub(crate) when: Vec<Condition>,
    pub(crate) unless: Vec<Condition>,
    /// `never`, `also`, `only`, or the default.
    pub(crate) delegated: Option<&'static str>,
    pub(crate) shadow: bool,
    /// The approval that lifts it.
    pub(crate) lifted: Option<&'static str>,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) caller: Caller,
    pub(crate) method: String,
    pub(crate) params: Option<String>,
    /// Whether `params` are as declared.
    pub(crate) well_formed: bool,
    pub(crate) now_ms: u64,
}

impl Asked {
    pub(crate) fn exists(&self) -> bool {
        ["m/a", "m/b", "n/c"].contains(&self.method.as_str())
    }
}

/// Numbers that are equal, and numbers that a double cannot tell apart.
const PRICES: [&str; 17] = [
    "0.1",
    "0.10",
    "1e-1",
    "0.1000000000000000055511151231257827",
    "0.0999999999999999999999999",
    "0.3",
    "0.30000000000000004",
    "0.300000000000000040000001",
    "-1.5",
    "-1.50000000000000000000000001",
    "5",
    "5.0",
    "0.1e4",
    "1000.00000000000000000000001",
    "-0.0",
    "-1e-400",
    "1e300",
];

pub(crate) const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

fn any_condition() -> impl Strategy<Value = Condition> {
    use Condition::*;
    prop_oneof![
        (0..50_i64).prop_map(AmountMin),
        (50..100_i64).prop_map(AmountMax),
        (0..100_i64).prop_map(AmountNot),
        select(vec!["x", "y", "a0"]).prop_map(ToIs),
        select(vec!["x*", "*", "a*0"]).prop_map(ToGlob),
        subsequence(vec!["x", "xy", "a0"], 1..=3).prop_map(ToIn),
        Just(ToAbsent),
        Just(ToIsAgent),
        (0..3_usize).prop_map(IdsMaxSize),
        (0..3_i64).prop_map(IdsContains),
        subsequence(vec![0, 1, 2], 1..=3).prop_map(IdsEachIn),
        select(vec!["-1.5", "0", "0.1"]).prop_map(PriceMin),
        select(vec!["0.3", "0.30000000000000004", "5", "1e3"]).prop_map(PriceMax),
        select(vec!["alice", "a1"]).prop_map(SubjectIs),
        (0..24_u32, 1..24_u32).prop_map(|(from, length)| Hours(from, (from + length) % 24)),
        // Never the whole week: an `unless` on it could never hold.
        (0..7_usize, 0..6_usize).prop_map(|(from, length)| Days(from, (from + length) % 7)),
        (0..600_u64).prop_map(TokenAge),
        Just(Own),
        select(vec!["acme", "evil"]).prop_map(Tenant),
    ]
}

/// A rule that can hold.
pub(crate) fn any_rule(number: usize) -> impl Strategy<Value = Rule> {
    any_rule_as_it_comes(number).prop_map(|mut rule| {
        rule.unless.retain(|part| !rule.when.iter().any(|known| implies(known, part)));
        rule
    })
}

/// A rule whose `unless` may exclude everything that `when` requires, so that it does not load.
pub(crate) fn any_rule_as_it_comes(number: usize) -> impl Strategy<Value = Rule> {
    let whom = prop_oneof![
        select(vec!["r0", "r1", "r2", "files"]).prop_map(Who::Role),
        select(vec!["a0", "a1", "alice"]).prop_map(Who::Agent),
        select(vec!["a*", "*e"]).prop_map(Who::Agents),
        select(vec!["a0", "a1", "alice"]).prop_map(Who::Subject),
        select(vec!["a*", "*e"]).prop_map(Who::Subjects),
    ];
    let who = prop_oneof![2 => prop::collection::vec(whom, 1..3), 1 => Just(vec![Who::Everyone])];
    let methods = subsequence(vec!["m/a", "m/b", "n/c", "m/*", "n/*", "*"], 1..3);
    let parts = || prop::collection::vec(any_condition(), 0..4).prop_map(conditions);
    let delegated = prop_oneof![3 => Just(None), 1 => select(vec!["never", "also", "only"]).prop_map(Some)];
    let deny = prop::bool::weighted(0.3);
    (who, methods, parts(), prop::option::weighted(0.3, parts()), delegated, deny, prop::bool::weighted(0.2)).prop_map(
        move |(mut who, methods, when, unless, delegated, deny, shadow)| {
            who.dedup();
            // A rule about a subject has to be for delegated calls.
            let subject = who.iter().any(|who| matches!(who, Who::Subject(_) | Who::Subjects(_)))
                || when.iter().any(|part| matches!(part, Condition::SubjectIs(_)));
            let delegated =
                if subject { delegated.filter(|text| *text != "never").or(Some("also")) } else { delegated };
            Rule {
                name: format!("rule-{number:02}"),
                effect: if deny { Effect::Deny } else { Effect::Allow },
                who,
                methods,
                unless: unless.unwrap_or_default(),
                when,
                delegated,
                shadow,
                lifted: None,
            }
        },
    )
}

pub(crate) fn any_model() -> impl Strategy<Value = Model> {
    prop::collection::vec(any_rule(0), 0..7).prop_map(|mut rules| {
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.name = format!("rule-{number:02}");
        }
        Model { rules }
    })
}

/// Policies of which some rules that deny are lifted by an approval.
pub(crate) fn any_model_with_approvals() -> impl Strategy<Value = Model> {
    let lifted = prop::collection::vec(prop::option::weighted(0.8, select(vec!["x", "y"])), 7);
    let denying = prop::collection::vec(prop::bool::weighted(0.4), 7);
    (any_model(), lifted, denying).prop_map(|(mut model, lifted, denying)| {
        for ((rule, lifted), denies) in model.rules.iter_mut().zip(lifted).zip(denying) {
            // An allow rule may be for calls in the agent's own name only because that is its default.
            if denies && rule.effect == Effect::Allow && !rule.methods.contains(&"*") {
                rule.effect = Effect::Deny;
            }
            let can_be = rule.effect == Effect::Deny && !rule.methods.contains(&"*");
            rule.lifted = lifted.filter(|_| can_be);
        }
        model
    })
}

fn any_params() -> impl Strategy<Value = (Option<String>, bool)> {
    let good = (
        -5..110_i64,
        prop::option::of(select(vec!["x", "y", "xy", "a0", "a1"])),
        prop::option::of(prop::collection::vec(0..4_i64, 0..4)),
        prop::option::of(select(PRICES.to_vec())),
        any::<bool>(),
    )
        .prop_map(|(amount, to, ids, price, named)| {
            let to = to.map(|to| format!("\"{to}\""));
            let ids = ids.map(|ids| format!("{ids:?}"));
            let text = if named {
                let to = to.map(|to| format!(",\"to\":{to}")).unwrap_or_default();
                let ids = ids.map(|ids| format!(",\"ids\":{ids}")).unwrap_or_default();
                let price = price.map(|price| format!(",\"price\":{price}")).unwrap_or_default();
                format!("{{\"amount\":{amount}{to}{ids}{price}}}")
            } else {
                let (to, ids) = (to.unwrap_or("null".into()), ids.unwrap_or("null".into()));
                format!("[{amount},{to},{ids},{}]", price.unwrap_or("null"))
            };
            (Some(text), true)
        });
    let bad = select(vec![
        None,
        Some("{}"),
        Some("[]"),
        Some(r#"{"amount":1.0}"#),
        Some(r#"{"amount":1e1}"#),
        Some(r#"{"amount":"1"}"#),
        Some(r#"{"amount":1,"amount":2}"#),
        Some(r#"{"amount":1,"amt":2}"#),
        Some(r#"{"amount":1,"to":5}"#),
        Some(r#"{"amount":1,"ids":[1.0]}"#),
        Some("[1,null,null,null,4]"),
        Some(r#"{"amount":1,"price":"1"}"#),
        Some(r#"{"amount":1,"price":1e400}"#),
        Some(r#"[[1]]"#),
    ])
    .prop_map(|text: Option<&str>| (text.map(ToOwned::to_owned), false));
    prop_oneof![4 => good, 1 => bad]
}

pub(crate) fn any_asked() -> impl Strategy<Value = Asked> {
    (
        select(vec!["a0", "a1", "b"]),
        subsequence(vec!["r0", "r1", "r2", "files"], 0..3),
        prop::option::weighted(0.3, select(vec!["alice", "a1", "a0"])),
        select(vec!["m/a", "m/b", "n/c", "m/none", "none", "n/", "n/c "]),
        any_params(),
        0..604_800_u64,
        0..900_u64,
        prop::option::of(select(vec!["\"acme\"", "\"evil\"", "5"])),
    )
        .prop_map(|(agent, roles, subject, method, (params, well_formed), second, age, tenant)| {
            // The week of Monday, 2026-09-21.
            let now_s = 1_789_948_800 + second;
            let mut caller = Caller::new(Name::new(agent).unwrap(), roles.into_iter().map(ToOwned::to_owned));
            if let Some(subject) = subject {
                caller.subject = subject.to_owned();
                caller.delegated = true;
            }
            caller.token.issued_at = now_s - age;
            caller.algorithm = if age % 2 == 0 { ProofAlgorithm::EdDsa } else { ProofAlgorithm::Hs256 };
            if let Some(tenant) = tenant {
                caller.token.claims.insert("tenant".to_owned(), serde_json::from_str(tenant).unwrap());
            }
            Asked { caller, method: method.to_owned(), params, well_formed, now_ms: now_s * 1000 + 7 }
        })
}

impl Model {
    pub(crate) fn to_toml(&self) -> String {
        let mut text = String::new();
        for rule in &self.rules {
            writeln!(text, "[rule.{}]", rule.name).unwrap();
            let pick = |kind: fn(&Who) -> Option<&'static str>| rule.who.iter().filter_map(kind).collect::<Vec<_>>();
            let roles = pick(|who| if let Who::Role(name) = who { Some(name) } else { None });
            let agents = pick(|who| if let Who::Agent(name) | Who::Agents(name) = who { Some(name) } else { None });
            let subjects =
                pick(|who| if let Who::Subject(name) | Who::Subjects(name) = who { Some(name) } else { None });
            if rule.who == [Who::Everyone] {
                writeln!(text, "everyone = true").unwrap();
            } else {
                writeln!(text, "roles = {roles:?}\nagents = {agents:?}\nsubjects = {subjects:?}").unwrap();
            }
            let key = if rule.effect == Effect::Allow { "allow" } else { "deny" };
            writeln!(text, "{key} = {:?}", rule.methods).unwrap();
            if let Some(delegated) = rule.delegated {
                writeln!(text, "delegated = \"{delegated}\"").unwrap();
            }
            if let Some(approval) = rule.lifted {
                writeln!(text, "unless_approved = \"{approval}\"").unwrap();
            }
            if rule.shadow {
                writeln!(text, "mode = \"shadow\"").unwrap();
            }
            for (key, conditions) in [("when", &rule.when), ("unless", &rule.unless)] {
                for condition in conditions {
                    writeln!(text, "{key}.{}", condition.to_toml()).unwrap();
                }
            }
        }
        text
    }

    /// The same rules as a person would write them in Cedar.
    pub(crate) fn to_cedar(&self) -> String {
        let mut text = String::new();
        for rule in &self.rules {
            let delegated = rule.delegated.map(|text| format!("@delegated(\"{text}\") ")).unwrap_or_default();
            let mode = if rule.shadow { "@mode(\"shadow\") " } else { "" };
            let lifted = rule.lifted.map(|name| format!("@unless_approved(\"{name}\") ")).unwrap_or_default();
            let effect = if rule.effect == Effect::Allow { "permit" } else { "forbid" };
            let methods: Vec<String> = rule.methods.iter().map(|name| format!("Action::\"{name}\"")).collect();
            let who: Vec<String> = rule
                .who
                .iter()
                .map(|who| match who {
                    Who::Everyone => "true".to_owned(),
                    Who::Role(name) => format!("principal in Role::\"{name}\""),
                    Who::Agent(name) => format!("principal == Agent::\"{name}\""),
                    Who::Subject(name) => format!("principal == Subject::\"{name}\""),
                    Who::Agents(glob) => format!("(principal is Agent && principal.name like \"{glob}\")"),
                    Who::Subjects(glob) => format!("(principal.name like \"{glob}\" && principal is Subject)"),
                })
                .collect();
            writeln!(
                text,
                "@id(\"{}\") {delegated}{mode}{lifted}{effect}(principal, action in [{}], resource)\nwhen {{ {} }}",
                rule.name,
                methods.join(", "),
                who.join(" || ")
            )
            .unwrap();
            for condition in &rule.when {
                writeln!(text, "when {{ {} }}", condition.to_cedar()).unwrap();
            }
            if !rule.unless.is_empty() {
                let parts: Vec<String> = rule.unless.iter().map(Condition::to_cedar).collect();
                writeln!(text, "unless {{ {} }}", parts.join(" && ")).unwrap();
            }
            text.push_str(";\n");
        }
        text
    }
}

impl Condition {
    fn to_toml(&self) -> String {
        match self {
            Self::AmountMin(bound) => format!("params.amount.min = {bound}"),
            Self::AmountMax(bound) => format!("params.amount.max = {bound}"),
            Self::AmountNot(value) => format!("params.amount.not = {value}"),
            Self::ToIs(text) => format!("params.to = {text:?}"),
            Self::ToGlob(glob) => format!("params.to.glob = {glob:?}"),
            Self::ToIn(texts) => format!("params.to.in = {texts:?}"),
            Self::ToAbsent => "params.to.present = false".to_owned(),
            Self::ToIsAgent => "params.to.same_as = \"agent\"".to_owned(),
            Self::IdsMaxSize(size) => format!("params.ids.max_size = {size}"),
            Self::IdsContains(id) => format!("params.ids.contains = {id}"),
            Self::IdsEachIn(ids) => format!("params.ids.each_in = {ids:?}"),
            Self::PriceMin(bound) => format!("params.price.min = {bound}"),
            Self::PriceMax(bound) => format!("params.price.max = {bound}"),
            Self::SubjectIs(name) => format!("subject = {name:?}"),
            Self::Hours(from, to) => format!("hours = \"{from:02}:00-{to:02}:00\""),
            Self::Days(from, to) => format!("days = [\"{}-{}\"]", DAYS[*from], DAYS[*to]),
            Self::TokenAge(age) => format!("token_age = \"{age}s\""),
            Self::Own => "algorithm = \"EdDSA\"".to_owned(),
            Self::Tenant(name) => format!("claims.tenant = {name:?}"),
        }
    }

    fn to_cedar(&self) -> String {
        let to = |rest: &str| format!("(context.params has to && context.params.to {rest})");
        let ids = |rest: &str| format!("(context.params has ids && {rest})");
        match self {
            Self::AmountMin(bound) => format!("{bound} <= context.params.amount"),
            Self::AmountMax(bound) => format!("context.params.amount < {}", bound + 1),
            Self::AmountNot(value) => format!("!(context.params.amount == {value})"),
            Self::ToIs(text) => to(&format!("== {text:?}")),
            Self::ToGlob(glob) => to(&format!("like {glob:?}")),
            Self::ToIn(texts) => {
                let any: Vec<String> = texts.iter().map(|text| to(&format!("== {text:?}"))).collect();
                format!("({})", any.join(" || "))
            }
            Self::ToAbsent => "!(context.params has to)".to_owned(),
            Self::ToIsAgent => to("== context.agent"),
            Self::IdsMaxSize(size) => ids(&format!("context.params.ids.size <= {size}")),
            Self::IdsContains(id) => ids(&format!("context.params.ids.items.contains({id})")),
            Self::IdsEachIn(values) => ids(&format!("{values:?}.containsAll(context.params.ids.items)")),
            Self::PriceMin(bound) => {
                let (whole, fraction) = by_hand(bound);
                let p = "context.params.price";
                let or = format!("{p}.whole == {whole} && {p}.fraction >= {fraction}");
                format!("(context.params has price && ({p}.whole > {whole} || {or}))")
            }
            Self::PriceMax(bound) => {
                let (whole, fraction) = by_hand(bound);
                let p = "context.params.price";
                let least = format!("{p}.whole > {whole} || ({p}.whole == {whole} && {p}.fraction > {fraction})");
                let beyond = format!("{p}.whole == {whole} && {p}.fraction == {fraction} && {p}.beyond");
                format!("(context.params has price && !({least} || {beyond}))")
            }
            Self::SubjectIs(name) => format!("(context has subject && context.subject == {name:?})"),
            Self::Hours(from, to) if from < to => format!("context.hour >= {from} && context.hour < {to}"),
            Self::Hours(from, to) => format!("(context.hour >= {from} || context.hour < {to})"),
            Self::Days(from, to) => {
                let days: Vec<&str> = (0..=(to + 7 - from) % 7).map(|step| DAYS[(from + step) % 7]).collect();
                format!("{days:?}.contains(context.weekday)")
            }
            Self::TokenAge(age) => format!("context.token.age_s <= {age}"),
            Self::Own => "context.algorithm == \"EdDSA\"".to_owned(),
            Self::Tenant(name) => format!("(context.claims has tenant && context.claims.tenant == {name:?})"),
        }
    }
}

/// The bounds of the generated rules in the parts that Cedar sees.
fn by_hand(bound: &str) -> (i64, i64) {
    match bound {
        "-1.5" => (-2, 500_000_000_000_000_000),
        "0" => (0, 0),
        "0.1" => (0, 100_000_000_000_000_000),
        "0.3" => (0, 300_000_000_000_000_000),
        "0.30000000000000004" => (0, 300_000_000_000_000_040),
        "5" => (5, 0),
        "1e3" => (1000, 0),
        other => panic!("{other}"),
    }
}
