//! What a Cedar policy file says: each policy becomes a rule like any other.
//! Never lets a policy apply to delegated calls unless it says so.

use cedar_policy::ffi::DetailedError;
use cedar_policy::{PolicyId, pst};

use super::table::{Source, listed};
use super::{globs, literals, rule_table};
use crate::policy::cedar::{ACTION, ROLE, SERVICE, THIS, children, expr, kind_of};
use crate::policy::model::{
    CallerMatch, Condition, Delegation, Effect, ExprRef, Located, Location, Mode, Pattern, Report, Rule, RuleId,
    did_you_mean, shown,
};

/// The annotations with a meaning here.
const ANNOTATIONS: [&str; 5] = ["id", "description", "mode", "delegated", "unless_approved"];

/// Reads one file. Reports what is wrong in it, and still returns what is right.
pub(crate) fn read(file: &str, text: &str, report: &Report) -> Vec<Rule> {
    // Like TOML files, these may begin with the byte order mark that some editors write.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let source = Source::new(file, text, report);
    let mut rules = Vec::new();
    let pieces = pieces(text);
    if pieces.is_empty() {
        source.warn_if_silent();
    }
    let errors_before = report.errors();
    for piece in pieces {
        if report.errors() - errors_before >= MAX_ERRORS {
            break;
        }
        let at = source.line(piece.start);
        let Some(body) = text.get(piece.clone()) else { continue };
        if let Some(excess) = excess(body) {
            report.error(&at, excess, "write several policies instead, or a list and `.contains`");
            continue;
        }
        match cedar_policy::Policy::parse(Some(PolicyId::new("policy")), body) {
            Ok(policy) => rules.extend(rule(&policy, &at, report)),
            Err(error) => {
                let detail = DetailedError::from(&error);
                let offset = detail.source_locations.first().map_or(0, |label| label.loc.start);
                let message = if body.contains("?principal") || body.contains("?resource") {
                    "templates are not supported".to_owned()
                } else {
                    first_line(&detail.message)
                };
                let help = detail.help.as_deref().map(first_line).unwrap_or_default();
                report.error(&source.line(piece.start + offset), message, help);
            }
        }
    }
    rules
}

/// What a text has outside of strings and comments, and where; of a string, only the quotes.
fn code(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut characters = text.char_indices().peekable();
    let mut in_string = false;
    std::iter::from_fn(move || {
        loop {
            let (at, character) = characters.next()?;
            match character {
                '\\' if in_string => {
                    characters.next();
                }
                '"' => {
                    in_string = !in_string;
                    return Some((at, character));
                }
                _ if in_string => {}
                '/' if characters.peek().is_some_and(|(_, next)| *next == '/') => {
                    while characters.next_if(|(_, next)| *next != '\n').is_some() {}
                }
                _ => return Some((at, character)),
            }
        }
    })
}

/// Where each policy of a text begins and ends: at semicolons outside of strings and comments.
fn pieces(text: &str) -> Vec<std::ops::Range<usize>> {
    let (mut pieces, mut start) = (Vec::new(), None);
    for (at, character) in code(text) {
        if character == ';' {
            pieces.push(start.take().unwrap_or(at)..at + 1);
        } else if !character.is_whitespace() {
            start.get_or_insert(at);
        }
    }
    pieces.extend(start.map(|start| start..text.len()));
    pieces
}

/// The first policy of a text that Cedar's formatter has no room or no time for, with where it begins and why.
pub(crate) fn excessive(text: &str) -> Option<(usize, String)> {
    let long = |body: &str| {
        let why = || format!("is longer than {MAX_LAID_OUT} bytes, which take minutes to lay out");
        (body.len() > MAX_LAID_OUT).then(why)
    };
    let excess = |piece: std::ops::Range<usize>| {
        let (start, body) = (piece.start, text.get(piece)?);
        Some((start, excess(body).or_else(|| long(body))?))
    };
    pieces(text).into_iter().find_map(excess)
}

/// The time that Cedar's formatter takes grows with the square of a policy's length.
const MAX_LAID_OUT: usize = 64 << 10;
/// As many errors of one file as anybody reads.
const MAX_ERRORS: usize = 100;

/// Parser, type checker and evaluator are recursive: a policy nested without bound would overflow the stack and end the
/// process. Says what makes it too deep, if it is.
fn excess(body: &str) -> Option<String> {
    let (mut depth, mut operators, mut colons) = (0_usize, 0_usize, 0_usize);
    let (mut word, mut sign) = (String::new(), false);
    // Whether a name, or something else, to which an index can belong has just ended.
    let (mut named, mut ended) = (false, false);
    for (_, character) in code(body) {
        if character.is_alphanumeric() || character == '_' {
            word.push(character);
            (sign, named, ended) = (false, true, false);
            continue;
        }
        let is_operator = OPERATORS.contains(&word.as_str());
        operators += usize::from(is_operator);
        named &= !is_operator && !["then", "else"].contains(&word.as_str());
        word.clear();
        let is_sign = "|&!-+*=<>.".contains(character);
        operators += usize::from(is_sign && !sign);
        sign = is_sign;
        match character {
            ':' => colons += 1,
            blank if blank.is_whitespace() => continue,
            '(' | '[' | '{' => {
                // `a["b"]["c"]` is nested like `a.b.c`.
                let is_index = character == '[' && (named || ended) || character == '(' && ended;
                operators += usize::from(is_index);
                depth += 1;
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        named = false;
        ended = [')', ']', '}', '"'].contains(&character);
        if character != ':' {
            colons = 0;
        }
        // Names in names are levels, too: `A::B::C`.
        if depth > MAX_DEPTH || colons > 2 * MAX_DEPTH {
            return Some(format!("is nested deeper than {MAX_DEPTH} levels"));
        }
    }
    (operators > MAX_OPERATORS).then(|| format!("has more than {MAX_OPERATORS} operators"))
}

/// Brackets in brackets; no readable policy has half as many.
const MAX_DEPTH: usize = 32;
/// Each may be one more level for code that walks through the policy.
const MAX_OPERATORS: usize = 300;
/// The operators that are words.
const OPERATORS: [&str; 5] = ["if", "in", "like", "has", "is"];

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn rule(policy: &cedar_policy::Policy, at: &Location, report: &Report) -> Option<Rule> {
    let pst = match policy.to_pst() {
        Ok(pst) => pst,
        Err(error) => {
            report.error(at, format!("cannot be read: {error}"), "");
            return None;
        }
    };
    let body = pst.body();
    let annotation = |name: &str| body.annotations.get(name).map(|value| value.as_str());
    check_annotations(body, at, report);
    let name = annotation("id").map_or_else(|| format!("{}/{}", at.file, at.line), ToOwned::to_owned);
    if annotation("id").is_some() {
        rule_table::check_name(&Located { value: name.clone(), at: at.clone() }, report);
    }
    let effect = match body.effect {
        pst::Effect::Permit => Effect::Allow,
        pst::Effect::Forbid => Effect::Deny,
    };
    let unknown = |name: &str, value: &str, help: &str| {
        report.error(at, format!("`@{name}(\"{}\")` is not known", shown(value)), help);
    };
    let mode = match annotation("mode") {
        None | Some("enforce") => Mode::Enforce,
        Some("shadow") => Mode::Shadow,
        Some(other) => {
            unknown("mode", other, "write @mode(\"shadow\") or @mode(\"enforce\")");
            Mode::Enforce
        }
    };
    let delegation = match (annotation("delegated"), effect) {
        (Some("never"), _) | (None, Effect::Allow) => Delegation::Never,
        (Some("also"), _) | (None, Effect::Deny) => Delegation::Also,
        (Some("only"), _) => Delegation::Only,
        (Some(other), _) => {
            unknown("delegated", other, "write @delegated(\"never\"), @delegated(\"also\") or @delegated(\"only\")");
            Delegation::Never
        }
    };
    let who = whom(&body.principal, at, report)?;
    check_resource(&body.resource, at, report);
    let methods = methods(&body.action, at, report)?;
    let kind = kind_asked(&body.principal);
    let mut parts: Vec<_> = kind.into_iter().map(|asked| Condition::new(asked.to_string(), asked, at)).collect();
    for clause in body.clauses() {
        let (pst::Clause::When(condition) | pst::Clause::Unless(condition)) = clause;
        check_condition(condition, at, report);
        if matches!(clause, pst::Clause::When(_)) {
            let conjuncts = expr::conjuncts(condition).into_iter();
            parts.extend(conjuncts.map(|part| Condition::new(part.to_string(), part, at)));
        } else {
            parts.push(Condition::new(format!("unless {condition}"), expr::not(condition.clone()), at));
        }
    }
    let written = Some(policy.new_id(PolicyId::new(&name)));
    let description = annotation("description").map(ToOwned::to_owned);
    let unless_approved = annotation("unless_approved").map(|name| Located { value: name.to_owned(), at: at.clone() });
    Some(Rule {
        id: RuleId::new(&name, at),
        description,
        effect,
        mode,
        callers: vec![who],
        methods,
        delegation,
        conditions: parts,
        unless_approved,
        written,
    })
}

/// An annotation that is nearly one of ours, or a value of one, would silently enforce what was meant as a trial.
fn check_annotations(body: &pst::Template, at: &Location, report: &Report) {
    for name in body.annotations.keys().filter(|name| !ANNOTATIONS.contains(&name.as_str())) {
        let owner = match name.as_str() {
            "shadow" | "enforce" => Some("mode"),
            "never" | "also" | "only" => Some("delegated"),
            _ => None,
        };
        let help = owner.map(|owner| format!("write `@{owner}(\"{name}\")`"));
        if let Some(help) = help.or_else(|| did_you_mean(name, ANNOTATIONS)) {
            report.error(at, format!("unknown annotation `@{}`", shown(name)), help);
        } else {
            let message = format!("the annotation `@{}` means nothing here", shown(name));
            report.warning(at, message, format!("those with a meaning are {}", listed(&ANNOTATIONS, "and")));
        }
    }
}

/// Conditions that Cedar accepts but that can only be a mistake here.
fn check_condition(condition: &ExprRef, at: &Location, report: &Report) {
    if let Some(entity) = literals::stray_entity(condition, false) {
        let help = "compare it with `principal`: `principal == Agent::\"planner\"`, `principal in Role::\"teller\"`";
        report.error(at, format!("`{entity}` has no roles and no attributes here"), help);
    }
    for (message, help) in literals::impossible_values(condition) {
        report.error(at, message, help);
    }
    for glob in patterns(condition) {
        if let Some((message, help)) = globs::doubt(&glob) {
            report.warning(at, format!("in `{}`, {message}", shown(&glob)), help);
        }
    }
}

/// The patterns of all `like`s.
fn patterns(expr: &pst::Expr) -> Vec<String> {
    let mut found: Vec<String> = children(expr).into_iter().flatten().flat_map(|child| patterns(child)).collect();
    if let pst::Expr::Like { pattern, .. } = expr {
        // A star that is written as `\*` stands for itself.
        found.push(
            pattern
                .iter()
                .map(|element| match element {
                    pst::PatternElem::Char('*') => '_',
                    pst::PatternElem::Char(character) => *character,
                    pst::PatternElem::Wildcard => '*',
                })
                .collect(),
        );
    }
    found
}

fn whom(constraint: &pst::PrincipalConstraint, at: &Location, report: &Report) -> Option<CallerMatch> {
    use pst::{EntityOrSlot::Entity, PrincipalConstraint as P};
    let named = |uid: &pst::EntityUID| match uid.ty.to_string().as_str() {
        ROLE => Some(CallerMatch::Role(uid.eid.to_string())),
        kind => kind_of(kind).map(|kind| CallerMatch::Named(kind, uid.eid.to_string())),
    };
    let any = |kind: &pst::EntityType| Some(CallerMatch::Like(kind_of(&kind.to_string())?, "*".to_owned()));
    let found = match constraint {
        P::Any => Some(CallerMatch::Everyone),
        P::Is(kind) => any(kind),
        P::Eq(Entity(uid)) if uid.ty.to_string() != ROLE => named(uid),
        P::In(Entity(uid)) => named(uid),
        // Only roles have members of both kinds.
        P::IsIn(kind, Entity(uid)) if kind_of(&kind.to_string()).is_some() => {
            named(uid).filter(|_| uid.ty == *kind || uid.ty.to_string() == ROLE)
        }
        _ => None,
    };
    if found.is_none() {
        let help = "write `principal == Agent::\"planner\"`, `principal == Subject::\"alice\"` or `principal in Role::\"teller\"`";
        report.error(at, "the principal can never be that: it is always an agent or a subject", help);
    }
    found
}

/// What a policy's head asks besides the callers that [`whom`] finds.
fn kind_asked(constraint: &pst::PrincipalConstraint) -> Option<ExprRef> {
    match constraint {
        pst::PrincipalConstraint::IsIn(kind, pst::EntityOrSlot::Entity(uid)) if uid.ty.to_string() == ROLE => {
            Some(expr::is(expr::path(pst::Var::Principal, &[]), kind.clone()))
        }
        _ => None,
    }
}

fn check_resource(constraint: &pst::ResourceConstraint, at: &Location, report: &Report) {
    use pst::{EntityOrSlot::Entity, ResourceConstraint as R};
    let is_this = |uid: &pst::EntityUID| uid.ty.to_string() == SERVICE && uid.eid == THIS;
    let fits = match constraint {
        R::Any => true,
        R::Is(kind) => kind.to_string() == SERVICE,
        R::Eq(Entity(uid)) | R::In(Entity(uid)) => is_this(uid),
        R::IsIn(kind, Entity(uid)) => kind.to_string() == SERVICE && is_this(uid),
        _ => false,
    };
    if !fits {
        let message = format!("the resource can never be that: it is always `{SERVICE}::\"{THIS}\"`");
        report.error(at, message, "write `resource` alone");
    }
}

fn methods(constraint: &pst::ActionConstraint, at: &Location, report: &Report) -> Option<Vec<Located<Pattern>>> {
    let named: &[pst::EntityUID] = match constraint {
        pst::ActionConstraint::Any => return Some(vec![Located { value: Pattern::All, at: at.clone() }]),
        pst::ActionConstraint::Eq(uid) => std::slice::from_ref(uid),
        pst::ActionConstraint::In(uids) => uids,
    };
    if named.is_empty() {
        let help = "write `action in [Action::\"math/add\"]`, or `action` alone";
        report.error(at, "the policy is about no action", help);
    }
    let mut patterns = Vec::new();
    for uid in named {
        let exact = matches!(constraint, pst::ActionConstraint::Eq(_));
        match uid.eid.parse::<Pattern>() {
            Ok(value) if uid.ty.to_string() == ACTION && (value.is_exact() || !exact) => {
                patterns.push(Located { value, at: at.clone() });
            }
            Ok(_) if uid.ty.to_string() == ACTION => {
                let help = format!("write `action in Action::\"{}\"`", shown(&uid.eid));
                report.error(at, "no action is equal to a group of actions", help);
            }
            Ok(_) => report.error(at, format!("`{}` is not an action", uid.ty), "write `Action::\"math/add\"`"),
            Err(error) => report.error(at, format!("`{}` is not a method pattern", shown(&uid.eid)), error),
        }
    }
    (!patterns.is_empty()).then_some(patterns)
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn policies_end_at_semicolons_outside_of_strings_and_comments() {
        let text =
            "// a; b\npermit(principal, action, resource) when { context.agent == \"a;\\\";\" };\n\nforbid(x); // y;\n";
        let found: Vec<&str> = pieces(text).into_iter().filter_map(|range| text.get(range)).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.first().is_some_and(|first| first.starts_with("permit") && first.ends_with("};")), "{found:?}");
        assert_eq!(found.get(1).copied(), Some("forbid(x);"));
    }
}
