//! The credentials that the service or its callers present to a server: header fields from files or commands.
//! Never the caller's token, never to another origin, and never in a log or an error.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use sealwire::Caller;
use sealwire::configure::FileTrust;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::error::WebError;
use super::fields::{header_name, header_value};
use crate::child::{Child, Launch};
use crate::config::limited;
use crate::tables::{BackendConfig, BackendCredentialConfig, CredentialOwner};

/// All credentials for one server.
#[derive(Debug)]
pub(super) struct Credentials(Vec<Arc<Credential>>);

/// The credentials of one request. The values are marked as sensitive, and print as such.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CredentialHeaders(pub(super) HeaderMap);

/// One header field.
#[derive(Debug)]
struct Credential {
    field: HeaderName,
    /// The word before the credential in the field, such as `Bearer`.
    scheme: Option<String>,
    owner: CredentialOwner,
    source: Source,
    keep: Duration,
    known: Mutex<HashMap<String, Arc<Slot>>>,
    /// Bounds the commands that run at a time; each counts until it is gone.
    runs: Arc<Semaphore>,
}

/// One owner's value. Whoever comes while it is fetched waits instead of fetching it, too.
type Slot = tokio::sync::Mutex<Option<CachedCredential>>;

#[derive(Debug, Clone)]
struct CachedCredential {
    value: Result<HeaderValue, String>,
    since: Instant,
    /// The last time that it was fetched, or that fetching it again failed.
    tried: Instant,
}

#[derive(Debug)]
enum Source {
    File(PathBuf, FileTrust),
    /// A file for each owner.
    Folder(PathBuf, FileTrust),
    Command(Box<Launch>),
}

/// The longest credential, in bytes.
const LONGEST: usize = 8 * 1024;
/// How long a file is not read again.
const FILE: Duration = Duration::from_secs(1);
/// How long a command is not run again after a failure or a renewal: each run costs a process.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a command may take.
const COMMAND: Duration = Duration::from_secs(10);
/// How many commands run at a time.
const RUNS: usize = 4;
/// How many owners' values are kept.
const OWNERS: usize = 1024;

impl Credentials {
    pub(super) fn new(config: &BackendConfig) -> Result<Self, String> {
        let all = config.credential.iter().map(|described| Credential::new(config, described).map(Arc::new));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        for (position, one) in all.iter().enumerate() {
            if all.iter().skip(position + 1).any(|other| other.field == one.field) {
                return Err(format!("there are two credentials for header `{}`", one.field));
            }
        }
        Ok(Self(all))
    }

    /// The credentials for a request of this caller, or of nobody.
    pub(super) async fn of(&self, caller: Option<&Caller>) -> Result<CredentialHeaders, WebError> {
        self.all(caller, false).await
    }

    /// The same, fetched again after the server has refused; `None` if they have not changed.
    pub(super) async fn renewed(
        &self,
        caller: Option<&Caller>,
        refused: &CredentialHeaders,
    ) -> Option<CredentialHeaders> {
        self.all(caller, true).await.ok().filter(|fresh| fresh != refused)
    }

    async fn all(&self, caller: Option<&Caller>, anew: bool) -> Result<CredentialHeaders, WebError> {
        let mut headers = HeaderMap::new();
        for credential in &self.0 {
            if let Some(value) = credential.value(caller, anew).await? {
                headers.insert(credential.field.clone(), value);
            }
        }
        Ok(CredentialHeaders(headers))
    }
}

impl Credential {
    fn new(backend: &BackendConfig, described: &BackendCredentialConfig) -> Result<Self, String> {
        let field = match &described.header {
            Some(name) => header_name(name).map_err(|wrong| format!("`credential`: {wrong}"))?,
            None => AUTHORIZATION,
        };
        let wrong = |why: &str| format!("`credential` of header `{field}`: {why}");
        if described.scheme.as_deref().is_some_and(|scheme| header_value(scheme).is_none_or(|value| value.is_empty())) {
            return Err(wrong("`scheme` is a word such as `Bearer`"));
        }
        let owner = described.owner;
        let trust = || backend.files.clone();
        let source = match (&described.file, &described.folder, described.command.as_slice()) {
            (Some(file), None, []) if owner == CredentialOwner::Service => Source::File(file.clone(), trust()),
            (Some(_), None, []) => {
                return Err(wrong("callers' own credentials come from a `folder` or a `command`: one file holds one"));
            }
            (None, Some(folder), []) if owner != CredentialOwner::Service => Source::Folder(folder.clone(), trust()),
            (None, Some(_), []) => return Err(wrong("a `folder` is for `owner = \"agent\"` or `\"subject\"`")),
            (None, None, [program, ..]) if !program.is_empty() => {
                Source::Command(Box::new(limited(backend, &described.command)?))
            }
            _ => return Err(wrong("it comes from exactly one of `file`, `folder` and `command`")),
        };
        let keep = match (&source, described.keep_s) {
            (Source::Command(_), keep) => Duration::from_secs(keep.unwrap_or(BackendCredentialConfig::KEEP_S)),
            (_, None) => FILE,
            (_, Some(_)) => return Err(wrong("`keep_s` is for a `command`: files are read again by themselves")),
        };
        if let Source::File(path, trust) = &source {
            // Reported at the start, not by the first call.
            read(path, trust).and_then(|text| clean(&text).map(drop)).map_err(|why| wrong(&why))?;
        }
        let scheme = described.scheme.clone();
        Ok(Self { field, scheme, owner, source, keep, known: Mutex::default(), runs: Arc::new(Semaphore::new(RUNS)) })
    }

    /// The value for this caller; `None` if it is a caller's own and there is no caller.
    async fn value(self: &Arc<Self>, caller: Option<&Caller>, anew: bool) -> Result<Option<HeaderValue>, WebError> {
        let owner = match (self.owner, caller) {
            (CredentialOwner::Service, _) => "",
            (_, None) => return Ok(None),
            (CredentialOwner::Agent, Some(caller)) => caller.agent.as_str(),
            // An agent's own name is no subject: a person of that name must not get the agent's secret.
            (_, Some(caller)) if !caller.delegated => {
                let why = "it is a subject's, and the call is in the agent's own name".to_owned();
                return Err(WebError::Credentials(why));
            }
            (_, Some(caller)) => &caller.subject,
        };
        let mut known = self.slot(owner).lock_owned().await;
        let is_file = !matches!(self.source, Source::Command(_));
        let holds = |known: &&CachedCredential| match (&known.value, anew) {
            (_, true) => !is_file && known.tried.elapsed() < AGAIN,
            (Ok(_), false) => known.since.elapsed() < self.keep,
            (Err(_), false) => known.since.elapsed() < if is_file { FILE } else { AGAIN },
        };
        if let Some(known) = known.as_ref().filter(holds) {
            return known.value.clone().map(Some).map_err(WebError::Credentials);
        }
        let late = |_| WebError::Credentials(format!("no command can be started within {} s", COMMAND.as_secs()));
        let turn = match is_file {
            true => None,
            false => {
                let turn = tokio::time::timeout(COMMAND, Arc::clone(&self.runs).acquire_owned()).await;
                Some(turn.map_err(late)?)
            }
        };
        // In a task: if the caller gives up, the result is for the next one, who would otherwise have to begin again.
        let (this, owner, (tell, told)) = (Arc::clone(self), owner.to_owned(), oneshot::channel());
        tokio::spawn(async move {
            let (value, child) = this.fetch(&owner).await;
            let now = Instant::now();
            match (&value, known.as_mut()) {
                // The server refused the old value, but perhaps not because of the value: it stays.
                (Err(reason), Some(old)) if anew && old.value.is_ok() => {
                    let header = this.field.as_str();
                    tracing::warn!(target: "sealwire::backend", header, reason, "a credential could not be renewed");
                    old.tried = now;
                }
                _ => *known = Some(CachedCredential { value: value.clone(), since: now, tried: now }),
            }
            drop(known);
            drop(tell.send(value));
            if let Some(child) = child {
                child.stop().await;
            }
            drop(turn);
        });
        let value = told.await.unwrap_or_else(|_| Err("it cannot be fetched".to_owned()));
        value.map(Some).map_err(WebError::Credentials)
    }

    fn slot(&self, owner: &str) -> Arc<Slot> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = known.get(owner) {
            return Arc::clone(slot);
        }
        if known.len() >= OWNERS {
            // Only what nobody waits for; it is fetched again when needed.
            let oldest = known.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1);
            let since = |slot: &Slot| slot.try_lock().ok().and_then(|known| known.as_ref().map(|known| known.since));
            let oldest = oldest.min_by_key(|(_, slot)| since(slot)).map(|(owner, _)| owner.clone());
            oldest.map(|owner| known.remove(&owner));
        }
        Arc::clone(known.entry(owner.to_owned()).or_default())
    }

    /// The value as it is now, and the command that has printed it.
    async fn fetch(&self, owner: &str) -> (Result<HeaderValue, String>, Option<Child>) {
        let (text, child) = match &self.source {
            Source::File(path, trust) => {
                let (path, trust) = (path.clone(), trust.clone());
                (off_thread(move || read(&path, &trust)).await, None)
            }
            Source::Folder(folder, trust) => {
                let (folder, name, trust) = (folder.clone(), file_name(owner), trust.clone());
                (off_thread(move || read_own(&folder, &name, &trust)).await, None)
            }
            Source::Command(launch) => self.run(launch, owner).await,
        };
        (text.and_then(|text| self.field_of(&text)), child)
    }

    fn field_of(&self, text: &str) -> Result<HeaderValue, String> {
        let text = clean(text)?;
        let value = match &self.scheme {
            Some(scheme) => header_value(&format!("{scheme} {text}")),
            None => header_value(text),
        };
        let mut value = value.ok_or("it has a character that no header can have")?;
        value.set_sensitive(true);
        Ok(value)
    }

    async fn run(&self, launch: &Launch, owner: &str) -> (Result<String, String>, Option<Child>) {
        let mut launch = launch.clone();
        // Nothing but the owner: the value is kept for all calls of that owner.
        match self.owner {
            CredentialOwner::Service => {}
            CredentialOwner::Agent => launch.env.push(("SEALWIRE_AGENT".into(), owner.into())),
            _ => launch.env.push(("SEALWIRE_SUBJECT".into(), owner.into())),
        }
        let mut child = match launch.start().await {
            Ok(child) => child,
            Err(error) => return (Err(format!("the command cannot be started: {error}")), None),
        };
        let said = match tokio::time::timeout(COMMAND, crate::exec::converse(&mut child, None)).await {
            Err(_) => Err(format!("the command takes longer than {} s", COMMAND.as_secs())),
            Ok(Err(error)) => Err(format!("the command: {error}")),
            Ok(Ok((_, status))) if !status.success() => Err(format!("the command has failed: {status}")),
            Ok(Ok((printed, _))) => {
                String::from_utf8(printed).map_err(|_| "the command's output is not UTF-8".to_owned())
            }
        };
        (said, Some(child))
    }
}

async fn off_thread(read: impl FnOnce() -> Result<String, String> + Send + 'static) -> Result<String, String> {
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|_| Err("it cannot be read".to_owned()))
}

fn read(path: &Path, trust: &FileTrust) -> Result<String, String> {
    trust.read_secret(path).map(|text| text.to_string()).map_err(|error| error.to_string())
}

/// The file of exactly this name: where the file system ignores case, `ALICE` would otherwise get the secret of `alice`.
fn read_own(folder: &Path, name: &str, trust: &FileTrust) -> Result<String, String> {
    let text = read(&folder.join(name), trust)?;
    let is_own = is_listed(folder, name).map_err(|error| format!("its folder cannot be listed: {error}"))?;
    if is_own { Ok(text) } else { Err("the file's name differs in case".to_owned()) }
}

fn is_listed(folder: &Path, name: &str) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        if entry?.file_name() == name {
            return Ok(true);
        }
    }
    Ok(false)
}

/// One line, without its line break and without a byte-order mark, which some editors write ahead of it.
fn clean(text: &str) -> Result<&str, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim_end_matches(['\n', '\r']);
    if text.is_empty() || text.len() > LONGEST || text.contains(['\n', '\r']) {
        return Err(format!("it must be one line of 1 to {LONGEST} bytes"));
    }
    Ok(text)
}

/// The file name for an owner: letters, digits and `@ _ + -` stay, and `.` except in front; every other byte is written as `%2F`. So no
/// owner gets another's file, or one elsewhere.
fn file_name(owner: &str) -> String {
    let mut name = String::new();
    for (at, byte) in owner.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'@' | b'_' | b'+' | b'-' => name.push(byte.into()),
            b'.' if at > 0 => name.push('.'),
            // Writing to a text cannot fail.
            byte => drop(write!(name, "%{byte:02X}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_name_is_that_of_the_file_in_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("alice"), "secret").unwrap();
        for (name, is) in [("alice", true), ("ALICE", false), ("Alice", false), ("alice.", false), ("alic", false)] {
            assert_eq!(is_listed(folder.path(), name).unwrap(), is, "{name}");
        }
        assert!(is_listed(&folder.path().join("none"), "alice").is_err());
    }

    #[test]
    fn no_owner_has_the_file_of_another_or_one_elsewhere() {
        let known = [
            ("alice@example.org", "alice@example.org"),
            ("../ring.json", "%2E./ring.json".replace('/', "%2F").leak()),
            ("/etc/passwd", "%2Fetc%2Fpasswd"),
            ("a%2Fb", "a%252Fb"),
            ("auth0|5f", "auth0%7C5f"),
            (".", "%2E"),
            ("", ""),
            ("é\0", "%C3%A9%00"),
        ];
        for (owner, name) in known {
            assert_eq!(file_name(owner), name, "{owner}");
        }
    }

    #[test]
    fn a_credential_is_one_line() {
        assert_eq!(clean("abc\r\n"), Ok("abc"));
        assert_eq!(clean("\u{feff}abc\r\n"), Ok("abc"));
        for bad in ["", "\n", "a\nb", "a\r\nX-Admin: 1\n"] {
            assert!(clean(bad).is_err(), "{bad:?}");
        }
        assert!(clean(&"x".repeat(LONGEST + 1)).is_err());
    }
}
