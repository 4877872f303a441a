//! The values seen of one parameter, and the narrowest condition that covers them all.
//! Never keeps more than a few values, whatever callers sent.

use std::collections::BTreeSet;

use sealwire::decide::{Param, ParamType};
use sealwire::internal::policy::MAX_LIST;
use serde_json::Value;

use crate::toml_text::{key, text};

/// The most values that are listed one by one.
const LISTED: usize = 8;
/// Longer texts are not listed.
const LONGEST: usize = 128;

/// The values of one parameter, or of one member of an object.
#[derive(Debug, Clone)]
pub(super) struct ValueSummary {
    kind: ParamType,
    /// In how many calls it was present.
    calls: usize,
    /// All values, or the elements of all lists; `None` once there are too many.
    values: Option<BTreeSet<Scalar>>,
    /// The common prefix of all texts.
    beginning: Option<String>,
    least: i64,
    most: i64,
    /// The size of the longest list.
    size: usize,
    members: Vec<(Param, Self)>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Scalar {
    Text(String),
    Integer(i64),
    Flag(bool),
}

impl Scalar {
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Number(number) => number.as_i64().map(Self::Integer),
            Value::Bool(flag) => Some(Self::Flag(*flag)),
            _ => None,
        }
    }

    fn to_toml(&self) -> String {
        match self {
            Self::Text(value) => text(value),
            Self::Integer(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
        }
    }
}

impl ValueSummary {
    pub(super) fn new(kind: &ParamType) -> Self {
        let members = match kind {
            ParamType::Object(members) => members.as_slice(),
            _ => &[],
        };
        Self {
            kind: kind.clone(),
            calls: 0,
            values: Some(BTreeSet::new()),
            beginning: None,
            least: i64::MAX,
            most: i64::MIN,
            size: 0,
            members: members.iter().map(|param| (param.clone(), Self::new(param.kind()))).collect(),
        }
    }

    pub(super) fn add(&mut self, value: &Value) {
        self.calls += 1;
        match value {
            Value::Array(values) => {
                self.size = self.size.max(values.len());
                values.iter().filter_map(Scalar::of).for_each(|value| self.value(value));
            }
            Value::Object(values) => {
                for (param, seen) in &mut self.members {
                    if let Some(value) = values.get(param.name()) {
                        seen.add(value);
                    }
                }
            }
            value => Scalar::of(value).into_iter().for_each(|value| self.value(value)),
        }
    }

    fn value(&mut self, value: Scalar) {
        let mut is_long = false;
        match &value {
            Scalar::Text(text) => {
                is_long = text.len() > LONGEST;
                // A `*` would stand for any text.
                let whole = || text.chars().take(LONGEST).take_while(|c| *c != '*').collect();
                let known = self.beginning.get_or_insert_with(whole);
                let same = known.char_indices().zip(text.chars()).take_while(|((_, known), c)| known == c);
                let end = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
                known.truncate(end);
            }
            Scalar::Integer(number) => (self.least, self.most) = (self.least.min(*number), self.most.max(*number)),
            Scalar::Flag(_) => {}
        }
        if let Some(values) = &mut self.values {
            values.insert(value);
            if is_long || values.len() > LISTED {
                self.values = None;
            }
        }
    }

    /// Merges what was seen of the same parameter in other calls.
    pub(super) fn merge(&mut self, other: Self) {
        self.calls += other.calls;
        (self.least, self.most) = (self.least.min(other.least), self.most.max(other.most));
        self.size = self.size.max(other.size);
        self.values =
            self.values.take().zip(other.values).map(|(mine, theirs)| mine.into_iter().chain(theirs).collect());
        self.values.take_if(|values: &mut BTreeSet<Scalar>| values.len() > LISTED);
        self.beginning = match (self.beginning.take(), other.beginning) {
            (Some(mine), Some(theirs)) => {
                let same = mine.chars().zip(theirs.chars()).take_while(|(mine, theirs)| mine == theirs);
                Some(same.map(|(c, _)| c).collect())
            }
            (mine, theirs) => mine.or(theirs),
        };
        for ((_, mine), (_, theirs)) in self.members.iter_mut().zip(other.members) {
            mine.merge(theirs);
        }
    }

    /// Writes conditions as lines of TOML, and remarks about what they do not limit. `path` is the parameter's path, and `above` the
    /// number of calls in which it could have been present. Returns whether a condition requires it to be present.
    pub(super) fn conditions(&self, path: &str, optional: bool, above: usize, lines: &mut Vec<String>) -> bool {
        if self.calls < above {
            lines.push(match self.present(path) {
                _ if self.calls > 0 => format!("# `{path}` was not in all calls: not limited"),
                Some(present) => format!("{present} = {{ present = false }}"),
                None => format!("# `{path}` was in no call, and rules cannot ask for that: not limited"),
            });
            return false;
        }
        if let ParamType::Object(_) = self.kind {
            let mut is_asked = false;
            for (param, seen) in &self.members {
                let path = format!("{path}.{}", key(param.name()));
                is_asked |= seen.conditions(&path, param.is_optional(), self.calls, lines);
            }
            if optional && !is_asked {
                is_asked = self.ask_for(path, lines);
                if !is_asked {
                    lines.push(format!("# `{path}` was in all calls, and rules cannot ask for that: not limited"));
                }
            }
            return is_asked;
        }
        match self.condition() {
            Ok(condition) => {
                lines.push(format!("when.params.{path} = {condition}"));
                if matches!(self.kind, ParamType::List(_)) && self.values.is_none() {
                    lines.push(format!("# the values in `{path}` were more than {LISTED}, or long: not limited"));
                }
                true
            }
            Err(why) => {
                let is_asked = optional && self.ask_for(path, lines);
                lines.push(format!("# `{path}` {why}: not limited"));
                is_asked
            }
        }
    }

    fn ask_for(&self, path: &str, lines: &mut Vec<String>) -> bool {
        let present = self.present(path);
        lines.extend(present.iter().map(|present| format!("{present} = {{ present = true }}")));
        present.is_some()
    }

    /// The path that a `present` condition can use. For an object, that of a required member, which is present if the object is.
    fn present(&self, path: &str) -> Option<String> {
        let ParamType::Object(_) = self.kind else { return Some(format!("when.params.{path}")) };
        let needed = self.members.iter().filter(|(param, _)| !param.is_optional());
        needed.into_iter().find_map(|(param, seen)| seen.present(&format!("{path}.{}", key(param.name()))))
    }

    fn condition(&self) -> Result<String, &'static str> {
        let listed = self.values.as_ref().map(|values| values.iter().map(Scalar::to_toml).collect::<Vec<_>>());
        if let ParamType::List(_) = self.kind {
            let of =
                listed.filter(|listed| !listed.is_empty()).map(|listed| format!("each_in = [{}], ", listed.join(", ")));
            return Ok(format!("{{ {}max_size = {} }}", of.unwrap_or_default(), self.size.min(MAX_LIST)));
        }
        match (&self.kind, listed.as_deref()) {
            (ParamType::Number, _) => Err("is a number, and the bounds of those are for a person to choose"),
            (ParamType::Any, _) => Err("is of a type that rules cannot compare"),
            (ParamType::Boolean, Some([_, _])) => Err("was true and false"),
            (_, Some([])) => Err("was never seen"),
            (_, Some([only])) => Ok(only.clone()),
            (_, Some(several)) => Ok(format!("{{ in = [{}] }}", several.join(", "))),
            (ParamType::Integer, None) => Ok(format!("{{ min = {}, max = {} }}", self.least, self.most)),
            (_, None) => match self.beginning.as_deref() {
                Some(beginning) if !beginning.is_empty() => {
                    Ok(format!("{{ glob = {} }}", text(&format!("{beginning}*"))))
                }
                _ => Err("has many texts without a common beginning"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::decide::ScalarType;
    use serde_json::json;

    use super::*;

    fn condition(kind: &ParamType, values: &[Value]) -> String {
        let conditions = |seen: &ValueSummary| {
            let mut lines = Vec::new();
            seen.conditions("p", true, values.len(), &mut lines);
            lines.join("; ").replace("when.params.p = ", "")
        };
        let mut seen = ValueSummary::new(kind);
        values.iter().for_each(|value| seen.add(value));
        // In any order, and merged from parts.
        for at in 0..values.len() {
            let (mut one, mut other) = (ValueSummary::new(kind), ValueSummary::new(kind));
            values[at..].iter().for_each(|value| one.add(value));
            values[..at].iter().for_each(|value| other.add(value));
            one.merge(other);
            assert_eq!(conditions(&one), conditions(&seen));
        }
        conditions(&seen)
    }

    #[test]
    fn conditions_are_as_narrow_as_what_was_seen() {
        let (string, integer) = (ParamType::String, ParamType::Integer);
        let numbers: Vec<Value> = (0..9).map(|number| json!(number * number - 5)).collect();
        assert_eq!(condition(&integer, &numbers[..1]), "-5");
        assert_eq!(condition(&integer, &numbers[..3]), "{ in = [-5, -4, -1] }");
        assert_eq!(condition(&integer, &numbers), "{ min = -5, max = 59 }");
        let texts: Vec<Value> = (0..9).map(|number| json!(format!("Zürich/é{number}"))).collect();
        assert_eq!(condition(&string, &texts), "{ glob = \"Zürich/é*\" }");
        // A star that a caller sent is not a wildcard, and ends the prefix.
        let stars: Vec<Value> = (0..9).map(|number| json!(format!("a*b{number}"))).collect();
        assert_eq!(condition(&string, &stars), "{ glob = \"a*\" }");
        assert_eq!(condition(&string, &stars[..1]), "\"a*b0\"");
        let apart: Vec<Value> = (0..9).map(|number| json!(format!("{number}a"))).collect();
        let open = "{ present = true }; # `p` has many texts without a common beginning: not limited";
        assert_eq!(condition(&string, &apart), open);
        assert_eq!(
            condition(&string, &[json!("x".repeat(LONGEST + 1))]),
            format!("{{ glob = \"{}*\" }}", "x".repeat(LONGEST))
        );
        assert_eq!(condition(&string, &[json!("\u{202e}\"\n")]), r#""\u202E\"\n""#);
        assert_eq!(condition(&ParamType::Boolean, &[json!(true)]), "true");
        assert!(condition(&ParamType::Boolean, &[json!(true), json!(false)]).contains("was true and false"));
        assert!(condition(&ParamType::Any, &[json!([1])]).contains("cannot compare"));
        let list = ParamType::List(ScalarType::Integer);
        assert_eq!(condition(&list, &[json!([1, 2]), json!([2])]), "{ each_in = [1, 2], max_size = 2 }");
        assert_eq!(condition(&list, &[json!([])]), "{ max_size = 0 }");
        let object = ParamType::Object(vec![Param::integer("n"), Param::string("t u").optional()]);
        let seen = condition(&object, &[json!({ "n": 1 }), json!({ "n": 2 })]);
        assert_eq!(seen, "when.params.p.n = { in = [1, 2] }; when.params.p.\"t u\" = { present = false }");
        // What no condition can express is explained to the reader.
        let list = ParamType::List(ScalarType::String);
        let open = "; # the values in `p` were more than 8, or long: not limited";
        let many: Vec<Value> = (0..9).map(|number| json!(number.to_string())).collect();
        assert_eq!(condition(&list, &[json!(many)]), format!("{{ max_size = 9 }}{open}"));
        assert_eq!(condition(&list, &[json!(["x".repeat(LONGEST + 1)])]), format!("{{ max_size = 1 }}{open}"));
        let object = ParamType::Object(vec![Param::number("n")]);
        let seen = condition(&object, &[json!({ "n": 1.5 })]);
        let remark = "# `p.n` is a number, and the bounds of those are for a person to choose: not limited";
        assert_eq!(seen, format!("{remark}; when.params.p.n = {{ present = true }}"));
        let object = ParamType::Object(vec![Param::string("t").optional()]);
        let seen = condition(&object, &[json!({})]);
        assert!(seen.ends_with("# `p` was in all calls, and rules cannot ask for that: not limited"), "{seen}");
        let mut absent = Vec::new();
        ValueSummary::new(&object).conditions("p", true, 1, &mut absent);
        assert_eq!(absent, ["# `p` was in no call, and rules cannot ask for that: not limited"]);
    }
}
