//! `sealwire policy compile`: the permissions of the broker's users, from the same policies that services decide by.
//! Never grants an agent a subject that is not its own, and never withholds one on which a service would allow a call.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use nkeys::KeyPair;
use sealwire::Name;
use sealwire::configure::GuardKind;
use sealwire::internal::files::read_secret;
use sealwire::internal::wire::Nonce;
use sealwire_lab::permissions::Permissions;
use serde::Serialize;
use serde_json::{Value, json};

use super::compiled::{Gated, Sources};
use crate::exit::{Exit, Failure, OrFail as _};
use crate::gate::{PAYLOAD, SUBSCRIPTIONS, with};
use crate::output::Output;
use crate::users::{Callout, Kind, Users};
use crate::when;

/// Compile policies into permissions of the broker's users: which of its own subjects each agent may publish on
///
/// Reads the policies and key rings that the configurations of services name. An agent may publish on the subjects of the methods that some
/// call of it could be allowed to use; a condition that depends on parameters, time or key counts as met. Clients then publish each call on
/// the subject of its method: set `method_subjects` in their credentials.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy compile --nats --users operator/users.json \\
      --config demo/sealwire.toml --config bank/sealwire.toml > users.conf
  sealwire policy compile --nats=jwt --config sealwire.toml --agent ann=teller
  sealwire policy compile --nats=scoped --config sealwire.toml")]
pub(crate) struct Compile {
    /// For a NATS server, as `server`: its accounts and users; `jwt`: the claims of a JWT for each user, signed with --seed; or `scoped`:
    /// templates of scoped signing keys, one for each set of agents that may do the same
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        num_args = 0..=1,
        require_equals = true,
        required = true,
        default_missing_value = "server",
        hide_possible_values = true
    )]
    nats: Form,
    #[command(flatten)]
    sources: Sources,
    /// The users that the broker has, with their public keys, as `sealwire setup` keeps them; without it, the agents of the key rings
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// With --nats=jwt, the seed of the account's key that signs: the output is then one JWT for each user
    #[arg(long, value_name = "FILE")]
    seed: Option<PathBuf>,
    /// With --seed of a signing key, the account that it belongs to (`A…`)
    #[arg(long, value_name = "NKEY", requires = "seed")]
    account: Option<String>,
    /// Let agents in by their access tokens, as `sealwire authd` says that signs with this account key (`A…`), and not as users
    #[arg(long, value_name = "NKEY", requires = "xkey")]
    callout: Option<String>,
    /// The curve key of `sealwire authd` (`X…`)
    #[arg(long, value_name = "NKEY", requires = "responders")]
    xkey: Option<String>,
    /// The user of a `sealwire authd` (`U…`); repeat for several
    #[arg(long = "responder", value_name = "NKEY", requires = "callout")]
    responders: Vec<String>,
    /// An agent that stays a user beside the callout, such as a gateway's, which has no token of its own; repeat for several. A gateway
    /// that follows what is revoked stays in any case
    #[arg(long, value_name = "AGENT", requires = "callout")]
    keep: Vec<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Server,
    Jwt,
    Scoped,
}

/// Somebody who connects.
struct Party {
    kind: Kind,
    name: Name,
    nkey: Option<String>,
}

/// A template, and the agents whose permissions it gives.
#[derive(Serialize)]
struct Scope {
    role: String,
    agents: Vec<Name>,
    template: Value,
}

impl Compile {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let compiled = self.sources.open(out)?;
        let services = &compiled.services;
        let grant = |agent: &Name, named: &Name| compiled.grant(agent, named);
        let users = self.users.as_deref().map(Users::load).transpose()?;
        let environment = compiled.environment();
        match self.nats {
            Form::Server => {
                let callout = self.callout.map(|issuer| Callout {
                    issuer,
                    xkey: self.xkey.unwrap_or_default(),
                    responders: self.responders,
                });
                callout.as_ref().map_or(Ok(()), Callout::check)?;
                let mut users = users.ok_or_else(|| {
                    Failure::new(Exit::Usage, "a server's configuration needs the users' public keys: give --users")
                        .help("`sealwire setup cluster` writes operator/users.json; a file of your own has {\"users\": [{\"kind\": \"agent\", \"name\": …, \"nkey\": \"U…\"}]}, with the kinds agent, service, guard, tools, revoker, closer, follower, gateway-follower, authd-follower and responder")
                })?;
                if callout.is_some() {
                    let listed =
                        |agent: &Name| users.iter().any(|(kind, name, _)| kind == Kind::Agent && name == agent);
                    if let Some(unknown) = self.keep.iter().find(|agent| !listed(agent)) {
                        return Err(Failure::input(format!("--keep: no agent {unknown} is in the list of users")));
                    }
                    users.forget_agents(&self.keep);
                }
                for (index, nkey) in callout.iter().flat_map(|callout| &callout.responders).enumerate() {
                    let known = users.iter().any(|(kind, _, known)| kind == Kind::Responder && known == nkey);
                    if !known {
                        let name = Name::new(&format!("authd-{index}")).or_fail(Exit::Bug)?;
                        users.admit(Kind::Responder, &name, nkey)?;
                    }
                }
                let text = users.config("policy compile", &environment, callout.as_ref(), |agent| grant(agent, agent));
                out.result(&json!({ "config": text }), || text.clone())?;
            }
            Form::Jwt => {
                let signer = self.seed.as_deref().map(|path| Signer::load(path, self.account.clone())).transpose()?;
                let parties = parties(users.as_ref(), services);
                let mut all = Vec::new();
                for Party { kind, name, nkey } in parties {
                    let permissions = match kind {
                        Kind::Agent => grant(&name, &name),
                        kind => kind.permissions(&environment, name.as_str()),
                    };
                    let claims = claims(kind, &name, nkey.as_deref(), &permissions);
                    all.push(match &signer {
                        None => claims,
                        Some(signer) => json!({ "kind": kind, "name": name, "jwt": signer.sign(claims, &name)? }),
                    });
                }
                let text = serde_json::to_string_pretty(&all).or_fail(Exit::Bug)?;
                out.result(&all, || text)?;
            }
            Form::Scoped => {
                let agents = parties(users.as_ref(), services).into_iter().filter(|party| party.kind == Kind::Agent);
                let scopes = scopes(agents.map(|party| party.name), grant)?;
                let text = serde_json::to_string_pretty(&scopes).or_fail(Exit::Bug)?;
                out.result(&scopes, || text)?;
            }
        }
        Ok(Exit::Ok)
    }
}

/// Everybody who connects: as listed, or as the configurations and key rings of the services say.
fn parties(users: Option<&Users>, services: &[Gated]) -> Vec<Party> {
    if let Some(users) = users {
        let party =
            |(kind, name, nkey): (Kind, &Name, &str)| Party { kind, name: name.clone(), nkey: Some(nkey.to_owned()) };
        return users.iter().map(party).collect();
    }
    let party = |kind, name: &Name| Party { kind, name: name.clone(), nkey: None };
    let owners: BTreeSet<&Name> = services.iter().flat_map(|service| &service.owners).collect();
    let agents = owners.into_iter().map(|name| party(Kind::Agent, name));
    let answering = services.iter().map(|service| party(Kind::Service, &service.config.service));
    let guarded = services.iter().filter(|service| service.config.replay.guard == GuardKind::Shared);
    let guards = guarded.map(|service| party(Kind::Guard, &service.config.service));
    agents.chain(answering).chain(guards).collect()
}

/// The claims of a user's JWT, as far as they follow from what the user is for.
fn claims(kind: Kind, name: &Name, nkey: Option<&str>, permissions: &Permissions) -> Value {
    let kind_of_user = json!({ "type": "user", "version": 2, "tags": [format!("sealwire:{}", kind.as_str())] });
    let nats = with(with(limits(kind), permissions.claims()), kind_of_user);
    let claims = json!({ "name": name, "nats": nats });
    match nkey {
        Some(nkey) => with(claims, json!({ "sub": nkey })),
        None => claims,
    }
}

fn limits(kind: Kind) -> Value {
    match kind {
        Kind::Agent => {
            json!({ "subs": SUBSCRIPTIONS, "data": -1, "payload": PAYLOAD, "allowed_connection_types": ["STANDARD"] })
        }
        _ => json!({ "subs": -1, "data": -1, "payload": -1, "allowed_connection_types": ["STANDARD"] }),
    }
}

/// The agents by what they may do, their own names apart. `grant` takes an agent, and the name that its subjects have.
fn scopes(
    agents: impl Iterator<Item = Name>,
    grant: impl Fn(&Name, &Name) -> Permissions,
) -> Result<Vec<Scope>, Failure> {
    // No name of anybody.
    let stand_in = Name::new(&Nonce::random().to_text()).or_fail(Exit::Bug)?;
    let mut scopes: Vec<Scope> = Vec::new();
    for agent in agents {
        let text = grant(&agent, &stand_in).claims().to_string().replace(stand_in.as_str(), "{{name()}}");
        let permissions: Value = serde_json::from_str(&text).or_fail(Exit::Bug)?;
        let template = with(limits(Kind::Agent), permissions);
        match scopes.iter_mut().find(|scope| scope.template == template) {
            Some(scope) => scope.agents.push(agent),
            None => scopes.push(Scope { role: agent.to_string(), agents: vec![agent], template }),
        }
    }
    Ok(scopes)
}

/// The key of an account.
struct Signer {
    key: KeyPair,
    account: Option<String>,
}

impl Signer {
    fn load(path: &Path, account: Option<String>) -> Result<Self, Failure> {
        let seed = read_secret(path).or_fail(Exit::Input)?;
        let wrong = || Failure::input(format!("`{}` holds no seed of an account (SA…)", path.display()));
        let key = KeyPair::from_seed(seed.trim()).map_err(|_| wrong())?;
        if !key.public_key().starts_with('A') {
            return Err(wrong());
        }
        if account
            .as_deref()
            .is_some_and(|account| !account.starts_with('A') || KeyPair::from_public_key(account).is_err())
        {
            return Err(Failure::input("not the public nkey of an account (it begins with A): --account"));
        }
        Ok(Self { account: account.filter(|account| *account != key.public_key()), key })
    }

    fn sign(&self, mut claims: Value, name: &Name) -> Result<String, Failure> {
        if claims.get("sub").is_none() {
            let failure = Failure::input(format!("the public key of {name} is not known, so its JWT cannot be signed"));
            return Err(failure.help("give --users, the list of users with their public keys"));
        }
        if let (Some(account), Some(Value::Object(nats))) = (&self.account, claims.get_mut("nats")) {
            nats.insert("issuer_account".to_owned(), account.as_str().into());
        }
        crate::gate::signed(&self.key, claims, when::now_s())
    }
}
