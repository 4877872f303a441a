//! The status of a key in the rings that know it.
//! Never in one of them while another cannot be changed.

use std::path::PathBuf;

use sealwire::internal::auth::KeyStatus;
use serde_json::json;

use super::ring::Ring;
use crate::exit::Failure;
use crate::files::all_shown;
use crate::output::Output;

/// Sets the status of `kid` in every ring. Writes none unless all of them can be changed.
pub(super) fn change_status(kid: &str, paths: &[PathBuf], status: KeyStatus) -> Result<(), Failure> {
    let mut rings = Vec::with_capacity(paths.len());
    for path in paths {
        let mut ring = Ring::open(path)?;
        ring.set_status(kid, status)?;
        rings.push(ring);
    }
    rings.iter().try_for_each(Ring::save)
}

/// Reports a change. `created` says whether the deny list among the files is new.
pub(super) fn changed(
    out: &Output,
    what: &str,
    kid: &str,
    paths: &[PathBuf],
    created: Option<bool>,
) -> Result<(), Failure> {
    let mut result = json!({ "kid": kid, "state": what, "files": all_shown(paths.iter().map(PathBuf::as_path)) });
    if let (Some(created), Some(result)) = (created, result.as_object_mut()) {
        result.insert("created".to_owned(), created.into());
    }
    out.result(&result, || {
        let files: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        format!("{what} {kid} in {}", files.join(", "))
    })
}
