//! What is wrong with a file that may hold secrets, and where: position, member and what was expected.
//! Never quotes the file, as parsers do: a value or a name in the wrong place may be a secret.

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};

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
pub(crate) fn json<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, Fault> {
    let fault = |error: &serde_json::Error, path: Option<&Path>| {
        let message = error.to_string();
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        let reason = match error.classify() {
            serde_json::error::Category::Data => of_data(message, path),
            serde_json::error::Category::Eof => "the text ends too early".to_owned(),
            serde_json::error::Category::Syntax | serde_json::error::Category::Io => "not JSON".to_owned(),
        };
        Fault { line: error.line(), column: error.column(), reason }
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer)
        .map_err(|error| fault(error.inner(), Some(error.path())))?;
    deserializer.end().map_err(|error| fault(&error, None))?;
    Ok(value)
}

/// Parses a TOML text.
#[cfg(feature = "service")]
pub(crate) fn toml<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    let fault = |error: &toml::de::Error, reason: String| {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        Fault { line: before.matches('\n').count() + 1, column, reason }
    };
    // The parser's own messages are fixed words; only what serde adds quotes the text.
    let parsed = toml::Deserializer::parse(text).map_err(|error| fault(&error, error.message().replace('\n', ", ")))?;
    serde_path_to_error::deserialize(parsed)
        .map_err(|error| fault(error.inner(), of_data(error.inner().message(), Some(error.path()))))
}

/// What serde says about a value that does not fit, without the value.
fn of_data(message: &str, path: Option<&Path>) -> String {
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

fn within(path: Option<&Path>, what: &str) -> String {
    let mut member = String::new();
    for segment in path.into_iter().flat_map(Path::iter) {
        match segment {
            Segment::Seq { index } => member.push_str(&format!("[{index}]")),
            Segment::Map { key } => {
                let dot = if member.is_empty() { "" } else { "." };
                member.push_str(dot);
                member.push_str(if MEMBERS.contains(&key.as_str()) { key } else { "…" });
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    if member.is_empty() { what.to_owned() } else { format!("`{member}`: {what}") }
}

/// The member names of our files. Any other name is not shown: it may be a secret in the wrong place.
const MEMBERS: &[&str] = &[
    "accept_plain_jwt_typ",
    "accept_symmetric",
    "agent",
    "agent_burst",
    "agent_in_flight",
    "agent_per_second",
    "agent_streams",
    "agents",
    "alg",
    "algorithm",
    "allow_plaintext",
    "answer_within_ms",
    "args",
    "attachment_bytes",
    "attachment_memory_bytes",
    "audience",
    "backend",
    "batch",
    "batch_concurrency",
    "before",
    "body",
    "claim",
    "command",
    "credential",
    "denylist",
    "description",
    "dir",
    "discovery",
    "drain_s",
    "env",
    "environment",
    "fail_closed_after_s",
    "file",
    "files",
    "folder",
    "format",
    "guard",
    "header",
    "headers",
    "health",
    "hints_per_second",
    "http",
    "http_on_loopback",
    "id",
    "in_flight",
    "inbox_prefix",
    "issuer",
    "jti",
    "jwks",
    "jwks_url",
    "keep_s",
    "key",
    "key_use",
    "keys",
    "kid",
    "kind",
    "leeway_s",
    "limits",
    "map",
    "max_lifetime_s",
    "may",
    "memory_mib",
    "method",
    "name",
    "nats",
    "nkey_seed",
    "nkey_seed_file",
    "not_after",
    "not_before",
    "open_files",
    "openid_configuration",
    "optional",
    "outcome_bytes",
    "outcomes",
    "output",
    "own",
    "owner",
    "params",
    "pass_env",
    "password",
    "password_file",
    "path",
    "per_agent",
    "policy",
    "prefix",
    "processes",
    "push",
    "query",
    "queue",
    "queue_bytes",
    "refresh_s",
    "reload",
    "replay",
    "replicas",
    "request_bytes",
    "require",
    "require_cnf",
    "response_bytes",
    "ring",
    "roles",
    "scheme",
    "secret",
    "seed",
    "send_caller",
    "service",
    "service_key",
    "service_keys",
    "skew_s",
    "state",
    "status",
    "stream",
    "stream_bytes",
    "stream_messages",
    "stream_response_bytes",
    "streams",
    "sub",
    "subjects",
    "timeout_s",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "token",
    "token_command",
    "token_file",
    "tokens",
    "tool",
    "total",
    "trust_groups",
    "trust_users",
    "typ",
    "type",
    "until",
    "url",
    "urls",
    "user",
    "verb",
    "version",
    "window_s",
    "x",
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::auth::KeyRingFile;
    use crate::config::Config;

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
        let told = |text: &str| toml::<Config>(text).unwrap_err().to_string();
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
