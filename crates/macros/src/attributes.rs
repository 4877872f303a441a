//! What the attributes of a struct and its fields say: those of serde, and doc comments.

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Expr, Lit, LitStr, Meta, Token, Type};

/// Every entry of the attributes `serde(…)`.
pub(crate) fn each(
    attributes: &[Attribute],
    mut entry: impl FnMut(ParseNestedMeta<'_>) -> syn::Result<()>,
) -> syn::Result<()> {
    let serde = attributes.iter().filter(|attribute| attribute.path().is_ident("serde"));
    serde.into_iter().try_for_each(|attribute| attribute.parse_nested_meta(&mut entry))
}

/// The text of `rename = "…"` or of `rename(deserialize = "…")`: a call is only ever read.
pub(crate) fn deserialized(meta: &ParseNestedMeta<'_>) -> syn::Result<Option<LitStr>> {
    if meta.input.peek(Token![=]) {
        return Ok(Some(meta.value()?.parse()?));
    }
    let mut text = None;
    meta.parse_nested_meta(|side| {
        let value: LitStr = side.value()?.parse()?;
        if side.path.is_ident("deserialize") {
            text = Some(value);
        }
        Ok(())
    })?;
    Ok(text)
}

/// Reads over the value of an entry that says nothing about a parameter.
pub(crate) fn skip_value(meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<Lit>()?;
    } else if meta.input.peek(syn::token::Paren) {
        meta.parse_nested_meta(|inner| skip_value(&inner))?;
    }
    Ok(())
}

/// Whether a type that says nothing of itself is written as an `Option`, as serde sees it.
pub(crate) fn is_option(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option"))
}

/// The doc comment as one line: all of it, or its first paragraph.
pub(crate) fn doc(attributes: &[Attribute], first: bool) -> Option<String> {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let text = lines.take_while(|line| !first || !line.is_empty()).filter(|line| !line.is_empty());
    let text = text.collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}
