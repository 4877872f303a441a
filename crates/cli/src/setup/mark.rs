//! The mark in every folder of a setup: which setup it belongs to, when its certificates end, and which services it has.
//! Never takes a setup that has lost a folder for a new one: new keys would get the ids of the old ones.

use std::path::Path;

use sealwire::Name;
use sealwire::internal::files::write_secret;
use sealwire::internal::wire::Nonce;
use serde::{Deserialize, Serialize};

use super::certificates::DAYS;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::read_if_there;
use crate::when;

/// The mark, as written into every folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mark {
    /// The same in all folders of a setup, and in no other.
    id: String,
    /// When the certificates end, in seconds since the Unix epoch.
    until: u64,
    /// The services.
    pub(super) services: Vec<Name>,
    /// Whether the brokers are in operator mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) operator: bool,
    /// Whether `sealwire authd` lets agents in.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) authd: bool,
}

/// The folder of the keys that sign accounts and users, in operator mode.
pub(super) const SIGNING: &str = "signing";
/// The folder of `sealwire authd`, and the name of its users.
pub(super) const AUTHD: &str = "authd";
/// How long before they end certificates are renewed.
const RENEW_BEFORE_S: u64 = 30 * 86_400;
const NAME: &str = "set-up.json";

impl Mark {
    /// The mark of a setup that is created now.
    pub(super) fn new(operator: bool, authd: bool) -> Self {
        Self { id: Nonce::random().to_text(), until: 0, services: Vec::new(), operator, authd }.renewed()
    }

    /// The folders that only some setups have.
    pub(super) fn more_folders(&self) -> impl Iterator<Item = &str> {
        self.operator.then_some(SIGNING).into_iter().chain(self.authd.then_some(AUTHD))
    }

    /// The mark, for certificates that are created now.
    pub(super) fn renewed(self) -> Self {
        let life_s = DAYS.unsigned_abs().saturating_mul(86_400);
        Self { until: when::now_s().saturating_add(life_s), ..self }
    }

    /// Whether the certificates end soon.
    pub(super) fn ends_soon(&self) -> bool {
        self.until <= when::now_s().saturating_add(RENEW_BEFORE_S)
    }

    /// The mark that all folders share; `None` if none has one. What the setup has besides them, it says itself.
    pub(super) fn find(base: &Path, folders: &[&str]) -> Result<Option<Self>, Failure> {
        let mut found: Option<Self> = None;
        let mut lacking = Vec::new();
        for folder in folders {
            let Some(mark) = Self::read(base, folder)? else {
                lacking.push(*folder);
                continue;
            };
            if let Some(first) = &mut found {
                if first.id != mark.id {
                    return Err(broken(
                        base,
                        &format!("`{folder}` belongs to another setup than the folders before it"),
                    ));
                }
                // The earliest end counts, so that an interrupted renewal is repeated.
                first.until = first.until.min(mark.until);
                let more = mark.services.into_iter().filter(|service| !first.services.contains(service));
                let more: Vec<Name> = more.collect();
                first.services.extend(more);
            } else {
                found = Some(mark);
            }
        }
        let Some(found) = found else { return Ok(None) };
        let more = found.services.iter().map(Name::as_str).chain(found.more_folders());
        for folder in more {
            match Self::read(base, folder)? {
                Some(mark) if mark.id == found.id => {}
                _ => lacking.push(folder),
            }
        }
        if lacking.is_empty() {
            return Ok(Some(found.clone()));
        }
        Err(broken(base, &format!("{} lost what was set up there", lacking.join(", "))))
    }

    /// Checks that a folder that will become part of the setup does not belong to another one.
    pub(super) fn check_unmarked(&self, base: &Path, folder: &str) -> Result<(), Failure> {
        match Self::read(base, folder)? {
            Some(mark) if mark.id != self.id => Err(broken(base, &format!("`{folder}` belongs to another setup"))),
            _ => Ok(()),
        }
    }

    fn read(base: &Path, folder: &str) -> Result<Option<Self>, Failure> {
        let path = base.join(folder).join(NAME);
        let Some(text) = read_if_there(&path)? else { return Ok(None) };
        let mark = serde_json::from_str(&text);
        mark.map(Some).map_err(|_| broken(base, &format!("`{}` is not of this version", path.display())))
    }

    /// Writes the mark into these folders.
    pub(super) fn write(&self, base: &Path, folders: &[&str]) -> Result<(), Failure> {
        let text = serde_json::to_string(self).or_fail(Exit::Bug)?;
        let write = |folder: &&str| write_secret(&base.join(folder).join(NAME), &text, true).or_fail(Exit::Input);
        folders.iter().try_for_each(write)
    }
}

/// The setup cannot be completed with new keys: they would have the ids of others that may be revoked.
fn broken(base: &Path, what: &str) -> Failure {
    Failure::input(format!("the setup in `{}` is incomplete: {what}", base.display())).help(
        "restore it from a backup, or discard all of it, keys included, and start afresh: docker compose down --volumes",
    )
}
