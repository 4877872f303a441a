//! One struct as a table of a file, or one enum as the words that a key takes or as tables told apart by one: what serde reads, and what
//! the doc comments say.

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt as _;
use syn::{Attribute, Data, DeriveInput, Error, Expr, Field, Fields, FieldsNamed, Ident, LitStr, Token, Variant};

use crate::attributes::{deserialized, doc, each, is_option, skip_value};

/// `kind()` and `value()` of a struct or an enum.
pub(crate) fn setting(input: &DeriveInput) -> syn::Result<TokenStream> {
    match &input.data {
        Data::Struct(data) => table(input, &data.fields),
        Data::Enum(data) => {
            let variants = data.variants.iter().collect::<Vec<_>>();
            let names = Names::of(&input.attrs)?;
            match &names.tag {
                Some(tag) => tables(&variants, &names, tag),
                None => choice(&variants, &names),
            }
        }
        Data::Union(_) => Err(Error::new_spanned(&input.ident, "a file has no unions")),
    }
}

fn table(input: &DeriveInput, fields: &Fields) -> syn::Result<TokenStream> {
    let Fields::Named(fields) = fields else {
        return Err(Error::new_spanned(&input.ident, "the keys of a table have names: give the fields some"));
    };
    let mut whole = false;
    each(&input.attrs, |meta| {
        whole |= meta.path.is_ident("default");
        skip_value(&meta)
    })?;
    let keys = keys(fields, whole)?;
    let usual = whole.then(|| quote!(let usual = <Self as ::std::default::Default>::default();));
    // Only the first paragraph: the others are for readers of code.
    let about = doc(&input.attrs, true).unwrap_or_default();
    Ok(quote! {
        fn kind() -> ::sealwire::internal::settings::Kind {
            #usual
            ::sealwire::internal::settings::Kind::Table(::sealwire::internal::settings::Table {
                about: #about,
                keys: ::std::vec![#(#keys),*],
            })
        }
    })
}

fn keys(fields: &FieldsNamed, whole: bool) -> syn::Result<Vec<TokenStream>> {
    fields.named.iter().filter_map(|field| key(field, whole).transpose()).collect()
}

/// What `#[setting(…)]` and serde say of one field.
#[derive(Default)]
struct Options {
    name: Option<String>,
    skip: bool,
    /// An expression for the value that serde takes if the key is left out.
    usual: Option<TokenStream>,
    kind: Option<Expr>,
    unit: Option<LitStr>,
    min: Option<Expr>,
    max: Option<Expr>,
    not_empty: bool,
    default: Option<Expr>,
    left_out: Option<LitStr>,
}

fn key(field: &Field, whole: bool) -> syn::Result<Option<TokenStream>> {
    let options = options(field, whole)?;
    let Some(ident) = field.ident.as_ref().filter(|_| !options.skip) else { return Ok(None) };
    let (ty, about) = (&field.ty, doc(&field.attrs, false).unwrap_or_default());
    let name = options.name.unwrap_or_else(|| ident.unraw().to_string());
    let mut kind = match options.kind {
        Some(kind) => quote!(#kind),
        None => quote!(<#ty as ::sealwire::internal::settings::Setting>::kind()),
    };
    if let Some(unit) = options.unit {
        let least = options.min.map_or(quote!(0), |min| quote!((#min) as u64));
        let most = options.max.map_or_else(
            || quote!(::std::option::Option::None),
            |max| quote!(::std::option::Option::Some((#max) as u64)),
        );
        kind = quote!(#kind.of_numbers(#unit, #least, #most));
    } else if let Some(bound) = options.min.or(options.max) {
        return Err(Error::new_spanned(bound, "a range needs a unit: `unit = \"seconds\"`"));
    }
    if options.not_empty {
        kind = quote!(#kind.not_empty());
    }
    let of = quote!(::sealwire::internal::settings::LeftOut);
    let left_out = match (options.left_out, options.default, options.usual) {
        (Some(means), ..) => quote!(#of::Means(#means)),
        (None, Some(value), _) => quote!(#of::Value(::sealwire::internal::settings::Value::from(#value))),
        (None, None, _) if is_option(ty) => quote!(#of::Means("")),
        (None, None, Some(usual)) => quote!(#of::usual::<#ty>(&#usual)),
        (None, None, None) => quote!(#of::Required),
    };
    Ok(Some(quote! {
        ::sealwire::internal::settings::Key { name: #name, kind: #kind, left_out: #left_out, about: #about }
    }))
}

fn options(field: &Field, whole: bool) -> syn::Result<Options> {
    let (mut options, ident) = (Options::default(), &field.ident);
    options.usual = whole.then(|| quote!(usual.#ident));
    each(&field.attrs, |meta| {
        if meta.path.is_ident("rename") {
            options.name = deserialized(&meta)?.map(|name| name.value());
        } else if meta.path.is_ident("default") {
            options.usual = Some(match meta.input.peek(Token![=]) {
                true => {
                    let path: syn::ExprPath = meta.value()?.parse::<LitStr>()?.parse()?;
                    quote!(#path())
                }
                false => quote!(::std::default::Default::default()),
            });
        } else {
            options.skip |= meta.path.is_ident("skip");
            skip_value(&meta)?;
        }
        Ok(())
    })?;
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("setting")) {
        attribute.parse_nested_meta(|meta| {
            let path = &meta.path;
            if path.is_ident("not_empty") {
                options.not_empty = true;
            } else if path.is_ident("unit") {
                options.unit = Some(meta.value()?.parse()?);
            } else if path.is_ident("left_out") {
                options.left_out = Some(meta.value()?.parse()?);
            } else if path.is_ident("min") {
                options.min = Some(meta.value()?.parse()?);
            } else if path.is_ident("max") {
                options.max = Some(meta.value()?.parse()?);
            } else if path.is_ident("default") {
                options.default = Some(meta.value()?.parse()?);
            } else if path.is_ident("kind") {
                options.kind = Some(meta.value()?.parse()?);
            } else {
                return Err(meta.error("one of `unit`, `min`, `max`, `not_empty`, `default`, `left_out`, `kind`"));
            }
            Ok(())
        })?;
    }
    Ok(options)
}

/// How serde names the variants of an enum.
#[derive(Default)]
struct Names {
    /// The key that holds the name.
    tag: Option<LitStr>,
    rule: Option<LitStr>,
}

impl Names {
    fn of(attributes: &[Attribute]) -> syn::Result<Self> {
        let mut names = Self::default();
        each(attributes, |meta| {
            if meta.path.is_ident("rename_all") {
                names.rule = deserialized(&meta)?;
            } else if meta.path.is_ident("tag") {
                names.tag = Some(meta.value()?.parse()?);
            } else {
                skip_value(&meta)?;
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// What serde takes for a variant.
    fn word(&self, variant: &Variant) -> syn::Result<String> {
        let mut name = None;
        each(&variant.attrs, |meta| {
            match meta.path.is_ident("rename") {
                true => name = deserialized(&meta)?.map(|name| name.value()),
                false => skip_value(&meta)?,
            }
            Ok(())
        })?;
        let plain = |ident: &Ident| ident.unraw().to_string();
        match (name, &self.rule, self.rule.as_ref().map(LitStr::value).as_deref()) {
            (Some(name), ..) => Ok(name),
            (None, _, None) => Ok(plain(&variant.ident)),
            (None, _, Some("lowercase")) => Ok(plain(&variant.ident).to_ascii_lowercase()),
            (None, _, Some("UPPERCASE")) => Ok(plain(&variant.ident).to_ascii_uppercase()),
            (None, rule, Some(_)) => Err(Error::new_spanned(rule, "this way to rename variants is not known here")),
        }
    }
}

fn choice(variants: &[&Variant], names: &Names) -> syn::Result<TokenStream> {
    if let Some(variant) = variants.iter().find(|variant| !matches!(variant.fields, Fields::Unit)) {
        return Err(Error::new_spanned(variant, "a word has no fields; a table needs `#[serde(tag = \"…\")]`"));
    }
    let words = variants.iter().map(|variant| names.word(variant)).collect::<syn::Result<Vec<_>>>()?;
    let idents = variants.iter().map(|variant| &variant.ident);
    Ok(quote! {
        fn kind() -> ::sealwire::internal::settings::Kind {
            ::sealwire::internal::settings::Kind::Choice(&[#(#words),*])
        }

        fn value(&self) -> ::sealwire::internal::settings::Value {
            match self { #(Self::#idents => #words.into()),* }
        }
    })
}

fn tables(variants: &[&Variant], names: &Names, tag: &LitStr) -> syn::Result<TokenStream> {
    let table = |variant: &&Variant| {
        let Fields::Named(fields) = &variant.fields else {
            return Err(Error::new_spanned(
                variant,
                "serde ignores unknown keys of a variant without braces: add some",
            ));
        };
        let (word, keys) = (names.word(variant)?, keys(fields, false)?);
        let about = doc(&variant.attrs, false).unwrap_or_default();
        Ok(quote! {
            (#word, ::sealwire::internal::settings::Table { about: #about, keys: ::std::vec![#(#keys),*] })
        })
    };
    let tables = variants.iter().map(table).collect::<syn::Result<Vec<_>>>()?;
    Ok(quote! {
        fn kind() -> ::sealwire::internal::settings::Kind {
            ::sealwire::internal::settings::Kind::Variants(#tag, ::std::vec![#(#tables),*])
        }
    })
}
