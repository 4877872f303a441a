//! `tools.lock.toml`: for each tool, the approved definition and its digest.
//! Never trusts a file that others could have written, nor a definition that does not match its digest.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sealwire::auth::{SecretFileError, locate_file, read_public, write_public};
use sealwire::rpc::{CanonicalError, canonical};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{Standing, shown};

/// What is approved, by backend and tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lock(BTreeMap<String, BTreeMap<String, Pin>>);

/// A definition with its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Pin {
    /// `sha256:`, followed by the digest of the definition in hexadecimal.
    pub digest: String,
    /// Everything that the server says of the tool except `_meta`, in canonical form (RFC 8785).
    pub definition: String,
}

/// Why the lock file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// It cannot be read, or others could have written it.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// It is not what `sealwire tools approve` writes.
    #[error("`{}`: {reason}: approve the tools again with `sealwire tools approve`", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// What it says of a tool has changed since the tool was shown.
    #[error(
        "`{}` has changed meanwhile: what it says of `{tool}` is not what was compared; look again with `sealwire tools diff`",
        path.display()
    )]
    Moved {
        /// The file.
        path: PathBuf,
        /// The tool.
        tool: String,
    },
    /// Somebody else keeps its folder locked.
    #[error(
        "`{}` stays as it is: the folder `{}` has been locked for {} s, by somebody else who approves or another process, which \
         `fuser` names: end that, and approve again",
        path.display(), folder.display(), LOCKED_FOR.as_secs()
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// The folder of the file.
        folder: PathBuf,
    },
    /// It cannot be written.
    #[error("`{}` cannot be written: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// How long to wait for somebody else who approves. That takes milliseconds, but whoever may list a folder may lock it forever.
const LOCKED_FOR: Duration = Duration::from_secs(3);
/// The pause between two attempts meanwhile.
const AGAIN: Duration = Duration::from_millis(20);

const HEAD: &str = "\
# Tools whose definitions were approved. Written by `sealwire tools approve`; keep it with the configuration.

";

impl Pin {
    /// The pin of a tool as its server describes it.
    ///
    /// # Errors
    /// [`CanonicalError`]: no digest can be made of it.
    pub fn of(definition: &Value) -> Result<Self, CanonicalError> {
        let mut definition = definition.clone();
        if let Value::Object(members) = &mut definition {
            // In MCP, it is for those who write servers, not for what a model or a person reads.
            members.remove("_meta");
        }
        let definition = canonical(&definition)?;
        Ok(Self { digest: digest(&definition), definition })
    }
}

fn digest(text: &str) -> String {
    use std::fmt::Write as _;
    let mut shown = String::from("sha256:");
    for byte in Sha256::digest(text) {
        // Writing to a string cannot fail.
        let _ = write!(shown, "{byte:02x}");
    }
    shown
}

impl Lock {
    /// The name of the file, beside the configuration.
    pub const FILE: &str = "tools.lock.toml";

    /// Reads a file; a missing file approves nothing.
    ///
    /// # Errors
    /// [`LockError`], also for a definition that does not match its digest.
    pub fn load(path: &Path) -> Result<Self, LockError> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let wrong = |reason: String| LockError::Format { path: path.to_owned(), reason };
        let lock: Self = toml::from_str(&read_public(path)?).map_err(|error| wrong(error.message().to_owned()))?;
        for (tool, pin) in lock.0.values().flatten() {
            if digest(&pin.definition) != pin.digest {
                return Err(wrong(format!("the definition of `{}` was changed in the file", shown(tool))));
            }
        }
        Ok(lock)
    }

    /// Approves definitions in the file as it is now, all of them or none; `self` is the file as it was when they were shown. Other changes
    /// that were made meanwhile stay.
    ///
    /// # Errors
    /// [`LockError::Moved`] if the file now says something else of one of them; [`LockError::Locked`] after three seconds; as
    /// [`Lock::load`]; [`LockError::Write`].
    pub fn amend(
        &self,
        path: &Path,
        approved: impl IntoIterator<Item = (String, String, Pin)>,
    ) -> Result<(), LockError> {
        let wrong = |error: std::io::Error| LockError::Write { path: path.to_owned(), error };
        // For a symbolic link, the folder of the file that it leads to.
        let at = locate_file(path)?;
        let folder = at.parent().unwrap_or(&at);
        // Makes concurrent approvals run one after the other. Released when it is closed.
        let turn = File::open(folder).map_err(wrong)?;
        let began = Instant::now();
        while let Err(refused) = turn.try_lock() {
            match refused {
                TryLockError::Error(error) => return Err(wrong(error)),
                TryLockError::WouldBlock if began.elapsed() < LOCKED_FOR => std::thread::sleep(AGAIN),
                TryLockError::WouldBlock => {
                    return Err(LockError::Locked { path: path.to_owned(), folder: folder.to_owned() });
                }
            }
        }
        let mut now = Self::load(path)?;
        for (backend, tool, pin) in approved {
            if now.pin(&backend, &tool) != self.pin(&backend, &tool) {
                return Err(LockError::Moved { path: path.to_owned(), tool: shown(&tool) });
            }
            now.0.entry(backend).or_default().insert(tool, pin);
        }
        now.save(path)
    }

    /// Writes the file, whole or not at all; an existing one keeps its readers.
    fn save(&self, path: &Path) -> Result<(), LockError> {
        let wrong = |error| LockError::Write { path: path.to_owned(), error };
        let text = toml::to_string(self).map_err(std::io::Error::other).map_err(wrong)?;
        match File::create_new(path) {
            // Not a secret, and the service may run as another user than the one who approves. The command's umask gives others no rights,
            // so they are set on the open file. While it is empty, it approves nothing.
            #[cfg(unix)]
            Ok(new) => new.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644)).map_err(wrong)?,
            #[cfg(not(unix))]
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(wrong(error)),
        }
        Ok(write_public(path, &format!("{HEAD}{text}"))?)
    }

    /// How a tool compares with this file.
    #[must_use]
    pub fn standing(&self, backend: &str, tool: &str, pin: &Pin) -> Standing {
        match self.pin(backend, tool) {
            None => Standing::New,
            Some(known) if known == pin => Standing::Approved,
            Some(_) => Standing::Changed,
        }
    }

    /// The approved definition of a tool.
    #[must_use]
    pub fn pin(&self, backend: &str, tool: &str) -> Option<&Pin> {
        self.0.get(backend)?.get(tool)
    }

    /// The approved definitions of a backend, by tool name.
    pub fn pins(&self, backend: &str) -> impl Iterator<Item = (&String, &Pin)> {
        self.0.get(backend).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    fn pin(description: &str) -> Pin {
        Pin::of(&json!({ "name": "t", "description": description })).unwrap()
    }

    fn approved(tool: &str, description: &str) -> [(String, String, Pin); 1] {
        [("b".to_owned(), tool.to_owned(), pin(description))]
    }

    #[test]
    fn approval_leaves_alone_what_others_did_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(Lock::FILE);
        let of_tools = |lock: &Lock| lock.pins("b").map(|(tool, _)| tool.clone()).collect::<Vec<_>>();
        Lock::default().amend(&path, approved("one", "1").into_iter().chain(approved("two", "2"))).unwrap();
        let shown = Lock::load(&path).unwrap();
        // Somebody withdraws an approval while another tool is looked at.
        let mut less = shown.clone();
        less.0.get_mut("b").unwrap().remove("two");
        less.save(&path).unwrap();
        shown.amend(&path, approved("three", "3")).unwrap();
        assert_eq!(of_tools(&Lock::load(&path).unwrap()), ["one", "three"]);
        // What was compared with a withdrawn approval is not approved.
        let moved = shown.amend(&path, approved("four", "4").into_iter().chain(approved("two", "2a"))).unwrap_err();
        assert!(matches!(&moved, LockError::Moved { tool, .. } if tool == "two"), "{moved}");
        assert_eq!(of_tools(&Lock::load(&path).unwrap()), ["one", "three"]);
    }

    #[test]
    fn whoever_keeps_the_folder_locked_is_waited_for_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(Lock::FILE);
        let other = File::open(folder.path()).unwrap();
        other.lock().unwrap();
        let refused = Lock::default().amend(&path, approved("one", "1")).unwrap_err();
        assert!(matches!(&refused, LockError::Locked { .. }) && refused.to_string().contains("fuser"), "{refused}");
        assert!(!path.exists());
        let approving = std::thread::spawn({
            let path = path.clone();
            move || Lock::default().amend(&path, approved("one", "1"))
        });
        other.unlock().unwrap();
        approving.join().unwrap().unwrap();
        assert!(Lock::load(&path).unwrap().pin("b", "one").is_some());
    }

    /// The service reads the file that the link leads to, or the link: both see the approval.
    #[test]
    #[cfg(unix)]
    fn an_approval_through_a_link_is_in_the_file_that_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join(Lock::FILE), folder.path().join("link"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let nowhere = Lock::default().amend(&link, approved("one", "1")).unwrap_err();
        assert!(nowhere.to_string().contains("leads nowhere"), "{nowhere}");
        Lock::default().amend(&path, approved("one", "1")).unwrap();
        Lock::load(&link).unwrap().amend(&link, approved("two", "2")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(Lock::load(&path).unwrap().pins("b").count(), 2);
    }

    #[test]
    #[cfg(unix)]
    fn file_keeps_its_mode_and_a_new_one_may_be_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(Lock::FILE);
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        Lock::default().amend(&path, approved("one", "1")).unwrap();
        assert_eq!(mode(), 0o644);
        for kept in [0o640, 0o600, 0o644] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(kept)).unwrap();
            Lock::load(&path).unwrap().amend(&path, approved("one", &kept.to_string())).unwrap();
            assert_eq!(mode(), kept);
        }
    }
}
