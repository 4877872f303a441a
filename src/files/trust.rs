//! Who could have written a file that decides something, and who else can read a file that holds a secret.
//! Never trusts a file that anybody but us or root could have put there, unless the operator names that user.

use std::fs::File;
use std::path::Path;

use serde::Deserialize;

use crate::settings::Setting;

use super::error::SecretFileError;
#[cfg(unix)]
use super::group;
#[cfg(unix)]
use super::readers;

/// Whose files are trusted besides our own and root's. `[files]` of the configuration.
///
/// A file that says who may do what (configuration, key rings, token keys, denylists, policies, credentials) can be trusted only
/// as far as everybody who may write it. So a file, and every folder on the path to it from the root of the file system, must
/// belong to the user that runs this or to root, and must not be writable by anybody else, as with ssh. The path is walked step
/// by step: each folder is opened and judged before the next one, symbolic links included, so what was judged is what is read. A
/// folder on the path may have the sticky bit (`/tmp`), since others can neither replace nor rename our files there. A group with
/// no member but the owner may have write permission, as it has wherever the umask is 002. On a read-only mount, such as a
/// container's, nobody here can write anything, so only the permission to read secrets counts.
///
/// Secrets are for their owner alone: group and others must have no permission. The variable `SEALWIRE_SECRET_GROUPS` names groups
/// that may read those which belong to them, for clients and gateways too; it is meant for containers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Setting)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct FileTrust {
    /// Further users to whom files may belong, for example those who deploy policies.
    #[setting(unit = "user ids", max = u32::MAX)]
    pub trust_users: Vec<u32>,
    /// Groups whose members may write files and read secrets that belong to the group, for example a Kubernetes `fsGroup`.
    #[setting(unit = "group ids", max = u32::MAX)]
    pub trust_groups: Vec<u32>,
}

/// The purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// It decides something.
    Public,
    /// It holds a secret.
    Secret,
}

/// Which entries of a folder matter.
#[cfg(unix)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matters {
    /// A single entry, which the sticky bit protects.
    One,
    /// All of them, so nobody else may add any.
    All,
}

#[cfg(unix)]
impl FileTrust {
    /// Judges owner and mode of an open file. `path` is for the error.
    pub(crate) fn judge(&self, path: &Path, file: &File, content: Content) -> Result<(), SecretFileError> {
        self.judge_as(path, file, content, Matters::All)
    }

    pub(super) fn judge_as(
        &self,
        path: &Path,
        file: &File,
        content: Content,
        matters: Matters,
    ) -> Result<(), SecretFileError> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = file.metadata().map_err(|error| SecretFileError::Io { path: path.to_owned(), error })?;
        let (path, mode, owner) = (path.to_owned(), metadata.mode() & 0o7777, metadata.uid());
        // A member of a trusted group counts like the owner.
        let foreign = if self.trust_groups.contains(&metadata.gid()) { mode & 0o007 } else { mode & 0o077 };
        if content == Content::Secret && foreign != 0 {
            let only_its_group_reads = foreign == 0o040;
            let may = only_its_group_reads.then(|| readers::contains(metadata.gid())).transpose();
            if may.map_err(|error| SecretFileError::Io { path: path.clone(), error })? != Some(true) {
                return Err(SecretFileError::Open { path, mode });
            }
        }
        let protected = matters == Matters::One && mode & 0o1000 != 0;
        let writable = foreign & 0o022;
        let by_its_own_group = writable == 0o020 && group::is_private(owner, metadata.gid());
        if writable != 0 && !by_its_own_group && !protected && !is_read_only(file) {
            return Err(SecretFileError::Writable { path, mode });
        }
        self.judge_owner(&path, owner, file)
    }

    /// `at` must be on the same file system.
    pub(super) fn judge_owner(&self, path: &Path, owner: u32, at: &File) -> Result<(), SecretFileError> {
        if self.believes(owner) || is_read_only(at) {
            return Ok(());
        }
        Err(SecretFileError::Foreign { path: path.to_owned(), owner })
    }

    pub(super) fn believes(&self, owner: u32) -> bool {
        owner == 0 || owner == rustix::process::geteuid().as_raw() || self.trust_users.contains(&owner)
    }
}

#[cfg(not(unix))]
impl FileTrust {
    /// Without modes and owners there is nothing to check.
    pub(crate) fn judge(&self, _: &Path, _: &File, _: Content) -> Result<(), SecretFileError> {
        Ok(())
    }
}

/// Whether an open file or folder is on a mount that is read-only for everybody.
#[cfg(unix)]
fn is_read_only(file: &File) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|mount| mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}
