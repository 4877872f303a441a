//! The configuration of a guard stream: what is created, and whether an existing stream is exactly that. Never takes an
//! unknown member for harmless.

use serde_json::{Map, Value, json};

use super::SharedConfig;
use crate::wire::Nonce;

/// The configuration to create a stream with, under a name that was never used.
pub(super) fn wanted(config: &SharedConfig, copies: usize) -> Value {
    named(fixed(config, copies), &prefix(config))
}

/// These members, with a name that was never used.
pub(super) fn named(mut fixed: Map<String, Value>, prefix: &str) -> Value {
    // An answer names its stream, so another stream's memory is recognized.
    let epoch: String = Nonce::random().to_text().chars().filter(char::is_ascii_alphanumeric).take(EPOCH).collect();
    fixed.insert("name".to_owned(), json!(format!("{prefix}{epoch}")));
    Value::Object(fixed)
}

/// The prefix of the names of this service's guard streams.
pub(super) fn prefix(config: &SharedConfig) -> String {
    format!("RG_{}_{}_", config.environment, config.service)
}

/// What is wrong with a stream of this configuration, member by member; empty if nothing is.
pub(super) fn differences(found: &Map<String, Value>, config: &SharedConfig, copies: usize) -> Vec<String> {
    let mut fixed = fixed(config, copies);
    // As versions made it that kept no outcomes. It guards as well, and leaves no subjects for outcomes.
    let all = json!([config.subjects()]);
    if found.get("subjects") == Some(&all) {
        fixed.insert("subjects".to_owned(), all);
    }
    differences_from(found, &fixed, &prefix(config))
}

/// The same for a stream with the members `fixed` and a name that begins with `prefix`.
pub(super) fn differences_from(found: &Map<String, Value>, fixed: &Map<String, Value>, prefix: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = found.get("name").and_then(Value::as_str).unwrap_or_default();
    if !is_named(name, prefix) {
        wrong.push(format!("its name is not `{prefix}` and {EPOCH} letters or digits"));
    }
    for (member, should) in fixed {
        let is = found.get(member).unwrap_or(&Value::Null);
        if member == "metadata" {
            wrong.extend(metadata_differences(is, should));
        } else if is != should {
            wrong.push(format!("`{member}` is {} and should be {should}", shown(is)));
        }
    }
    for (member, is) in found.iter().filter(|(member, _)| *member != "name" && !fixed.contains_key(*member)) {
        match UNSET.iter().find(|(known, _)| known == member) {
            Some((_, unset)) if unset.contains(&is.to_string().as_str()) => {}
            Some(_) => wrong.push(format!("`{member}` is {} and should not be set", shown(is))),
            None => wrong.push(format!("`{}` is not known to this version", crate::name::shown(member))),
        }
    }
    wrong
}

/// Whether a stream of this name was made by this service.
pub(super) fn is_own(name: &str, config: &SharedConfig) -> bool {
    is_named(name, &prefix(config))
}

/// Whether a name is `prefix` and an epoch.
pub(super) fn is_named(name: &str, prefix: &str) -> bool {
    let epoch = name.strip_prefix(prefix).unwrap_or_default();
    // 16 random bytes nearly always yield that many; a shorter epoch is as good.
    (1..=EPOCH).contains(&epoch.len()) && epoch.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Everything but the name.
fn fixed(config: &SharedConfig, copies: usize) -> Map<String, Value> {
    let memory_ns = u64::try_from(config.memory().as_nanos()).unwrap_or(u64::MAX);
    let fixed = json!({
        "description": "nonces of admitted messages: one entry each, none with content",
        "subjects": config.guard_subjects(),
        "storage": "memory",
        "num_replicas": copies,
        "retention": "limits",
        // An id that leaves early could be stored again, so when there is no room, new ones are refused.
        "discard": "new",
        "discard_new_per_subject": true,
        "duplicate_window": memory_ns,
        // The broker rebuilds its memory of ids from stored messages, so they stay as long.
        "max_age": memory_ns,
        "max_msgs": config.max_messages,
        "max_bytes": config.stream_bytes(),
        "max_msgs_per_subject": config.owner_share(),
        "max_msg_size": MAX_MESSAGE_SIZE,
        "max_consumers": -1,
        "deny_delete": true,
        "deny_purge": true,
        // Keeps replicas with different windows from using the same stream.
        "metadata": {
            "sealwire.window_s": config.window.window_s.to_string(),
            "sealwire.skew_s": config.window.skew_s.to_string(),
        },
    });
    match fixed {
        Value::Object(fixed) => fixed,
        _ => Map::new(),
    }
}

fn metadata_differences(is: &Value, should: &Value) -> Vec<String> {
    let own = |value: &Value| -> Map<String, Value> {
        let members = value.as_object().cloned().unwrap_or_default();
        // The broker's own notes: its version, and what a stream requires of a broker.
        members.into_iter().filter(|(key, _)| !key.starts_with("_nats.")).collect()
    };
    let (is, should) = (own(is), own(should));
    let differ = |key: &&String| is.get(*key) != should.get(*key);
    let mut keys: Vec<_> = is.keys().chain(should.keys()).filter(differ).collect();
    keys.sort();
    keys.dedup();
    let value = |of: &Map<String, Value>, key: &String| of.get(key).map_or_else(|| "absent".to_owned(), shown);
    let text = |key: &String| {
        format!("metadata `{}` is {} and should be {}", crate::name::shown(key), value(&is, key), value(&should, key))
    };
    keys.into_iter().map(text).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "absent".to_owned(),
        // JSON has escaped the control characters below U+0020; DEL and what is not ASCII are replaced here.
        value => {
            let text = value.to_string();
            let mut shown: String =
                text.chars().map(|c| if c.is_ascii() && !c.is_control() { c } else { '?' }).take(SHOWN).collect();
            if text.chars().count() > SHOWN {
                shown.push('…');
            }
            shown
        }
    }
}

/// Members that our streams do not set, and how brokers report them unset (2.15.1 and older ones); absent is as good. A
/// broker that knows further members is refused: find out what a member means before adding it here.
const UNSET: &[(&str, &[&str])] = &[
    ("compression", &["\"none\""]),
    ("allow_direct", &["false"]),
    ("mirror_direct", &["false"]),
    ("sealed", &["false"]),
    ("no_ack", &["false"]),
    ("allow_rollup_hdrs", &["false"]),
    ("consumer_limits", &["{}", "null"]),
    ("allow_msg_ttl", &["false"]),
    ("allow_atomic", &["false"]),
    ("allow_batched", &["false"]),
    ("allow_msg_counter", &["false"]),
    ("allow_msg_schedules", &["false"]),
    ("subject_delete_marker_ttl", &["0"]),
    ("persist_mode", &["\"default\"", "\"\""]),
    ("first_seq", &["0", "1"]),
    ("template_owner", &["\"\""]),
    ("placement", &["null"]),
    ("mirror", &["null"]),
    ("sources", &["null", "[]"]),
    ("subject_transform", &["null"]),
    ("republish", &["null"]),
];

/// Longer values help nobody.
const SHOWN: usize = 120;

/// How many random letters and digits a name ends with.
const EPOCH: usize = 12;

/// Headers with an id of at most 64 + 1 + 22 bytes take about 130 bytes, a probe's content less than 100.
const MAX_MESSAGE_SIZE: i64 = 1024;

#[cfg(test)]
#[path = "fit/tests.rs"]
mod tests;
