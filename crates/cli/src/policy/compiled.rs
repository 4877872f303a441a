//! What the policies of services leave each agent at the broker.
//! Never withholds a subject on which a service would allow a call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::internal::auth::{KeyRingFile, KeyStatus};
use sealwire::internal::files::read_secret;
use sealwire::internal::policy::TokenRoles;
use sealwire::internal::wire::Endpoint;
use sealwire::{Config, Name, PolicySet};
use sealwire_lab::permissions::Permissions;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::gate::Grant;
use crate::output::Output;
use crate::{policies, project};

/// What the permissions of agents are compiled from.
#[derive(Args)]
pub(super) struct Sources {
    /// The configuration of a service; repeat for each service at the broker
    #[arg(long, value_name = "FILE", default_value = "sealwire.toml")]
    config: Vec<PathBuf>,
    /// That tokens of this agent carry no roles but these (`NAME=ROLE,ROLE`, or `NAME=` for none); repeat for several
    #[arg(long = "agent", value_name = "NAME=ROLES", value_parser = with_roles)]
    agents: Vec<(Name, BTreeSet<String>)>,
    /// Let agents send batches: also the plain subject of each agent at a service that it may call. The broker does not see the
    /// methods in what goes there
    #[arg(long)]
    batches: bool,
}

fn with_roles(text: &str) -> Result<(Name, BTreeSet<String>), String> {
    let (name, roles) = text.split_once('=').ok_or("write NAME=ROLE,ROLE, such as ann=teller,auditor")?;
    let roles = roles.split(',').filter(|role| !role.is_empty()).map(str::to_owned).collect();
    Ok((Name::new(name).map_err(|error| error.to_string())?, roles))
}

/// The services at a broker, and what is known of their callers.
pub(super) struct Compiled {
    pub(super) services: Vec<Gated>,
    roles: BTreeMap<Name, TokenRoles>,
    batches: bool,
}

/// A service and its policy.
pub(super) struct Gated {
    pub(super) config: Config,
    pub(super) endpoint: Endpoint,
    pub(super) policy: PolicySet,
    /// Whose keys are in the key ring, revoked ones apart.
    pub(super) owners: BTreeSet<Name>,
}

impl Sources {
    pub(super) fn open(&self, out: &Output) -> Result<Compiled, Failure> {
        let services = self.config.iter().map(|path| Gated::open(path, out)).collect::<Result<_, _>>()?;
        let within = |(name, roles): &(Name, BTreeSet<String>)| (name.clone(), TokenRoles::Within(roles.clone()));
        Ok(Compiled { services, roles: self.agents.iter().map(within).collect(), batches: self.batches })
    }
}

impl Compiled {
    /// The environment of the services.
    pub(super) fn environment(&self) -> String {
        self.services.first().map(|service| service.config.environment.to_string()).unwrap_or_default()
    }

    /// What an agent may do, with the subjects of somebody by another name.
    pub(super) fn grant(&self, agent: &Name, named: &Name) -> Permissions {
        let roles = self.roles.get(agent).unwrap_or(&TokenRoles::Any);
        self.grant_with(agent, named, |_| Some(roles.clone()))
    }

    /// The same, with the roles that the agent's token has at each service; `None` where that accepts no token of its.
    pub(super) fn grant_with(
        &self,
        agent: &Name,
        named: &Name,
        roles: impl Fn(&Gated) -> Option<TokenRoles>,
    ) -> Permissions {
        let mut grant = Grant::default();
        for service in &self.services {
            if let Some(roles) = roles(service) {
                let scope = service.policy.method_scope(agent, &roles);
                grant.add(&service.endpoint, named, &scope, self.batches);
            }
        }
        grant.permissions()
    }
}

impl Gated {
    fn open(path: &Path, out: &Output) -> Result<Self, Failure> {
        let (config, _) = project::load(path)?;
        let endpoint = config.endpoint().or_fail(Exit::Input)?;
        let policy = policies::load(&config.policy.folder, out)?;
        let ring = &config.keys.ring;
        let text = read_secret(ring).or_fail(Exit::Input)?;
        // Report nothing of the parser's own message: it may quote a key.
        let file: KeyRingFile = serde_json::from_str(&text)
            .map_err(|_| Failure::input(format!("`{}` is not a key ring", ring.display())))?;
        let known = file.keys.into_iter().filter(|entry| entry.status != KeyStatus::Revoked);
        let owners = known.map(|entry| entry.owner.clone()).collect();
        Ok(Self { config, endpoint, policy, owners })
    }
}
