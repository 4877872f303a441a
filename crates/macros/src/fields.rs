//! One struct's fields as parameters: what serde will take, and what the doc comments say.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt as _;
use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, LitStr};

use crate::attributes::{deserialized, doc, each, is_option, skip_value};
use crate::rename::Rule;

/// What serde is told about the whole struct.
#[derive(Default)]
struct Container {
    rename_all: Option<Rule>,
    /// A field that a call leaves out has the struct's default.
    default: bool,
}

/// What serde is told about one field.
#[derive(Default)]
struct Options {
    rename: Option<String>,
    default: bool,
    skip: bool,
}

/// An expression for each parameter, in order.
pub(crate) fn params(input: &DeriveInput) -> syn::Result<Vec<TokenStream>> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "parameters of a method are a struct"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(&input.ident, "parameters of a method have names: give the fields some"));
    };
    let container = container(&input.attrs)?;
    fields.named.iter().filter_map(|field| param(field, &container).transpose()).collect()
}

fn param(field: &Field, container: &Container) -> syn::Result<Option<TokenStream>> {
    let options = options(&field.attrs)?;
    let Some(ident) = field.ident.as_ref().filter(|_| !options.skip) else { return Ok(None) };
    let plain = ident.unraw().to_string();
    let name = match (options.rename, container.rename_all) {
        (Some(name), _) => name,
        (None, Some(rule)) => rule.apply(&plain),
        (None, None) => plain,
    };
    let ty = &field.ty;
    let named = kind(&field.attrs)?;
    let may_miss = match &named {
        _ if options.default || container.default => quote!(true),
        None => quote!(<#ty as ::sealwire::serve::ParamValue>::IS_OPTIONAL),
        Some(_) if is_option(ty) => quote!(true),
        Some(_) => quote!(false),
    };
    let kind = match named {
        Some(kind) => quote!(::sealwire::decide::ParamType::#kind),
        None => quote!(<#ty as ::sealwire::serve::ParamValue>::kind()),
    };
    let mut param = quote!(::sealwire::decide::Param::new(#name, #kind).optional_if(#may_miss));
    if let Some(text) = doc(&field.attrs, false) {
        param = quote!(#param.describe(#text));
    }
    Ok(Some(param))
}

fn container(attributes: &[Attribute]) -> syn::Result<Container> {
    let mut container = Container::default();
    each(attributes, |meta| {
        if meta.path.is_ident("rename_all") {
            let rule = deserialized(&meta)?;
            let known = rule.as_ref().map(|rule| Rule::named(&rule.value()).ok_or_else(|| unknown(rule)));
            container.rename_all = known.transpose()?;
        } else {
            container.default |= meta.path.is_ident("default");
            skip_value(&meta)?;
        }
        Ok(())
    })?;
    Ok(container)
}

fn options(attributes: &[Attribute]) -> syn::Result<Options> {
    let mut options = Options::default();
    each(attributes, |meta| {
        if meta.path.is_ident("rename") {
            options.rename = deserialized(&meta)?.map(|name| name.value());
        } else if meta.path.is_ident("flatten") {
            return Err(meta.error("a flattened field has no parameter of its own: write its fields here"));
        } else {
            options.default |= meta.path.is_ident("default");
            options.skip |= meta.path.is_ident("skip") || meta.path.is_ident("skip_deserializing");
            skip_value(&meta)?;
        }
        Ok(())
    })?;
    Ok(options)
}

fn unknown(rule: &LitStr) -> Error {
    Error::new_spanned(rule, "this way to rename fields is not known here")
}

/// The type that `#[param(…)]` names.
fn kind(attributes: &[Attribute]) -> syn::Result<Option<TokenStream>> {
    let mut kind = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("param")) {
        attribute.parse_nested_meta(|meta| {
            let known = [
                ("any", quote!(Any)),
                ("string", quote!(String)),
                ("integer", quote!(Integer)),
                ("number", quote!(Number)),
                ("boolean", quote!(Boolean)),
            ];
            let named = known.into_iter().find(|(name, _)| meta.path.is_ident(name));
            kind = Some(named.ok_or_else(|| meta.error("one of `any`, `string`, `integer`, `number`, `boolean`"))?.1);
            Ok(())
        })?;
    }
    Ok(kind)
}
