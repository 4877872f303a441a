//! Completions: shells ask this command for candidates, and the files nearby provide the names.
//! Never runs, changes or connects to anything, and never offers what a shell could take for more than one word.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command, ValueEnum, ValueHint};
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use sealwire::PolicySet;
use sealwire::internal::auth::decode_untrusted;
use sealwire::internal::policy::CallerGroup;
use serde::Deserialize;
use serde::de::IgnoredAny;
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;
use crate::policies;

/// Print the completion script for a shell
///
/// The script asks sealwire for completions. Services, methods, agents, roles and key ids come from the files in the current
/// folder, in `sealwire-dev` and next to the credentials in use.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire completions bash > /etc/bash_completion.d/sealwire
  sealwire completions zsh  > ~/.zfunc/_sealwire
  sealwire completions fish > ~/.config/fish/completions/sealwire.fish")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// The variable by which a shell's script asks for completions. Wherever it is set, the command prints completions and nothing
/// else, so we use our own and not `COMPLETE`, which every program of this kind reads.
const VARIABLE: &str = "SEALWIRE_COMPLETE";

impl Completions {
    pub(crate) fn run(&self, out: &Output) -> Result<Exit, Failure> {
        let name = self.shell.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let shells = Shells::builtins();
        let shell =
            shells.completer(&name).ok_or_else(|| Failure::new(Exit::Bug, format!("no completions for {name}")))?;
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "sealwire", "sealwire", "sealwire", &mut script).or_fail(Exit::Bug)?;
        out.print(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Ok)
    }
}

/// If a shell asks for completions of this command, answers and exits.
pub(crate) fn answer(command: impl Fn() -> Command) {
    CompleteEnv::with_factory(|| knowing(command())).var(VARIABLE).complete();
}

/// The command, with candidates for its arguments.
fn knowing(command: Command) -> Command {
    command.mut_args(with_candidates).mut_subcommands(knowing)
}

fn with_candidates(arg: Arg) -> Arg {
    let what = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    let names = |arg: Arg, find: fn() -> BTreeSet<String>| {
        arg.add(ArgValueCandidates::new(move || find().into_iter().map(CompletionCandidate::new).collect()))
    };
    let paths = |arg: Arg, all: PathCompleter| {
        arg.add(ArgValueCompleter::new(move |begun: &OsStr| {
            let mut found = all.complete(begun);
            found.retain(|candidate| is_path(candidate.get_value()));
            found
        }))
    };
    let files = |arg: Arg, end: &'static str| {
        let wanted = move |path: &Path| path.is_dir() || path.to_string_lossy().ends_with(end);
        paths(arg, PathCompleter::any().filter(wanted))
    };
    match (arg.get_id().as_str(), what.as_str()) {
        ("creds" | "cnf_creds", _) | (_, "CREDS") => files(arg, ".creds.json"),
        ("ring" | "rings" | "named", _) | (_, "RING") => files(arg, "ring.json"),
        (_, "SERVICE" | "SVC") => names(arg, || Nearby::look().services),
        (_, "ENV/SVC") => names(arg, || Nearby::look().audiences),
        (_, "KID") => names(arg, || Nearby::look().kids),
        (_, "METHOD") => names(arg, methods),
        (_, "ROLE") => names(arg, roles),
        (_, "AGENT") | ("agent" | "actor", "NAME") => names(arg, agents),
        ("subject", _) => names(arg, || agents().into_iter().chain(subjects()).collect()),
        (_, "DIR" | "FOLDER") => paths(arg, PathCompleter::dir()),
        // Otherwise clap_complete would offer every file name in a folder.
        _ if arg.get_value_hint() == ValueHint::AnyPath => paths(arg, PathCompleter::any()),
        _ => arg,
    }
}

/// The names in the files nearby. Nothing else is kept, in particular no secrets.
#[derive(Debug, Default)]
struct Nearby {
    services: BTreeSet<String>,
    audiences: BTreeSet<String>,
    agents: BTreeSet<String>,
    kids: BTreeSet<String>,
}

/// The members of credentials, key rings and configurations that contain names.
#[derive(Deserialize, Default)]
#[serde(default)]
struct NameMembers {
    environment: Option<String>,
    service: Option<String>,
    audience: Option<String>,
    agent: Option<String>,
    key: Option<Record>,
    keys: Option<Records>,
    service_keys: BTreeMap<String, IgnoredAny>,
    token_file: Option<PathBuf>,
}

/// The member `keys`: a list in a key ring, a table in a configuration.
#[derive(Deserialize)]
#[serde(untagged)]
enum Records {
    Ring(Vec<Record>),
    Other(IgnoredAny),
}

#[derive(Deserialize)]
struct Record {
    kid: Option<String>,
    owner: Option<String>,
}

/// Further files in a folder, and larger ones, are not read: they are not ours.
const MAX_FILES: usize = 256;
const MAX_BYTES: u64 = 1024 * 1024;

impl Nearby {
    fn look() -> Self {
        let mut found = Self::default();
        for folder in folders() {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().take(MAX_FILES);
            entries.for_each(|entry| found.read(&entry.path()));
        }
        for names in [&mut found.services, &mut found.audiences, &mut found.agents, &mut found.kids] {
            names.retain(|name| is_word(name));
        }
        found
    }

    fn read(&mut self, path: &Path) {
        let says = match path.extension().and_then(OsStr::to_str) {
            Some("json") => text(path).and_then(|text| serde_json::from_str::<NameMembers>(&text).ok()),
            Some("toml") => text(path).and_then(|text| toml::from_str::<NameMembers>(&text).ok()),
            _ => None,
        };
        let Some(says) = says else { return };
        if let (Some(environment), Some(service)) = (&says.environment, &says.service) {
            self.audiences.insert(format!("{environment}/{service}"));
        }
        self.audiences.extend(says.audience);
        self.services.extend(says.service);
        self.services.extend(says.service_keys.into_keys());
        self.agents.extend(says.agent);
        let records = match says.keys {
            Some(Records::Ring(records)) => records,
            _ => Vec::new(),
        };
        for Record { kid, owner } in records.into_iter().chain(says.key) {
            self.kids.extend(kid);
            self.agents.extend(owner);
        }
        // A token names the services that it is for.
        let token = says.token_file.and_then(|file| text(&path.parent()?.join(file)));
        let claims = token.and_then(|token| decode_untrusted(token.trim()).ok()).map(|said| said.claims);
        match claims.as_ref().and_then(|claims| claims.get("aud")) {
            Some(serde_json::Value::String(audience)) => drop(self.audiences.insert(audience.clone())),
            Some(serde_json::Value::Array(several)) => {
                self.audiences.extend(several.iter().filter_map(|audience| audience.as_str().map(str::to_owned)));
            }
            _ => {}
        }
        let of_audience = self.audiences.iter().filter_map(|audience| audience.split_once('/'));
        self.services.extend(of_audience.map(|(_, service)| service.to_owned()));
    }
}

/// The folders to look for names in.
fn folders() -> BTreeSet<PathBuf> {
    let in_use = std::env::var_os("SEALWIRE_CREDS").map(PathBuf::from);
    let beside = in_use.and_then(|path| path.parent().map(Path::to_owned));
    let folders = [PathBuf::from("."), PathBuf::from("sealwire-dev")].into_iter().chain(beside);
    folders.filter(|folder| folder.is_dir()).collect()
}

fn text(path: &Path) -> Option<Zeroizing<String>> {
    let metadata = std::fs::metadata(path).ok()?;
    // Only regular files: reading a pipe would block the user's shell.
    (metadata.is_file() && metadata.len() <= MAX_BYTES).then(|| std::fs::read_to_string(path).ok())?.map(Zeroizing::new)
}

/// The policies nearby that have no errors.
fn policies() -> impl Iterator<Item = PolicySet> {
    let found = folders().into_iter().map(|folder| folder.join("policies")).filter(|folder| folder.is_dir());
    found.filter_map(|folder| PolicySet::load(&folder, &policies::known_methods()).ok()).map(|(set, _)| set)
}

/// The methods that the policies nearby name.
pub(crate) fn methods() -> BTreeSet<String> {
    policies().flat_map(|set| set.methods().names().map(ToString::to_string).collect::<Vec<_>>()).collect()
}

fn roles() -> BTreeSet<String> {
    callers(|callers| match callers {
        CallerGroup::Role(role) => Some(role),
        _ => None,
    })
}

fn agents() -> BTreeSet<String> {
    let named = callers(|callers| match callers {
        CallerGroup::Agent(agent) => Some(agent),
        _ => None,
    });
    named.into_iter().chain(Nearby::look().agents).collect()
}

fn subjects() -> BTreeSet<String> {
    callers(|callers| match callers {
        CallerGroup::Subject(subject) => Some(subject),
        _ => None,
    })
}

fn callers(wanted: fn(CallerGroup) -> Option<String>) -> BTreeSet<String> {
    policies().flat_map(|set| set.callers().into_iter().filter_map(wanted)).filter(|name| is_word(name)).collect()
}

/// Whether every shell takes this as one plain word.
fn is_word(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:/-".contains(&b))
}

/// Whether every shell takes this path as one plain word. Bash does not quote the candidates that it is given, and anybody may
/// have chosen a file name in a shared or unpacked folder. For paths left out, bash falls back to its own completion, which quotes.
fn is_path(path: &OsStr) -> bool {
    path.to_str().is_some_and(|path| path.chars().all(|c| c.is_alphanumeric() || "_.:/-+,@%".contains(c)))
}
