//! Groups that the environment lets read secrets: a platform that mounts secrets gives them to a group, as Kubernetes does, and never to us.
//! Never lets anybody write.

use std::ffi::OsString;
use std::io;
use std::sync::LazyLock;

/// Group ids with commas in between.
const VARIABLE: &str = "SEALWIRE_SECRET_GROUPS";

/// Read once. `None` if it is not what it must be.
static GROUPS: LazyLock<Option<Vec<u32>>> = LazyLock::new(|| parse(std::env::var_os(VARIABLE)));

/// Whether members of this group may read secrets that belong to it.
pub(super) fn contains(group: u32) -> io::Result<bool> {
    let groups = GROUPS.as_ref().ok_or_else(|| {
        let wanted = format!("the variable {VARIABLE} must be group ids with commas in between, such as `65532`");
        io::Error::new(io::ErrorKind::InvalidInput, wanted)
    })?;
    Ok(groups.contains(&group))
}

fn parse(text: Option<OsString>) -> Option<Vec<u32>> {
    let text = text.unwrap_or_default().into_string().ok()?;
    let groups = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
    groups.map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn groups_are_numbers_with_commas_in_between_or_none() {
        for (text, expected) in [
            ("", Some(vec![])),
            (" ", Some(vec![])),
            ("65532", Some(vec![65_532])),
            ("2000, 0", Some(vec![2_000, 0])),
            ("staff", None),
            ("2000,", None),
            ("-1", None),
            ("4294967296", None),
        ] {
            assert_eq!(parse(Some(text.into())), expected, "{text:?}");
        }
        assert_eq!(parse(None), Some(vec![]));
    }
}
