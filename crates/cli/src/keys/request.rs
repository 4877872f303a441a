//! `sealwire keys request`: creates an agent's own key, and a request to enrol its public key.
//! Never writes the private key anywhere but into the agent's credentials.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use nkeys::KeyPair;
use sealwire::configure::{AgentKey, ProofAlgorithm};
use sealwire::internal::files::decode_text;
use sealwire::internal::wire::KeyRequest;
use sealwire::{BusConfig, Credentials, Name};
use serde_json::json;
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, absolute, check_apart, context, shown, write_new};
use crate::output::Output;
use crate::when;

/// Create an agent's key where the agent runs, and a request for an operator to enrol its public key
///
/// The operator never sees the private key. Send the request over any channel, and tell the operator the thumbprint over another
/// one, so that the operator knows whose key it is.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire keys request robot --environment dev --url tls://nats.example:4222
  sealwire keys request robot --environment dev --nkey \\
      --url tls://nats-1:4222 --url tls://nats-2:4222 --tls-ca ca.pem

Then the operator runs:
  sealwire keys enrol robot robot.request --thumbprint … \\
      --service dev/math=math.ring.json
and you, in turn:    sealwire keys accept robot.creds.json robot.enrolment.json")]
pub(crate) struct Request {
    /// The agent's name
    #[arg(value_name = "NAME")]
    name: Name,
    /// The environment of the services that it will call
    #[arg(long, value_name = "ENV")]
    environment: Name,
    /// The key id, which begins with `NAME.` [default: NAME.k1]
    #[arg(long, value_name = "KID")]
    kid: Option<String>,
    /// The broker's address; repeat for the nodes of a cluster
    #[arg(long = "url", value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    urls: Vec<String>,
    /// A context of the `nats` command, for the broker and the login, in place of `--url` and what follows: its name, or the path to its
    /// file, which ends in `.json`. The credentials name it, and programs read it when they start
    #[arg(long, value_name = "NAME", conflicts_with_all = ["urls", "nkey", "nats_creds", "tls_ca"])]
    context: Option<String>,
    /// The certificate authorities of the broker (PEM)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Also create a key pair for the broker (nkey), and ask for a broker user with it
    #[arg(long)]
    nkey: bool,
    /// The `.creds` file (mode 0600) of your user at a broker in operator mode; it stays where it is
    #[arg(long, value_name = "FILE", conflicts_with = "nkey")]
    nats_creds: Option<PathBuf>,
    /// The file that will hold the access token, relative to the credentials [default: NAME.jwt]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The credentials file to write (mode 0600) [default: NAME.creds.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The request to write, with nothing secret in it [default: NAME.request]
    #[arg(long, value_name = "FILE")]
    request: Option<PathBuf>,
}

/// Reads a request from a file, or from stdin for `-`. The channel need not be trusted: the request is signed by the key that it
/// names, and the thumbprint says which key that must be.
pub(crate) fn read_request(path: &Path, thumbprint: &str) -> Result<KeyRequest, Failure> {
    let shown = path.display();
    let wrong = |what: &dyn std::fmt::Display| Failure::input(format!("`{shown}`: {what}"));
    let bytes = if path == Path::new("-") {
        files::stdin("the request")?
    } else {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_REQUEST).read_to_end(&mut bytes));
        read.map_err(|error| wrong(&error))?;
        bytes
    };
    let text = decode_text(Zeroizing::new(bytes)).map_err(|error| wrong(&error))?;
    let request = KeyRequest::verify(&text).map_err(|error| wrong(&error))?;
    let own = request.thumbprint();
    if own == thumbprint {
        return Ok(request);
    }
    Err(Failure::input(format!("`{shown}` is for another key: its thumbprint is {own}"))
        .help("ask the agent's owner: somebody may have changed the request"))
}

/// More bytes than any request has.
const MAX_REQUEST: u64 = 64 * 1024;

impl Request {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let name = &self.name;
        let path = self.out.clone().unwrap_or_else(|| format!("{name}.creds.json").into());
        let request = self.request.clone().unwrap_or_else(|| format!("{name}.request").into());
        check_apart([("the credentials", path.as_path()), ("the request", request.as_path())])?;
        let kid = self.kid.clone().unwrap_or_else(|| format!("{name}.k1"));
        let key = AgentKey::generate(&kid, ProofAlgorithm::EdDsa).or_fail(Exit::Input)?;
        let user = self.nkey.then(KeyPair::new_user);
        let nkey = user.as_ref().map(KeyPair::public_key);
        let text =
            KeyRequest::sign(&self.environment, name, &key, nkey.as_deref(), when::now_s()).or_fail(Exit::Bug)?;
        let thumbprint = KeyRequest::verify(&text).or_fail(Exit::Input)?.thumbprint();

        let mut bus = BusConfig { urls: self.urls.clone(), ..BusConfig::default() };
        if let Some(name) = &self.context {
            bus.urls.clear();
            bus.context = Some(context(name));
        }
        bus.check().or_fail(Exit::Input)?;
        bus.nkey_seed = user.map(|user| user.seed().map(Zeroizing::new)).transpose().or_fail(Exit::Bug)?;
        bus.creds_file = self.nats_creds.as_deref().map(absolute);
        bus.tls_ca = self.tls_ca.as_deref().map(absolute);
        let token_file = self.token_file.clone().unwrap_or_else(|| format!("{name}.jwt").into());
        let credentials = Credentials::new(self.environment.clone(), name.clone(), key, bus).token_file(token_file);
        credentials.save(&path, false).or_fail(Exit::Input)?;
        write_new(&request, &format!("{text}\n")).inspect_err(|_| {
            // Without a request, the key is of no use, and would be in the way of the next attempt.
            drop(std::fs::remove_file(&path));
        })?;

        let result = json!({ "agent": name, "kid": kid, "thumbprint": thumbprint, "nkey": nkey, "credentials": shown(&path),
                             "request": shown(&request) });
        out.result(&result, || {
            let (path, request) = (path.display(), request.display());
            format!(
                "wrote the credentials of {name} to {path}, which nobody else needs to see, and a request to {request}\n\
                 key {kid}, thumbprint {thumbprint}\n\nGive the request to the operator of the services, and tell them the \
                 thumbprint over another channel. Then accept what comes back:\n  sealwire keys accept {path} {name}.enrolment.json"
            )
        })?;
        Ok(Exit::Ok)
    }
}
