//! A plain request for each call: declared parameters in its path, query, headers and body.
//! Never lets a parameter become more than the value that it stands for: no other path, no other parameter, no other header.

use bytes::Bytes;
use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::utf8_percent_encode;
use sealwire::decide::Param;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::target::{self, VALUE};
use crate::arguments::{Piece, given, pieces, text};
use crate::tables::{BackendHttpConfig, BackendOutput, BackendVerb};
use crate::web::{Request, header_name, header_value};

/// The request of one method.
#[derive(Debug)]
pub(crate) struct Rest {
    verb: Method,
    /// Its segments, without the slashes.
    path: Vec<Vec<Piece>>,
    query: Vec<(String, Vec<Piece>)>,
    headers: Vec<(HeaderName, Vec<Piece>)>,
    body: Option<Vec<Piece>>,
    params: Vec<Param>,
    pub(super) output: BackendOutput,
}

/// The arguments, by the positions of their parameters.
type Values = Vec<Option<Box<RawValue>>>;

impl Rest {
    /// The method of HTTP.
    pub(super) fn verb(&self) -> &str {
        self.verb.as_str()
    }

    /// Reads `method.http`.
    pub(super) fn read(config: &BackendHttpConfig, params: &[Param], output: BackendOutput) -> Result<Self, String> {
        let verb = match config.verb {
            BackendVerb::Get => Method::GET,
            BackendVerb::Post => Method::POST,
            BackendVerb::Put => Method::PUT,
            BackendVerb::Patch => Method::PATCH,
            BackendVerb::Delete => Method::DELETE,
        };
        let path = target::path(&config.path)?;
        let path = path.split('/').skip(1).map(|segment| part_of_path(segment, params));
        let path = path.collect::<Result<Vec<_>, _>>()?;
        let query = config.query.iter().map(|(name, value)| {
            Ok::<_, String>((utf8_percent_encode(name, VALUE).to_string(), pieces(value, params)?))
        });
        let query = query.collect::<Result<Vec<_>, _>>()?;
        let mut headers = Vec::new();
        for (name, value) in &config.headers {
            let name = header_name(name)?;
            if name == "authorization" || name == "idempotency-key" || name.as_str().starts_with("sealwire-") {
                return Err(format!("header `{name}` says who asks, so a method cannot set it"));
            }
            headers.push((name, pieces(value, params)?));
        }
        let body = config.body.as_deref().map(|body| parts_of_json(body, params)).transpose()?;
        if body.is_some() && matches!(verb, Method::GET | Method::DELETE) {
            return Err(format!("a `body` with {verb}, which servers do not read: write POST, PUT or PATCH"));
        }
        let all = path.iter().chain(query.iter().map(|(_, value)| value)).chain(headers.iter().map(|(_, value)| value));
        let used: Vec<usize> = all.chain(&body).flatten().filter_map(position).collect();
        if let Some(unused) = (0..params.len()).find(|at| !used.contains(at)).and_then(|at| params.get(at)) {
            return Err(format!("parameter `{}` is nowhere in the request: use it, or remove it", unused.name()));
        }
        Ok(Self { verb, path, query, headers, body, params: params.to_vec(), output })
    }

    pub(super) fn fill(&self, params: Option<&RawValue>) -> Result<Request, String> {
        let values = given(&self.params, params)?;
        let mut target = String::new();
        for segment in &self.path {
            target.push('/');
            target.push_str(&self.segment(segment, &values)?);
        }
        let mut sign = '?';
        for (name, value) in &self.query {
            if let Some(value) = self.text(value, &values, |text| utf8_percent_encode(text, VALUE).to_string())? {
                target.push(std::mem::replace(&mut sign, '&'));
                target.push_str(name);
                target.push('=');
                target.push_str(&value);
            }
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            if let Some(value) = self.text(value, &values, str::to_owned)? {
                let value = header_value(&value);
                let value = value.ok_or("a parameter has a character that is not allowed, or a space at either end")?;
                headers.insert(name.clone(), value);
            }
        }
        if self.output == BackendOutput::Text {
            headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        }
        let body = match &self.body {
            Some(body) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                body.iter().map(|piece| json(piece, &values)).collect::<String>()
            }
            None => String::new(),
        };
        Ok(Request { target: Some(target), headers, body: Bytes::from(body), ..Request::bare(self.verb.clone()) })
    }

    /// A path segment.
    fn segment(&self, pieces: &[Piece], values: &Values) -> Result<String, String> {
        // Most servers decode a path before they split it, and some proxies decode it as well. What would then be a separator is refused,
        // not encoded.
        if let Some(value) = self.text(pieces, values, str::to_owned)?
            && pieces.iter().any(|piece| position(piece).is_some())
            && (value.is_empty()
                // Some servers take what follows a semicolon, say, for a parameter, and remove it before they look at dots.
                || (value.starts_with('.') && !value.trim_start_matches('.').starts_with(char::is_alphanumeric))
                || value.contains(|c: char| matches!(c, '/' | '\\' | '%' | '?' | '#') || c.is_control()))
        {
            return Err(
                "a parameter cannot be a part of the path: it is empty, begins with dots and no letter or digit behind them, or has `/`, \
                        `\\`, `%`, `?`, `#` or a control character"
                    .to_owned(),
            );
        }
        let encoded =
            self.pieces(pieces, values, |text| utf8_percent_encode(text, VALUE).to_string(), str::to_owned)?;
        Ok(encoded.unwrap_or_default())
    }

    /// A text with its parameters filled in, encoded as a whole; `None` if the call leaves one of them out.
    fn text(&self, pieces: &[Piece], values: &Values, encode: fn(&str) -> String) -> Result<Option<String>, String> {
        self.pieces(pieces, values, encode, encode)
    }

    fn pieces(
        &self,
        pieces: &[Piece],
        values: &Values,
        encode: fn(&str) -> String,
        literal: fn(&str) -> String,
    ) -> Result<Option<String>, String> {
        let mut filled = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(text) => filled.push_str(&literal(text)),
                Piece::Param(at) => {
                    let value = values.get(*at).and_then(Option::as_deref);
                    let (Some(param), Some(value)) = (self.params.get(*at), value) else { return Ok(None) };
                    filled.push_str(&encode(&text(param, value)?));
                }
            }
        }
        Ok(Some(filled))
    }
}

fn position(piece: &Piece) -> Option<usize> {
    match piece {
        Piece::Param(at) => Some(*at),
        Piece::Text(_) => None,
    }
}

fn part_of_path(segment: &str, params: &[Param]) -> Result<Vec<Piece>, String> {
    let pieces = pieces(segment, params)?;
    let mut used = pieces.iter().filter_map(position).filter_map(|at| params.get(at)).peekable();
    if used.peek().is_some() && segment.contains('%') {
        return Err(format!("`{segment}`: a `%` beside a parameter could make something else of it"));
    }
    match used.find(|param| param.is_optional()) {
        Some(param) => Err(format!("`{}` is in the path, and so cannot be optional", param.name())),
        None => Ok(pieces),
    }
}

/// A piece of a body as JSON.
fn json<'a>(piece: &'a Piece, values: &'a Values) -> &'a str {
    match piece {
        Piece::Text(text) => text,
        Piece::Param(at) => values.get(*at).and_then(Option::as_deref).map_or("null", RawValue::get),
    }
}

/// Parses a body such as `{"city": {city}, "days": 3}`, where a parameter stands for a whole value.
fn parts_of_json(body: &str, params: &[Param]) -> Result<Vec<Piece>, String> {
    let wrong = |why: String| format!("`body`: {why}");
    let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), body);
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let param = params.iter().position(|param| {
            let behind = rest.strip_prefix('{').and_then(|rest| rest.strip_prefix(param.name()));
            behind.is_some_and(|behind| behind.starts_with('}'))
        });
        let length = match param.and_then(|at| Some((at, params.get(at)?))) {
            Some((_, param)) if in_string => {
                let name = param.name();
                return Err(wrong(format!("`{{{name}}}` stands for a whole value: write it without quotes")));
            }
            Some((at, param)) => {
                parts.push(Piece::Text(std::mem::take(&mut text)));
                parts.push(Piece::Param(at));
                param.name().len() + 2
            }
            None => {
                let escaped = in_string && c == '\\';
                in_string ^= c == '"';
                let length = c.len_utf8() + if escaped { rest.chars().nth(1).map_or(0, char::len_utf8) } else { 0 };
                text.push_str(rest.get(..length).unwrap_or_default());
                length
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    parts.push(Piece::Text(text));
    let sample: String = parts.iter().map(|piece| json(piece, &Vec::new()).to_owned()).collect();
    match serde_json::from_str::<IgnoredAny>(&sample) {
        Ok(_) => Ok(parts),
        Err(error) => Err(wrong(format!(
            "`{}` is no JSON with declared parameters as whole values, `{{\"city\": {{city}}}}`: {error}",
            body.escape_debug()
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use sealwire::decide::ParamType;
    use serde_json::{Value, json};

    fn declared() -> Vec<Param> {
        vec![
            Param::string("city"),
            Param::string("tag").optional(),
            Param::integer("days").optional(),
            Param::new("order", ParamType::Any).optional(),
        ]
    }

    fn read(config: Value, params: &[Param]) -> Result<Rest, String> {
        Rest::read(&serde_json::from_value(config).unwrap(), params, BackendOutput::Json)
    }

    fn rest() -> Rest {
        let config = json!({
            "verb": "POST", "path": "/w%20x/{city}/at-{city}.json",
            "query": { "tag&a": "x{tag}", "days": "{days}" }, "headers": { "X-Tag": "{tag}" },
            "body": r#"{"order": {order}, "c\"{": [{city}, {days}], "n": "{x}"}"#,
        });
        read(config, &declared()).unwrap()
    }

    fn filled(params: Value) -> Result<Request, String> {
        rest().fill(Some(&to_raw(&params)))
    }

    fn to_raw(value: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(value).unwrap()
    }

    #[test]
    fn a_request_is_made_of_declared_parameters_at_their_places() {
        let request =
            filled(json!({ "city": "Köln am Rhein", "tag": "a&b=c#d+e;f", "days": -3, "order": { "a": [1] } }))
                .unwrap();
        assert_eq!(
            request.target.unwrap(),
            "/w%20x/K%C3%B6ln%20am%20Rhein/at-K%C3%B6ln%20am%20Rhein.json?days=-3&tag%26a=xa%26b%3Dc%23d%2Be%3Bf"
        );
        assert_eq!(request.headers["x-tag"], "a&b=c#d+e;f");
        assert_eq!(request.body, r#"{"order": {"a":[1]}, "c\"{": ["Köln am Rhein", -3], "n": "{x}"}"#);
        // An argument that is left out takes its query parameter and its header with it, and is null in a body.
        let request = filled(json!(["a"])).unwrap();
        assert_eq!(request.target.unwrap(), "/w%20x/a/at-a.json");
        assert!(request.headers.get("x-tag").is_none());
        assert_eq!(request.body, r#"{"order": null, "c\"{": ["a", null], "n": "{x}"}"#);
        // Numbers are passed on unchanged, however large.
        let raw = RawValue::from_string(r#"["a", null, 1, 123456789012345678901234567890.10]"#.to_owned()).unwrap();
        let request = rest().fill(Some(&raw)).unwrap();
        assert!(request.body.starts_with(br#"{"order": 123456789012345678901234567890.10,"#));
    }

    #[test]
    fn no_parameter_changes_the_path_adds_a_parameter_or_ends_a_header() {
        for path in [
            "", ".", "..", "a/b", "/", "..\\..", "%2e%2e", "%2f", "a%", "a\nb", "a\0", "\u{7f}", "\u{85}", ".;",
            "..;a=b", "alice?", "..?", "a#b", "...", "..+", ".-",
        ] {
            assert!(filled(json!({ "city": path })).is_err(), "{path:?}");
        }
        let long = "x".repeat(5_000);
        for params in
            [json!({ "city": long }), json!({ "city": 5 }), json!({}), json!({ "city": "a", "x": 1 }), json!(5)]
        {
            assert!(filled(params.clone()).is_err(), "{params}");
        }
        for tag in ["a\r\nX-Admin: 1", "a\n", " a", "\u{1}"] {
            assert!(filled(json!({ "city": "a", "tag": tag })).is_err(), "{tag:?}");
        }
        // Dots before a letter or a digit are harmless.
        let target = filled(json!({ "city": "..a" })).unwrap().target.unwrap();
        assert_eq!(target, "/w%20x/..a/at-..a.json");
        // Two harmless halves can make a bad segment.
        let halves = read(json!({ "path": "/{a}{b}" }), &[Param::string("a"), Param::string("b")]).unwrap();
        assert!(halves.fill(Some(&to_raw(&json!([".", "."])))).is_err());
        assert!(halves.fill(Some(&to_raw(&json!(["", ""])))).is_err());
        assert!(halves.fill(Some(&to_raw(&json!(["", "x"])))).is_ok());
    }

    #[test]
    fn a_description_with_a_mistake_is_refused_with_what_to_do() {
        let city = [Param::string("city")];
        for (config, said) in [
            (json!({ "path": "x/{city}" }), "is no path"),
            (json!({ "path": "/a?b={city}" }), "is no path"),
            (json!({ "path": "//evil.example/{town}" }), "no parameter `town`"),
            (json!({ "path": "/a" }), "`city` is nowhere"),
            (json!({ "path": "/a%2{city}" }), "a `%` beside"),
            (json!({ "path": "/{city}", "headers": { "Authorization": "x" } }), "says who asks"),
            (json!({ "path": "/{city}", "headers": { "Host": "x" } }), "belongs to the connection"),
            (json!({ "path": "/{city}", "body": "{}" }), "a `body` with GET"),
            (json!({ "verb": "POST", "path": "/", "body": "{\"a\": \"{city}\"}" }), "without quotes"),
            (json!({ "verb": "POST", "path": "/", "body": "{{city}: 1}" }), "no JSON"),
            (json!({ "verb": "POST", "path": "/", "body": "{\"a\": {town}, \"b\": {city}}" }), "no JSON"),
        ] {
            let error = read(config.clone(), &city).unwrap_err();
            assert!(error.contains(said), "{config}: {error}");
        }
        let optional = read(json!({ "path": "/{city}" }), &[Param::string("city").optional()]).unwrap_err();
        assert!(optional.contains("cannot be optional"), "{optional}");
    }
}
