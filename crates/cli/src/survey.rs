//! How `exporter` and `top` reach the bus, and whose keys they know.
//! Never takes a key from the bus, and never makes calls.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use sealwire::configure::ServicePublicKey;
use sealwire::errors::BusError;
use sealwire::internal::nats::{environment_login, inbox_of_context, selected_context};
use sealwire::internal::wire::{Audience, Endpoint};
use sealwire::{BusConfig, Credentials, Name};
use sealwire_survey::{Options, Pins, Survey};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::{login, when};

/// Where to ask, and what proves an answer.
#[derive(Args)]
pub(crate) struct SurveyArgs {
    /// The broker login: a JSON file with the members of `nats` in credentials. Its user may publish `$SRV.>` and read its inbox
    #[arg(long, value_name = "FILE", conflicts_with_all = ["urls", "context"])]
    login: Option<PathBuf>,
    /// The address of a broker that admits anybody; repeat for the nodes of a cluster
    #[arg(long = "url", value_name = "URL", conflicts_with = "context")]
    urls: Vec<String>,
    /// A context of the `nats` command, for the broker and the login: its name, or the path to its file, which ends in `.json`
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Credentials in which the keys of services are pinned; without `--login`, `--url` and `--context`, also the broker login.
    /// Without any of them, the variables of the `nats` command (`NATS_URL`, `NATS_CONTEXT` and so on) count, then its selected context
    #[arg(long, value_name = "FILE", env = "SEALWIRE_CREDS", hide_env_values = true)]
    creds: Option<PathBuf>,
    /// The public key of a service, as `sealwire keys new-service` prints it: its key id, `=`, and the key; repeat for several
    #[arg(long = "service-key", value_name = "KID=KEY", value_parser = service_key)]
    service_keys: Vec<(Audience, ServicePublicKey)>,
    /// Where answers arrive. Services of ours answer only below their inbox prefix. Default: `_INBOX.` and the broker user's name, or
    /// `_INBOX.tools`
    #[arg(long, value_name = "PREFIX", value_parser = inbox)]
    inbox: Option<String>,
    /// How long to wait for answers
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = when::interval)]
    within: Duration,
}

/// Parses `svc:ENV/SVC:N=KEY`.
fn service_key(text: &str) -> Result<(Audience, ServicePublicKey), String> {
    const HELP: &str =
        "write the key id, `=` and the key, such as svc:dev/math:1=11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    let (kid, x) = text.split_once('=').ok_or(HELP)?;
    let audience = kid.strip_prefix("svc:").and_then(|rest| Audience::parse(rest.rsplit_once(':')?.0)).ok_or(HELP)?;
    let key = ServicePublicKey::new(kid, x).map_err(|error| error.to_string())?;
    Ok((audience, key))
}

/// Checks a prefix of inboxes.
fn inbox(text: &str) -> Result<String, String> {
    let is_subject = text.split('.').count() <= 8 && text.split('.').all(|token| Name::new(token).is_ok());
    if is_subject { Ok(text.to_owned()) } else { Err("write subject tokens, such as _INBOX.tools".to_owned()) }
}

impl SurveyArgs {
    /// Connects. There are no more rounds than one in `every`.
    pub(crate) async fn open(&self, command: &str, every: Duration) -> Result<Survey, Failure> {
        let creds = self.creds().map(Credentials::load).transpose().or_fail(Exit::Input)?;
        let mut pins = Pins::default();
        if let Some(credentials) = &creds {
            for service in credentials.services() {
                let audience = Audience::new(credentials.environment(), service);
                pins.add(&audience, credentials.pinned(service)).or_fail(Exit::Input)?;
            }
        }
        for (audience, key) in &self.service_keys {
            pins.add(audience, vec![key.clone()]).or_fail(Exit::Input)?;
        }
        let is_agent = self.is_agent();
        let (bus, user) = self.bus(creds.as_ref())?;
        let usual = match inbox_of_context(&bus).or_fail(Exit::Input)? {
            Some(prefix) => inbox(&prefix)
                .map_err(|help| Failure::input("the context has an unusable `inbox_prefix`").help(help))?,
            None => format!("{}.{user}", Endpoint::INBOX_PREFIX),
        };
        let inbox = self.inbox.clone().unwrap_or(usual);
        let options = Options { inbox, within: self.within, every, name: format!("sealwire {command}") };
        Survey::open(&bus, pins, options).await.map_err(|error| {
            let is_forbidden = matches!(error, BusError::Forbidden { .. });
            let failure = Failure::of(Exit::Transport, &error);
            if is_forbidden { forbidden(failure, is_agent) } else { failure }
        })
    }

    /// The login, and the name of the broker's user as far as it is known.
    fn bus(&self, creds: Option<&Credentials>) -> Result<(BusConfig, String), Failure> {
        let bus = if let Some(file) = &self.login {
            login::read(file)?
        } else if !self.urls.is_empty() {
            BusConfig { urls: self.urls.clone(), ..BusConfig::default() }
        } else if let Some(context) = &self.context {
            of_context(context.clone())
        } else if let Some(creds) = creds {
            return Ok((creds.bus(), creds.agent().to_string()));
        } else if let Some(bus) = environment_login(|name| std::env::var(name).ok()).or_fail(Exit::Input)? {
            bus
        } else if let Some(context) = selected_context().or_fail(Exit::Input)? {
            of_context(context)
        } else {
            let failure = Failure::new(
                Exit::Usage,
                "which broker? name a login with --login, an open one with --url, or a context with --context",
            );
            return Err(
                failure.help("for example: --login sealwire-dev/tools.nats.json, or --url nats://127.0.0.1:4222")
            );
        };
        let user = bus.resolved().or_fail(Exit::Input)?.user.clone().filter(|user| Name::new(user).is_ok());
        Ok((bus, user.unwrap_or_else(|| TOOLS.to_owned())))
    }

    /// Whether the broker's user is the agent of the credentials, if the broker lets it in.
    fn is_agent(&self) -> bool {
        self.login.is_none() && self.urls.is_empty() && self.context.is_none() && self.creds().is_some()
    }

    fn creds(&self) -> Option<&Path> {
        self.creds.as_deref().filter(|path| !path.as_os_str().is_empty())
    }

    /// What the broker's refusal to let us ask means.
    pub(crate) fn not_asked(&self, error: &sealwire_survey::NotAsked) -> Failure {
        let failure = Failure::of(Exit::Transport, error);
        match error {
            sealwire_survey::NotAsked::Forbidden(_) => forbidden(failure, self.is_agent()),
            sealwire_survey::NotAsked::Disconnected => failure,
        }
    }
}

fn of_context(context: String) -> BusConfig {
    BusConfig { context: Some(context), ..BusConfig::default() }
}

/// The user of tools in the set-ups that this command makes.
const TOOLS: &str = "tools";

fn forbidden(failure: Failure, is_agent: bool) -> Failure {
    failure.help(match is_agent {
        true => {
            "agents may not ask how services are doing: name the login of a user for tools with --login (SPEC.md, section 19, has its \
             permissions)"
        }
        false => "the user needs to publish `$SRV.>`, and to subscribe to its inbox (--inbox): SPEC.md, section 19",
    })
}
