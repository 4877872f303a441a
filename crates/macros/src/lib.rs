//! `#[derive(sealwire::Params)]`: the parameters of a method, from the struct that it takes them in. `#[derive(Setting)]`, for this
//! project's own files: the keys of a table, from the struct that serde reads it into.
//! Never guesses: what it cannot read from the struct is an error at its place.

mod attributes;
mod fields;
mod rename;
mod setting;

use proc_macro::TokenStream;
use quote::quote;
use syn::{DeriveInput, Error};

/// Implements `sealwire::serve::ParamList` and `sealwire::serve::ParamValue` for a struct with named fields: each field is a parameter, in
/// the order of their positions, with its doc comment as description.
///
/// Names and optionality are those of serde: `rename`, `rename_all`, `default`, `skip` and `Option` count. A field whose type says nothing
/// of itself takes `#[param(any)]`, or `string`, `integer`, `number`, `boolean` in its place.
#[proc_macro_derive(Params, attributes(param, serde))]
pub fn params(input: TokenStream) -> TokenStream {
    syn::parse(input).and_then(|input| implement(&input)).unwrap_or_else(Error::into_compile_error).into()
}

fn implement(input: &DeriveInput) -> syn::Result<proc_macro2::TokenStream> {
    if let Some(parameter) = input.generics.params.first() {
        return Err(Error::new_spanned(parameter, "parameters of a method have fixed types: take the generics out"));
    }
    let (name, params) = (&input.ident, fields::params(input)?);
    Ok(quote! {
        #[automatically_derived]
        impl ::sealwire::serve::ParamList for #name {
            fn params() -> ::std::vec::Vec<::sealwire::decide::Param> {
                ::std::vec![#(#params),*]
            }
        }

        #[automatically_derived]
        impl ::sealwire::serve::ParamValue for #name {
            fn kind() -> ::sealwire::decide::ParamType {
                ::sealwire::decide::ParamType::Object(<Self as ::sealwire::serve::ParamList>::params())
            }
        }
    })
}

/// Implements `sealwire::internal::settings::Setting`. **Outside semantic versioning**, like that trait.
///
/// A struct is a table: each field is a key, with its doc comment as meaning; names and defaults are those of serde. An enum is the words of
/// its variants, or with serde's `tag`, a table for each. `#[setting(…)]` of a field says what its type does not:
///
/// - `unit = "seconds"`, with `min = 1` (0) and `max = 300` (none): what its number counts, and its range.
/// - `not_empty`: its list has an entry at least.
/// - `default = 60`: the value that the code takes for a `None`; `left_out = "the system's"`: the same in words.
/// - `kind = Kind::Prefix`: a kind that is not the one of its type.
#[proc_macro_derive(Setting, attributes(setting, serde))]
pub fn setting(input: TokenStream) -> TokenStream {
    syn::parse(input).and_then(|input| implement_setting(&input)).unwrap_or_else(Error::into_compile_error).into()
}

fn implement_setting(input: &DeriveInput) -> syn::Result<proc_macro2::TokenStream> {
    let (name, methods) = (&input.ident, setting::setting(input)?);
    Ok(quote! {
        #[automatically_derived]
        impl ::sealwire::internal::settings::Setting for #name {
            #methods
        }
    })
}
