//! Which generated conditions can hold together: a rule that can never apply does not load.
//! Never asks the engine: whether conditions are compatible is decided from the generated values.

use super::Condition;

/// At most one condition of each kind, and none that contradict each other.
pub(crate) fn conditions(found: Vec<Condition>) -> Vec<Condition> {
    let group = |condition: &Condition| match condition {
        Condition::AmountNot(_) => 1,
        Condition::AmountMin(_) => 2,
        Condition::AmountMax(_) => 3,
        Condition::ToIs(_) | Condition::ToGlob(_) | Condition::ToIn(_) | Condition::ToAbsent | Condition::ToIsAgent => {
            4
        }
        Condition::IdsMaxSize(_) => 5,
        Condition::IdsContains(_) => 6,
        Condition::IdsEachIn(_) => 7,
        Condition::Hours(..) | Condition::Days(..) => 8,
        Condition::TokenAge(_) => 9,
        Condition::Own => 10,
        Condition::Tenant(_) => 11,
        Condition::PriceMin(_) => 12,
        Condition::PriceMax(_) => 13,
        Condition::SubjectIs(_) => 14,
    };
    let mut kept: Vec<Condition> = Vec::new();
    for condition in found {
        if kept.iter().all(|known| {
            group(known) != group(&condition) && !excluded(known, &condition) && !excluded(&condition, known)
        }) {
            kept.push(condition);
        }
    }
    kept
}

/// Whether no list can satisfy both conditions.
fn excluded(one: &Condition, other: &Condition) -> bool {
    match (one, other) {
        (Condition::IdsContains(_), Condition::IdsMaxSize(0)) => true,
        (Condition::IdsContains(id), Condition::IdsEachIn(ids)) => !ids.contains(id),
        _ => false,
    }
}

/// Whether `one` holds only where `other` does, too: a rule with `one` under `when` and only `other` under `unless`
/// could never apply.
pub(crate) fn implies(one: &Condition, other: &Condition) -> bool {
    use Condition::*;
    let hours = |from: u32, to: u32| {
        move |hour: &u32| if from < to { (from..to).contains(hour) } else { *hour >= from || *hour < to }
    };
    let days = |from: usize, to: usize| {
        move |day: &usize| if from <= to { (from..=to).contains(day) } else { *day >= from || *day <= to }
    };
    match (one, other) {
        (AmountMin(min), AmountMin(least)) => min >= least,
        (AmountMax(max), AmountMax(most)) => max <= most,
        (AmountMin(min), AmountNot(value)) => min > value,
        (AmountMax(max), AmountNot(value)) => max < value,
        (ToIs(_) | ToIn(_) | ToGlob(_) | ToIsAgent, ToGlob("*")) => true,
        (ToIs(text), ToIn(texts)) => texts.contains(text),
        (ToIn(texts), ToIs(text)) => texts.iter().all(|known| known == text),
        (ToIn(few), ToIn(many)) => few.iter().all(|text| many.contains(text)),
        (ToIs(text), ToGlob(glob)) => globbed(glob, text),
        (ToIn(texts), ToGlob(glob)) => texts.iter().all(|text| globbed(glob, text)),
        (IdsMaxSize(max), IdsMaxSize(most)) => max <= most,
        (Hours(from, to), Hours(start, end)) => {
            (0..24).filter(hours(*from, *to)).all(|hour| hours(*start, *end)(&hour))
        }
        (Days(from, to), Days(start, end)) => (0..7).filter(days(*from, *to)).all(|day| days(*start, *end)(&day)),
        (TokenAge(age), TokenAge(oldest)) => age <= oldest,
        _ => one == other,
    }
}

/// Which of the generated globs match which of the generated texts.
fn globbed(glob: &str, text: &str) -> bool {
    glob == "*" || (glob == "x*" && text.starts_with('x')) || (glob == "a*0" && text == "a0")
}
