//! Who could have written a file that decides something, and who else can read one that holds a secret.
//! Never trusts a file that somebody else than us or root could have put there, unless the operator names him.

use std::fs::File;
use std::path::Path;

use serde::Deserialize;

use super::error::SecretFileError;
#[cfg(unix)]
use super::group;

/// Whose files are believed beside our own and root's. `[files]` of the configuration.
///
/// What says who may do what (configuration, key rings, token keys, denylists, policies, credentials) is as good as
/// whoever may write it. So a file, and every folder on the way to it from the root of the file system, must belong to
/// the user that runs this, or to root, and nobody else may write them, as with ssh. The way is gone step by step, each
/// folder opened and judged before the next one, symbolic links included: what was judged is what is read. A folder with
/// the sticky bit (`/tmp`) is taken on the way: others can neither replace nor rename there what is ours. A group that only
/// the owner is in may write, as it may wherever the umask is 002. On a read-only
/// mount, such as a container's, nobody here can write anything, so there only the right to read secrets counts.
///
/// Secrets are for their owner alone: no right for group or others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct FileTrust {
    /// User ids, beside our own and root's, to whom files may belong: those who deploy policies, for example.
    pub trust_users: Vec<u32>,
    /// Group ids whose members may write files and read secrets that belong to the group: a Kubernetes `fsGroup`, for
    /// example.
    pub trust_groups: Vec<u32>,
}

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// It decides something.
    Public,
    /// It holds a secret.
    Secret,
}

/// How much of a folder matters.
#[cfg(unix)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matters {
    /// One entry, which the sticky bit protects.
    One,
    /// Whatever is in it, so nobody may add anything.
    All,
}

#[cfg(unix)]
impl FileTrust {
    /// Judges the owner and mode of an open file. `path` is for the message.
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
        // A member of such a group counts as the owner does.
        let foreign = if self.trust_groups.contains(&metadata.gid()) { mode & 0o007 } else { mode & 0o077 };
        if content == Content::Secret && foreign != 0 {
            return Err(SecretFileError::Open { path, mode });
        }
        let protected = matters == Matters::One && mode & 0o1000 != 0;
        let writable = foreign & 0o022;
        let by_its_own_group = writable == 0o020 && group::is_private(owner, metadata.gid());
        if writable != 0 && !by_its_own_group && !protected && !is_read_only(file) {
            return Err(SecretFileError::Writable { path, mode });
        }
        self.judge_owner(&path, owner, file)
    }

    /// `at` is on the file system in question.
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
    /// Where files have neither mode nor owner, there is nothing to compare.
    pub(crate) fn judge(&self, _: &Path, _: &File, _: Content) -> Result<(), SecretFileError> {
        Ok(())
    }
}

/// Whether the mount of an open file or folder is read-only, for everybody who sees it there.
#[cfg(unix)]
fn is_read_only(file: &File) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|mount| mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}
