//! What operators need to revoke, and services to follow them: the desk's file and key, and a table in configurations.
//! Never turns it on by itself: a service that follows starts only once there is a list.

use sealwire::internal::auth::OperatorKey;
use sealwire_lab::layout::CONFIG;
use sealwire_lab::parties::{self, ENVIRONMENT};

use super::mark::Mark;
use super::target::{OPERATOR, Target, remove, urls};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{at, read_if_there};
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
        self.write(OPERATOR, DESK, &text)
    }

    /// Has services follow what is revoked, unless their configuration says something about it. Returns the folders of those that it
    /// has changed.
    pub(super) fn add_revocation(&self, mark: &Mark) -> Result<Vec<String>, Failure> {
        let path = self.file(OPERATOR, DESK);
        let wrong = || Failure::input(format!("`{}` names no operator", path.display()));
        let desk: toml::Table = read_if_there(&path)?.unwrap_or_default().parse().map_err(|_| wrong())?;
        let operators = desk.get("operator").ok_or_else(wrong)?;
        let signatures = desk.get("signatures").map(|number| format!("signatures = {number}\n")).unwrap_or_default();
        let mut changed = Vec::new();
        for service in &mark.services {
            let folder = service.as_str();
            let text = read_if_there(&self.file(folder, CONFIG))?.unwrap_or_default();
            let said: toml::Table = text
                .parse()
                .map_err(|_| Failure::input(format!("`{}` is not TOML", self.file(folder, CONFIG).display())))?;
            if !said.contains_key("revocation") {
                let table = format!(
                    "\n# Operators revoke agents, methods and more, at once and everywhere.\n[revocation]\noperator = {operators}\n\
                     {signatures}\n[revocation.nats]\nurls = [{}]\n{}\ntls_ca = \"ca.pem\"\n",
                    urls(),
                    self.login_of(Kind::Follower),
                );
                self.write(folder, CONFIG, &format!("{text}{table}"))?;
                changed.push(folder.to_owned());
            }
        }
        Ok(changed)
    }
}
