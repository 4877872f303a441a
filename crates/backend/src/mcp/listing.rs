//! What a server says it can do: reads `tools/list`, page by page, within bounds.
//! Never accepts two tools of one name: they could not be told apart.

use std::collections::BTreeMap;

use sealwire::service::Description;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::headers::{Mirrored, mirrored};
use super::session::{Members, Session, insert};
use crate::pins::Pin;
use crate::schema::{Schema, SchemaError, apart};

/// A tool as its server describes it.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The server's name for it.
    pub name: String,
    /// What it does, in the server's words.
    pub description: Option<String>,
    /// The whole definition for the lock file, or why it has no digest.
    pub pin: Result<Pin, String>,
    /// What calls are checked against, or why there can be no calls.
    pub(super) usable: Result<Schemas, String>,
    /// Whether its schemas can be compiled, if that was tried.
    pub(super) tried: Option<Result<(), String>>,
}

impl Definition {
    /// Why it cannot be used, approved or not.
    pub fn fault(&self) -> Option<&str> {
        self.pin.as_ref().err().or(self.usable.as_ref().err()).map(String::as_str)
    }

    /// Finds faults that show only when its schemas are compiled, which is not done for tools that are merely listed.
    pub(crate) fn try_out(&mut self) {
        if let Ok(schemas) = &self.usable {
            let found = schemas.try_out().map_err(|fault| fault.to_string());
            self.found(found);
        }
    }

    /// Records the result of trying it out.
    pub(super) fn found(&mut self, found: Result<(), String>) {
        if let Err(fault) = &found {
            self.usable = Err(fault.clone());
        }
        self.tried = Some(found);
    }

    /// What callers are told of it: its schemas, and what an MCP door passes on unchanged; `None` if it cannot be used. Made on demand: as
    /// values, schemas take several times the memory of their text.
    pub(super) fn about(&self) -> Option<Description> {
        #[derive(Deserialize)]
        struct HandedOn {
            title: Option<Value>,
            annotations: Option<Value>,
        }
        let (Ok(pin), Ok(schemas)) = (&self.pin, &self.usable) else { return None };
        let value = |schema: &Schema| serde_json::from_str::<Value>(schema.text().get()).ok();
        let mut about = self.description.as_ref().map(Description::new).unwrap_or_default();
        about = about.params(value(&schemas.arguments)?);
        let HandedOn { title, annotations } = serde_json::from_str(&pin.definition).ok()?;
        let handed_on = [("title", title), ("annotations", annotations)];
        let mut extension: Map<String, Value> =
            handed_on.into_iter().filter_map(|(member, value)| Some((member.to_owned(), value?))).collect();
        match &schemas.result {
            Some(schema) => about = about.result(value(schema)?),
            None => {
                let content = json!({ "type": "object", "properties": { "content": { "type": "array" } } });
                about = about.result(content);
                extension.insert("result".to_owned(), "content".into());
            }
        }
        Some(if extension.is_empty() { about } else { about.extension("x-mcp", extension) })
    }

    /// What the server says of its effects (`annotations`, such as `destructiveHint: true`), and why it cannot be used.
    pub(super) fn remarks(&self) -> Vec<String> {
        let whole = self.pin.as_ref().ok().and_then(|pin| serde_json::from_str::<Value>(&pin.definition).ok());
        let annotations = whole.as_ref().and_then(|whole| whole.get("annotations")?.as_object());
        let hints =
            annotations.into_iter().flatten().filter(|(name, value)| name.ends_with("Hint") && value.is_boolean());
        let hints = hints.map(|(name, value)| format!("{name}: {value}"));
        hints.chain(self.fault().map(|fault| format!("cannot be used: {fault}"))).take(REMARKS).collect()
    }
}

/// The schemas of a tool.
#[derive(Debug, Clone)]
pub(super) struct Schemas {
    pub(super) arguments: Schema,
    pub(super) result: Option<Schema>,
    /// Arguments that the head of a request repeats, over HTTP.
    pub(super) mirrored: Mirrored,
}

impl Schemas {
    /// Checks that they can be compiled; keeps nothing.
    pub(super) fn try_out(&self) -> Result<(), SchemaFault> {
        let Self { arguments, result, .. } = self;
        arguments.try_out().map_err(|error| SchemaFault { member: "inputSchema", error })?;
        let result = result.as_ref().map_or(Ok(()), Schema::try_out);
        result.map_err(|error| SchemaFault { member: "outputSchema", error })
    }
}

/// Why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("`{member}`: {error}")]
pub(super) struct SchemaFault {
    member: &'static str,
    pub(super) error: SchemaError,
}

/// The most pages, tools and bytes of a listing.
const PAGES: usize = 100;
const TOOLS: usize = 1_000;
const BYTES: usize = 8 << 20;
/// The longest tool name, in bytes; MCP advises 128 characters.
const NAME: usize = 256;
/// The most remarks about a tool.
const REMARKS: usize = 8;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow)]
    tools: Vec<&'a RawValue>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described<'a> {
    name: String,
    description: Option<String>,
    #[serde(borrow)]
    input_schema: &'a RawValue,
    #[serde(borrow)]
    output_schema: Option<&'a RawValue>,
}

/// All tools of a server, by name.
///
/// # Errors
/// Why they cannot be listed, for the log.
pub(super) async fn tools(session: &Session) -> Result<BTreeMap<String, Definition>, String> {
    let mut found: BTreeMap<String, Definition> = BTreeMap::new();
    let (mut cursor, mut bytes) = (None::<String>, 0);
    for _ in 0..PAGES {
        let mut params = Members::new();
        if let Some(cursor) = &cursor {
            insert(&mut params, "cursor", cursor);
        }
        let result = session.ask("tools/list", params).await.map_err(|error| format!("`tools/list`: {error}"))?;
        bytes += result.get().len();
        if bytes > BYTES {
            return Err(too_many());
        }
        let (room, is_over_http) = (TOOLS - found.len(), session.is_over_http());
        // A page can be a megabyte of schemas.
        let page = apart::READING.run(move || page(&result, room, is_over_http)).await;
        let (definitions, next) = page.and_then(|page| page)?;
        for definition in definitions {
            if let Some(known) = found.get_mut(&definition.name) {
                known.usable = Err("the server lists two tools of this name".to_owned());
            } else {
                found.insert(definition.name.clone(), definition);
            }
        }
        cursor = next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
    Err(format!("it lists its tools on more than {PAGES} pages"))
}

/// The tools of a page, and the cursor of the next one.
fn page(text: &RawValue, room: usize, is_over_http: bool) -> Result<(Vec<Definition>, Option<String>), String> {
    let page: Page<'_> = serde_json::from_str(text.get()).map_err(|error| format!("`tools/list`: {error}"))?;
    if page.tools.len() > room {
        return Err(too_many());
    }
    let definitions = page.tools.into_iter().map(|raw| read(raw, is_over_http)).collect::<Result<_, _>>()?;
    Ok((definitions, page.next_cursor))
}

fn too_many() -> String {
    format!("it lists more than {TOOLS} tools, or more than {BYTES} bytes of them")
}

/// Reads one tool.
///
/// # Errors
/// It is not a tool; says why, for the log.
pub(super) fn read(raw: &RawValue, is_over_http: bool) -> Result<Definition, String> {
    let described: Described<'_> =
        serde_json::from_str(raw.get()).map_err(|error| format!("`tools/list`: a tool cannot be read: {error}"))?;
    if described.name.len() > NAME {
        return Err(format!("`tools/list`: a tool has a name of more than {NAME} bytes"));
    }
    let arguments = Schema::read(described.input_schema).map_err(|error| format!("`inputSchema`: {error}"));
    let result =
        described.output_schema.map(Schema::read).transpose().map_err(|error| format!("`outputSchema`: {error}"));
    let whole: Value = serde_json::from_str(raw.get()).map_err(|error| format!("`tools/list`: {error}"))?;
    // Only once its depth is known to be bounded.
    let asked = |_: &Schema| {
        if is_over_http { mirrored(whole.get("inputSchema").unwrap_or(&Value::Null)) } else { Ok(Mirrored::new()) }
    };
    let usable = arguments.and_then(|arguments| {
        let mirrored = asked(&arguments)?;
        Ok(Schemas { arguments, result: result?, mirrored })
    });
    let Described { name, description, .. } = described;
    let pin = Pin::of(&whole).map_err(|error| error.to_string());
    Ok(Definition { name, description, pin, usable, tried: None })
}
