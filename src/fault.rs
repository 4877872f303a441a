//! What is wrong with a file that may hold secrets, and where: position, member and what was expected.
//! Never quotes the file, as parsers do: a value or a name in the wrong place may be a secret.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};
#[cfg(feature = "service")]
use toml::{Spanned, de::DeTable};

use crate::settings::Setting;
#[cfg(feature = "service")]
use crate::settings::Table;

/// A place in a file, and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// From 1.
    pub(crate) line: usize,
    /// From 1.
    pub(crate) column: usize,
    /// The member, if its name is one of ours, and what is wrong with it.
    pub(crate) reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.reason)
    }
}

/// Parses a JSON text.
pub(crate) fn json<'de, T: Deserialize<'de> + Setting>(text: &'de str) -> Result<T, Fault> {
    let fault = |error: &serde_json::Error, path: Option<&Path>| {
        let message = error.to_string();
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        let reason = match error.classify() {
            serde_json::error::Category::Data => of_data::<T>(message, path),
            serde_json::error::Category::Eof => "the text ends too early".to_owned(),
            serde_json::error::Category::Syntax | serde_json::error::Category::Io => {
                other_kind(text).map_or_else(|| "not JSON".to_owned(), |kind| format!("not JSON, but {kind}"))
            }
        };
        Fault { line: error.line(), column: error.column(), reason }
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| fault(error.inner(), Some(error.path())))?;
    deserializer.end().map_err(|error| fault(&error, None))?;
    Ok(value)
}

/// What a text is that was taken for one of our JSON files, if it is something that people have lying next to them.
fn other_kind(text: &str) -> Option<&'static str> {
    let text = text.trim_start();
    // Base64url, as of every token's header.
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let is_token = || {
        text.starts_with("eyJ") && text.trim_end().split('.').count() == 3 && text.trim_end().split('.').all(is_part)
    };
    let is_seed = || {
        text.starts_with('S')
            && text.trim_end().len() == 58
            && text.trim_end().bytes().all(|b| b.is_ascii_alphanumeric())
    };
    if text.contains("-----BEGIN NATS USER JWT-----") {
        Some(
            "a `.creds` file of NATS (a user's JWT and seed), which logs in to a broker and signs no calls: `sealwire keys new-agent` \
             and `keys request` make credentials, whose `nats.creds_file` may name it",
        )
    } else if text.starts_with("-----BEGIN ") {
        Some("PEM: a certificate or a key for TLS")
    } else if is_token() {
        Some("an access token: `token_file` of the credentials names it")
    } else if is_seed() {
        Some("an nkey seed of NATS: `nats.nkey_seed_file` of the credentials names it")
    } else if text.starts_with('<') {
        Some("a web page")
    } else if text.starts_with('[') && text.contains("]\n") || text.starts_with("environment =") {
        Some("TOML: is it the configuration?")
    } else {
        None
    }
}

/// Parses a TOML text: the keys of `B` at its top, and whatever else it has, for `A`.
#[cfg(feature = "service")]
pub(crate) fn toml<A, B>(text: &str) -> Result<(A, B), Fault>
where
    A: DeserializeOwned + Setting,
    B: DeserializeOwned + Setting,
{
    // The parser's own messages are fixed words; only what serde adds quotes the text.
    let parsed = DeTable::parse(text).map_err(|error| fault_of(text, &error, error.message().replace('\n', ", ")))?;
    let (span, mut rest, mut beside) = (parsed.span(), parsed.into_inner(), DeTable::new());
    for key in Table::of::<B>().keys {
        beside.extend(rest.remove_entry(key.name));
    }
    Ok((table(text, Spanned::new(span.clone(), rest))?, table(text, Spanned::new(span, beside))?))
}

#[cfg(feature = "service")]
fn table<T: DeserializeOwned + Setting>(text: &str, table: Spanned<DeTable<'_>>) -> Result<T, Fault> {
    serde_path_to_error::deserialize(toml::Deserializer::from(table))
        .map_err(|error| fault_of(text, error.inner(), of_data::<T>(error.inner().message(), Some(error.path()))))
}

#[cfg(feature = "service")]
fn fault_of(text: &str, error: &toml::de::Error, reason: String) -> Fault {
    let start = error.span().map_or(0, |span| span.start);
    let before = text.get(..start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    Fault { line: before.matches('\n').count() + 1, column, reason }
}

/// What serde says about a value that does not fit, without the value.
fn of_data<T: Setting>(message: &str, path: Option<&Path>) -> String {
    let within = |path, what: &str| within::<T>(path, what);
    let starts = |with: &[&str]| with.iter().any(|with| message.starts_with(with));
    // The names in these two are those of our own structures.
    if starts(&["missing field `", "duplicate field `"]) {
        return within(path, message);
    }
    let unknown = starts(&["unknown field `"]);
    let what = if unknown { "unknown member" } else { "a value of the wrong kind" };
    let known = unknown || starts(&["unknown variant `", "invalid type: ", "invalid value: ", "invalid length "]);
    // Whatever the value was, the expectation is our own text and comes last.
    match message.rsplit_once(", expected ").filter(|_| known) {
        Some((_, expected)) if expected.starts_with("struct ") => within(path, &format!("{what}, expected an object")),
        Some((_, "u8" | "u16" | "u32" | "u64" | "usize" | "i64")) => {
            within(path, &format!("{what}, expected a whole number"))
        }
        Some((_, expected)) => within(path, &format!("{what}, expected {expected}")),
        None => within(path, REASONS.into_iter().find(|reason| message.ends_with(reason)).unwrap_or(what)),
    }
}

/// How our own types end their message about a value they refuse. These endings contain nothing of the value.
const REASONS: [&str; 4] =
    ["is not a name: 1 to 64 of A-Z a-z 0-9 _ - are allowed", CLAIM_PATH_AS_TEXT, CLAIM_PATH_AS_NAMES, PATTERN];
/// Describes a claim path written as a string.
pub(crate) const CLAIM_PATH_AS_TEXT: &str = "a path of claims is 1 to 8 names of A-Z a-z 0-9 _ : - with dots in between; \
     write names with other characters as an array, [\"https://example.com/roles\"]";
/// Describes a claim path written as an array.
pub(crate) const CLAIM_PATH_AS_NAMES: &str = "a path of claims has 1 to 8 names of 1 to 128 visible ASCII characters";
/// Describes a string, or the beginning of one, to match.
pub(crate) const PATTERN: &str = "write 1 to 128 visible ASCII characters, with `*` nowhere but at the end";

/// What is wrong with a member. Its name is shown if the file's own structures have it: any other may be a secret in the wrong place.
fn within<T: Setting>(path: Option<&Path>, what: &str) -> String {
    let mut names = BTreeSet::new();
    T::kind().names(&mut names);
    let mut member = String::new();
    for segment in path.into_iter().flat_map(Path::iter) {
        match segment {
            Segment::Seq { index } => member.push_str(&format!("[{index}]")),
            Segment::Map { key } => {
                let dot = if member.is_empty() { "" } else { "." };
                member.push_str(dot);
                member.push_str(if names.contains(key.as_str()) { key } else { "…" });
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    if member.is_empty() { what.to_owned() } else { format!("`{member}`: {what}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::auth::KeyRingFile;
    use crate::config::Config;

    #[derive(Deserialize, Setting)]
    struct Nothing {}

    #[test]
    fn faults_of_json_have_a_place_and_a_member() {
        let told = |text: &str| json::<KeyRingFile>(text).unwrap_err().to_string();
        assert_eq!(told(r#"{"audience":"a/b"}"#), "line 1, column 18: missing field `keys`");
        assert_eq!(told("{\n\"audience\" 1}"), "line 2, column 12: not JSON");
        assert_eq!(told("{"), "line 1, column 1: the text ends too early");
        let kind = "a value of the wrong kind, expected a string";
        assert_eq!(told(r#"{"audience":1}"#), format!("line 1, column 13: `audience`: {kind}"));
        assert_eq!(told(r#"{"keys":[{"kid":5}]}"#), format!("line 1, column 17: `keys[0].kid`: {kind}"));
        assert!(told(r#"{"hunter2":1}"#).ends_with("unknown member, expected `audience` or `keys`"));
        let owner = told(r#"{"keys":[{"kid":"a","owner":"hunter 2"}]}"#);
        assert!(owner.contains("`keys[0].owner`: is not a name") && !owner.contains("hunter"), "{owner}");
    }

    #[test]
    fn faults_of_toml_have_a_place_and_a_member() {
        let told = |text: &str| toml::<Config, Nothing>(text).map(drop).unwrap_err().to_string();
        let wrong = told("environment = \"dev\"\nservice = \"a\"\n[nats]\nurls = \"nats://hunter2\"\n");
        assert_eq!(wrong, "line 4, column 8: `nats.urls`: a value of the wrong kind, expected a sequence");
        let number = told("environment = \"dev\"\nservice = \"a\"\n[replay]\nskew_s = \"5s\"\n");
        assert_eq!(number, "line 4, column 10: `replay.skew_s`: a value of the wrong kind, expected a whole number");
        let unknown = told("environment = \"dev\"\nhunter2 = \"secret\"\n");
        assert!(unknown.starts_with("line 2, column 1: ") && unknown.contains("unknown member, expected"), "{unknown}");
        let unquoted = told("environment = \"dev\"\nservice = hunter2\n");
        assert!(unquoted.starts_with("line 2, column 11: "), "{unquoted}");
        let issuer = |line: &str| {
            let before =
                "environment = \"dev\"\nservice = \"a\"\n[nats]\nurls = []\n[[tokens.issuer]]\nissuer = \"i\"\n";
            told(&format!("{before}{line}\n"))
        };
        let path = issuer("agent = { claim = \"hunter2/x\" }");
        assert!(path.contains("a path of claims is 1 to 8 names"), "{path}");
        let names = issuer("agent = { claim = [\"hunter2 x\"] }");
        assert!(names.contains("a path of claims has 1 to 8 names"), "{names}");
        let pattern = issuer("may = { agents = [\"hunter2*x\"] }");
        assert!(pattern.contains("`*` nowhere but at the end"), "{pattern}");
        for said in [unknown, unquoted, path, names, pattern] {
            assert!(!said.contains("hunter2") && !said.contains("secret\""), "{said}");
        }
    }
}
