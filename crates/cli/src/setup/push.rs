//! `sealwire setup push`: brings the accounts of a setup to brokers in operator mode that run.
//! Never sends anything that the operator's key has not signed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use sealwire::internal::nats::{Connection, Event, Handler, Message, Options, Session, Subject};
use sealwire::internal::wire::Nonce;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::target::Target;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::login;
use crate::output::Output;
use crate::runtime::block_on;

/// Give brokers in operator mode the accounts of a setup, after `setup service`, `remove-agent` or `agent --replace`
///
/// Logs in as the user `pusher` of the system's account, which may do nothing else. Brokers with a full resolver tell each other.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup push --out /sealwire
  sealwire setup push --out /sealwire --brokers 3")]
pub(crate) struct Push {
    /// The folder of the setup
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// How many brokers must confirm
    #[arg(long, value_name = "N", default_value_t = 1)]
    brokers: usize,
    /// The login, in place of the setup's own: a JSON file with the members of `nats` in credentials
    #[arg(long, value_name = "FILE")]
    login: Option<PathBuf>,
}

/// How long brokers may take for one account.
const WITHIN: Duration = Duration::from_secs(10);
/// Answers that wait. No cluster has so many brokers.
const WAITING: usize = 1_024;
/// Where a broker takes an account.
const UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";

struct Inbox(mpsc::Sender<Message>);

impl Handler for Inbox {
    fn message(&self, message: Message, _: &Arc<Session>) {
        drop(self.0.try_send(message));
    }

    fn event(&self, event: Event) {
        if let Event::Disconnected(why) | Event::Failed(why) | Event::Error(why) = event {
            tracing::warn!(target: "sealwire::setup", %why, "the connection to the broker");
        }
    }
}

/// What a broker says.
#[derive(Deserialize)]
struct Answer {
    server: Broker,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Broker {
    id: String,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    description: String,
}

impl Push {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let mut target = Target::take(self.out)?;
        let accounts = target.accounts()?;
        let login = self.login.or_else(|| target.pusher()).ok_or_else(|| {
            let failure = Failure::input("the system's account is one of nsc, with users of its own");
            failure.help("nsc push --all, or name a login of such a user: --login FILE")
        })?;
        let bus = login::read(&login)?;
        let confirmed = block_on(push(&bus, &accounts, self.brokers))??;
        out.result(&json!({ "accounts": accounts.len(), "brokers": confirmed }), || {
            let brokers: Vec<&str> = confirmed.iter().map(String::as_str).collect();
            format!("{} accounts are at the brokers: confirmed by {}", accounts.len(), brokers.join(", "))
        })?;
        Ok(Exit::Ok)
    }
}

/// Sends the accounts one by one. Returns the names of the brokers that have confirmed each.
async fn push(
    bus: &sealwire::BusConfig,
    accounts: &[(String, String)],
    brokers: usize,
) -> Result<BTreeSet<String>, Failure> {
    let inbox = format!("_INBOX.pusher.{}", Nonce::random().to_text());
    let (sender, mut answers) = mpsc::channel(WAITING);
    let subject = Subject { subject: format!("{inbox}.*"), queue: None, max_per_second: None };
    let options = Options::new("sealwire setup push", vec![subject]);
    let connection = Connection::open(bus, options, Arc::new(Inbox(sender))).await.or_fail(Exit::Transport)?;
    let mut confirmed: Option<BTreeMap<String, String>> = None;
    for (index, (account, jwt)) in accounts.iter().enumerate() {
        let session = connection.session().ok_or_else(|| Failure::new(Exit::Transport, "the connection was lost"))?;
        let reply = format!("{inbox}.{index}");
        session.publish(UPDATE, &reply, &[], jwt.as_bytes()).await.or_fail(Exit::Transport)?;
        let mut these = BTreeMap::new();
        let enough = async {
            while these.len() < brokers.max(1) {
                let Some(message) = answers.recv().await else { break };
                if message.subject != reply {
                    continue;
                }
                let Ok(answer) = serde_json::from_slice::<Answer>(&message.payload) else { continue };
                if let Some(refusal) = answer.error {
                    let message = format!("the broker {} does not take the account {account}", answer.server.name);
                    let said = refusal.description.chars().filter(|c| !c.is_control()).take(200).collect::<String>();
                    return Err(Failure::new(Exit::Remote, message).cause(said));
                }
                these.insert(answer.server.id, answer.server.name);
            }
            Ok(())
        };
        let answered = timeout(WITHIN, enough).await;
        answered.unwrap_or_else(|_| {
            let message = format!("{} of {brokers} brokers have confirmed the account {account}", these.len());
            Err(Failure::new(Exit::Timeout, message).help("nothing is lost: run this again once they are up"))
        })?;
        confirmed = Some(match confirmed {
            None => these,
            Some(mut all) => {
                all.retain(|id, _| these.contains_key(id));
                all
            }
        });
    }
    connection.close().await;
    Ok(confirmed.unwrap_or_default().into_values().collect())
}
