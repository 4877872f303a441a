//! What the service, or a caller of it, shows a server: header fields from files or commands.
//! Never the caller's token, never to another origin, and never in a log or an error.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use sealwire::auth::{Caller, FileTrust};
use sealwire::{BackendConfig, BackendCredentialConfig, CredentialOwner};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::error::WebError;
use super::{header_name, header_value};
use crate::child::Launch;
use crate::config::limited;

/// All of one server.
#[derive(Debug)]
pub(super) struct Credentials(Vec<Credential>);

/// What goes with one request. Values say that they are secret where they are printed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Presented(pub(super) HeaderMap);

/// One header field.
#[derive(Debug)]
struct Credential {
    field: HeaderName,
    /// What stands before it in the field.
    scheme: Option<String>,
    owner: CredentialOwner,
    source: Source,
    keep: Duration,
    known: Mutex<HashMap<String, Arc<Slot>>>,
    /// Commands that run at a time.
    runs: Semaphore,
}

/// One owner's: whoever comes meanwhile waits instead of asking, too.
type Slot = tokio::sync::Mutex<Option<Known>>;

#[derive(Debug, Clone)]
struct Known {
    value: Result<HeaderValue, String>,
    since: Instant,
}

#[derive(Debug)]
enum Source {
    File(PathBuf, FileTrust),
    /// A file for each owner.
    Folder(PathBuf, FileTrust),
    Command(Box<Launch>),
}

/// The longest, in bytes.
const LONGEST: usize = 8 * 1024;
/// For how long a file is not read again.
const FILE: Duration = Duration::from_secs(1);
/// For how long what has failed, or was had anew, is not had again: a command costs a process.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a command may take.
const COMMAND: Duration = Duration::from_secs(10);
/// How many run at a time.
const RUNS: usize = 4;
/// How many owners' are kept.
const OWNERS: usize = 1024;

impl Credentials {
    pub(super) fn new(config: &BackendConfig) -> Result<Self, String> {
        let all = config.credential.iter().map(|described| Credential::new(config, described));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        for (position, one) in all.iter().enumerate() {
            if all.iter().skip(position + 1).any(|other| other.field == one.field) {
                return Err(format!("there are two credentials for header `{}`", one.field));
            }
        }
        Ok(Self(all))
    }

    /// What goes with a request for this caller, or for nobody.
    pub(super) async fn of(&self, caller: Option<&Caller>) -> Result<Presented, WebError> {
        self.all(caller, false).await
    }

    /// The same once more, after the server has refused; `None` if it is no other.
    pub(super) async fn renewed(&self, caller: Option<&Caller>, refused: &Presented) -> Option<Presented> {
        self.all(caller, true).await.ok().filter(|fresh| fresh != refused)
    }

    async fn all(&self, caller: Option<&Caller>, anew: bool) -> Result<Presented, WebError> {
        let mut headers = HeaderMap::new();
        for credential in &self.0 {
            if let Some(value) = credential.value(caller, anew).await? {
                headers.insert(credential.field.clone(), value);
            }
        }
        Ok(Presented(headers))
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
                return Err(wrong("a caller's own come from a `folder` or a `command`: one file has one"));
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
            // Told at the start, and not by the first call.
            read(path, trust).and_then(|text| clean(&text).map(drop)).map_err(|why| wrong(&why))?;
        }
        let scheme = described.scheme.clone();
        Ok(Self { field, scheme, owner, source, keep, known: Mutex::default(), runs: Semaphore::new(RUNS) })
    }

    /// The field for this caller; `None` for one that is a caller's where there is none.
    async fn value(&self, caller: Option<&Caller>, anew: bool) -> Result<Option<HeaderValue>, WebError> {
        let owner = match (self.owner, caller) {
            (CredentialOwner::Service, _) => "",
            (_, None) => return Ok(None),
            (CredentialOwner::Agent, Some(caller)) => caller.agent.as_str(),
            (_, Some(caller)) => &caller.subject,
        };
        let slot = self.slot(owner);
        let mut known = slot.lock().await;
        let is_file = !matches!(self.source, Source::Command(_));
        let holds = |known: &&Known| {
            let age = known.since.elapsed();
            match (&known.value, anew) {
                (_, true) => !is_file && age < AGAIN,
                (Ok(_), false) => age < self.keep,
                (Err(_), false) => age < if is_file { FILE } else { AGAIN },
            }
        };
        let value = match known.as_ref().filter(holds) {
            Some(known) => known.value.clone(),
            None => {
                let value = self.fetch(owner).await;
                *known = Some(Known { value: value.clone(), since: Instant::now() });
                value
            }
        };
        value.map(Some).map_err(WebError::Credentials)
    }

    fn slot(&self, owner: &str) -> Arc<Slot> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = known.get(owner) {
            return Arc::clone(slot);
        }
        if known.len() >= OWNERS {
            // What nobody waits for is had again when it is wanted.
            let oldest = known.iter().filter(|(_, slot)| Arc::strong_count(slot) == 1);
            let since = |slot: &Slot| slot.try_lock().ok().and_then(|known| known.as_ref().map(|known| known.since));
            let oldest = oldest.min_by_key(|(_, slot)| since(slot)).map(|(owner, _)| owner.clone());
            oldest.map(|owner| known.remove(&owner));
        }
        Arc::clone(known.entry(owner.to_owned()).or_default())
    }

    async fn fetch(&self, owner: &str) -> Result<HeaderValue, String> {
        let text = match &self.source {
            Source::File(path, trust) => off_thread(path.clone(), trust.clone()).await?,
            Source::Folder(folder, trust) => off_thread(folder.join(file_name(owner)), trust.clone()).await?,
            Source::Command(launch) => self.run(launch, owner).await?,
        };
        let text = clean(&text)?;
        let value = match &self.scheme {
            Some(scheme) => header_value(&format!("{scheme} {text}")),
            None => header_value(text),
        };
        let mut value = value.ok_or("it has a character that no header can have")?;
        value.set_sensitive(true);
        Ok(value)
    }

    async fn run(&self, launch: &Launch, owner: &str) -> Result<String, String> {
        let run = async {
            let _turn = self.runs.acquire().await;
            let mut launch = launch.clone();
            // No more than whose it is: what is kept is kept for that.
            match self.owner {
                CredentialOwner::Service => {}
                CredentialOwner::Agent => launch.env.push(("SEALWIRE_AGENT".into(), owner.into())),
                _ => launch.env.push(("SEALWIRE_SUBJECT".into(), owner.into())),
            }
            let mut child = launch.start().map_err(|error| format!("the command cannot be started: {error}"))?;
            let (printed, status) =
                crate::exec::converse(&mut child, None).await.map_err(|error| format!("the command: {error}"))?;
            if !status.success() {
                return Err(format!("the command has failed: {status}"));
            }
            String::from_utf8(printed).map_err(|_| "the command has printed no UTF-8".to_owned())
        };
        let late = || Err(format!("the command takes longer than {} s", COMMAND.as_secs()));
        tokio::time::timeout(COMMAND, run).await.unwrap_or_else(|_| late())
    }
}

async fn off_thread(path: PathBuf, trust: FileTrust) -> Result<String, String> {
    let read = tokio::task::spawn_blocking(move || read(&path, &trust)).await;
    read.unwrap_or_else(|_| Err("it cannot be read".to_owned()))
}

fn read(path: &Path, trust: &FileTrust) -> Result<String, String> {
    trust.read_secret(path).map(|text| text.to_string()).map_err(|error| error.to_string())
}

/// One line, without its end.
fn clean(text: &str) -> Result<&str, String> {
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() || text.len() > LONGEST || text.contains(['\n', '\r']) {
        return Err(format!("it must be one line of 1 to {LONGEST} bytes"));
    }
    Ok(text)
}

/// The name of an owner's file: letters, digits and `@ _ + -`, and `.` but not in front; every other byte as `%2F`. So no owner has
/// the file of another, or one elsewhere.
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
    use super::*;

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
        for bad in ["", "\n", "a\nb", "a\r\nX-Admin: 1\n"] {
            assert!(clean(bad).is_err(), "{bad:?}");
        }
        assert!(clean(&"x".repeat(LONGEST + 1)).is_err());
    }
}
