//! `sealwire token issue`: issues a token signed with a key of `sealwire keys new-token-key`.
//! Never issues a token that a service with default rules would refuse.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::internal::auth::{Confirmation, IssueRequest, TokenIssuer, TokenRules, decode_untrusted};
use sealwire::internal::files::write_secret;
use sealwire::{Credentials, Name};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, check_output, read_if_there};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::when;

/// Issue an access token, for development; in production, use an identity provider
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire token issue --key token-key.json --subject planner \\
      --audience dev/math --role calc
  sealwire token issue --key token-key.json --subject planner \\
      --audience dev/math --audience dev/bank --role calc --role teller \\
      --ttl 1h --cnf-kid planner.k1 --out planner.jwt
  sealwire token issue --key token-key.json --subject alice --actor planner \\
      --audience dev/math")]
pub(crate) struct Issue {
    /// The issuer's key, as written by `sealwire keys new-token-key`
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Whom the token speaks for (`sub`)
    #[arg(long, value_name = "NAME")]
    subject: String,
    /// The agent that acts for the subject (`act.sub`)
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// The service that the token is for; repeat for several
    #[arg(long = "audience", value_name = "ENV/SVC", required = true)]
    audiences: Vec<String>,
    /// A role of the subject; repeat for several
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// How long the token is valid, at most 1h
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = when::duration)]
    ttl: Duration,
    /// Bind the token to the proof key with this key id, so that a thief cannot use it with another key
    #[arg(long, value_name = "KID")]
    cnf_kid: Option<String>,
    /// Bind the token to the Ed25519 proof key with this thumbprint (`sealwire keys list` shows it)
    #[arg(long, value_name = "THUMBPRINT", allow_hyphen_values = true)]
    cnf_jkt: Option<String>,
    /// Bind the token to the key in these credentials, which are reread for each token
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cnf_kid", "cnf_jkt"])]
    cnf_creds: Option<PathBuf>,
    /// Bind the token to the key whose id is in this file, which is reread for each token (`sealwire keys rotate --kid-file`):
    /// for issuers who do not see the agent's key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cnf_kid", "cnf_jkt", "cnf_creds"])]
    cnf_kid_file: Option<PathBuf>,
    /// A further claim; the value is taken as text if it is not JSON; repeat for several
    #[arg(long = "claim", value_name = "NAME=VALUE")]
    claims: Vec<String>,
    /// Write the token to this file (mode 0600, replaced in one step) instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Issue a new token at this interval until SIGTERM or Ctrl-C, as a stand-in for an identity provider
    #[arg(long, value_name = "TIME", requires = "out", value_parser = when::interval)]
    every: Option<Duration>,
}

/// How soon to retry issuing a token.
const RETRY: Duration = Duration::from_secs(1);

impl Issue {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        self.check()?;
        if let Some(path) = &self.out {
            check_output(path, "token", |text| decode_untrusted(text).is_ok())?;
        }
        let issuer = TokenIssuer::load(&self.key).or_fail(Exit::Input)?;
        let Some(every) = self.every else { return self.issue(&issuer, out) };
        if every >= self.ttl {
            let failure = Failure::input("a token would expire before the next one is issued");
            return Err(failure.help("make `--every` shorter than `--ttl`: a third of it leaves time for trouble"));
        }
        let signals = Signals::listen(None)?;
        let issued = block_on(signals.unless_stopped(async {
            // A failure of the first one ends the command.
            self.issue(&issuer, out)?;
            let mut ticks = tokio::time::interval(every);
            ticks.tick().await;
            let mut said = String::new();
            loop {
                ticks.tick().await;
                let wrong = match self.issue(&issuer, out) {
                    // Nobody reads the output, so nobody is waiting for tokens.
                    Err(failure) if failure.is_silent() => return Err(failure),
                    issued => issued.err().map(|failure| failure.to_text()).unwrap_or_default(),
                };
                // Somebody may be writing a file at this moment, or the disk may be full for a while: the last token is still
                // valid. An error that persists is logged once.
                if !wrong.is_empty() {
                    ticks.reset_after(every.min(RETRY));
                    if wrong != said {
                        tracing::warn!(target: "sealwire::token", "cannot issue a token: {}", wrong.trim_start_matches("error: "));
                    }
                }
                said = wrong;
            }
        }))?;
        issued.unwrap_or(Ok(Exit::Ok))
    }

    /// Reports common mistakes, and what services would refuse, in terms of this command line.
    fn check(&self) -> Result<(), Failure> {
        if let Some(bare) = self.audiences.iter().find(|audience| Name::new(audience).is_ok()) {
            let failure = Failure::input(format!("the audience `{bare}` names no environment"));
            return Err(failure.help(format!("write ENV/SVC, such as dev/{bare}")));
        }
        let most = Duration::from_secs(TokenRules::new("").max_lifetime_s);
        if self.ttl > most {
            let failure = Failure::input("a token may be valid for at most 1h: services refuse longer ones");
            return Err(failure.help("`--every` with `--out` issues a new one at intervals"));
        }
        Ok(())
    }

    /// The key id that the token is bound to.
    fn kid(&self) -> Result<Option<String>, Failure> {
        if let Some(path) = &self.cnf_creds {
            return Ok(Some(Credentials::load(path).or_fail(Exit::Input)?.kid().to_owned()));
        }
        let Some(path) = &self.cnf_kid_file else { return Ok(self.cnf_kid.clone()) };
        let missing = || Failure::input(format!("`{}` holds no key id", path.display()));
        let text = read_if_there(path)?.ok_or_else(missing)?;
        Some(text.trim().to_owned()).filter(|kid| !kid.is_empty()).ok_or_else(missing).map(Some)
    }

    fn issue(&self, issuer: &TokenIssuer, out: &Output) -> Result<Exit, Failure> {
        let now_s = when::now_s();
        let mut request = IssueRequest::new(&self.subject, "", now_s);
        request.audiences.clone_from(&self.audiences);
        request.actor.clone_from(&self.actor);
        request.roles = self.roles.iter().cloned().collect();
        request.ttl_s = self.ttl.as_secs();
        let kid = self.kid()?;
        if kid.is_some() || self.cnf_jkt.is_some() {
            request.cnf = Some(Confirmation { kid, jkt: self.cnf_jkt.clone() });
        }
        for claim in &self.claims {
            let (name, value) = claim
                .split_once('=')
                .ok_or_else(|| Failure::input(format!("`--claim {claim}` has no `=`: write NAME=VALUE")))?;
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
            request.claims.insert(name.to_owned(), value);
        }
        let token = issuer.issue(&request).or_fail(Exit::Input)?;
        let jti = decode_untrusted(&token).ok().and_then(|said| said.claims.get("jti").cloned());
        let expires_at = now_s.saturating_add(request.ttl_s);
        let ends = when::both(expires_at, now_s);
        match &self.out {
            Some(path) => {
                write_secret(path, &format!("{token}\n"), true).or_fail(Exit::Input)?;
                let result = json!({ "file": files::shown(path), "jti": jti, "expires_at": expires_at });
                out.result(&result, || format!("wrote a token to {}; it expires {ends}", path.display()))?;
            }
            None => {
                out.result(&json!({ "token": token, "jti": jti, "expires_at": expires_at }), || token.clone())?;
                // As a `token_command`, the note would only be noise with every call.
                if std::io::stdout().is_terminal() {
                    out.note(&format!("expires {ends}"));
                }
            }
        }
        Ok(Exit::Ok)
    }
}
