//! The entries of a server's lists, and the members of each.
//! Never takes a value of another type for what was asked for; null is as good as nothing, which is how many servers write it.

use std::collections::BTreeMap;

use sealwire::internal::rpc::strict_value;
use sealwire_mcp::{Members, insert};
use serde_json::value::{RawValue, to_raw_value};

/// One entry.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    raw: &'a RawValue,
    members: BTreeMap<String, &'a RawValue>,
}

/// The members of an object; `None` if it is something else.
pub(super) fn members(raw: &RawValue) -> Option<BTreeMap<String, &RawValue>> {
    if raw.get().starts_with('{') { serde_json::from_str(raw.get()).ok() } else { None }
}

/// The entries of a list in an answer.
///
/// # Errors
/// There is no such list.
pub(super) fn entries<'a>(answer: &BTreeMap<String, &'a RawValue>, list: &str) -> Result<Vec<&'a RawValue>, String> {
    let raw = answer.get(list).ok_or_else(|| format!("its answer has no `{list}`"))?;
    items(raw).ok_or_else(|| format!("`{list}` in its answer is {}, not a list", what(raw)))
}

/// The cursor of the next page: a text, or a number, which some servers send. An empty text, as some write for none, is none.
///
/// # Errors
/// It is something else.
pub(super) fn cursor<'a>(answer: &BTreeMap<String, &'a RawValue>) -> Result<Option<&'a RawValue>, String> {
    match answer.get("nextCursor").copied() {
        None => Ok(None),
        Some(raw) => match raw.get().as_bytes().first() {
            Some(b'n') => Ok(None),
            Some(b'"') if raw.get() == "\"\"" => Ok(None),
            Some(b'"' | b'-' | b'0'..=b'9') => Ok(Some(raw)),
            _ => Err(format!("its `nextCursor` is {}: no further page was asked for", what(raw))),
        },
    }
}

fn items(raw: &RawValue) -> Option<Vec<&RawValue>> {
    if raw.get().starts_with('[') { serde_json::from_str(raw.get()).ok() } else { None }
}

/// What a value is, for people.
fn what(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(b't' | b'f') => "a truth value",
        Some(b'n') => "null",
        _ => "a number",
    }
}

impl<'a> Entry<'a> {
    pub(super) fn of(raw: &'a RawValue) -> Result<Self, String> {
        let members = members(raw).ok_or_else(|| format!("it is {}, not an object", what(raw)))?;
        Ok(Self { raw, members })
    }

    pub(super) fn raw(&self) -> &'a RawValue {
        self.raw
    }

    /// A member that is not null.
    fn member(&self, name: &str) -> Option<&'a RawValue> {
        self.members.get(name).copied().filter(|raw| raw.get() != "null")
    }

    fn of_type<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl Fn(&'a RawValue) -> Option<T>,
    ) -> Result<Option<T>, String> {
        match self.member(name) {
            None => Ok(None),
            Some(raw) => read(raw).map(Some).ok_or_else(|| format!("its `{name}` is {}, not {wanted}", what(raw))),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, String> {
        let text = |raw: &RawValue| raw.get().starts_with('"').then(|| serde_json::from_str::<String>(raw.get()));
        match self.of_type(name, "a text", text)? {
            Some(Err(_)) => Err(format!("its `{name}` is not Unicode text")),
            Some(Ok(text)) => Ok(Some(text)),
            None => Ok(None),
        }
    }

    /// A text that must be there.
    pub(super) fn required(&self, name: &str) -> Result<String, String> {
        match self.text(name)? {
            None => Err(format!("it has no `{name}`")),
            Some(text) if text.is_empty() => Err(format!("its `{name}` is empty")),
            Some(text) => Ok(text),
        }
    }

    pub(super) fn truth(&self, name: &str) -> Result<Option<bool>, String> {
        self.of_type(name, "true or false", |raw| raw.get().parse().ok())
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, String> {
        self.of_type(name, "an object", |raw| Self::of(raw).ok())
    }

    pub(super) fn list(&self, name: &str) -> Result<Option<Vec<&'a RawValue>>, String> {
        self.of_type(name, "a list", items)
    }
}

/// What stands before a cursor that is not a text, or that is a text which looks like that.
const JSON: &str = "json:";

/// A list of resources or templates with its good entries only, each without its members that are null, and what is wrong with the others.
/// The cursor is a text.
///
/// # Errors
/// There is no list.
pub(super) fn good(answer: &RawValue, list: &str, uri: &str) -> Result<(Box<RawValue>, Vec<String>), String> {
    let members = members(answer).ok_or("its answer is no object")?;
    let (mut kept, mut wrong) = (Vec::new(), Vec::new());
    for (position, raw) in entries(&members, list)?.into_iter().enumerate() {
        match resource(raw, uri) {
            Ok(entry) => kept.push(entry),
            Err(fault) => wrong.push(format!("entry {} of `{list}`: {fault}", position + 1)),
        }
    }
    let next = cursor(&members).unwrap_or_else(|fault| {
        wrong.push(fault);
        None
    });
    // What could be read in two ways is nothing that anybody needs of a list.
    let others =
        members.iter().filter(|(name, raw)| *name != list && *name != "nextCursor" && strict_value(raw.get()).is_ok());
    let mut answer: Members = others.map(|(name, raw)| (name.clone(), (*raw).to_owned())).collect();
    insert(&mut answer, list, &kept);
    if let Some(next) = next {
        let text = serde_json::from_str::<String>(next.get()).ok().filter(|text| !text.starts_with(JSON));
        insert(&mut answer, "nextCursor", &text.unwrap_or_else(|| format!("{JSON}{}", next.get())));
    }
    let answer = to_raw_value(&answer).map_err(|_| "its answer cannot be written")?;
    Ok((answer, wrong))
}

/// The cursor that the server meant by one that [`good`] has made.
pub(super) fn meant(cursor: &RawValue) -> Option<Box<RawValue>> {
    let text: String = serde_json::from_str(cursor.get()).ok()?;
    let json = text.strip_prefix(JSON)?;
    let is_cursor = json.starts_with(['"', '-']) || json.starts_with(|c: char| c.is_ascii_digit());
    RawValue::from_string(json.to_owned()).ok().filter(|_| is_cursor)
}

fn resource(raw: &RawValue, uri: &str) -> Result<Box<RawValue>, String> {
    let entry = Entry::of(raw)?;
    entry.required("name")?;
    entry.required(uri)?;
    strict_value(raw.get()).map_err(|flaw| format!("it {flaw}"))?;
    for text in ["title", "description", "mimeType"] {
        entry.text(text)?;
    }
    entry.object("annotations")?;
    entry.of_type("size", "a number", |raw| raw.get().starts_with(|c: char| c.is_ascii_digit()).then_some(()))?;
    let members: BTreeMap<&String, &&RawValue> = entry.members.iter().filter(|(_, raw)| raw.get() != "null").collect();
    to_raw_value(&members).map_err(|_| "it cannot be written".to_owned())
}
