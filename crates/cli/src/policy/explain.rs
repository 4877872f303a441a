//! `sealwire policy explain`: tries a decision and gives the reasons.
//! Never asks a running service: the answer comes from the files.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::decide::Approval;
use sealwire::{Caller, MethodName, Name, Question};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{caller, names};
use crate::alg::Alg;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::policies::{FOLDER, load};
use crate::when;

/// Explain what the policy files decide about a call, and why; the exit code is 10 if the call is denied
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy explain --agent planner --role calc --method math/add
  sealwire policy explain --creds planner.creds.json --method math/add
  sealwire policy explain --agent teller --method bank/transfer \\
      --params '{\"to\":\"bob\",\"amount\":5000}'
  sealwire policy explain --agent planner --subject alice --method math/add \\
      --at 2026-03-01T22:00:00Z
  sealwire policy explain --agent planner --method math/add --at 'sun 03:00'
  sealwire policy explain --agent teller --method bank/close \\
      --params '{\"account\":\"a1\"}' --approved officer
  sealwire policy explain --dir /etc/sealwire/policies --agent ops \\
      --role operator --token-age 2m --method admin/drain-cache")]
pub(crate) struct Explain {
    /// The folder of the policy files
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    dir: PathBuf,
    /// The agent that calls
    #[arg(long, value_name = "NAME", required_unless_present_any = ["creds", "token"])]
    agent: Option<Name>,
    /// The agent's credentials: agent, key, and everything that its token says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["agent", "token", "alg"])]
    creds: Option<PathBuf>,
    /// A file with a token: agent, roles, subject, claims, issuer and age; `-` for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "agent")]
    token: Option<PathBuf>,
    /// A role in the agent's token; repeat for several (roles granted in the files are added)
    #[arg(long = "role", value_name = "ROLE", value_parser = names::role)]
    roles: Vec<String>,
    /// The subject that the agent acts for, in a delegated call
    #[arg(long, value_name = "NAME", value_parser = names::subject)]
    subject: Option<String>,
    /// A claim of the token; the value is taken as text if it is not JSON; repeat for several
    #[arg(long = "claim", value_name = "NAME=VALUE", value_parser = names::claim)]
    claims: Vec<(String, Value)>,
    /// How long ago the token was issued [default: as the token says, or now]
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    token_age: Option<Duration>,
    /// The algorithm of the agent's key
    #[arg(long, value_enum, default_value_t)]
    alg: Alg,
    /// The method
    #[arg(long, value_name = "METHOD")]
    method: MethodName,
    /// The parameters: a JSON object or array
    #[arg(long, value_name = "JSON")]
    params: Option<String>,
    /// An approval that was given for the call; repeat for several
    #[arg(long = "approved", value_name = "NAME")]
    approved: Vec<String>,
    /// When the call is made: seconds since 1970, RFC 3339, the next day and time such as 'sun 03:00' (UTC), or now
    #[arg(long, value_name = "TIME", default_value = "now", value_parser = when::instant_or_day)]
    at: u64,
}

impl Explain {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let set = load(&self.dir, out)?;
        let params = self.params.as_deref().map(serde_json::from_str::<&RawValue>).transpose().map_err(|error| {
            Failure::input(format!("`--params` is not JSON ({error})")).help("write an object or an array")
        })?;
        // JSON-RPC 2.0 §4.2: parameters are an object or an array.
        if params.is_some_and(|params| !params.get().starts_with(['{', '['])) {
            let failure = Failure::input("`--params` is neither an object nor an array, which no call can send");
            return Err(failure.help("write '{\"NAME\": …}' or '[…]'"));
        }
        let caller = self.caller(out)?;
        let question =
            Question { caller: &caller, method: self.method.as_str(), params, now_ms: self.at.saturating_mul(1_000) };
        let claims = set.unknown_claims(self.claims.iter().map(|(name, _)| name.as_str()));
        set.unknown_names(&question).iter().chain(&claims).for_each(|doubt| out.warning(doubt));
        if let Some(unknown) = self.approved.iter().find(|name| set.approval(name).is_none()) {
            let known: Vec<&str> = set.approvals().map(Approval::name).collect();
            let failure = Failure::input(format!("the policy has no approval `{}`", unknown.escape_debug()));
            return Err(failure.help(format!("it has: {}", known.join(", "))));
        }
        let approved: Vec<&str> = self.approved.iter().map(String::as_str).collect();
        let explanation = set.explain_approved(&question, &approved);
        out.verdict(&explanation, || explanation.to_string())?;
        Ok(if explanation.decision.is_allow() { Exit::Ok } else { Exit::Denied })
    }

    /// The caller, and its key's algorithm, from the credentials or the token, completed by the other options.
    fn caller(&self, out: &Output) -> Result<Caller, Failure> {
        let mut caller = match (&self.creds, &self.token, &self.agent) {
            (Some(path), ..) => caller::of_credentials(path)?,
            (None, Some(path), _) => caller::of_token(path)?,
            (None, None, Some(agent)) => Caller::new(agent.clone(), []),
            (None, None, None) => return Err(Failure::input("give --agent, --creds or --token")),
        };
        if self.creds.is_some() || self.token.is_some() {
            out.warning("the token is taken as it is: nothing in it was verified");
        } else {
            caller.token.issued_at = self.at;
        }
        caller.roles.extend(self.roles.iter().cloned());
        if self.subject.as_deref() == Some(caller.agent.as_str()) {
            let failure = Failure::input("`--subject` is the agent itself, and nobody acts on behalf of a namesake");
            return Err(failure.help("leave it out: the call is in the agent's own name"));
        }
        if let Some(subject) = &self.subject {
            caller.subject.clone_from(subject);
            caller.delegated = true;
        }
        if self.creds.is_none() {
            caller.algorithm = self.alg.into();
        }
        if let Some(age) = self.token_age {
            caller.token.issued_at = self.at.saturating_sub(age.as_secs());
        }
        caller.token.expires_at = self.at.saturating_add(900);
        caller.token.claims.extend(self.claims.iter().cloned());
        Ok(caller)
    }
}
