//! The keys of a setup in operator mode: what signs accounts and users, and what only the set-up needs and is then put away.
//! Never replaces a key, and never writes over an account or user of `nsc` that it did not make.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nkeys::KeyPair;
use sealwire::internal::files::{read_secret, write_secret};
use serde::{Deserialize, Serialize};
use serde_json::json;
use zeroize::Zeroizing;

use super::callout::callout;
use super::mark::SIGNING;
use super::nsc::Nsc;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{make_folder, read_if_there, restrict};
use crate::gate::signed;
use crate::users::claims::{self, creds};
use crate::users::{AUTH, Account, AccountKeys, Kind, SYSTEM, Users};
use crate::when;
use sealwire_lab::parties::ENVIRONMENT;

/// The folder of the keys that nothing but another set-up needs.
pub(super) const PUT_AWAY: &str = "put-away";
/// The public keys, in the operator's folder.
const PUBLIC: &str = "operator/accounts.json";
/// The file of the operator's key, in either folder.
const OPERATOR: &str = "operator.nk";
/// The operator's name, and the tag of what we make.
const NAME: &str = "sealwire";

/// What is known of the keys without any of them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Public {
    /// The operator's JWT, as brokers get it.
    operator: String,
    /// The public key that signs accounts.
    signer: String,
    /// Where `nsc` has keys and JWTs, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    nsc: Option<Nsc>,
    /// The JWT of whoever shows brokers nothing but an access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sentinel: Option<String>,
    accounts: BTreeMap<String, AccountKeys>,
}

/// Signs accounts and users.
pub(super) struct Authority {
    base: PathBuf,
    public: Public,
}

impl Authority {
    /// That of the setup in this folder; `None` if there is none.
    pub(super) fn find(base: &Path) -> Result<Option<Self>, Failure> {
        let path = base.join(PUBLIC);
        let Some(text) = read_if_there(&path)? else { return Ok(None) };
        let public = serde_json::from_str(&text);
        let public = public.map_err(|_| Failure::input(format!("`{}` is not of this version", path.display())))?;
        Ok(Some(Self { base: base.to_owned(), public }))
    }

    /// An operator of our own, or the one that `nsc` has. Takes up the keys of an interrupted set-up.
    pub(super) fn make(base: &Path, nsc: Option<Nsc>) -> Result<Self, Failure> {
        for folder in ["operator", SIGNING, PUT_AWAY] {
            make_folder(&base.join(folder))?;
            restrict(&base.join(folder))?;
        }
        let public =
            Public { operator: String::new(), signer: String::new(), nsc, sentinel: None, accounts: BTreeMap::new() };
        let mut authority = Self { base: base.to_owned(), public };
        if let Some(nsc) = &authority.public.nsc {
            let operator = nsc.operator()?;
            authority.public.signer = operator.signer;
            authority.public.operator = operator.jwt;
            let system = AccountKeys { account: operator.system, ..AccountKeys::default() };
            authority.public.accounts.insert(SYSTEM.to_owned(), system);
        } else {
            let identity = authority.key(PUT_AWAY, OPERATOR, KeyPair::new_operator)?;
            let signer = authority.key(SIGNING, OPERATOR, KeyPair::new_operator)?;
            let system = authority.key(PUT_AWAY, &format!("{SYSTEM}.nk"), KeyPair::new_account)?;
            let nats = json!({ "type": "operator", "version": 2, "signing_keys": [signer.public_key()],
                               "system_account": system.public_key(), "strict_signing_key_usage": true });
            let claims = json!({ "sub": identity.public_key(), "name": NAME, "nats": nats });
            authority.public.signer = signer.public_key();
            authority.public.operator = signed(&identity, claims, when::now_s())?;
        }
        authority.save()?;
        Ok(authority)
    }

    /// Whether accounts and users are in the store of `nsc`, too.
    pub(super) fn nsc(&self) -> Option<&Nsc> {
        self.public.nsc.as_ref()
    }

    /// Makes the keys of accounts that are new.
    fn ensure(&mut self, accounts: &[Account<'_>]) -> Result<(), Failure> {
        let before = self.public.accounts.clone();
        let mut identities = BTreeMap::new();
        for account in accounts {
            let name = &account.name;
            let known = self.public.accounts.get(name).cloned();
            let is_foreign = name == SYSTEM && self.public.nsc.is_some();
            let mut keys = match known {
                Some(keys) => keys,
                None => {
                    if let Some(nsc) = &self.public.nsc {
                        nsc.check_free(name)?;
                    }
                    let identity = self.key(PUT_AWAY, &format!("{name}.nk"), KeyPair::new_account)?;
                    let keys = AccountKeys { account: identity.public_key(), ..AccountKeys::default() };
                    identities.insert(name.clone(), identity);
                    keys
                }
            };
            for kind in account.kinds.iter().filter(|_| !is_foreign) {
                if !keys.roles.contains_key(kind) {
                    let key = self.key(SIGNING, &file_of(name, *kind), KeyPair::new_account)?;
                    keys.roles.insert(*kind, key.public_key());
                }
            }
            self.public.accounts.insert(name.clone(), keys);
        }
        for account in accounts {
            for share in &account.exports {
                let importer = self.keys(share.with)?.account.clone();
                let file = format!("{}.nk", account.name);
                if self.keys(share.with)?.activations.contains_key(&share.subject) {
                    continue;
                }
                let identity = match identities.remove(&account.name) {
                    Some(identity) => identity,
                    None => self.read_key(PUT_AWAY, &file)?,
                };
                let jwt = signed(&identity, Account::activation(share, &importer), when::now_s())?;
                identities.insert(account.name.clone(), identity);
                if let Some(keys) = self.public.accounts.get_mut(share.with) {
                    keys.activations.insert(share.subject.clone(), jwt);
                }
            }
        }
        if before != self.public.accounts { self.save() } else { Ok(()) }
    }

    /// The JWT of each account, by its public key; in the store of `nsc`, too.
    pub(super) fn accounts(&mut self, users: &Users) -> Result<Vec<(String, String)>, Failure> {
        let accounts = users.accounts(ENVIRONMENT);
        self.ensure(&accounts)?;
        let signer = self.operator_signer()?;
        let callout = callout(&self.base, users)?;
        let mut all = Vec::new();
        for account in &accounts {
            let keys = self.keys(&account.name)?;
            // Nobody but agents is ever removed.
            let none = BTreeMap::new();
            let revoked = if account.kinds.contains(&Kind::Agent) { users.revoked() } else { &none };
            let claims = account.claims(ENVIRONMENT, &self.public.accounts, callout.as_ref(), revoked)?;
            let jwt = match &self.public.nsc {
                Some(nsc) if account.name == SYSTEM => nsc.account_of(&keys.account)?,
                Some(nsc) => nsc.write_account(&account.name, claims, &signer)?,
                None => signed(&signer, claims, when::now_s())?,
            };
            all.push((keys.account.clone(), jwt));
        }
        Ok(all)
    }

    /// The JWT of a user.
    pub(super) fn user(&mut self, users: &Users, kind: Kind, name: &str, nkey: &str) -> Result<String, Failure> {
        self.ensure(&users.accounts(ENVIRONMENT))?;
        let account = self.account_of(users, nkey)?;
        let keys = self.keys(&account)?;
        let signer = self.read_key(SIGNING, &file_of(&account, kind))?;
        if keys.roles.get(&kind) != Some(&signer.public_key()) {
            let file = self.base.join(SIGNING).join(file_of(&account, kind));
            return Err(Failure::input(format!("`{}` is not the key that the accounts name", file.display()))
                .help("restore it from a backup"));
        }
        // One that was revoked and comes back is newer than what was revoked.
        let now_s = when::now_s().max(users.revoked().get(nkey).map_or(0, |until| until.saturating_add(1)));
        let jwt = signed(&signer, claims::user(name, nkey, &keys.account), now_s)?;
        if let Some(nsc) = &self.public.nsc {
            nsc.write_user(&account, name, &jwt)?;
        }
        Ok(jwt)
    }

    /// A `.creds` file for a user whose key pair is made here.
    pub(super) fn creds(
        &mut self,
        users: &Users,
        kind: Kind,
        name: &str,
        seed: &str,
    ) -> Result<Zeroizing<String>, Failure> {
        let nkey = KeyPair::from_seed(seed).or_fail(Exit::Bug)?.public_key();
        let jwt = self.user(users, kind, name, &nkey)?;
        let text = creds(&jwt, seed);
        if let Some(nsc) = &self.public.nsc {
            nsc.write_key(&nkey, seed)?;
            nsc.write_creds(&self.account_of(users, &nkey)?, name, &text)?;
        }
        Ok(text)
    }

    /// Makes the user that every connection without a JWT of its own is taken for, until `authd` has said who it is. Its key pair is
    /// nobody's, and its JWT is no secret: it opens nothing.
    pub(super) fn make_sentinel(&mut self, users: &Users) -> Result<(), Failure> {
        self.ensure(&users.accounts(ENVIRONMENT))?;
        if self.public.sentinel.is_some() {
            return Ok(());
        }
        let signer = self.read_key(SIGNING, &file_of(AUTH, Kind::Sentinel))?;
        let (nkey, account) = (KeyPair::new_user().public_key(), &self.keys(AUTH)?.account);
        let jwt = signed(&signer, claims::user(Kind::Sentinel.as_str(), &nkey, account), when::now_s())?;
        self.public.sentinel = Some(jwt);
        self.save()
    }

    /// The public key of an account.
    pub(super) fn account(&self, name: &str) -> Result<&str, Failure> {
        Ok(&self.keys(name)?.account)
    }

    /// The configuration of a broker: the operator, and a full resolver with all accounts.
    pub(super) fn config(&mut self, users: &Users) -> Result<String, Failure> {
        let accounts = self.accounts(users)?;
        let system = &self.keys(SYSTEM)?.account;
        let sentinel = self.public.sentinel.iter().map(|jwt| format!("default_sentinel: {jwt}\n")).collect::<String>();
        let preload: String = accounts.iter().map(|(key, jwt)| format!("  {key}: {jwt}\n")).collect();
        Ok(format!(
            "# Written by `sealwire setup`. It names public keys only.\noperator: {}\nsystem_account: {system}\n{sentinel}\
             # Accounts as brokers have them last, from `sealwire setup push` or `nsc push`; nobody deletes one.\n\
             resolver {{ type: full, dir: \"{ACCOUNTS}\", allow_delete: false, interval: \"2m\" }}\n\
             resolver_preload {{\n{preload}}}\n",
            self.public.operator
        ))
    }

    /// The account of a user.
    fn account_of(&self, users: &Users, nkey: &str) -> Result<String, Failure> {
        let is_in =
            |account: &Account<'_>| users.iter().any(|(kind, name, key)| key == nkey && account.has(kind, name));
        let account = users.accounts(ENVIRONMENT).into_iter().find(is_in).ok_or_else(Failure::bug)?;
        Ok(account.name)
    }

    fn keys(&self, account: &str) -> Result<&AccountKeys, Failure> {
        self.public.accounts.get(account).ok_or_else(Failure::bug)
    }

    fn operator_signer(&self) -> Result<KeyPair, Failure> {
        match &self.public.nsc {
            Some(nsc) => nsc.seed(&self.public.signer),
            None => self.read_key(SIGNING, OPERATOR),
        }
    }

    /// The key in a file, which is made if there is none. `nsc` learns it.
    fn key(&self, folder: &str, file: &str, make: impl FnOnce() -> KeyPair) -> Result<KeyPair, Failure> {
        let path = self.base.join(folder).join(file);
        let pair = if path.symlink_metadata().is_ok() { self.read_key(folder, file)? } else { make() };
        let seed = Zeroizing::new(pair.seed().or_fail(Exit::Bug)?);
        if path.symlink_metadata().is_err() {
            // What is put away may be gone with its folder.
            make_folder(&self.base.join(folder))?;
            restrict(&self.base.join(folder))?;
            // In one step: half a file of an interrupted run would be in the way. Nobody else writes here now.
            write_secret(&path, &seed, true).or_fail(Exit::Input)?;
        }
        if let Some(nsc) = &self.public.nsc {
            nsc.write_key(&pair.public_key(), &seed)?;
        }
        Ok(pair)
    }

    fn read_key(&self, folder: &str, file: &str) -> Result<KeyPair, Failure> {
        let path = self.base.join(folder).join(file);
        if path.symlink_metadata().is_err() {
            let failure = Failure::input(format!("`{}` is not there, which has to sign", path.display()));
            return Err(failure.help("put it back, from where it was put away or from a backup"));
        }
        let seed = read_secret(&path).or_fail(Exit::Input)?;
        KeyPair::from_seed(seed.trim()).map_err(|_| Failure::input(format!("`{}` holds no nkey seed", path.display())))
    }

    fn save(&self) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&self.public).or_fail(Exit::Bug)? + "\n";
        write_secret(&self.base.join(PUBLIC), &text, true).or_fail(Exit::Input)
    }
}

/// Where brokers keep accounts.
const ACCOUNTS: &str = "/sealwire/data/accounts";

fn file_of(account: &str, kind: Kind) -> String {
    format!("{account}.{}.nk", kind.as_str())
}
