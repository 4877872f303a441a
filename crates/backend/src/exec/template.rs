//! Command arguments with parameters in them.
//! Never accepts a parameter that is not declared, a value of another type, or one that would be read as an option; nor a text that the
//! operator has not allowed there. What a command takes for code, a script or a file to run is known to the command alone, so there is no
//! list of such commands here.

use std::collections::BTreeSet;
use std::ffi::OsString;

use sealwire::decide::{Param, ParamType};
use serde_json::value::RawValue;

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
    /// Parses arguments such as `["--zone={zone}", "--", "{place}"]`. Literal braces are doubled. `allowed` has the names of the texts that
    /// may be arguments; `reads` says whether the command also gets all parameters on its standard input.
    pub(crate) fn read(
        args: &[String],
        params: &[Param],
        allowed: &BTreeSet<&str>,
        reads: bool,
    ) -> Result<Self, String> {
        let end_of_options = args.iter().position(|arg| arg == "--").unwrap_or(usize::MAX);
        let args = args.iter().map(|arg| pieces(arg, params)).collect::<Result<Vec<_>, _>>()?;
        args.iter().try_for_each(|arg| check(arg, params, allowed))?;
        let is_used = |at: usize| args.iter().flatten().any(|piece| matches!(piece, Piece::Param(used) if *used == at));
        if let Some((_, param)) = params.iter().enumerate().find(|(at, _)| !reads && !is_used(*at)) {
            return Err(format!("parameter `{}` does not reach the command: {READS}", param.name()));
        }
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
            // Never part of an argument: the command reads it from its standard input.
            (_, Some(_)) => Ok(Some(String::new())),
        });
        texts.collect()
    }
}

/// Checks that each text in an argument may be there, and that the argument is nothing besides, except for a name ahead: in the middle of
/// something else it could end one thing and begin another. Numbers and booleans can do neither.
fn check(arg: &[Piece], params: &[Param], allowed: &BTreeSet<&str>) -> Result<(), String> {
    let is_text = |at: &usize| params.get(*at).is_some_and(|param| *param.kind() == ParamType::String);
    let texts = arg.iter().filter_map(|piece| if let Piece::Param(at) = piece { Some(at) } else { None });
    for at in texts.filter(|at| is_text(at)) {
        let name = params.get(*at).map_or("", Param::name);
        if !allowed.contains(name) {
            return Err(format!(
                "parameter `{name}` is a text, and as an argument the command could take it for an option, for code, or for a file to \
                 open or run. Let it stay out of `args`: {READS}. If the command takes the argument for data and for nothing else, write \
                 `allow_argument = true` beside the parameter's name"
            ));
        }
        let is_whole = match arg {
            [Piece::Text(ahead), Piece::Param(_), Piece::Text(behind)] => behind.is_empty() && is_name(ahead),
            _ => false,
        };
        if !is_whole {
            return Err(format!(
                "parameter `{name}` is a text, and would be only a part of an argument, where it could become more than one value: \
                 make it an argument of its own, `{{{name}}}` or `--name={{{name}}}`"
            ));
        }
    }
    Ok(())
}

/// How a command gets what is no argument.
const READS: &str = "write `stdin = \"data\"` if the command reads its standard input as data, and never runs what it reads: then it gets \
                     all parameters there, as JSON";

/// Whether this is nothing, or `name=`, `-n=`, `--name=`.
fn is_name(ahead: &str) -> bool {
    let Some(name) = ahead.strip_suffix('=') else { return ahead.is_empty() };
    let name = name.strip_prefix("--").or(name.strip_prefix('-')).unwrap_or(name);
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests;
