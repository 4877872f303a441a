//! What operators need to revoke, and services to follow them: the desk's file and key, and a table in configurations.
//! Never turns it on by itself: a service that follows starts only once there is a list.

use std::path::Path;

use sealwire::internal::auth::OperatorKey;
use sealwire_lab::layout::CONFIG;
use sealwire_lab::parties::{self, ENVIRONMENT};

use super::mark::{AUTHD, Mark};
use super::target::{BROKERS, GATEWAY, GATEWAY_CONFIG, OPERATOR, Target, USERS, remove, urls};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{at, read_if_there};
use crate::gate::ACCOUNT;
use crate::users::{Kind, Users};

/// The operator's file, and the key with which lists are signed.
const DESK: &str = "revocation.toml";
const KEY: &str = "op-1";

impl Target {
    /// Makes the operator's key, login and file, in a new setup.
    pub(super) fn make_revoker(&mut self, users: &mut Users) -> Result<(), Failure> {
        let file = format!("{KEY}.json");
        let path = self.file(OPERATOR, &file);
        // One that an interrupted run has left is of no use to anybody else.
        let key = if path.exists() {
            OperatorKey::load(&path).or_fail(Exit::Input)?
        } else {
            let key = OperatorKey::generate(KEY).or_fail(Exit::Bug)?;
            let new = path.with_extension("new");
            remove(&new)?;
            key.save(&new).or_fail(Exit::Input)?;
            std::fs::rename(&new, &path).map_err(|error| at(&path, &error))?;
            key
        };
        // The name is that of its inbox.
        self.login(users, Kind::Revoker, &parties::named(OPERATOR)?, OPERATOR, Kind::Revoker.as_str())?;
        let text = format!(
            "# Where operators revoke, and whose signatures count. Written by `sealwire setup`.\nenvironment = \"{ENVIRONMENT}\"\n\
             operator = [{{ kid = \"{KEY}\", x = \"{}\" }}]\n\n[nats]\nurls = [{}]\n{}\ntls_ca = \"ca.pem\"\n",
            key.x(),
            urls(),
            self.login_of(Kind::Revoker),
        );
        self.write(OPERATOR, DESK, &text)?;
        self.make_more_for_revocation(users)?;
        Ok(())
    }

    /// Makes what setups of earlier versions lack: the login with which the gateway follows, and the one that closes connections. Returns
    /// whether there are new users.
    fn make_more_for_revocation(&mut self, users: &mut Users) -> Result<bool, Failure> {
        let lacks_follower = !users.has(Kind::GatewayFollower);
        if lacks_follower {
            self.login(users, Kind::GatewayFollower, &parties::named(GATEWAY)?, GATEWAY, Kind::Follower.as_str())?;
        }
        // The system's account of `nsc` has users of its own.
        let is_ours = self.authority.as_ref().is_none_or(|authority| authority.nsc().is_none());
        let lacks_closer = is_ours && !users.has(Kind::Closer);
        if lacks_closer {
            self.login(users, Kind::Closer, &parties::named(OPERATOR)?, OPERATOR, Kind::Closer.as_str())?;
        }
        let (path, text) = (self.file(OPERATOR, DESK), read_if_there(&self.file(OPERATOR, DESK))?.unwrap_or_default());
        if is_ours && !read(&path, &text)?.contains_key("system") {
            // Brokers in operator mode know accounts by their keys.
            let account = match &self.authority {
                Some(authority) => format!("account = \"{}\"\n", authority.account(ACCOUNT)?),
                None => String::new(),
            };
            let table = format!(
                "\n# Closes the connections of what is revoked.\n[system]\nbrokers = {BROKERS}\nusers = \"{USERS}\"\n{account}\n\
                 [system.nats]\nurls = [{}]\n{}\ntls_ca = \"ca.pem\"\n",
                urls(),
                self.login_of(Kind::Closer),
            );
            self.write(OPERATOR, DESK, &format!("{text}{table}"))?;
        }
        Ok(lacks_follower || lacks_closer)
    }

    /// Has services, gateway and `authd` follow what is revoked, unless their configuration says something about it. Returns the folders of
    /// those that it has changed.
    pub(super) fn add_revocation(&mut self, mark: &Mark) -> Result<Vec<String>, Failure> {
        let mut users = Users::load(&self.file(OPERATOR, USERS))?;
        if self.make_more_for_revocation(&mut users)? {
            self.write_users(&users)?;
        }
        let services = mark.services.iter().map(|service| (service.as_str(), CONFIG.to_owned(), Kind::Follower));
        let gateway = std::iter::once((GATEWAY, GATEWAY_CONFIG.to_owned(), Kind::GatewayFollower));
        let of_authd = mark.services.iter().filter(|_| mark.authd);
        let of_authd = of_authd.map(|service| (AUTHD, format!("{service}.toml"), Kind::AuthdFollower));
        let mut changed = Vec::new();
        for (folder, file, kind) in services.chain(gateway).chain(of_authd) {
            if self.follow(folder, &file, kind)? && changed.last().is_none_or(|last| last != folder) {
                changed.push(folder.to_owned());
            }
        }
        Ok(changed)
    }

    /// Has one follow with the login of this kind in its folder, unless its configuration says something about it. Returns whether it is
    /// changed.
    pub(super) fn follow(&self, folder: &str, file: &str, kind: Kind) -> Result<bool, Failure> {
        let path = self.file(OPERATOR, DESK);
        let desk = read(&path, &read_if_there(&path)?.unwrap_or_default())?;
        let wrong = || Failure::input(format!("`{}` names no operator", path.display()));
        let operators = desk.get("operator").ok_or_else(wrong)?;
        let signatures = desk.get("signatures").map(|number| format!("signatures = {number}\n")).unwrap_or_default();
        let path = self.file(folder, file);
        let text = read_if_there(&path)?.unwrap_or_default();
        let said = read(&path, &text)?;
        let (said, prefix) = match kind {
            Kind::GatewayFollower => (said.get("gateway").and_then(toml::Value::as_table).cloned(), "gateway."),
            _ => (Some(said), ""),
        };
        if said.is_some_and(|said| said.contains_key("revocation")) {
            return Ok(false);
        }
        let table = format!(
            "\n# Operators revoke agents, methods and more, at once and everywhere.\n[{prefix}revocation]\noperator = {operators}\n\
             {signatures}\n[{prefix}revocation.nats]\nurls = [{}]\n{}\ntls_ca = \"ca.pem\"\n",
            urls(),
            self.login_of(Kind::Follower),
        );
        self.write(folder, file, &format!("{text}{table}"))?;
        Ok(true)
    }
}

fn read(path: &Path, text: &str) -> Result<toml::Table, Failure> {
    text.parse().map_err(|_| Failure::input(format!("`{}` is not TOML", path.display())))
}
