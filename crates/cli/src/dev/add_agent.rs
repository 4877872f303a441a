//! `sealwire dev add-agent`: adds an agent to the setup of `sealwire dev`, whether it is running or not.
//! Never touches existing agents.

use std::time::{Duration, Instant};

use clap::Args;
use sealwire::configure::AgentKey;
use sealwire::errors::ErrorKind;
use sealwire::internal::auth::read_service_key;
use sealwire::internal::wire::Nonce;
use sealwire::{BusConfig, Client, ClientError, Credentials, Name};
use serde_json::json;

use super::folder::{Folder, Member, Place};
use crate::alg::Alg;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, Lock};
use crate::keys::add_to_ring;
use crate::output::Output;
use crate::runtime::block_on;
use crate::{policies, policy, serve};
use sealwire_lab::parties::{self, SERVICE};
use sealwire_lab::sandbox::{MALLORY, SERVICE_USER, TOOLS_USER};

/// Add an agent to the setup: key, credentials, token and broker user
///
/// If `sealwire dev` is running, it picks up the agent at once, and this command waits until it has.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire dev add-agent indexer --role calculator
  sealwire dev add-agent indexer --role calculator --role teller --alg eddsa")]
pub(super) struct AddAgent {
    /// The agent's name
    #[arg(value_name = "NAME")]
    name: Name,
    /// A role for its tokens; repeat for several
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// The kind of key
    #[arg(long, value_enum, default_value_t)]
    alg: Alg,
    #[command(flatten)]
    place: Place,
}

/// How long a running setup may take to pick up the agent: it checks its files every half a second.
const PATIENCE: Duration = Duration::from_secs(15);

impl AddAgent {
    pub(super) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let folder = Folder::visit(&self.place.folder)?;
        let ring = folder.file("ring.json");
        let lock = Lock::of([ring.as_path()]);
        let name = self.name.as_str();
        if [SERVICE_USER, TOOLS_USER, MALLORY].contains(&name) {
            return Err(Failure::input(format!("`{name}` is a user of the broker already: choose another name")));
        }
        if folder.members()?.iter().any(|member| member.agent == self.name) {
            let file = folder.credentials_file(&self.name);
            let failure = Failure::input(format!("there is an agent `{name}` already"));
            return Err(failure.help(format!("its credentials are {}", file.display())));
        }
        let config = folder.config()?;
        let (policies, _) = serve::policy(&config)?;
        policies::check_roles(&policies, &self.roles)?;

        let url = config.nats.urls.first().cloned().unwrap_or_default();
        let bus = BusConfig {
            user: Some(name.to_owned()),
            password: Some(Nonce::random().to_text().into()),
            ..BusConfig::open(&url)
        };
        let endpoint = config.endpoint().or_fail(Exit::Input)?;
        let service_key =
            read_service_key(&folder.file("service-key.json"), endpoint.audience()).or_fail(Exit::Input)?;
        let key = AgentKey::generate(&format!("{name}.k1"), self.alg.into()).or_fail(Exit::Bug)?;
        let kid = key.kid().to_owned();
        let credentials = Credentials::new(config.environment.clone(), self.name.clone(), key, bus)
            .service_keys(parties::named(SERVICE)?, vec![service_key.public()])
            .token_file(format!("{name}.jwt"));
        let file = folder.credentials_file(&self.name);
        let member = Member { agent: self.name.clone(), roles: self.roles.clone() };
        // The ring and the list of agents, which make it known, come last: everything before can be written again.
        credentials.save(&file, true).or_fail(Exit::Input)?;
        folder.write_token(&folder.issuer()?, &member)?;
        add_to_ring(&ring, credentials.key(), &self.name)?;
        folder.add(member)?;
        drop(lock);

        let running = folder.is_used();
        if running {
            block_on(taken_up(&file))??;
        }
        let result = json!({ "agent": name, "roles": self.roles, "kid": kid, "credentials": files::shown(&file),
                             "running": running });
        out.result(&result, || {
            let known =
                if running { "the broker and the service know it" } else { "the next `sealwire dev` will know it" };
            let agent = policy::NewAgent {
                agent: &self.name,
                roles: &self.roles,
                credentials: &file,
                service: SERVICE,
                policies: &config.policy.folder,
            };
            let next = agent.next_steps(&policies);
            format!("added {name} (key {kid}), roles {:?}: {known}\n\n{next}", self.roles)
        })?;
        Ok(Exit::Ok)
    }
}

/// Waits until the broker admits the agent and the service verifies its key, whatever the policy says.
async fn taken_up(file: &std::path::Path) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        let credentials = Credentials::load(file).or_fail(Exit::Input)?;
        let asked = async {
            let client = Client::connect(credentials).await?;
            let asked = client.request(SERVICE).deadline(Duration::from_secs(2)).send_raw("{}").await;
            client.close().await;
            asked
        };
        let error = match asked.await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let waits =
            matches!(error.kind(), ErrorKind::Connect | ErrorKind::Hint | ErrorKind::NoResponders | ErrorKind::Timeout);
        if !waits || began.elapsed() > PATIENCE {
            let failure = Failure::of(Exit::Transport, &error as &ClientError);
            return Err(
                failure.help("the agent was added, but the `sealwire dev` that uses the folder does not know it yet")
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
