//! Command arguments with parameters in them.
//! Never accepts a parameter that is not declared, a value of another type, or one that would be read as an option or as code.

use std::ffi::OsString;

use sealwire::policy::{Param, ParamType};
use serde_json::value::RawValue;

use super::script;
use crate::arguments::{Piece, given, pieces, text};

/// The arguments of one command.
#[derive(Debug)]
pub(crate) struct Template {
    args: Vec<Vec<Piece>>,
    params: Vec<Param>,
    /// After this position, no argument is an option.
    end_of_options: usize,
}

impl Template {
    /// Parses arguments such as `["--zone={zone}", "--", "{place}"]`, which follow `command`. Literal braces are doubled.
    pub(crate) fn read(command: &[String], args: &[String], params: &[Param]) -> Result<Self, String> {
        let end_of_options = args.iter().position(|arg| arg == "--").unwrap_or(usize::MAX);
        let command = command.iter().map(|word| Ok(vec![Piece::Text(word.clone())]));
        let mut words = command.chain(args.iter().map(|arg| pieces(arg, params))).collect::<Result<Vec<_>, _>>()?;
        script::check(&words, params)?;
        let args = words.split_off(words.len() - args.len());
        let is_optional =
            |piece: &Piece| matches!(piece, Piece::Param(at) if params.get(*at).is_some_and(Param::is_optional));
        for pair in args.windows(2) {
            let [ahead, arg] = pair else { continue };
            let is_option = matches!(ahead.as_slice(), [Piece::Text(text)] if text.starts_with('-') && text != "--");
            if is_option && arg.iter().any(is_optional) {
                return Err("an argument with an optional parameter stands behind an option, which would take the next one in its place: \
                            write both as one, `--name={value}`"
                    .to_owned());
            }
        }
        Ok(Self { args, params: params.to_vec(), end_of_options })
    }

    /// The arguments for a call. If the call leaves a parameter out, the argument that contains it is left out.
    pub(crate) fn fill(&self, params: Option<&RawValue>) -> Result<Vec<OsString>, String> {
        let values = self.values(params)?;
        let mut filled = Vec::new();
        for (position, pieces) in self.args.iter().enumerate() {
            if let Some(arg) = self.arg(pieces, &values, position > self.end_of_options)? {
                filled.push(arg.into());
            }
        }
        Ok(filled)
    }

    fn arg(&self, pieces: &[Piece], values: &[Option<String>], is_no_option: bool) -> Result<Option<String>, String> {
        let mut arg = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(text) => arg.push_str(text),
                Piece::Param(position) => {
                    let Some(value) = values.get(*position).and_then(Option::as_ref) else { return Ok(None) };
                    if arg.is_empty() && value.starts_with('-') && !is_no_option {
                        let name = self.params.get(*position).map_or("", Param::name);
                        return Err(format!("parameter `{name}` must not begin with `-`"));
                    }
                    arg.push_str(value);
                }
            }
        }
        Ok(Some(arg))
    }

    /// The call's value for each declared parameter, as text.
    fn values(&self, params: Option<&RawValue>) -> Result<Vec<Option<String>>, String> {
        let given = given(&self.params, params)?;
        let texts = self.params.iter().zip(given).map(|(param, value)| match (param.kind(), value) {
            (_, None) => Ok(None),
            (ParamType::String | ParamType::Integer | ParamType::Boolean, Some(value)) => text(param, &value).map(Some),
            // Never part of an argument: the command reads it from its input.
            (_, Some(_)) => Ok(Some(String::new())),
        });
        texts.collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::arguments::LONGEST;

    fn filled(args: &[&str], params: &str) -> Result<Vec<OsString>, String> {
        let declared = [Param::string("a"), Param::integer("n").optional(), Param::boolean("b").optional()];
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        Template::read(&["x".to_owned()], &args, &declared)?
            .fill(Some(&RawValue::from_string(params.to_owned()).unwrap()))
    }

    #[test]
    fn arguments_are_made_of_declared_parameters_of_their_types_alone() {
        assert_eq!(filled(&["x", "--a={a}", "{n}{b}"], r#"{"a": "-x $(y)", "n": 5}"#).unwrap(), ["x", "--a=-x $(y)"]);
        assert_eq!(filled(&["{{{a}}}", "n{n}"], r#"["y", -7]"#).unwrap(), ["{y}", "n-7"]);
        for wrong in
            [r#"{"a": 5}"#, r#"{"n": 5}"#, r#"{"a": "", "n": 1.5}"#, r#"{"a": "", "c": 1}"#, r#"["", 1, true, 4]"#]
        {
            assert!(filled(&["{a}"], wrong).is_err(), "{wrong}");
        }
        let long = format!("[\"{}\"]", "x".repeat(LONGEST + 1));
        assert!(filled(&["{a}"], &long).is_err() && filled(&["{a}"], r#"["a\u0000b"]"#).is_err());
        assert!(Template::read(&[], &["-n".to_owned(), "{n}".to_owned()], &[Param::integer("n").optional()]).is_err());
        for template in ["{c}", "{a", "}", "{}"] {
            assert!(filled(&[template], r#"["x"]"#).is_err(), "{template}");
        }
    }

    #[test]
    fn no_parameter_becomes_an_option() {
        for dashed in [r#"["-x"]"#, r#"["--"]"#] {
            assert!(filled(&["{a}"], dashed).is_err());
            assert!(filled(&["{a}", "--"], dashed).is_err());
            assert!(filled(&["--", "{a}"], dashed).is_ok());
            assert!(filled(&["--a={a}", "x{a}"], dashed).is_ok());
        }
        assert!(filled(&["{n}"], r#"["x", -5]"#).is_err());
        // An omitted parameter in front does not let the value slip through.
        assert!(filled(&["{n}{a}"], r#"["-x"]"#).unwrap().is_empty());
    }
}
