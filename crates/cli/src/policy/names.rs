//! Names on the command line that no call can have.
//! Never asks whether a policy knows a name: only whether there can be such a thing.

/// Whom an agent acts for.
pub(super) fn subject(text: &str) -> Result<String, String> {
    let fits = (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(text.to_owned()) } else { Err("a subject has 1 to 128 visible ASCII characters".to_owned()) }
}

/// A role.
pub(super) fn role(text: &str) -> Result<String, String> {
    let fits = (1..=128).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    if fits {
        Ok(text.to_owned())
    } else {
        Err("a role has 1 to 128 characters, none of them a control character".to_owned())
    }
}

/// A claim of a token, with its value: as text if it is not JSON.
pub(super) fn claim(text: &str) -> Result<(String, serde_json::Value), String> {
    match text.split_once('=') {
        Some(("", _)) | None => Err("write NAME=VALUE".to_owned()),
        Some((name, value)) => {
            Ok((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::from(value))))
        }
    }
}
