//! A question in Cedar's terms: principal, hierarchy and context, as far as a method's rules read them.
//! Never passes on a value that is not of its declared type.

use cedar_policy::{Context, RestrictedExpression};
use serde_json::Value;

use super::decision::{Question, Reason};
use crate::policy::cedar::References;
use crate::policy::cedar::schema::{CONTEXT, SUBJECT_OF_CALL};
use crate::policy::model::{DAY, Decimal, Declarations, Param, ParamType, Params, TypedValue, hours};

type Pairs = Vec<(String, RestrictedExpression)>;

/// The attributes of the context, the claims and the parameters that some rules read.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContextShape {
    attributes: Vec<&'static str>,
    claims: Option<Vec<(String, ParamType)>>,
    params: Option<Vec<String>>,
    /// Whether the caller's name or attributes are read.
    pub(crate) principal: bool,
}

impl ContextShape {
    pub(crate) fn of(reads: &References, params: Option<&[Param]>, declarations: &Declarations) -> Self {
        let attributes = CONTEXT.into_iter().flat_map(|(_, names)| names).copied().chain(["token"]);
        let attributes = attributes.filter(|name| reads.context(&[name])).collect();
        let claims = reads.context(&["claims"]).then(|| {
            let claims = declarations.claims.iter().filter(|(name, _)| reads.context(&["claims", name]));
            claims.map(|(name, kind)| (name.clone(), kind.clone())).collect()
        });
        let params = params.filter(|_| reads.context(&["params"])).map(|params| {
            let names = params.iter().map(Param::name).filter(|name| reads.context(&["params", name]));
            names.map(ToOwned::to_owned).collect()
        });
        Self {
            attributes,
            claims,
            params,
            principal: reads.principal(&["name"])
                || declarations.attributes.keys().any(|name| reads.principal(&[name])),
        }
    }

    /// Like this, but the parameters have to be as declared even if none is read.
    pub(crate) fn with_params(mut self, declared: Option<&[Param]>) -> Self {
        self.params = self.params.or_else(|| declared.map(|_| Vec::new()));
        self
    }

    /// Whether a parameter is read, so that the parameters must be as declared.
    pub(crate) fn params(&self) -> bool {
        self.params.is_some()
    }

    /// The first claim that is read and is not of its declared type.
    pub(crate) fn claim_fault(&self, question: &Question<'_>) -> Option<Reason> {
        let claims = &question.caller.token.claims;
        self.claims
            .iter()
            .flatten()
            .find(|(name, kind)| claims.get(name).is_some_and(|value| claim(value, kind).is_none()))
            .map(|(name, _)| Reason::ClaimType(name.clone()))
    }

    /// The context, without what these rules do not read. `None` if Cedar cannot represent a value.
    pub(crate) fn context(&self, question: &Question<'_>, params: Option<&Params>) -> Option<Context> {
        let attribute = |name: &&str| Some(((*name).to_owned(), value(name, question)?));
        let has = |name: &&&str| question.caller.delegated || **name != SUBJECT_OF_CALL;
        let mut pairs = self.attributes.iter().filter(has).map(attribute).collect::<Option<Pairs>>()?;
        if let Some(claims) = &self.claims {
            let found = &question.caller.token.claims;
            let value = |name: &String, kind| expression(&claim(found.get(name)?, kind)?);
            let values = claims.iter().filter_map(|(name, kind)| Some((name.as_str(), value(name, kind)?)));
            pairs.push(("claims".to_owned(), record(values.map(Some))?));
        }
        if let (Some(names), Some(params)) = (&self.params, params) {
            let values = names.iter().filter_map(|name| Some((name.as_str(), params.get(name)?)));
            pairs.push(("params".to_owned(), record(values.map(|(name, value)| Some((name, expression(value)?))))?));
        }
        Context::from_pairs(pairs).ok()
    }
}

/// The value of an attribute other than claims and parameters.
fn value(attribute: &str, question: &Question<'_>) -> Option<RestrictedExpression> {
    let caller = question.caller;
    let minutes = || i64::try_from(question.now_ms / 60_000).ok();
    let day = i64::from(DAY);
    let text = |text: &str| Some(RestrictedExpression::new_string(text.to_owned()));
    let number = |value: Option<i64>| value.map(RestrictedExpression::new_long);
    let week = hours::minute_of_week(question.now_ms);
    match attribute {
        "delegated" => Some(RestrictedExpression::new_bool(caller.delegated)),
        "agent" => text(caller.agent.as_str()),
        "subject" => text(&caller.subject),
        "now" => Some(RestrictedExpression::new_datetime(datetime(question.now_ms)?)),
        "hour" => number(minutes().map(|minutes| minutes % day / 60)),
        "minute" => number(minutes().map(|minutes| minutes % 60)),
        "minute_of_day" => number(minutes().map(|minutes| minutes % day)),
        "minute_of_week" => number(Some(week.into())),
        "weekday" => text(hours::DAYS.get(usize::try_from(week / DAY).ok()?)?),
        "algorithm" => text(caller.algorithm.as_str()),
        "key" => text(&caller.key),
        "token" => {
            let now = question.now_ms / 1000;
            let token = &caller.token;
            // A token from the near future (clocks differ) has no age yet, an expired one no time left.
            let age = i64::try_from(now.saturating_sub(token.issued_at)).ok();
            let remaining = i64::try_from(token.expires_at.saturating_sub(now)).ok();
            let members = [
                ("age_s", number(age)),
                ("remaining_s", number(remaining)),
                ("id", text(&token.id)),
                ("issuer", text(&token.issuer)),
                ("key", text(&token.key)),
            ];
            record(members.into_iter().map(|(name, value)| Some((name, value?))))
        }
        _ => None,
    }
}

/// `2026-09-21T14:13:20.000Z`, the only form that Cedar reads.
pub(crate) fn datetime(now_ms: u64) -> Option<String> {
    let seconds = i64::try_from(now_ms / 1000).ok()?;
    let time = time::OffsetDateTime::from_unix_timestamp(seconds).ok()?;
    let (hour, minute, second) = time.time().as_hms();
    let (year, month, day) = time.date().to_calendar_date();
    let month = u8::from(month);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", now_ms % 1000))
}

/// A claim as its declared type; `None` if it is of another. Claims come from a token that was already parsed, so an
/// integer is one that JSON spelled without fraction and exponent.
fn claim(value: &Value, kind: &ParamType) -> Option<TypedValue> {
    match kind {
        ParamType::String => value.as_str().map(|text| TypedValue::String(text.to_owned())),
        ParamType::Integer => value.as_i64().map(TypedValue::Integer),
        ParamType::Boolean => value.as_bool().map(TypedValue::Boolean),
        ParamType::Number => value.as_number().map(|number| TypedValue::Number(number.to_string())),
        ParamType::Any => Some(TypedValue::Any),
        ParamType::List(scalar) => {
            let kind = scalar.as_param();
            let list = value.as_array().filter(|list| list.len() <= crate::policy::model::params::MAX_LIST)?;
            list.iter().map(|value| claim(value, &kind)).collect::<Option<_>>().map(TypedValue::List)
        }
        ParamType::Object(_) => None,
    }
}

/// A value in Cedar's terms.
pub(crate) fn expression(value: &TypedValue) -> Option<RestrictedExpression> {
    Some(match value {
        TypedValue::String(text) => RestrictedExpression::new_string(text.clone()),
        TypedValue::Integer(value) => RestrictedExpression::new_long(*value),
        TypedValue::Boolean(value) => RestrictedExpression::new_bool(*value),
        TypedValue::Number(text) => {
            let Decimal { whole, fraction, beyond } = Decimal::parse(text)?;
            let members = [
                ("whole", RestrictedExpression::new_long(whole)),
                ("fraction", RestrictedExpression::new_long(fraction)),
                ("beyond", RestrictedExpression::new_bool(beyond)),
            ];
            record(members.into_iter().map(Some))?
        }
        TypedValue::Any => RestrictedExpression::new_bool(true),
        TypedValue::List(values) => {
            let size = i64::try_from(values.len()).ok()?;
            let items = values.iter().map(expression).collect::<Option<Vec<_>>>()?;
            let members =
                [("items", RestrictedExpression::new_set(items)), ("size", RestrictedExpression::new_long(size))];
            record(members.into_iter().map(Some))?
        }
        TypedValue::Object(fields) => {
            record(fields.iter().map(|(name, value)| Some((name.as_str(), expression(value)?))))?
        }
    })
}

/// `None` if Cedar cannot represent a member.
fn record<'a>(members: impl Iterator<Item = Option<(&'a str, RestrictedExpression)>>) -> Option<RestrictedExpression> {
    let pairs = members.map(|member| member.map(|(name, value)| (name.to_owned(), value)));
    RestrictedExpression::new_record(pairs.collect::<Option<Pairs>>()?).ok()
}

#[cfg(test)]
mod tests {
    use super::datetime;

    #[test]
    fn times_are_written_as_cedar_reads_them() {
        assert_eq!(datetime(1_790_000_000_123).as_deref(), Some("2026-09-21T14:13:20.123Z"));
        assert_eq!(datetime(0).as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(datetime(u64::MAX), None);
    }
}
