//! From the bytes of `params` to the declared parameters, or the first reason why that is not possible.
//! Never converts: a value that is not spelled as its type demands is refused, so that the handler cannot read another
//! value from the same bytes.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::decision::Reason;
use crate::policy::model::{Decimal, MAX_LIST, Param, ParamType, Params, TypedValue};

/// Reads the parameters of a call. A call without `params` has none.
pub(crate) fn bind(params: Option<&RawValue>, declared: &[Param]) -> Result<Params, Reason> {
    let text = params.map_or("", RawValue::get);
    match text.as_bytes().first() {
        None => finish(declared, vec![None; declared.len()], ""),
        Some(b'{') => members(text, declared, ""),
        Some(b'[') => positions(text, declared),
        // JSON-RPC 2.0 §4.2: params is an object or an array, nothing else.
        Some(_) => Err(Reason::ParamType("params".to_owned())),
    }
}

fn positions(text: &str, declared: &[Param]) -> Result<Params, Reason> {
    let values = parse::<Vec<&RawValue>>(text, "params")?;
    if values.len() > declared.len() {
        return Err(Reason::ParamUndeclared((declared.len() + 1).to_string()));
    }
    let mut found = vec![None; declared.len()];
    for ((param, value), slot) in declared.iter().zip(&values).zip(&mut found) {
        *slot = read(value.get(), param, param.name())?;
    }
    finish(declared, found, "")
}

fn members(text: &str, declared: &[Param], prefix: &str) -> Result<Params, Reason> {
    let mut found = vec![None; declared.len()];
    let mut seen = vec![false; declared.len()];
    let outer = if prefix.is_empty() { "params" } else { prefix.trim_end_matches('.') };
    for (key, value) in parse::<Members<'_>>(text, outer)?.0 {
        let place = declared.iter().zip(&mut found).zip(&mut seen).find(|((param, _), _)| param.name() == key.0);
        let Some(((param, slot), seen)) = place else {
            // The caller chose this name: at most 80 characters go into a reason.
            return Err(Reason::ParamUndeclared(prefix.chars().chain(key.0.chars()).take(80).collect()));
        };
        if std::mem::replace(seen, true) {
            return Err(Reason::ParamRepeated(format!("{prefix}{}", param.name())));
        }
        *slot = read(value.get(), param, &format!("{prefix}{}", param.name()))?;
    }
    finish(declared, found, prefix)
}

fn finish(declared: &[Param], found: Vec<Option<TypedValue>>, prefix: &str) -> Result<Params, Reason> {
    let mut params = Params::new();
    for (param, value) in declared.iter().zip(found) {
        match value {
            Some(value) => {
                params.insert(param.name().to_owned(), value);
            }
            None if param.is_optional() => {}
            None => return Err(Reason::ParamMissing(format!("{prefix}{}", param.name()))),
        }
    }
    Ok(params)
}

/// One value; `None` for the `null` of an optional parameter.
fn read(text: &str, param: &Param, path: &str) -> Result<Option<TypedValue>, Reason> {
    if param.is_optional() && text == "null" {
        return Ok(None);
    }
    value(text, param.kind(), path).map(Some)
}

fn value(text: &str, kind: &ParamType, path: &str) -> Result<TypedValue, Reason> {
    let wrong = || Reason::ParamType(path.to_owned());
    match kind {
        ParamType::List(kind) => {
            let kind = kind.as_param();
            let values = parse::<Vec<&RawValue>>(text, path)?;
            if values.len() > MAX_LIST {
                return Err(wrong());
            }
            let list: Option<Vec<_>> = values.iter().map(|value| scalar(value.get(), &kind)).collect();
            list.map(TypedValue::List).ok_or_else(wrong)
        }
        ParamType::Object(fields) if text.starts_with('{') => {
            Ok(TypedValue::Object(members(text, fields, &format!("{path}."))?))
        }
        kind => scalar(text, kind).ok_or_else(wrong),
    }
}

fn scalar(text: &str, kind: &ParamType) -> Option<TypedValue> {
    match kind {
        ParamType::String => serde_json::from_str(text).ok().map(TypedValue::String),
        ParamType::Integer => integer(text).map(TypedValue::Integer),
        ParamType::Boolean => serde_json::from_str(text).ok().map(TypedValue::Boolean),
        ParamType::Number => Decimal::parse(text).map(|_| TypedValue::Number(text.to_owned())),
        ParamType::Any => Some(TypedValue::Any),
        ParamType::List(_) | ParamType::Object(_) => None,
    }
}

/// An integer as JSON spells it without fraction and exponent. `-0` is not one: some readers make a fraction of it.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain && text != "-0" { text.parse().ok() } else { None }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str, path: &str) -> Result<T, Reason> {
    serde_json::from_str(text).map_err(|_| Reason::ParamType(path.to_owned()))
}

/// The members of a JSON object in their order, repeated names included.
struct Members<'a>(Vec<(Key<'a>, &'a RawValue)>);

/// A member name after unescaping.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                std::iter::from_fn(|| map.next_entry().transpose()).collect::<Result<_, _>>().map(Members)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::policy::model::ScalarType;

    fn transfer() -> Vec<Param> {
        vec![Param::string("to"), Param::integer("amount"), Param::string("note").optional()]
    }

    fn read_params(text: &str) -> Result<Params, Reason> {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        bind(Some(&raw), &transfer())
    }

    #[test]
    fn names_and_positions_give_the_same_parameters() {
        let named = read_params(r#"{"amount": 5, "to": "a"}"#).unwrap();
        assert_eq!(named, read_params(r#"["a", 5]"#).unwrap());
        assert_eq!(named, read_params(r#"["a", 5, null]"#).unwrap());
        assert_eq!(named, read_params(r#"{"t\u006f": "a", "amount": 5, "note": null}"#).unwrap());
    }

    #[test]
    fn integers_have_one_spelling() {
        for bad in
            ["1e9", "1.0", "1E2", "-0", "9223372036854775808", "\"5\"", "null", "[5]", "{\"v\":5}", "true", "0.5"]
        {
            let reason = read_params(&format!(r#"{{"to": "a", "amount": {bad}}}"#));
            assert_eq!(reason, Err(Reason::ParamType("amount".to_owned())), "{bad}");
        }
        for good in ["0", "-1", "9223372036854775807", "-9223372036854775808"] {
            assert!(read_params(&format!(r#"["a", {good}]"#)).is_ok(), "{good}");
        }
    }

    #[test]
    fn what_is_not_declared_or_there_twice_or_missing_is_named() {
        let reason = |text: &str| read_params(text).unwrap_err();
        assert_eq!(reason(r#"{"to":"a","amount":1,"amt":2}"#), Reason::ParamUndeclared("amt".to_owned()));
        assert_eq!(reason(r#"["a", 1, null, 4]"#), Reason::ParamUndeclared("4".to_owned()));
        assert_eq!(reason(r#"{"to":"a","amount":1,"am\u006funt":2}"#), Reason::ParamRepeated("amount".to_owned()));
        assert_eq!(reason(r#"{"to":"a"}"#), Reason::ParamMissing("amount".to_owned()));
        assert_eq!(reason("5"), Reason::ParamType("params".to_owned()));
        assert_eq!(bind(None, &transfer()), Err(Reason::ParamMissing("to".to_owned())));
        assert_eq!(bind(None, &[]), Ok(Params::new()));
    }

    #[test]
    fn lists_and_objects_are_read_to_the_bottom() {
        let declared = [
            Param::new("ids", ParamType::List(ScalarType::Integer)),
            Param::new("order", ParamType::Object(vec![Param::integer("amount")])).optional(),
        ];
        let read = |text: &str| bind(Some(&RawValue::from_string(text.to_owned()).unwrap()), &declared);
        assert!(read(r#"{"ids":[1,2],"order":{"amount":3}}"#).is_ok());
        assert_eq!(read(r#"{"ids":[1,2.0]}"#), Err(Reason::ParamType("ids".to_owned())));
        assert_eq!(
            read(r#"{"ids":[],"order":{"amount":3,"amount":4}}"#),
            Err(Reason::ParamRepeated("order.amount".to_owned()))
        );
        assert_eq!(read(r#"{"ids":[],"order":{"x":3}}"#), Err(Reason::ParamUndeclared("order.x".to_owned())));
        assert_eq!(read(r#"{"ids":[],"order":[3]}"#), Err(Reason::ParamType("order".to_owned())));
        let long = format!("[[{}0]]", "0,".repeat(MAX_LIST));
        assert_eq!(read(&long), Err(Reason::ParamType("ids".to_owned())));
    }
}
