//! A key ring file that a command reads and changes.
//! Never writes a ring that a service would refuse.

use std::path::{Path, PathBuf};

use sealwire::Name;
use sealwire::configure::AgentKey;
use sealwire::internal::auth::{KeyEntry, KeyRing, KeyRingFile, KeyStatus, NonceLimits};
use sealwire::internal::files::{locate_file, read_secret, write_secret};
use sealwire::internal::wire::Audience;

use crate::exit::{Exit, Failure, OrFail as _};

/// A ring that was read, or is to be created.
pub(super) struct Ring {
    path: PathBuf,
    audience: Audience,
    file: KeyRingFile,
    is_new: bool,
}

impl Ring {
    /// An existing ring.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let text = read_secret(path).or_fail(Exit::Input)?;
        // Report only the place: the parser's own message may quote a key.
        let file: KeyRingFile = serde_json::from_str(&text).map_err(|error| {
            let (path, line, column) = (path.display(), error.line(), error.column());
            Failure::input(format!("`{path}` is not a key ring (line {line}, column {column})"))
                .help("`sealwire keys new-agent NAME --service ENV/SVC=FILE` makes one")
        })?;
        let audience = Audience::parse(&file.audience).ok_or_else(|| {
            Failure::input(format!("`{}`: its `audience` is not ENVIRONMENT/SERVICE", path.display()))
        })?;
        let ring = Self { path: path.to_owned(), audience, file, is_new: false };
        ring.check()?;
        Ok(ring)
    }

    /// The ring of `audience`; an empty one if there is no such file.
    pub(super) fn open_or_new(path: &Path, audience: &Audience) -> Result<Self, Failure> {
        if !locate_file(path).or_fail(Exit::Input)?.exists() {
            let file = KeyRingFile { audience: audience.to_string(), keys: Vec::new() };
            return Ok(Self { path: path.to_owned(), audience: audience.clone(), file, is_new: true });
        }
        let ring = Self::open(path)?;
        if ring.audience != *audience {
            let message = format!("`{}` is the key ring of `{}`, not of `{audience}`", path.display(), ring.audience);
            return Err(Failure::input(message).help("every service has its own ring: name another file"));
        }
        Ok(ring)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn audience(&self) -> &Audience {
        &self.audience
    }

    pub(super) fn entries(&self) -> &[KeyEntry] {
        &self.file.keys
    }

    /// Adds the record that lets this service verify `key`: the derived key, or the public one.
    pub(super) fn add(&mut self, key: &AgentKey, owner: &Name, not_before: Option<u64>) -> Result<(), Failure> {
        let kid = key.kid();
        let mut entry = match (key.derived(&self.audience), key.public()) {
            (Some(derived), _) => KeyEntry::hmac(kid, owner.clone(), &derived),
            (None, Some(x)) => KeyEntry::ed25519(kid, owner.clone(), x),
            (None, None) => return Err(Failure::bug()),
        };
        entry.not_before = not_before;
        self.push(entry)
    }

    /// Adds a record.
    pub(super) fn push(&mut self, entry: KeyEntry) -> Result<(), Failure> {
        let kid = &entry.kid;
        if self.file.keys.iter().any(|entry| entry.kid == *kid) {
            let message = format!("`{}` has a key `{kid}` already", self.path.display());
            return Err(Failure::input(message)
                .help("choose another name or --kid; for a new key of the same agent: keys rotate"));
        }
        let is_known = self.file.keys.iter().any(|known| known.owner == entry.owner);
        self.file.keys.push(entry);
        let (agents, room) = (self.check()?.owners(), NonceLimits::default().owners);
        if agents > room && !is_known {
            let ring = &self.path;
            tracing::warn!(
                target: "sealwire::keys",
                ?ring, agents, room,
                "the ring has more agents than a service takes by default: raise `agents` in `[replay]` of its configuration, or \
                 it will not start"
            );
        }
        Ok(())
    }

    /// The record of `kid`.
    pub(super) fn entry(&mut self, kid: &str) -> Option<&mut KeyEntry> {
        self.file.keys.iter_mut().find(|entry| entry.kid == kid)
    }

    /// Sets the status of `kid`.
    pub(super) fn set_status(&mut self, kid: &str, status: KeyStatus) -> Result<(), Failure> {
        let path = self.path.display().to_string();
        let entry = self.entry(kid).ok_or_else(|| {
            Failure::input(format!("`{path}` has no key `{}`", kid.escape_debug()))
                .help(format!("`sealwire keys list {path}` shows its keys"))
        })?;
        // A revocation must stay visible for as long as the record exists: others may know the key.
        if entry.status == KeyStatus::Revoked && status != KeyStatus::Revoked {
            let message = format!("`{}` is revoked in `{path}`, which is final", kid.escape_debug());
            return Err(Failure::input(message).help("leave that ring out: a revoked key verifies nothing anyway"));
        }
        entry.status = status;
        Ok(())
    }

    /// Writes the ring, mode 0600; an existing one is replaced in one step.
    pub(super) fn save(&self) -> Result<(), Failure> {
        self.check()?;
        let text = serde_json::to_string_pretty(&self.file).map_err(|error| Failure::of(Exit::Bug, &error))?;
        let text = zeroize::Zeroizing::new(text + "\n");
        write_secret(&self.path, &text, !self.is_new).or_fail(Exit::Input)
    }

    /// Checks the ring as a service would.
    fn check(&self) -> Result<KeyRing, Failure> {
        KeyRing::new(self.file.clone(), &self.audience)
            .map_err(|error| Failure::input(format!("`{}`: {error}", self.path.display())))
    }
}

/// Adds the record of an agent's key to an existing ring.
pub(crate) fn add_to_ring(path: &Path, key: &AgentKey, owner: &Name) -> Result<(), Failure> {
    let mut ring = Ring::open(path)?;
    ring.add(key, owner, None)?;
    ring.save()
}
