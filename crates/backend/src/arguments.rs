//! The arguments of a call for a method's declared parameters, and texts that contain such parameters.
//! Never accepts a parameter that is not declared, nor a value of another type.

use std::collections::BTreeMap;

use sealwire::decide::{Param, ParamType, ScalarType};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;

/// One piece of a text.
#[derive(Debug)]
pub(crate) enum Piece {
    Text(String),
    /// A parameter, by its position.
    Param(usize),
}

/// The longest value that may become part of a text, in bytes.
pub(crate) const LONGEST: usize = 4096;

/// The argument for each declared parameter, unchanged; `None` for an optional one that is left out or null.
pub(crate) fn given(declared: &[Param], params: Option<&RawValue>) -> Result<Vec<Option<Box<RawValue>>>, String> {
    let text = params.map_or("{}", RawValue::get);
    let mut named: BTreeMap<String, Box<RawValue>> = if text.starts_with('[') {
        let values: Vec<Box<RawValue>> = serde_json::from_str(text).map_err(|_| "the parameters are not JSON")?;
        if values.len() > declared.len() {
            return Err(format!("the method takes {} parameters", declared.len()));
        }
        declared.iter().map(|param| param.name().to_owned()).zip(values).collect()
    } else {
        serde_json::from_str(text).map_err(|_| "the parameters are not a JSON object or array")?
    };
    let mut values = Vec::new();
    for param in declared {
        let value = named.remove(param.name()).filter(|value| value.get() != "null");
        match &value {
            None if param.is_optional() => {}
            None => return Err(format!("parameter `{}` is missing", param.name())),
            Some(value) if is_of(param.kind(), value) => {}
            Some(_) => return Err(format!("parameter `{}` must be of type {}", param.name(), param.kind())),
        }
        values.push(value);
    }
    match named.keys().next() {
        Some(_) => Err("there is a parameter that the method does not have".to_owned()),
        None => Ok(values),
    }
}

fn is_of(kind: &ParamType, value: &RawValue) -> bool {
    fn reads<T: DeserializeOwned>(value: &RawValue) -> bool {
        serde_json::from_str::<T>(value.get()).is_ok()
    }
    match kind {
        ParamType::String => reads::<String>(value),
        ParamType::Integer => reads::<i64>(value),
        ParamType::Boolean => reads::<bool>(value),
        ParamType::Number => value.get().starts_with(|c: char| c == '-' || c.is_ascii_digit()),
        ParamType::Any => true,
        ParamType::List(ScalarType::String) => reads::<Vec<String>>(value),
        ParamType::List(ScalarType::Integer) => reads::<Vec<i64>>(value),
        ParamType::List(ScalarType::Boolean) => reads::<Vec<bool>>(value),
        ParamType::Object(_) => reads::<BTreeMap<String, IgnoredAny>>(value),
    }
}

/// A value as part of a text; it must be a string, an integer or a boolean.
pub(crate) fn text(param: &Param, value: &RawValue) -> Result<String, String> {
    let text = match param.kind() {
        ParamType::String => serde_json::from_str(value.get()).map_err(|_| "a string is not valid")?,
        _ => value.get().to_owned(),
    };
    if text.len() > LONGEST || text.contains('\0') {
        return Err(format!("parameter `{}` must have at most {LONGEST} bytes and no NUL", param.name()));
    }
    Ok(text)
}

/// Parses a text such as `--zone={zone}`. Literal braces are doubled.
pub(crate) fn pieces(source: &str, params: &[Param]) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), source.chars().peekable());
    while let Some(c) = rest.next() {
        match c {
            '{' | '}' if rest.next_if_eq(&c).is_some() => text.push(c),
            '{' => {
                let mut is_closed = false;
                let until_closed = |c| {
                    is_closed = c == '}';
                    (!is_closed).then_some(c)
                };
                let name: String = rest.by_ref().map_while(until_closed).collect();
                if !is_closed {
                    return Err(format!("`{source}` has a single `{{`: write it twice if it is meant literally"));
                }
                let position = params.iter().position(|param| param.name() == name);
                let declared = position.and_then(|position| Some((position, params.get(position)?)));
                let Some((position, param)) = declared else {
                    return Err(format!(
                        "`{source}` has `{{{name}}}`, and there is no parameter `{name}`: declare it in `params`, and write \
                         a literal brace twice"
                    ));
                };
                if !matches!(param.kind(), ParamType::String | ParamType::Integer | ParamType::Boolean) {
                    return Err(format!(
                        "`{source}`: `{name}` must be a string, an integer or a boolean to be a part of a text"
                    ));
                }
                pieces.push(Piece::Text(std::mem::take(&mut text)));
                pieces.push(Piece::Param(position));
            }
            '}' => return Err(format!("`{source}` has a single `}}`: write it twice if it is meant literally")),
            c => text.push(c),
        }
    }
    pieces.push(Piece::Text(text));
    Ok(pieces)
}
