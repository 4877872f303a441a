//! Random policies and random calls: the engine against an evaluator that reads like the documentation, against Cedar on
//! the whole set at once, against the same rules written in Cedar by hand, and against itself.

pub(super) mod generate;
mod reference;
mod types;
mod whole;

use generate::{Asked, Effect, Model, any_asked, any_model, any_model_with_approvals, any_rule, any_rule_as_it_comes};
use proptest::prelude::*;
use sealwire::configure::ProofAlgorithm;
use sealwire::decide::{Approval, Methods, Reason, Requester, Severity, Verdict};
use sealwire::internal::policy::{Access, CallerGroup, MethodScope, TokenRoles};
use sealwire::internal::wire::Endpoint;
use sealwire::{Caller, Decision, MethodName, Name, PolicySet, Question};
use serde_json::value::RawValue;

fn load(files: &[(&str, &str)]) -> PolicySet {
    PolicySet::from_texts(files.iter().copied(), &Methods::from_files()).unwrap_or_else(|errors| panic!("{errors}")).0
}

fn toml_set(model: &Model) -> PolicySet {
    load(&[("base.toml", generate::BASE), ("rules.toml", &model.to_toml())])
}

fn decide(set: &PolicySet, asked: &Asked) -> Decision {
    let raw = asked.params.as_ref().map(|text| RawValue::from_string(text.clone()).unwrap());
    set.decide(&Question { caller: &asked.caller, method: &asked.method, params: raw.as_deref(), now_ms: asked.now_ms })
}

fn decide_approved(set: &PolicySet, asked: &Asked, approved: &[&str]) -> Decision {
    let raw = asked.params.as_ref().map(|text| RawValue::from_string(text.clone()).unwrap());
    let question =
        Question { caller: &asked.caller, method: &asked.method, params: raw.as_deref(), now_ms: asked.now_ms };
    set.decide_approved(&question, approved)
}

/// The same policy without the rules that these approvals lift.
fn without_lifted(model: &Model, approved: &[&str]) -> Model {
    let mut model = model.clone();
    model.rules.retain(|rule| rule.shadow || !rule.lifted.is_some_and(|name| approved.contains(&name)));
    model
}

/// A few cases in an ordinary test run; `PROPTEST_CASES=5000` for a night.
fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn the_engine_decides_as_the_naive_evaluator(model in any_model(), asked in prop::collection::vec(any_asked(), 12)) {
        let set = toml_set(&model);
        for asked in &asked {
            let decision = decide(&set, asked);
            let expected = reference::decide(&model, asked);
            let found = (decision.verdict, decision.reason.label(), decision.rule.as_ref().map(|rule| rule.name().to_owned()));
            let shadow: Vec<_> = decision.shadow.iter().map(|hit| (hit.rule.name().to_owned(), hit.would)).collect();
            prop_assert_eq!(found, (expected.verdict, expected.reason, expected.rule), "{}\n{:?}", model.to_toml(), asked);
            let would_allow = match decision.reason {
                Reason::UnknownMethod { would_allow } => Some(would_allow),
                _ => None,
            };
            prop_assert_eq!(would_allow, expected.would_allow, "{}\n{:?}", model.to_toml(), asked);
            prop_assert_eq!(shadow, expected.shadow, "{}\n{:?}", model.to_toml(), asked);
        }
    }

    #[test]
    fn a_slice_decides_as_the_whole_set(model in any_model(), asked in prop::collection::vec(any_asked(), 8)) {
        let set = toml_set(&model);
        let whole = whole::Whole::of(&set);
        for asked in asked.iter().filter(|asked| asked.well_formed && asked.exists()) {
            let decision = decide(&set, asked);
            prop_assert_eq!(decision.is_allow(), whole.allows(asked), "{}\n{:?}", model.to_toml(), asked);
        }
    }

    #[test]
    fn toml_rules_decide_as_their_hand_written_cedar_twins(model in any_model(), asked in prop::collection::vec(any_asked(), 8)) {
        let set = toml_set(&model);
        let twin = load(&[("base.toml", generate::BASE), ("rules.cedar", &model.to_cedar())]);
        let exported = load(&[("base.toml", generate::BASE), ("rules.cedar", &set.to_cedar())]);
        for asked in &asked {
            let decision = decide(&set, asked);
            for other in [decide(&twin, asked), decide(&exported, asked)] {
                prop_assert_eq!(&decision.reason, &other.reason, "{}\n{}\n{:?}", model.to_toml(), model.to_cedar(), asked);
                prop_assert_eq!(decision.verdict, other.verdict);
                prop_assert_eq!(decision.shadow.len(), other.shadow.len());
            }
        }
    }

    #[test]
    fn adding_a_deny_rule_never_allows_more(model in any_model(), mut rule in any_rule(99), asked in prop::collection::vec(any_asked(), 8)) {
        rule.effect = Effect::Deny;
        let before = toml_set(&model);
        let mut more = model.clone();
        more.rules.push(rule);
        let after = toml_set(&more);
        for asked in &asked {
            prop_assert!(decide(&before, asked).is_allow() || !decide(&after, asked).is_allow(), "{}\n{:?}", more.to_toml(), asked);
        }
    }

    #[test]
    fn a_rule_that_is_refused_because_it_can_never_hold_never_does(rule in any_rule_as_it_comes(0), asked in prop::collection::vec(any_asked(), 40)) {
        let model = Model { rules: vec![generate::Rule { effect: Effect::Allow, shadow: false, ..rule }] };
        let files = [("base.toml", generate::BASE), ("rules.toml", &model.to_toml())];
        if let Err(errors) = PolicySet::from_texts(files, &Methods::from_files()) {
            for finding in errors.findings().iter().filter(|finding| finding.severity == Severity::Error) {
                prop_assert!(finding.message.contains("can never hold"), "{}\n{finding}", model.to_toml());
            }
            for asked in &asked {
                let outcome = reference::decide(&model, asked);
                prop_assert_eq!(outcome.verdict, Verdict::Deny, "{}\n{}\n{:?}", errors, model.to_toml(), asked);
            }
        }
    }

    #[test]
    fn the_order_of_files_never_matters(model in any_model(), asked in prop::collection::vec(any_asked(), 6), cut in any::<prop::sample::Index>()) {
        let (left, right) = model.rules.split_at(cut.index(model.rules.len() + 1));
        let (left, right) = (Model { rules: left.to_vec() }.to_toml(), Model { rules: right.to_vec() }.to_toml());
        let one = load(&[("base.toml", generate::BASE), ("1.toml", &left), ("2.toml", &right)]);
        let other = load(&[("zz/base.toml", generate::BASE), ("9.toml", &left), ("2.toml", &right)]);
        for asked in &asked {
            let (one, other) = (decide(&one, asked), decide(&other, asked));
            prop_assert_eq!(one.verdict, other.verdict);
            prop_assert_eq!(one.reason, other.reason);
        }
    }

    #[test]
    fn what_is_told_beforehand_is_never_less_than_what_is_allowed(model in any_model(), asked in prop::collection::vec(any_asked(), 12)) {
        let set = toml_set(&model);
        for asked in asked.iter().filter(|asked| decide(&set, asked).is_allow()) {
            let reach = set.reach(&asked.caller, &asked.method, asked.now_ms);
            let reach = reach.unwrap_or_else(|| panic!("{}\n{asked:?}", model.to_toml()));
            let declared = set.methods().params(&asked.method).unwrap_or_default();
            let params = serde_json::from_str(asked.params.as_deref().unwrap_or("null")).unwrap();
            prop_assert!(super::reach::fits(&reach, &params, declared), "{}\n{asked:?}\n{reach:?}", model.to_toml());
        }
    }

    #[test]
    fn what_the_application_would_allow_the_broker_allows(model in any_model(), asked in prop::collection::vec(any_asked(), 10)) {
        let toml = toml_set(&model);
        let cedar = load(&[("base.toml", generate::BASE), ("rules.cedar", &model.to_cedar())]);
        for set in [&toml, &cedar] {
            for asked in &asked {
                let carried = &asked.caller.roles;
                let scopes = [TokenRoles::Any, TokenRoles::Within(carried.clone()), TokenRoles::Exactly(carried.clone())]
                    .map(|roles| set.method_scope(&asked.caller.agent, &roles));
                // What is known narrows.
                let [any, within, exactly] = &scopes;
                prop_assert!(exactly.possible.is_subset(&within.possible) && within.possible.is_subset(&any.possible));
                let decision = decide(set, asked);
                // A service may have methods that no file declares; then a pattern decides on them.
                let would_allow = matches!(decision.reason, Reason::UnknownMethod { would_allow: true });
                if decision.is_allow() || would_allow {
                    for scope in &scopes {
                        prop_assert!(may_publish(scope, asked), "{}\n{asked:?}\n{scope:?}", model.to_toml());
                    }
                }
            }
        }
    }

    #[test]
    fn an_approval_takes_out_the_rules_that_name_it_and_nothing_else(
        model in any_model_with_approvals(),
        asked in prop::collection::vec(any_asked(), 12),
    ) {
        let sets = [toml_set(&model), load(&[("base.toml", generate::BASE), ("rules.cedar", &model.to_cedar())])];
        let exported = load(&[("base.toml", generate::BASE), ("rules.cedar", &sets[0].to_cedar())]);
        // A claim of the wrong type is a fault as long as some rule reads it, and so are odd parameters.
        let is_typed = |asked: &&Asked| {
            asked.well_formed && asked.exists() && asked.caller.token.claims.get("tenant").is_none_or(serde_json::Value::is_string)
        };
        for approved in [&[][..], &["x"], &["y"], &["x", "y"]] {
            let bare = without_lifted(&model, approved);
            for asked in asked.iter().filter(is_typed) {
                let expected = reference::decide(&bare, asked);
                let helped = reference::decide(&without_lifted(&model, &["x", "y"]), asked).verdict.is_allow();
                for set in sets.iter().chain([&exported]) {
                    let found = decide_approved(set, asked, approved);
                    prop_assert_eq!(found.verdict, expected.verdict, "{}\n{:?}", model.to_toml(), asked);
                    let waits = helped && !expected.verdict.is_allow();
                    let reason = if waits { "approval_required" } else { expected.reason };
                    prop_assert_eq!(found.reason.label(), reason, "{}\n{:?}\n{}", model.to_toml(), asked, found);
                    prop_assert!(found.approvals.is_empty() || helped, "{}\n{:?}\n{}", model.to_toml(), asked, found);
                    let needed: Vec<&str> = found.approvals.iter().map(String::as_str).collect();
                    if waits {
                        prop_assert!(needed.iter().any(|name| !approved.contains(name)));
                        prop_assert!(decide_approved(set, asked, &needed).is_allow());
                    }
                }
            }
        }
    }

    #[test]
    fn calls_that_an_approval_would_allow_can_be_reached(
        model in any_model_with_approvals(),
        asked in prop::collection::vec(any_asked(), 12),
    ) {
        let set = toml_set(&model);
        for asked in asked.iter().filter(|asked| decide_approved(&set, asked, &["x", "y"]).is_allow()) {
            let reach = set.reach(&asked.caller, &asked.method, asked.now_ms);
            prop_assert!(reach.is_some(), "{}\n{asked:?}", model.to_toml());
            let carried = &asked.caller.roles;
            for roles in [TokenRoles::Any, TokenRoles::Within(carried.clone()), TokenRoles::Exactly(carried.clone())] {
                let scope = set.method_scope(&asked.caller.agent, &roles);
                prop_assert!(may_publish(&scope, asked), "{}\n{asked:?}\n{scope:?}", model.to_toml());
            }
            let group = CallerGroup::Agent(asked.caller.agent.to_string());
            if !asked.caller.delegated && carried.is_empty() {
                prop_assert!(set.access(&group, &asked.method).access != Access::Denied, "{}\n{asked:?}", model.to_toml());
            }
        }
    }

    #[test]
    fn news_of_calls_that_wait_is_heard_by_those_who_decide_and_by_nobody_else(
        model in any_model_with_approvals(),
        asked in prop::collection::vec(any_asked(), 12),
    ) {
        // With the parameters of the others, since rules about `*` read them.
        let declared = generate::BASE.lines().nth(2).unwrap();
        let look = format!(
            "[method.\"rpc.approvals\"]\n{declared}\n[rule.look]\neveryone = true\nallow = [\"rpc.approvals\"]\n\
             [approval.z]\nfrom = [\"files\", \"r1\"]\n"
        );
        let set = load(&[("base.toml", generate::BASE), ("look.toml", &look), ("rules.toml", &model.to_toml())]);
        let other = Requester { agent: "somebody-else", subject: "somebody-else", via: &[] };
        for asked in &asked {
            let carried = asked.caller.roles.clone();
            let mut caller = Caller::new(asked.caller.agent.clone(), carried.iter().cloned());
            caller.algorithm = ProofAlgorithm::EdDsa;
            let [any, within, exactly] = [TokenRoles::Any, TokenRoles::Within(carried.clone()), TokenRoles::Exactly(carried)]
                .map(|roles| set.method_scope(&caller.agent, &roles).approver_roles);
            // What is known of a token narrows what could be called, and so what is heard.
            prop_assert!(any.is_subset(&within) && exactly.is_subset(&within));
            let decides = |approval: &Approval| set.may_decide(approval.name(), &[], &caller, &other).is_ok();
            let params = asked.params.as_ref().map(|text| RawValue::from_string(text.clone()).unwrap());
            let question =
                Question { caller: &caller, method: "rpc.approvals", params: params.as_deref(), now_ms: asked.now_ms };
            if set.decide(&question).is_allow() {
                for approval in set.approvals().filter(|approval| decides(approval)) {
                    let hears = approval.roles().iter().any(|role| exactly.contains(role));
                    prop_assert!(hears, "{}\n{caller:?}\n{approval}", model.to_toml());
                }
            }
            for role in &within {
                let by = set.approvals().any(|approval| approval.roles().contains(role) && decides(approval));
                prop_assert!(by, "{}\n{caller:?}\n{role}", model.to_toml());
            }
        }
    }

    #[test]
    fn explaining_decides_nothing_else(model in any_model(), asked in any_asked()) {
        let set = toml_set(&model);
        let raw = asked.params.as_ref().map(|text| RawValue::from_string(text.clone()).unwrap());
        let question = Question { caller: &asked.caller, method: &asked.method, params: raw.as_deref(), now_ms: asked.now_ms };
        let explanation = set.explain(&question);
        prop_assert_eq!(&explanation.decision, &set.decide(&question));
        // A rule that is reported as deciding is one whose parts all hold.
        for party in &explanation.principals {
            if let Some(rule) = &party.decision.rule {
                let told = party.rules.iter().find(|told| told.rule == *rule).unwrap();
                prop_assert_eq!(&told.outcome, &sealwire::decide::Outcome::Held, "{}", explanation);
            }
        }
    }
}

/// Whether a broker with the permissions of this scope lets the call through, on the subject of its method.
fn may_publish(scope: &MethodScope, asked: &Asked) -> bool {
    let endpoint = Endpoint::new(Name::new("test").unwrap(), Name::new("site").unwrap());
    let agent = &asked.caller.agent;
    let subject = endpoint.method_subject(agent, &MethodName::new(&asked.method).unwrap());
    let subjects = scope.subjects(&endpoint, agent);
    let covers = |pattern: &String| match pattern.strip_suffix('>') {
        Some(prefix) => subject.len() > prefix.len() && subject.starts_with(prefix),
        None => *pattern == subject,
    };
    subjects.allow.iter().any(covers) && !subjects.deny.iter().any(covers)
}

/// Any JSON: deep, wide, with repeated names, with odd numbers and texts.
fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>().prop_filter("finite", |value| value.is_finite()).prop_map(|value| format!("{value:e}")),
        prop::collection::vec("[0-9]", 1..40).prop_map(|digits| format!("1{}", digits.concat())),
        Just("-0".to_owned()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        Just(r#""\ud800""#.to_owned()),
        Just(r#""am\u006funt""#.to_owned()),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        let name = prop_oneof![
            Just("amount".to_owned()),
            Just("to".to_owned()),
            Just("am\\u006funt".to_owned()),
            "[a-z]{0,3}"
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(|values| format!("[{}]", values.join(","))),
            prop::collection::vec((name, inner), 0..8).prop_map(|members| {
                let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn no_json_and_no_name_makes_the_engine_panic(
        model in any_model(),
        params in prop::collection::vec(any_json(), 6),
        mut asked in any_asked(),
        name in any::<String>(),
        now_ms in any::<u64>(),
    ) {
        let set = toml_set(&model);
        asked.now_ms = now_ms;
        asked.caller.subject = name.clone();
        for params in params {
            asked.params = RawValue::from_string(params).ok().map(|raw| raw.get().to_owned());
            let _decision = decide(&set, &asked);
        }
        asked.method = name;
        let decision = decide(&set, &asked);
        prop_assert!(!decision.is_allow(), "a name that no method has");
    }
}
