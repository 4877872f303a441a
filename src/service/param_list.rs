//! What a method's parameters say of themselves, by the types that it takes them in.
//! Never looks at a value.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::attachment::Attachment;
use crate::policy::{Param, ParamType, ScalarType};

/// The parameters of a method, declared by the type that takes them. `#[derive(sealwire::Params)]` implements it for a struct with named
/// fields; `()` has none.
///
/// ```
/// use sealwire::Params;
/// use sealwire::serve::ParamList as _;
///
/// #[derive(serde::Deserialize, Params)]
/// #[serde(rename_all = "camelCase")]
/// struct Transfer {
///     /// The receiving account.
///     account_name: String,
///     amount: i64,
///     note: Option<String>,
/// }
///
/// let params: Vec<String> = Transfer::params().iter().map(ToString::to_string).collect();
/// assert_eq!(params, ["accountName: string", "amount: integer", "note?: string"]);
/// assert_eq!(Transfer::params()[0].description(), Some("The receiving account."));
/// ```
pub trait ParamList {
    /// The parameters, in the order of their positions.
    fn params() -> Vec<Param>;
}

impl ParamList for () {
    fn params() -> Vec<Param> {
        Vec::new()
    }
}

/// A type that a field of a [`ParamList`] may have. `#[derive(sealwire::Params)]` implements it as well, for parameters that are objects.
pub trait ParamValue {
    /// Whether a call may leave it out or send `null`.
    const IS_OPTIONAL: bool = false;

    /// Its type, as policies name it.
    fn kind() -> ParamType;
}

macro_rules! values {
    ($($kind:ident: $($ty:ty),+;)+) => {
        $($(
            impl ParamValue for $ty {
                fn kind() -> ParamType {
                    ParamType::$kind
                }
            }
        )+)+
    };
}

values! {
    String: String, Box<str>, Arc<str>, Cow<'_, str>, char;
    Integer: i8, i16, i32, i64, isize, u8, u16, u32, u64, usize;
    Number: f32, f64;
    Boolean: bool;
    Any: Value, Box<RawValue>;
}

impl<T: ParamValue> ParamValue for Option<T> {
    const IS_OPTIONAL: bool = true;

    fn kind() -> ParamType {
        T::kind()
    }
}

/// A list of anything but texts, whole numbers and truth values is any value: rules compare only these.
impl<T: ParamValue> ParamValue for Vec<T> {
    fn kind() -> ParamType {
        match T::kind() {
            ParamType::String => ParamType::List(ScalarType::String),
            ParamType::Integer => ParamType::List(ScalarType::Integer),
            ParamType::Boolean => ParamType::List(ScalarType::Boolean),
            _ => ParamType::Any,
        }
    }
}

impl ParamValue for Attachment {
    fn kind() -> ParamType {
        Self::param_type()
    }
}
