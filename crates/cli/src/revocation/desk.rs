//! The operator's desk: the file that says where the bucket is and whose signatures count, and the last list that was signed here.
//! Never believes the bucket more than the signatures.

use std::path::{Path, PathBuf};

use sealwire::configure::OperatorConfig;
use sealwire::internal::auth::{
    Bucket, BucketError, BucketSubjects, OperatorKey, Operators, RevocationList, SignedList,
};
use sealwire::internal::files::{read_public, read_secret, write_public};
use sealwire::{BusConfig, Name};
use serde::Deserialize;

use super::brokers::SystemConfig;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::read_if_there;

/// The operator's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeskConfig {
    environment: Name,
    #[serde(default = "one")]
    signatures: usize,
    operator: Vec<OperatorConfig>,
    /// Where the last list is kept that was signed or seen here.
    #[serde(default = "usual_copy")]
    copy: PathBuf,
    nats: BusConfig,
    system: Option<SystemConfig>,
}

fn one() -> usize {
    1
}

fn usual_copy() -> PathBuf {
    "revocations.json".into()
}

/// What an operator works with.
pub(crate) struct Desk {
    pub(crate) environment: Name,
    pub(crate) operators: Operators,
    copy: PathBuf,
    nats: BusConfig,
    /// How connections are closed at the brokers.
    pub(super) system: Option<SystemConfig>,
}

/// The latest list that can be verified.
pub(super) struct Latest {
    pub(super) list: RevocationList,
    pub(super) signed: SignedList,
    /// The number of what the bucket holds, whatever it is.
    pub(super) sequence: Option<u64>,
    /// Why the bucket's own content does not count.
    pub(super) problem: Option<String>,
}

impl Desk {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let text = read_public(path).or_fail(Exit::Input)?;
        let config: DeskConfig = toml::from_str(&text).map_err(|error| {
            // The message quotes no value: the file may hold a password.
            Failure::input(format!("`{}`: {}", path.display(), error.message().lines().next().unwrap_or_default()))
        })?;
        let logins = config.system.iter().map(|system| &system.nats).chain([&config.nats]);
        let is_secret = |BusConfig { password, token, nkey_seed, .. }: &BusConfig| {
            password.is_some() || token.is_some() || nkey_seed.is_some()
        };
        if logins.into_iter().any(is_secret) {
            read_secret(path).or_fail(Exit::Input)?;
        }
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        let operators = Operators::new(&config.operator, config.signatures).or_fail(Exit::Input)?;
        let nats = config.nats.relative_to(folder);
        let system = config.system.map(|system| system.relative_to(folder));
        Ok(Self { environment: config.environment, operators, copy: folder.join(config.copy), nats, system })
    }

    /// The keys in these files, each of which must be an operator's here.
    pub(crate) fn keys(&self, paths: &[PathBuf]) -> Result<Vec<OperatorKey>, Failure> {
        let load = |path: &PathBuf| {
            let key = OperatorKey::load(path).or_fail(Exit::Input)?;
            if self.operators.know(&key) {
                return Ok(key);
            }
            let (kid, x) = (key.kid(), key.x());
            let failure = Failure::input(format!("`{}` is the key of nobody who counts here", path.display()));
            Err(failure
                .help(format!("services and the operator's file name it as [[operator]] kid = \"{kid}\", x = \"{x}\"")))
        };
        paths.iter().map(load).collect()
    }

    /// Connects, and listens to reports.
    pub(super) async fn connect(&self) -> Result<Bucket, Failure> {
        self.connect_to(BucketSubjects::of(&self.environment)).await
    }

    /// The same for any bucket.
    pub(crate) async fn connect_to(&self, subjects: BucketSubjects) -> Result<Bucket, Failure> {
        let (reports, shown) = (subjects.reports(), format!("sealwire-revocation {} operator", self.environment));
        Bucket::open(&self.nats, subjects, ("operator", &shown), vec![reports]).await.map_err(|error| failed(&error))
    }

    /// Where something else is kept that was signed or seen here: beside the list.
    pub(crate) fn copy_of(&self, name: &str) -> PathBuf {
        self.copy.with_file_name(name)
    }

    /// The latest list: the bucket's, or the copy if that is newer or the bucket's does not count.
    pub(super) async fn latest(&self, bucket: &mut Bucket) -> Result<Latest, Failure> {
        let stored = bucket.read().await.map_err(|error| failed(&error))?;
        let sequence = stored.as_ref().map(|stored| stored.sequence);
        let (held, problem) = match stored.map(|stored| self.operators.verify(&stored.text, &self.environment)) {
            None => (None, Some("the bucket is empty".to_owned())),
            Some(Err(error)) => (None, Some(format!("what the bucket holds has no effect: {error}"))),
            Some(Ok(held)) => (Some(held), None),
        };
        let kept = self.kept()?;
        let number = |of: &Option<(RevocationList, SignedList)>| of.as_ref().map_or(0, |(list, _)| list.number);
        let problem = match problem {
            None if number(&kept) > number(&held) => Some(format!(
                "the bucket holds list {}, and `{}` list {}: somebody has put back an old one",
                number(&held),
                self.copy.display(),
                number(&kept)
            )),
            problem => problem,
        };
        let latest = if number(&kept) > number(&held) { kept } else { held };
        let Some((list, signed)) = latest else {
            let failure = Failure::input(problem.unwrap_or_default());
            return Err(failure.help("make the first list: sealwire revocations init --key FILE"));
        };
        Ok(Latest { list, signed, sequence, problem })
    }

    fn kept(&self) -> Result<Option<(RevocationList, SignedList)>, Failure> {
        let Some(text) = read_if_there(&self.copy)? else { return Ok(None) };
        let wrong = |error| Failure::input(format!("`{}`: {error}", self.copy.display()));
        self.operators.verify(text.as_bytes(), &self.environment).map(Some).map_err(wrong)
    }

    /// Keeps a list that is in the bucket now.
    pub(super) fn keep(&self, text: &str) -> Result<(), Failure> {
        write_public(&self.copy, text).or_fail(Exit::Input)
    }
}

pub(crate) fn failed(error: &BucketError) -> Failure {
    Failure::of(Exit::Transport, error)
}
