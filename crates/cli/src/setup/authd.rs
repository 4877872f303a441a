//! What `sealwire authd` needs: keys and logins, and by what it judges connections for each service.
//! Never gives it a key of an agent or of a service.

use nkeys::{KeyPair, XKey};
use sealwire::Name;
use sealwire::internal::auth::{Denylist, TokenIssuer};
use sealwire_lab::layout::{CONFIG, DENYLIST, JWKS, TOKEN_KEY};
use sealwire_lab::parties::{self, ENVIRONMENT};

use super::callout::{ISSUER, XKEY};
use super::mark::{AUTHD, Mark};
use super::target::{ISSUER_FOLDER, OPERATOR, Target, USERS, token_rules, urls};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{read_if_there, shown};
use crate::gate::ACCOUNT;
use crate::users::{Kind, Users};

/// The login with which it answers.
const LOGIN: &str = "authd.nats.json";

impl Target {
    /// Makes its keys and logins. Takes up the keys that an interrupted run has left.
    pub(super) fn make_authd(&mut self, users: &mut Users) -> Result<(), Failure> {
        self.make_folder(AUTHD)?;
        let lacks = |target: &Self, file: &str| target.file(AUTHD, file).symlink_metadata().is_err();
        if lacks(self, ISSUER) {
            self.write(AUTHD, ISSUER, &KeyPair::new_account().seed().or_fail(Exit::Bug)?)?;
        }
        if lacks(self, XKEY) {
            self.write(AUTHD, XKEY, &XKey::new().seed().or_fail(Exit::Bug)?)?;
        }
        if lacks(self, DENYLIST) {
            self.write(AUTHD, DENYLIST, &Denylist::default().to_json())?;
        }
        let name = parties::named(AUTHD)?;
        let login = self.login(users, Kind::Responder, &name, AUTHD, Kind::Responder.as_str())?;
        self.write(AUTHD, LOGIN, &(serde_json::to_string_pretty(&login).or_fail(Exit::Bug)? + "\n"))?;
        self.login(users, Kind::AuthdFollower, &name, AUTHD, Kind::Follower.as_str())?;
        match &mut self.authority {
            None => Ok(()),
            Some(authority) => authority.make_sentinel(users),
        }
    }

    /// Adds it to a setup that has none. Users that brokers have stay as they are.
    pub(super) fn add_authd(&mut self, mut mark: Mark) -> Result<Mark, Failure> {
        mark.check_unmarked(&self.base, AUTHD)?;
        let mut users = Users::load(&self.file(OPERATOR, USERS))?;
        let denied = self.denied(&mark)?;
        self.make_authd(&mut users)?;
        self.write(AUTHD, "ca.pem", &read_if_there(&self.file(OPERATOR, "ca.pem"))?.unwrap_or_default())?;
        self.write(AUTHD, DENYLIST, &denied.to_json())?;
        mark.services.iter().try_for_each(|service| self.add_to_authd(service))?;
        self.write_users(&users)?;
        mark.authd = true;
        // The folders that say so last are those that are read first.
        let mut folders = Self::folders(&mark);
        folders.reverse();
        mark.write(&self.base, &folders)?;
        Ok(mark)
    }

    /// Has it judge connections for a service, too.
    pub(super) fn add_to_authd(&self, service: &Name) -> Result<(), Failure> {
        let issuer = TokenIssuer::load(self.file(ISSUER_FOLDER, TOKEN_KEY)).or_fail(Exit::Input)?;
        self.write(AUTHD, JWKS, &issuer.public_jwks())?;
        let file = format!("{service}.toml");
        if !self.file(AUTHD, &file).exists() {
            let config = format!(
                "# By what `sealwire authd` judges connections for the service {service}. Written by `sealwire setup`.\n\
                 environment = \"{ENVIRONMENT}\"\nservice = \"{service}\"\n\n\
                 [nats]\nurls = [{}]\n{}\ntls_ca = \"ca.pem\"\n\n\
                 # It reads no key ring. What a service denies is denied here only if it is in this list, too.\n\
                 [keys]\nring = \"none\"\ndenylist = \"{DENYLIST}\"\n\n\
                 {}[policy]\nfolder = \"../policies\"\n",
                urls(),
                self.login_of(Kind::Responder),
                token_rules(),
            );
            self.write(AUTHD, &file, &config)?;
        }
        // What the service follows counts here as well.
        let config = read_if_there(&self.file(service.as_str(), CONFIG))?.unwrap_or_default();
        if config.parse::<toml::Table>().is_ok_and(|config| config.contains_key("revocation")) {
            self.follow(AUTHD, &file, Kind::AuthdFollower)?;
        }
        Ok(())
    }

    /// The command that runs it.
    pub(super) fn authd_command(&self) -> Result<Vec<String>, Failure> {
        let file = |name: &str| shown(&self.file(AUTHD, name)).into_owned();
        let mut command = vec!["sealwire".to_owned(), AUTHD.to_owned()];
        for (option, value) in [("--login", file(LOGIN)), ("--issuer", file(ISSUER)), ("--xkey", file(XKEY))] {
            command.extend([option.to_owned(), value]);
        }
        command.extend(["--config".to_owned(), file("")]);
        if let Some(authority) = &self.authority {
            command.extend(["--account".to_owned(), authority.account(ACCOUNT)?.to_owned()]);
        }
        Ok(command)
    }
}
