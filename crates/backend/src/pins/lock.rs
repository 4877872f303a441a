//! `tools.lock.toml`: for each tool and prompt, the approved definition and its digest.
//! Never trusts a file that others could have written, nor a definition that does not match its digest.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sealwire::errors::SecretFileError;
use sealwire::internal::files::{locate_file, read_public, write_public};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::shown;
use crate::exact;

/// What a definition is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A tool.
    Tool,
    /// A prompt.
    Prompt,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
        })
    }
}

/// How a tool or prompt, as its server describes it now, compares with the lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ApprovalState {
    /// This very definition was approved.
    Approved,
    /// Nothing was approved under this name.
    New,
    /// Another definition was approved under this name.
    Changed,
}

/// What is approved, by backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lock(BTreeMap<String, Approved>);

/// What of one backend is approved, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Approved {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tool: BTreeMap<String, Pin>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    prompt: BTreeMap<String, Pin>,
}

impl Approved {
    fn of(&self, kind: Kind) -> &BTreeMap<String, Pin> {
        match kind {
            Kind::Tool => &self.tool,
            Kind::Prompt => &self.prompt,
        }
    }

    fn of_mut(&mut self, kind: Kind) -> &mut BTreeMap<String, Pin> {
        match kind {
            Kind::Tool => &mut self.tool,
            Kind::Prompt => &mut self.prompt,
        }
    }
}

/// A definition that is to be approved.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Approval {
    /// The backend's name.
    pub backend: String,
    /// What it defines.
    pub kind: Kind,
    /// The name of that at the server.
    pub name: String,
    /// The definition.
    pub pin: Pin,
}

impl Approval {
    /// Approves this definition.
    #[must_use]
    pub fn new(backend: impl Into<String>, kind: Kind, name: impl Into<String>, pin: Pin) -> Self {
        Self { backend: backend.into(), kind, name: name.into(), pin }
    }
}

/// A definition with its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Pin {
    /// `sha256:`, followed by the digest of the definition in hexadecimal.
    pub digest: String,
    /// Everything that the server says of it except `_meta`, in one form: members in the order of their names, without white space,
    /// and each number as the server wrote it.
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
    /// What it says of a tool or prompt has changed since that was shown.
    #[error(
        "`{}` has changed meanwhile: what it says of `{name}` is not what was compared; look again with `sealwire tools diff`",
        path.display()
    )]
    Moved {
        /// The file.
        path: PathBuf,
        /// The tool or prompt.
        name: String,
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
# Tools and prompts whose definitions were approved. Written by `sealwire tools approve`; keep it with the configuration.

";

impl Pin {
    /// The pin of a tool or prompt as its server describes it.
    ///
    /// # Errors
    /// Why no digest can be made of it.
    pub fn of(definition: &RawValue) -> Result<Self, String> {
        // In MCP, `_meta` is for those who write servers, not for what a model or a person reads.
        let definition = exact::text(definition.get(), "_meta").map_err(|error| error.to_string())?;
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
        for (name, pin) in lock.0.values().flat_map(|approved| approved.tool.iter().chain(&approved.prompt)) {
            if digest(&pin.definition) != pin.digest {
                return Err(wrong(format!("the definition of `{}` was changed in the file", shown(name))));
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
    pub fn amend(&self, path: &Path, approved: impl IntoIterator<Item = Approval>) -> Result<(), LockError> {
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
        for Approval { backend, kind, name, pin } in approved {
            if now.pin(&backend, kind, &name) != self.pin(&backend, kind, &name) {
                return Err(LockError::Moved { path: path.to_owned(), name: shown(&name) });
            }
            now.0.entry(backend).or_default().of_mut(kind).insert(name, pin);
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

    /// How a tool or prompt compares with this file.
    #[must_use]
    pub fn standing(&self, backend: &str, kind: Kind, name: &str, pin: &Pin) -> ApprovalState {
        match self.pin(backend, kind, name) {
            None => ApprovalState::New,
            Some(known) if known == pin => ApprovalState::Approved,
            Some(_) => ApprovalState::Changed,
        }
    }

    /// The approved definition of a tool or prompt.
    #[must_use]
    pub fn pin(&self, backend: &str, kind: Kind, name: &str) -> Option<&Pin> {
        self.0.get(backend)?.of(kind).get(name)
    }

    /// The approved definitions of a backend, by name.
    pub fn pins(&self, backend: &str, kind: Kind) -> impl Iterator<Item = (&String, &Pin)> {
        self.0.get(backend).into_iter().flat_map(move |approved| approved.of(kind))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    fn pin(description: &str) -> Pin {
        Pin::of(&to_raw_value(&json!({ "name": "t", "description": description })).unwrap()).unwrap()
    }

    fn approved(tool: &str, description: &str) -> [Approval; 1] {
        [Approval::new("b", Kind::Tool, tool, pin(description))]
    }

    #[test]
    fn approval_leaves_alone_what_others_did_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(Lock::FILE);
        let of_tools = |lock: &Lock| lock.pins("b", Kind::Tool).map(|(tool, _)| tool.clone()).collect::<Vec<_>>();
        Lock::default().amend(&path, approved("one", "1").into_iter().chain(approved("two", "2"))).unwrap();
        let shown = Lock::load(&path).unwrap();
        // Somebody withdraws an approval while another tool is looked at.
        let mut less = shown.clone();
        less.0.get_mut("b").unwrap().tool.remove("two");
        less.save(&path).unwrap();
        shown.amend(&path, approved("three", "3")).unwrap();
        assert_eq!(of_tools(&Lock::load(&path).unwrap()), ["one", "three"]);
        // What was compared with a withdrawn approval is not approved.
        let moved = shown.amend(&path, approved("four", "4").into_iter().chain(approved("two", "2a"))).unwrap_err();
        assert!(matches!(&moved, LockError::Moved { name, .. } if name == "two"), "{moved}");
        assert_eq!(of_tools(&Lock::load(&path).unwrap()), ["one", "three"]);
    }

    #[test]
    fn a_prompt_and_a_tool_of_one_name_are_approved_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(Lock::FILE);
        Lock::default().amend(&path, approved("x", "1")).unwrap();
        let standing = |kind, text| Lock::load(&path).unwrap().standing("b", kind, "x", &pin(text));
        assert_eq!(standing(Kind::Prompt, "1"), ApprovalState::New);
        Lock::load(&path).unwrap().amend(&path, [Approval::new("b", Kind::Prompt, "x", pin("2"))]).unwrap();
        assert_eq!(
            (standing(Kind::Tool, "1"), standing(Kind::Prompt, "1")),
            (ApprovalState::Approved, ApprovalState::Changed)
        );
        assert_eq!(standing(Kind::Prompt, "2"), ApprovalState::Approved);
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(written.contains("[b.tool.x]") && written.contains("[b.prompt.x]"), "{written}");
        // What nobody knows is not skipped.
        std::fs::write(&path, written.replace("[b.prompt.x]", "[b.promt.x]")).unwrap();
        assert!(Lock::load(&path).unwrap_err().to_string().contains("unknown field `promt`"));
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
        assert!(Lock::load(&path).unwrap().pin("b", Kind::Tool, "one").is_some());
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
        assert_eq!(Lock::load(&path).unwrap().pins("b", Kind::Tool).count(), 2);
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
