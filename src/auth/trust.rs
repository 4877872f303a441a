//! Who could have written a file that decides something, and who else can read one that holds a secret.
//! Never trusts a file that somebody else than us or root could have put there, unless the operator names him.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::file::SecretFileError;

/// Whose files are believed beside our own and root's. `[files]` of the configuration.
///
/// What says who may do what (configuration, key rings, token keys, denylists, policies, credentials) is as good as
/// whoever may write it. So a file, and the folder that it lies in, must belong to the user that runs this, or to root, and
/// nobody else may write them, as with ssh. A file in a folder with the sticky bit (`/tmp`) is taken: others can neither
/// replace nor rename it there. Folders further up are not looked at: a folder of ours cannot be forged by renaming
/// others. On a read-only mount, such as a container's, nobody here can write anything, so there only the right to read
/// secrets counts.
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

/// Deep and many enough for any folder of policies; the loader has narrower bounds of its own.
const MAX_DEPTH: usize = 16;

impl FileTrust {
    /// Opens a file that may be believed. The open file is judged, not its name, so it cannot be exchanged in between.
    pub(crate) fn open(&self, path: &Path, content: Content) -> Result<File, SecretFileError> {
        let io = |error| SecretFileError::Io { path: path.to_owned(), error };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        self.judge(path, &metadata, content, false)?;
        // What comes through a pipe lies nowhere.
        if metadata.is_file() {
            self.places(path)?;
        }
        Ok(file)
    }

    /// Judges the file at `path` without reading it.
    pub(crate) fn check(&self, path: &Path, content: Content) -> Result<(), SecretFileError> {
        self.open(path, content).map(drop)
    }

    /// Judges a folder of policies with everything in it but names that begin with a dot, which its loader passes over.
    /// If nobody else may write any of it, nobody can change it between this and the reading. A folder that is not there
    /// is the loader's matter.
    pub(crate) fn check_folder(&self, folder: &Path) -> Result<(), SecretFileError> {
        match std::fs::metadata(folder) {
            Ok(metadata) => self.judge(folder, &metadata, Content::Public, false)?,
            Err(_) => return Ok(()),
        }
        self.places(folder)?;
        self.descend(folder, 0)
    }

    fn descend(&self, folder: &Path, depth: usize) -> Result<(), SecretFileError> {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // A link that leads nowhere is the loader's matter, too.
            let Ok(metadata) = std::fs::metadata(&path) else { continue };
            self.judge(&path, &metadata, Content::Public, false)?;
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                self.places(&path)?;
            }
            if metadata.is_dir() && depth < MAX_DEPTH {
                self.descend(&path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Judges the link that `path` may be, the folder that it is named in, and the one that it really lies in.
    fn places(&self, path: &Path) -> Result<(), SecretFileError> {
        let io = |error| SecretFileError::Io { path: path.to_owned(), error };
        let named = folder_of(path);
        self.judge(&named, &std::fs::metadata(&named).map_err(io)?, Content::Public, true)?;
        let itself = std::fs::symlink_metadata(path).map_err(io)?;
        if itself.is_symlink() {
            self.judge_owner(path, &itself)?;
            let real = folder_of(&path.canonicalize().map_err(io)?);
            self.judge(&real, &std::fs::metadata(&real).map_err(io)?, Content::Public, true)?;
        }
        Ok(())
    }
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

#[cfg(unix)]
impl FileTrust {
    /// Judges owner and mode. With `holds_one`, `path` is a folder of which only one entry matters, so that the sticky bit
    /// protects it.
    fn judge(
        &self,
        path: &Path,
        metadata: &Metadata,
        content: Content,
        holds_one: bool,
    ) -> Result<(), SecretFileError> {
        use std::os::unix::fs::MetadataExt as _;
        let mode = metadata.mode() & 0o7777;
        // A member of such a group counts as the owner does.
        let foreign = if self.trust_groups.contains(&metadata.gid()) { mode & 0o007 } else { mode & 0o077 };
        if content == Content::Secret && foreign != 0 {
            return Err(SecretFileError::Open { path: path.to_owned(), mode });
        }
        if is_read_only(path) {
            return Ok(());
        }
        self.judge_owner(path, metadata)?;
        if foreign & 0o022 != 0 && !(holds_one && mode & 0o1000 != 0) {
            return Err(SecretFileError::Writable { path: path.to_owned(), mode });
        }
        Ok(())
    }

    fn judge_owner(&self, path: &Path, metadata: &Metadata) -> Result<(), SecretFileError> {
        use std::os::unix::fs::MetadataExt as _;
        let owner = metadata.uid();
        if self.believes(owner) || is_read_only(path) {
            return Ok(());
        }
        Err(SecretFileError::Foreign { path: path.to_owned(), owner })
    }

    fn believes(&self, owner: u32) -> bool {
        owner == 0 || owner == rustix::process::geteuid().as_raw() || self.trust_users.contains(&owner)
    }
}

#[cfg(not(unix))]
impl FileTrust {
    /// Where files have neither mode nor owner, there is nothing to compare.
    fn judge(&self, _: &Path, _: &Metadata, _: Content, _: bool) -> Result<(), SecretFileError> {
        Ok(())
    }

    fn judge_owner(&self, _: &Path, _: &Metadata) -> Result<(), SecretFileError> {
        Ok(())
    }
}

#[cfg(unix)]
fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|mount| mount.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A folder of ours, mode 0755, with a file in it, mode 0600.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o755);
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        set_mode(&path, 0o600);
        (folder, path)
    }

    fn refused(trust: &FileTrust, path: &Path, content: Content) -> String {
        trust.check(path, content).unwrap_err().to_string()
    }

    #[test]
    fn a_file_or_folder_that_others_can_write_is_not_believed() {
        let (folder, path) = place();
        let trust = FileTrust::default();
        for mode in [0o600, 0o644, 0o640, 0o444] {
            set_mode(&path, mode);
            assert!(trust.check(&path, Content::Public).is_ok(), "{mode:o}");
        }
        for mode in [0o666, 0o664, 0o646, 0o602] {
            set_mode(&path, mode);
            let said = refused(&trust, &path, Content::Public);
            assert!(said.contains("chmod go-w") && said.contains("file"), "{said}");
        }
        set_mode(&path, 0o600);
        for mode in [0o777, 0o775, 0o757] {
            set_mode(folder.path(), mode);
            let said = refused(&trust, &path, Content::Secret);
            assert!(said.contains("chmod go-w") && !said.contains("/file"), "{said}");
        }
        set_mode(folder.path(), 0o1777);
        assert!(trust.check(&path, Content::Secret).is_ok(), "as in /tmp");
    }

    #[test]
    fn a_secret_is_for_its_owner_alone() {
        let (_folder, path) = place();
        for mode in [0o640, 0o604, 0o644, 0o660] {
            set_mode(&path, mode);
            assert!(refused(&FileTrust::default(), &path, Content::Secret).contains("chmod 600"), "{mode:o}");
        }
    }

    #[test]
    fn a_group_that_is_named_counts_as_the_owner() {
        let (_folder, path) = place();
        let group = std::fs::metadata(&path).unwrap().gid();
        let trust = FileTrust { trust_groups: vec![group], ..FileTrust::default() };
        set_mode(&path, 0o660);
        assert!(trust.check(&path, Content::Secret).is_ok());
        set_mode(&path, 0o664);
        assert!(refused(&trust, &path, Content::Secret).contains("chmod 600"));
        assert!(trust.check(&path, Content::Public).is_ok());
        let other = FileTrust { trust_groups: vec![group + 1], ..FileTrust::default() };
        assert!(refused(&other, &path, Content::Public).contains("chmod go-w"));
    }

    /// Only root can give a file to somebody else, so the rest of the rule is shown by itself, too.
    #[test]
    fn the_owner_is_us_or_root_or_named() {
        let (_folder, path) = place();
        let (ours, stranger) = (rustix::process::geteuid().as_raw(), 12_345);
        assert!(FileTrust::default().check(Path::new("/etc/passwd"), Content::Public).is_ok(), "root's");
        for (owner, expected) in [(0, true), (ours, true), (stranger, false)] {
            assert_eq!(FileTrust::default().believes(owner), expected, "{owner}");
        }
        assert!(FileTrust { trust_users: vec![stranger], ..FileTrust::default() }.believes(stranger));
        if ours == 0 {
            std::os::unix::fs::chown(&path, Some(stranger), None).unwrap();
            let said = refused(&FileTrust::default(), &path, Content::Secret);
            assert!(said.contains("12345") && said.contains("chown"), "{said}");
            let trust = FileTrust { trust_users: vec![stranger], ..FileTrust::default() };
            assert!(trust.check(&path, Content::Secret).is_ok());
        }
    }

    #[test]
    fn links_are_followed_to_where_the_file_lies() {
        let (folder, path) = place();
        let elsewhere = tempfile::tempdir().unwrap();
        set_mode(elsewhere.path(), 0o755);
        let link = elsewhere.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(FileTrust::default().check(&link, Content::Secret).is_ok());
        set_mode(folder.path(), 0o777);
        assert!(refused(&FileTrust::default(), &link, Content::Secret).contains("chmod go-w"), "where it lies");
        set_mode(folder.path(), 0o755);
        set_mode(elsewhere.path(), 0o777);
        assert!(refused(&FileTrust::default(), &link, Content::Secret).contains("chmod go-w"), "where it is named");
    }

    #[test]
    fn everything_in_a_folder_of_policies_is_judged() {
        let (folder, path) = place();
        let trust = FileTrust::default();
        let policies = folder.path().join("policies");
        let file = policies.join("team/math.toml");
        std::fs::create_dir_all(policies.join("team")).unwrap();
        std::fs::write(&file, "").unwrap();
        std::fs::write(policies.join(".swp"), "").unwrap();
        set_mode(&policies.join(".swp"), 0o666);
        for path in [&policies, &policies.join("team")] {
            set_mode(path, 0o755);
        }
        set_mode(&file, 0o644);
        trust.check_folder(&policies).unwrap();
        for (path, good, bad) in [
            (policies.clone(), 0o755, 0o777),
            // The sticky bit does not keep others from adding a policy.
            (policies.clone(), 0o755, 0o1777),
            (policies.join("team"), 0o755, 0o775),
            (file.clone(), 0o644, 0o666),
            (folder.path().to_owned(), 0o755, 0o777),
        ] {
            set_mode(&path, bad);
            let said = trust.check_folder(&policies).unwrap_err().to_string();
            assert!(said.contains(&format!("{bad:04o}")), "{said}");
            set_mode(&path, good);
        }
        symlink(&path, policies.join("linked.toml")).unwrap();
        trust.check_folder(&policies).unwrap();
        set_mode(&path, 0o602);
        assert!(trust.check_folder(&policies).is_err());
        assert!(trust.check_folder(&folder.path().join("none")).is_ok(), "the loader says that it is missing");
    }
}
