//! The store and the keys of `nsc`: read as it reads them, and written where it finds them.
//! Never writes over an account, a user or a key that we did not make, and takes nothing back that was changed there with `nsc`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nkeys::KeyPair;
use sealwire::internal::files::{read_public, read_secret, write_secret};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{make_folder, read_if_there};
use crate::gate::signed;
use crate::users::claims::{self, decoded};
use crate::when;

/// Where an operator's JWTs are, and the keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nsc {
    /// The operator's folder in the store.
    operator: PathBuf,
    keys: PathBuf,
}

/// An operator that `nsc` has made.
pub(super) struct StoredOperator {
    pub(super) jwt: String,
    /// The public key of those that sign accounts which is in the keys.
    pub(super) signer: String,
    /// The system's account.
    pub(super) system: String,
}

/// The file in an operator's folder that says it is one.
const MARK: &str = ".nsc";

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    managed: bool,
    name: String,
}

/// What `nsc` works on now.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Selected {
    store_root: String,
    operator: String,
}

impl Nsc {
    /// The store and the keys in these folders, or where `nsc` has them; the operator of this name, or the one that is selected, or the
    /// only one.
    pub(super) fn find(
        store: Option<PathBuf>,
        keys: Option<PathBuf>,
        operator: Option<&str>,
        variable: impl Fn(&str) -> Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let home = variable("HOME").unwrap_or_default();
        let xdg = |name: &str, usual: &str| variable(name).unwrap_or_else(|| home.join(usual)).join("nats/nsc");
        let (config, data) = (xdg("XDG_CONFIG_HOME", ".config"), xdg("XDG_DATA_HOME", ".local/share"));
        // Before there were these folders, it had others.
        let or_old = |new: PathBuf, old: PathBuf, file: &str| {
            if !new.join(file).exists() && old.join(file).exists() { old } else { new }
        };
        let config = variable("NSC_HOME").unwrap_or_else(|| or_old(config, home.join(".nsc"), "nsc.json"));
        let selected: Selected = match read_if_there(&config.join("nsc.json"))? {
            Some(text) if store.is_none() => serde_json::from_str(&text)
                .map_err(|_| Failure::input(format!("`{}` is not of nsc", config.join("nsc.json").display())))?,
            _ => Selected::default(),
        };
        let keys = keys.or_else(|| variable("NKEYS_PATH"));
        let keys = keys.unwrap_or_else(|| or_old(data.join("keys"), home.join(".nkeys"), ""));
        let root = Some(selected.store_root).filter(|root| !root.is_empty()).map(PathBuf::from);
        let store = store.or(root).unwrap_or_else(|| or_old(data.join("stores"), home.join(".nsc/nats"), ""));
        let operator = match operator.or(Some(selected.operator.as_str()).filter(|name| !name.is_empty())) {
            Some(name) if is_plain(name) => store.join(name),
            Some(_) => return Err(Failure::input("an operator's name has no `/` and does not begin with a dot")),
            None if store.join(MARK).is_file() => store.clone(),
            None => only_operator(&store)?,
        };
        if !operator.join(MARK).is_file() {
            let failure = Failure::input(format!("`{}` is no operator's folder of nsc", operator.display()));
            return Err(failure.help("make one: nsc add operator NAME --sys --generate-signing-key"));
        }
        Ok(Self {
            operator: std::path::absolute(operator).or_fail(Exit::Input)?,
            keys: std::path::absolute(keys).or_fail(Exit::Input)?,
        })
    }

    /// The operator, who must be ours to sign for.
    pub(super) fn operator(&self) -> Result<StoredOperator, Failure> {
        let info = self.info()?;
        if info.managed {
            let failure =
                Failure::input(format!("the operator {} is somebody else's: nsc has no key of it", info.name));
            return Err(failure.help("see what to create there: sealwire setup operator --hosted"));
        }
        let path = self.operator.join(format!("{}.jwt", info.name));
        let jwt = read_public(&path).or_fail(Exit::Input)?.trim().to_owned();
        let claims = decoded(&jwt).ok_or_else(|| damaged(&path))?;
        let text = |pointer: &str| claims.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let system = text("/nats/system_account");
        if system.is_empty() {
            let failure = Failure::input(format!("the operator {} has no system account", info.name));
            return Err(failure.help("nsc add account SYS && nsc edit operator --system-account SYS"));
        }
        let strict = claims.pointer("/nats/strict_signing_key_usage").and_then(Value::as_bool).unwrap_or_default();
        let signing = claims.pointer("/nats/signing_keys").and_then(Value::as_array).into_iter().flatten();
        let signing = signing.filter_map(Value::as_str).map(str::to_owned);
        let mut keys = signing.chain((!strict).then(|| text("/sub")));
        let signer = keys.find(|key| self.key_file(key).is_ok_and(|file| file.is_file()));
        let signer = signer.ok_or_else(|| {
            Failure::input(format!("`{}` has no key that signs for the operator {}", self.keys.display(), info.name))
                .help("name the folder of its keys: --nsc-keys FOLDER")
        })?;
        self.account_of(&system)?;
        Ok(StoredOperator { jwt, signer, system })
    }

    fn info(&self) -> Result<Info, Failure> {
        let path = self.operator.join(MARK);
        let info: Info = serde_json::from_str(&read_public(&path).or_fail(Exit::Input)?).map_err(|_| damaged(&path))?;
        if is_plain(&info.name) { Ok(info) } else { Err(damaged(&path)) }
    }

    /// The key pair to a public key.
    pub(super) fn seed(&self, public: &str) -> Result<KeyPair, Failure> {
        let path = self.key_file(public)?;
        let seed = read_secret(&path).or_fail(Exit::Input)?;
        let pair = KeyPair::from_seed(seed.trim()).ok().filter(|pair| pair.public_key() == public);
        pair.ok_or_else(|| damaged(&path))
    }

    /// The JWT of the account with this key.
    pub(super) fn account_of(&self, key: &str) -> Result<String, Failure> {
        let folder = self.operator.join("accounts");
        let names = std::fs::read_dir(&folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
        for name in names {
            let name = name.to_string_lossy().into_owned();
            let Some(jwt) = read_if_there(&self.account_file(&name))? else { continue };
            if claims::subject(&jwt).as_deref() == Some(key) {
                return Ok(jwt.trim().to_owned());
            }
        }
        Err(Failure::input(format!("`{}` has no account {key}", folder.display())))
    }

    /// Fails if somebody else has made an account of this name.
    pub(super) fn check_free(&self, account: &str) -> Result<(), Failure> {
        if self.account_file(account).symlink_metadata().is_err() {
            return Ok(());
        }
        let failure = Failure::input(format!("nsc has an account {account} already, which this setup did not make"));
        Err(failure.help("nothing was changed: rename it, or use an operator of its own"))
    }

    /// Writes an account. What was changed in it meanwhile stays, except the scopes of the keys that sign our users.
    pub(super) fn write_account(&self, name: &str, claims: Value, signer: &KeyPair) -> Result<String, Failure> {
        let path = self.account_file(name);
        let mut claims = claims;
        if let Some(jwt) = read_if_there(&path)? {
            let stored = decoded(&jwt).ok_or_else(|| damaged(&path))?;
            if stored.get("sub") != claims.get("sub") {
                self.check_free(name)?;
            }
            let mut merged = stored.clone();
            let (Some(theirs), Some(ours)) = (nats(&mut merged), claims.get("nats")) else {
                return Err(damaged(&path));
            };
            merge(theirs, ours);
            if merged == stored {
                return Ok(jwt.trim().to_owned());
            }
            claims = merged;
        }
        let jwt = signed(signer, claims, when::now_s())?;
        self.write(&path, &jwt)?;
        Ok(jwt)
    }

    /// Writes a user's JWT, unless a key that is not ours has signed the one that is there.
    pub(super) fn write_user(&self, account: &str, name: &str, jwt: &str) -> Result<(), Failure> {
        let path = self.operator.join("accounts").join(account).join("users").join(format!("{name}.jwt"));
        if let Some(stored) = read_if_there(&path)? {
            let issuer = |jwt: &str| decoded(jwt).and_then(|claims| claims.get("iss").cloned());
            if issuer(&stored) != issuer(jwt) {
                let failure =
                    Failure::input(format!("nsc has a user {name} in {account} already, which is another one"));
                return Err(failure.help("that user was not changed: give yours another name"));
            }
        }
        self.write(&path, jwt)
    }

    /// Writes a `.creds` file.
    pub(super) fn write_creds(&self, account: &str, name: &str, text: &str) -> Result<(), Failure> {
        let folder = self.keys.join("creds").join(self.info()?.name).join(account);
        self.write(&folder.join(format!("{name}.creds")), text)
    }

    /// Writes a key. One that is there is the same, or damaged.
    pub(super) fn write_key(&self, public: &str, seed: &str) -> Result<(), Failure> {
        let path = self.key_file(public)?;
        if path.symlink_metadata().is_err() {
            return self.write(&path, seed);
        }
        let stored = Zeroizing::new(read_secret(&path).or_fail(Exit::Input)?);
        if stored.trim() == seed { Ok(()) } else { Err(damaged(&path)) }
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), Failure> {
        make_folder(path.parent().unwrap_or(path))?;
        write_secret(path, text, true).or_fail(Exit::Input)
    }

    fn account_file(&self, name: &str) -> PathBuf {
        self.operator.join("accounts").join(name).join(format!("{name}.jwt"))
    }

    fn key_file(&self, public: &str) -> Result<PathBuf, Failure> {
        let (Some(kind), Some(shard)) = (public.get(..1), public.get(1..3)) else { return Err(Failure::bug()) };
        if KeyPair::from_public_key(public).is_err() {
            return Err(Failure::input("a JWT of nsc names something that is no public nkey"));
        }
        Ok(self.keys.join("keys").join(kind).join(shard).join(format!("{public}.nk")))
    }
}

fn nats(claims: &mut Value) -> Option<&mut Map<String, Value>> {
    claims.get_mut("nats")?.as_object_mut()
}

/// Puts what we need into an account that is there.
fn merge(stored: &mut Map<String, Value>, ours: &Value) {
    let key_of = |key: &Value| {
        let scoped = key.get("key").and_then(Value::as_str);
        key.as_str().or(scoped).unwrap_or_default().to_owned()
    };
    let list = |of: Option<&Value>| of.and_then(Value::as_array).cloned().unwrap_or_default();
    let known = list(stored.get("signing_keys"));
    let mut keys: BTreeMap<String, Value> = known.into_iter().map(|key| (key_of(&key), key)).collect();
    for key in list(ours.get("signing_keys")) {
        // The rest of a scope is `nsc`'s to change: a description.
        let is_known = keys.get(&key_of(&key)).is_some_and(|known| known.get("template") == key.get("template"));
        if !is_known {
            keys.insert(key_of(&key), key);
        }
    }
    stored.insert("signing_keys".to_owned(), keys.into_values().collect());
    let revoked = ours.get("revocations").and_then(Value::as_object).into_iter().flatten();
    for (nkey, until) in revoked {
        let known = stored.entry("revocations").or_insert_with(|| Value::Object(Map::new()));
        let Some(known) = known.as_object_mut() else { return };
        if known.get(nkey).and_then(Value::as_u64) < until.as_u64() {
            known.insert(nkey.clone(), until.clone());
        }
    }
}

fn only_operator(store: &Path) -> Result<PathBuf, Failure> {
    let entries = std::fs::read_dir(store).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut operators = entries.filter(|path| path.join(MARK).is_file());
    match (operators.next(), operators.next()) {
        (Some(operator), None) => Ok(operator),
        (None, _) => Err(Failure::input(format!("`{}` holds no operator of nsc", store.display())).help(
            "make one (nsc add operator NAME --sys --generate-signing-key), or name the store: --nsc-store FOLDER",
        )),
        _ => Err(Failure::input(format!("`{}` holds several operators", store.display()))
            .help("say which: --nsc-operator NAME")),
    }
}

/// Whether it is the name of one file or folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\'])
}

fn damaged(path: &Path) -> Failure {
    Failure::input(format!("`{}` does not hold what nsc writes there", path.display()))
}
