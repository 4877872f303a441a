//! What Cedar conditions write out: entities, and values that an attribute can never have.
//! Never judges a whole condition: that is `constraint`'s work.

use cedar_policy::pst::{BinaryOp, Expr, Literal, Var};

use crate::auth::{is_identifier, is_proof_key_id};
use crate::name::Name;
use crate::policy::cedar::{ROLE, children, is_principal, kind_of};
use crate::policy::model::{PrincipalKind, did_you_mean, hours, shown};
use crate::wire::ProofAlgorithm;

/// The algorithms of proofs as conditions name them.
pub(crate) const ALGORITHMS: [&str; 2] = [ProofAlgorithm::Hs256.as_str(), ProofAlgorithm::EdDsa.as_str()];

/// Why `context.<attribute>` is never `text`, and what to write instead.
///
/// A rule that denies the impossible never denies, so this is checked wherever such a value occurs.
pub(crate) fn impossible(attribute: &str, text: &str) -> Option<(String, String)> {
    let shown = shown(text);
    match attribute {
        "algorithm" if !ALGORITHMS.contains(&text) => {
            let help = did_you_mean(text, ALGORITHMS).unwrap_or_else(|| "write \"HS256\" or \"EdDSA\"".to_owned());
            Some((format!("no message is signed with `{shown}`"), help))
        }
        "weekday" if !hours::DAYS.contains(&text) => {
            Some((format!("no day is called `{shown}`"), "write mon, tue, wed, thu, fri, sat or sun".to_owned()))
        }
        "agent" => impossible_name(PrincipalKind::Agent, text),
        "subject" => impossible_name(PrincipalKind::Subject, text),
        "issuer" if text.is_empty() => {
            Some(("no issuer has an empty name".to_owned(), "write the `iss` of its tokens".to_owned()))
        }
        "key" if !is_proof_key_id(text) => {
            Some((format!("no key has the id `{shown}`"), "it is 1 to 128 of A-Z a-z 0-9 . _ : / -".to_owned()))
        }
        _ => None,
    }
}

/// Why no agent, or no subject, has this name, and what to write instead.
pub(crate) fn impossible_name(kind: PrincipalKind, name: &str) -> Option<(String, String)> {
    let fits = match kind {
        PrincipalKind::Agent => Name::new(name).is_ok(),
        PrincipalKind::Subject => is_identifier(name),
    };
    let help = match kind {
        PrincipalKind::Agent if is_identifier(name) => {
            "it has 1 to 64 of A-Z a-z 0-9 _ -; for whom agents act is a subject: `[subject.\"…\"]`, `subjects = [ … ]`"
        }
        PrincipalKind::Agent => "it has 1 to 64 of A-Z a-z 0-9 _ -",
        PrincipalKind::Subject => "it has 1 to 128 visible ASCII characters",
    };
    (!fits).then(|| (format!("no {kind} is named `{}`", shown(name)), help.to_owned()))
}

/// As [`impossible_name`], of a pattern in which `*` stands for any text: whether a name could match it.
pub(crate) fn impossible_glob(kind: PrincipalKind, glob: &str) -> Option<(String, String)> {
    let shortest = glob.replace('*', "");
    if shortest.is_empty() && !glob.is_empty() { None } else { impossible_name(kind, &shortest) }
}

/// As [`impossible`], of a pattern.
pub(crate) fn impossible_pattern(attribute: &str, glob: &str) -> Option<(String, String)> {
    match attribute {
        "agent" => impossible_glob(PrincipalKind::Agent, glob),
        "subject" => impossible_glob(PrincipalKind::Subject, glob),
        _ => None,
    }
}

/// Everything in `expr` that is compared with a value that it can never have.
pub(crate) fn impossible_values(expr: &Expr) -> Vec<(String, String)> {
    let mut found: Vec<_> = children(expr).into_iter().flatten().flat_map(|child| impossible_values(child)).collect();
    if let Expr::BinaryOp { op: BinaryOp::Eq | BinaryOp::NotEq | BinaryOp::Contains, left, right } = expr {
        for (attribute, values) in [(left, right), (right, left)] {
            let Some(attribute) = context_attribute(attribute) else { continue };
            let values = match values.as_ref() {
                Expr::Set(values) => values.as_slice(),
                _ => std::slice::from_ref(values),
            };
            found.extend(values.iter().filter_map(|value| match value.as_ref() {
                Expr::Literal(Literal::String(text)) => impossible(attribute, text),
                _ => None,
            }));
        }
    }
    found
}

/// The attribute of `context.<attribute>`.
fn context_attribute(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::GetAttr { expr, attr } if matches!(expr.as_ref(), Expr::Var(Var::Context)) => Some(attr.as_str()),
        _ => None,
    }
}

/// The first agent, subject or role in `expr` that is not compared with the principal.
///
/// A decision knows only the roles and attributes of its caller. Any other principal has none, so a condition on it is
/// always false, and fails where it reads an attribute.
///
/// `beside` the principal, where it is compared, the names of agents, subjects and roles are in their place.
pub(crate) fn stray_entity(expr: &Expr, beside: bool) -> Option<String> {
    match expr {
        Expr::Literal(Literal::EntityUID(uid)) => {
            let kind = uid.ty.to_string();
            (!beside && (kind_of(&kind).is_some() || kind == ROLE)).then(|| uid.to_string())
        }
        Expr::Set(values) if beside => values.iter().find_map(|value| stray_entity(value, true)),
        Expr::IfThenElse { cond, then_expr, else_expr } if beside => stray_entity(cond, false)
            .or_else(|| stray_entity(then_expr, true))
            .or_else(|| stray_entity(else_expr, true)),
        Expr::BinaryOp { op: BinaryOp::Eq | BinaryOp::NotEq | BinaryOp::In, left: principal, right: other }
        | Expr::BinaryOp { op: BinaryOp::Eq | BinaryOp::NotEq | BinaryOp::Contains, left: other, right: principal }
        | Expr::Is { expr: principal, in_expr: Some(other), .. }
            if is_principal(principal) =>
        {
            stray_entity(other, true)
        }
        _ => children(expr).into_iter().flatten().find_map(|child| stray_entity(child, false)),
    }
}
