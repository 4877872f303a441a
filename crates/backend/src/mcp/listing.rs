//! What a server says it can do: reads its lists of tools and prompts, page by page, within bounds.
//! Never accepts two of one name, which could not be told apart, and never lets a bad entry stand for the good ones beside it.

use std::collections::{BTreeMap, BTreeSet};

use sealwire::internal::rpc::strict_value;
use sealwire::serve::Description;
use sealwire_mcp::headers::{MirroredArgument, mirrored};
use sealwire_mcp::{Members, insert};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::entry::{self, Entry};
use super::session::Session;
use super::types::Refusal;
use crate::exact;
use crate::pins::{Kind, Pin};
use crate::schema::{Schema, SchemaError, apart};

/// A tool or prompt as its server describes it.
#[derive(Debug, Clone)]
pub struct Definition {
    /// What it is.
    pub kind: Kind,
    /// The server's name for it.
    pub name: String,
    /// What it does, in the server's words.
    pub description: Option<String>,
    /// Its place in the server's list.
    pub(super) place: usize,
    /// The whole definition for the lock file, or why it has no digest.
    pub pin: Result<Pin, String>,
    /// What calls of a tool are checked against, or why it cannot be used.
    pub(super) usable: Result<Option<Schemas>, String>,
    /// What of its schemas is not checked, or why they cannot be compiled, if that was tried.
    pub(super) tried: Option<Result<Vec<String>, String>>,
}

/// What a server lists.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Listing {
    /// Its tools and prompts.
    pub definitions: Vec<Definition>,
    /// What else is in the lists, without a name to be known by: where, and what is wrong with it.
    pub nameless: Vec<String>,
}

/// One list of a server, by name.
#[derive(Debug, Default)]
pub(super) struct ServerList {
    pub(super) all: BTreeMap<String, Definition>,
    pub(super) nameless: Vec<String>,
}

impl Definition {
    /// Why it cannot be used, approved or not.
    pub fn fault(&self) -> Option<&str> {
        self.usable.as_ref().err().or(self.pin.as_ref().err()).map(String::as_str)
    }

    /// What of it is left to the server to check, if that was tried: patterns that are not understood here.
    #[must_use]
    pub fn unchecked(&self) -> &[String] {
        self.tried.as_ref().and_then(|tried| tried.as_ref().ok()).map_or(&[], Vec::as_slice)
    }

    /// The schemas of a tool, or why it has none.
    pub(super) fn schemas(&self) -> Result<&Schemas, String> {
        self.usable.as_ref().map_err(Clone::clone)?.as_ref().ok_or_else(|| "it is no tool".to_owned())
    }

    /// Finds faults that show only when its schemas are compiled, which is not done for tools that are merely listed.
    pub(super) fn try_out(&mut self) {
        if let Ok(Some(schemas)) = &self.usable {
            let found = schemas.try_out().map_err(|fault| fault.to_string());
            self.found(found);
        }
    }

    /// Records the result of trying it out.
    pub(super) fn found(&mut self, found: Result<Vec<String>, String>) {
        if let Err(fault) = &found {
            self.usable = Err(fault.clone());
        }
        self.tried = Some(found);
    }

    /// What callers are told of it: its schemas, and what an MCP gateway passes on unchanged; `None` if it cannot be used. Made on demand:
    /// as values, schemas take several times the memory of their text.
    pub(super) fn about(&self) -> Option<Description> {
        #[derive(Deserialize)]
        struct DescriptionMembers {
            title: Option<Value>,
            annotations: Option<Value>,
            icons: Option<Value>,
        }
        let (Ok(pin), Ok(schemas)) = (&self.pin, self.schemas()) else { return None };
        let value = |schema: &Schema| exact::value(schema.text().get()).ok();
        let mut about = self.description.as_ref().map(Description::new).unwrap_or_default();
        about = about.params(value(&schemas.arguments)?);
        let DescriptionMembers { title, annotations, icons } = serde_json::from_str(&pin.definition).ok()?;
        let handed_on = [("title", title), ("annotations", annotations), ("icons", icons)];
        let mut extension: Map<String, Value> =
            handed_on.into_iter().filter_map(|(member, value)| Some((member.to_owned(), value?))).collect();
        match &schemas.result {
            Some(schema) => {
                about = about.result(value(schema)?);
                extension.insert("result".to_owned(), "structured".into());
            }
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
    pub(super) mirrored: Vec<MirroredArgument>,
}

impl Schemas {
    /// Checks that they can be compiled, and says what of them is not checked; keeps nothing.
    pub(super) fn try_out(&self) -> Result<Vec<String>, ToolSchemaError> {
        let Self { arguments, result, .. } = self;
        let mut unchecked = arguments.try_out().map_err(|error| ToolSchemaError { member: "inputSchema", error })?;
        let result = result.as_ref().map_or_else(|| Ok(Vec::new()), Schema::try_out);
        unchecked.extend(result.map_err(|error| ToolSchemaError { member: "outputSchema", error })?);
        Ok(unchecked)
    }
}

/// Why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("`{member}`: {error}")]
pub(super) struct ToolSchemaError {
    member: &'static str,
    pub(super) error: SchemaError,
}

/// The most pages, entries and bytes of a list.
const PAGES: usize = 100;
const ENTRIES: usize = 1_000;
const BYTES: usize = 8 << 20;
/// The most bytes of one definition.
const DEFINITION: usize = 256 * 1024;
/// The longest name, in bytes; MCP advises 128 characters.
const NAME: usize = 256;
/// The most remarks about a tool.
const REMARKS: usize = 8;

impl Kind {
    /// The member of the answer that has the list.
    fn list(self) -> &'static str {
        match self {
            Self::Tool => "tools",
            Self::Prompt => "prompts",
        }
    }
}

/// All tools or prompts of a server, by name.
///
/// # Errors
/// Why they cannot be listed, for the log.
pub(super) async fn list(session: &Session, kind: Kind) -> Result<ServerList, String> {
    let request = format!("{}/list", kind.list());
    let (mut listed, mut pages) = (ServerList::default(), BTreeMap::new());
    let (mut cursor, mut cursors, mut bytes, mut entries) = (None::<Box<RawValue>>, BTreeSet::new(), 0, 0);
    for number in 0..PAGES {
        let mut params = Members::new();
        if let Some(cursor) = &cursor {
            insert(&mut params, "cursor", cursor);
        }
        let result = session.ask(&request, params).await.map_err(|error| format!("`{request}`: {error}"))?;
        bytes += result.get().len();
        if bytes > BYTES {
            return Err(too_many(kind));
        }
        let (room, first, is_over_http) = (ENTRIES - entries, entries, session.is_over_http());
        // A page can be a megabyte of schemas.
        let page = apart::READING.run(move || page(&result, kind, (room, first), is_over_http)).await;
        let Page { found, next, wrong } =
            page.and_then(|page| page).map_err(|wrong| format!("`{request}`: {wrong}"))?;
        entries += found.len();
        for found in found {
            match found {
                Ok(definition) => listed.add(definition, number, &mut pages),
                Err(wrong) => listed.nameless.push(wrong),
            }
        }
        listed.nameless.extend(wrong);
        let Some(next) = next else { return Ok(listed) };
        if !cursors.insert(next.get().to_owned()) {
            listed.nameless.push("it says the same `nextCursor` again: no further page was asked for".to_owned());
            return Ok(listed);
        }
        cursor = Some(next);
    }
    Err(format!("it lists its {} on more than {PAGES} pages", kind.list()))
}

/// A digest of the resources and templates that a server lists, up to the bounds of a list.
///
/// # Errors
/// Why they cannot be listed, for the log.
pub(super) async fn resources(session: &Session) -> Result<String, String> {
    let mut digest = Sha256::new();
    for list in ["resources", "resourceTemplates"] {
        let request = if list == "resources" { "resources/list" } else { "resources/templates/list" };
        let (mut cursor, mut bytes) = (None::<Box<RawValue>>, 0);
        for _ in 0..PAGES {
            let mut params = Members::new();
            if let Some(cursor) = &cursor {
                insert(&mut params, "cursor", cursor);
            }
            let result = match session.ask(request, params).await {
                Ok(result) => result,
                // Few servers have templates.
                Err(Refusal::Server(_)) if list == "resourceTemplates" => break,
                Err(refusal) => return Err(format!("`{request}`: {refusal}")),
            };
            bytes += result.get().len();
            let members = entry::members(&result).ok_or_else(|| format!("`{request}`: its answer is no object"))?;
            for entry in entry::entries(&members, list)? {
                digest.update(entry.get().len().to_be_bytes());
                digest.update(entry.get());
            }
            let next = entry::cursor(&members).unwrap_or_default().map(ToOwned::to_owned);
            if bytes > BYTES
                || next.is_none()
                || next.as_ref().map(|next| next.get()) == cursor.as_deref().map(RawValue::get)
            {
                break;
            }
            cursor = next;
        }
        digest.update([0]);
    }
    Ok(hex(&digest.finalize()))
}

/// A digest of the definitions of prompts.
pub(super) fn digest_of(prompts: &[Definition]) -> String {
    let mut digest = Sha256::new();
    for pin in prompts.iter().filter_map(|prompt| prompt.pin.as_ref().ok()) {
        digest.update(pin.digest.as_bytes());
    }
    hex(&digest.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ServerList {
    /// Adds what stands on a page. A server whose list changes meanwhile may say the same on the next page again.
    fn add(&mut self, definition: Definition, page: usize, pages: &mut BTreeMap<String, usize>) {
        let Some(known) = self.all.get_mut(&definition.name) else {
            pages.insert(definition.name.clone(), page);
            let place = self.all.len();
            self.all.insert(definition.name.clone(), Definition { place, ..definition });
            return;
        };
        let is_again = pages.get(&definition.name).is_some_and(|first| *first < page)
            && known.pin.as_ref().ok().is_some_and(|pin| definition.pin.as_ref().ok() == Some(pin));
        if !is_again {
            known.usable = Err(format!("the server lists two {} of this name", definition.kind.list()));
        }
    }
}

struct Page {
    /// Each entry, or what is wrong with one that has no name.
    found: Vec<Result<Definition, String>>,
    next: Option<Box<RawValue>>,
    /// What is wrong with the page itself.
    wrong: Option<String>,
}

/// A page, of which `room` entries may be used; the first is this one of the whole list.
fn page(text: &RawValue, kind: Kind, (room, first): (usize, usize), is_over_http: bool) -> Result<Page, String> {
    let members = entry::members(text).ok_or("its answer is no object")?;
    let list = kind.list();
    let entries = entry::entries(&members, list)?;
    if entries.len() > room {
        return Err(too_many(kind));
    }
    let read = |(position, raw): (usize, &RawValue)| {
        read(raw, kind, is_over_http).map_err(|wrong| format!("entry {} of `{list}`: {wrong}", first + position + 1))
    };
    let found = entries.into_iter().enumerate().map(read).collect();
    let (next, wrong) = match entry::cursor(&members) {
        Ok(next) => (next.map(ToOwned::to_owned), None),
        Err(wrong) => (None, Some(wrong)),
    };
    Ok(Page { found, next, wrong })
}

fn too_many(kind: Kind) -> String {
    format!("it lists more than {ENTRIES} {}, or more than {BYTES} bytes of them", kind.list())
}

/// Reads one tool or prompt.
///
/// # Errors
/// It has no name; says what is wrong with it.
pub(super) fn read(raw: &RawValue, kind: Kind, is_over_http: bool) -> Result<Definition, String> {
    let entry = Entry::of(raw)?;
    let name = entry.required("name")?;
    if name.len() > NAME {
        let begin: String = name.chars().take(40).collect();
        return Err(format!("its `name` has more than {NAME} bytes: `{begin}…`"));
    }
    let usable = if raw.get().len() > DEFINITION {
        Err(format!("it has more than {DEFINITION} bytes"))
    } else {
        strict_value(raw.get()).map_err(|flaw| format!("its definition {flaw}")).and_then(|_| match kind {
            Kind::Tool => tool(&entry, is_over_http).map(Some),
            Kind::Prompt => prompt(&entry).map(|()| None),
        })
    };
    let description = entry.text("description").ok().flatten();
    Ok(Definition { kind, name, description, place: 0, pin: Pin::of(raw), usable, tried: None })
}

fn tool(entry: &Entry<'_>, is_over_http: bool) -> Result<Schemas, String> {
    entry.text("title")?;
    entry.text("description")?;
    if let Some(annotations) = entry.object("annotations")? {
        annotations.text("title").map_err(|wrong| format!("`annotations`: {wrong}"))?;
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            annotations.truth(hint).map_err(|wrong| format!("`annotations`: {wrong}"))?;
        }
    }
    let schema = |member| {
        let Some(schema) = entry.object(member)? else { return Ok(None) };
        Schema::read(schema.raw()).map(Some).map_err(|error| format!("`{member}`: {error}"))
    };
    let arguments = schema("inputSchema")?.ok_or("it has no `inputSchema`")?;
    let result = schema("outputSchema")?;
    // Only once its depth is known to be bounded.
    let mirrored = match is_over_http.then(|| exact::value(arguments.text().get())) {
        Some(Ok(schema)) => mirrored(&schema).map_err(|error| error.to_string())?,
        _ => Vec::new(),
    };
    Ok(Schemas { arguments, result, mirrored })
}

fn prompt(entry: &Entry<'_>) -> Result<(), String> {
    entry.text("title")?;
    entry.text("description")?;
    let mut names = BTreeSet::new();
    for (position, raw) in entry.list("arguments")?.unwrap_or_default().into_iter().enumerate() {
        let argument = || {
            let argument = Entry::of(raw)?;
            argument.text("title")?;
            argument.text("description")?;
            argument.truth("required")?;
            argument.required("name")
        };
        let name = argument().map_err(|wrong| format!("entry {} of its `arguments`: {wrong}", position + 1))?;
        if !names.insert(name) {
            return Err("two of its `arguments` have one name".to_owned());
        }
    }
    Ok(())
}
