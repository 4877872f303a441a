//! `sealwire setup cluster`: writes all secrets and files of the compose setup, in one folder for each of its containers.
//! Never gives a container more than it needs, and never replaces a key of an existing setup.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sealwire::Name;
use serde_json::{Value, json};

use super::target::{NewService, Target};
use crate::exit::{Exit, Failure};
use crate::files::at;
use crate::output::Output;
use sealwire_lab::parties::SERVICES;

/// Write everything that the compose setup needs: three brokers, services, their agents, a gateway
///
/// Creates keys, broker users, certificates, tokens, credentials and configuration, each file in the folder of the only
/// container that may read it. An existing setup gets a fresh token, any services that it lacks, and new certificates if
/// they expire within 30 days; nothing else in it changes. A setup that has lost a folder is refused.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup cluster --out /sealwire
  sealwire setup cluster --out /sealwire --service demo --service ledger
  sealwire setup cluster --out /sealwire --authd on --revocation on
  sealwire setup cluster --out /sealwire --mcp wiki=http://wiki-mcp:8000/mcp

docker-compose.yml does this, with one volume mounted on each folder.")]
pub(crate) struct Cluster {
    /// The folder of the setup, with a folder in it for each container
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    #[command(flatten)]
    contents: Contents,
}

/// What a setup has in it.
#[derive(Args)]
pub(super) struct Contents {
    /// The name of a service, and of its folder; repeat for several
    #[arg(long = "service", value_name = "NAME", default_values = SERVICES)]
    pub(super) services: Vec<Name>,
    /// A service whose methods are the tools of an MCP server, with the server's URL; repeat for several
    #[arg(long, value_name = "NAME=URL", value_parser = with_server)]
    mcp: Vec<(Name, String)>,
    /// Whether services and gateway tell on port 9464 how they are doing, to all containers that share a network with them: `on` adds
    /// that to configurations that say nothing about it, `off` changes nothing
    #[arg(long, value_enum, value_name = "ON|OFF", hide_possible_values = true, default_value_t = Toggle::Off)]
    metrics: Toggle,
    /// Whether services, the gateway and `authd` follow what operators revoke (docs/revocation.md), and start only once there is a list:
    /// `on` adds that to configurations that say nothing about it, `off` changes nothing
    #[arg(long, value_enum, value_name = "ON|OFF", hide_possible_values = true, default_value_t = Toggle::Off)]
    revocation: Toggle,
    /// Whether agents log in to the brokers with their access tokens, as `sealwire authd` decides (docs/broker.md): `on` adds what that
    /// needs, `off` changes nothing. Agents of a setup that was made without it keep their broker users
    #[arg(long, value_enum, value_name = "ON|OFF", hide_possible_values = true, default_value_t = Toggle::Off)]
    authd: Toggle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Toggle {
    On,
    Off,
}

fn with_server(text: &str) -> Result<(Name, String), String> {
    let (name, url) = text.split_once('=').ok_or("write NAME=URL, such as wiki=http://wiki-mcp:8000/mcp")?;
    Ok((Name::new(name).map_err(|error| error.to_string())?, server(url)?))
}

/// Parses the URL of an MCP server.
pub(super) fn server(url: &str) -> Result<String, String> {
    match url.split_once("://") {
        Some(("http" | "https", rest)) if !rest.is_empty() => Ok(url.to_owned()),
        _ => Err("write a URL such as http://wiki-mcp:8000/mcp".to_owned()),
    }
}

impl Cluster {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let working = out.working("making keys and certificates");
        std::fs::create_dir_all(&self.out).map_err(|error| at(&self.out, &error))?;
        let mut target = Target::take(self.out)?;
        target.without_operator()?;
        let (result, text) = self.contents.write(&mut target)?;
        drop(working);
        out.result(&result, || text)?;
        Ok(Exit::Ok)
    }
}

impl Contents {
    pub(super) fn wants_authd(&self) -> bool {
        self.authd == Toggle::On
    }

    /// Writes the setup, or what is missing of it. Returns what was done, for programs and for people.
    pub(super) fn write(self, target: &mut Target) -> Result<(Value, String), Failure> {
        let found = target.mark()?;
        let made = found.is_none();
        let mut renewed = false;
        let mark = match found {
            None => target.make(self.wants_authd())?,
            Some(mark) if mark.ends_soon() => {
                renewed = true;
                target.renew_certificates(mark)?
            }
            Some(mark) => mark,
        };
        // A service named with `--mcp` is an MCP one, even if it is also in the default list of services.
        let is_mcp = |name: &Name| self.mcp.iter().any(|(with_server, _)| with_server == name);
        let of_demo = self.services.iter().filter(|name| !is_mcp(name)).map(|name| (name.clone(), None));
        let of_mcp = self.mcp.iter().map(|(name, url)| (name.clone(), Some(url.clone())));
        // The first of all services is the one that the caller's token is for.
        let all = of_demo.chain(of_mcp).map(|(name, mcp)| NewService { name, mcp });
        let all = all.filter(|service| !mark.services.contains(&service.name));
        let lacking: Vec<NewService> = all.collect();
        let mut mark = target.add_services(mark, &lacking)?;
        let new_authd = self.wants_authd() && !mark.authd;
        if new_authd {
            mark = target.add_authd(mark)?;
        }
        target.write_token(&mark)?;
        let telling = match self.metrics {
            Toggle::On => target.add_metrics(&mark)?,
            Toggle::Off => Vec::new(),
        };
        let following = match self.revocation {
            Toggle::On => target.add_revocation(&mark)?,
            Toggle::Off => Vec::new(),
        };
        let authd = mark.authd.then(|| target.authd_command()).transpose()?;
        let added: Vec<Name> =
            if made { Vec::new() } else { lacking.into_iter().map(|service| service.name).collect() };
        let result = json!({ "folder": target.display().to_string(), "made": made, "renewed": renewed, "added": added, "metrics_added": telling,
                             "revocation_added": following, "authd": authd, "services": mark.services, "folders": Target::folders(&mark) });
        let folder = target.display();
        let mut text =
            if made { format!("made a new setup in {folder}") } else { format!("the setup in {folder} stays") };
        if renewed {
            text.push_str("; its certificates are new: restart the brokers, the services and the agents");
        }
        if !made && !telling.is_empty() {
            text.push_str(&format!("; {} will tell how they are doing once they are restarted", telling.join(", ")));
        }
        if !following.is_empty() {
            text.push_str(&format!(
                "; {} will follow what is revoked once there is a list (sealwire revocations init) and they are started",
                following.join(", ")
            ));
        }
        for name in &added {
            text.push_str(&format!("; the service {name} is new: {}", target.step()));
        }
        if new_authd {
            text.push_str(&format!("; agents can log in with their access tokens: {}", target.step_to_callout()));
        }
        if let Some(command) = authd.filter(|_| made || new_authd) {
            text.push_str(&format!("\n\nRun this twice, and nobody gets in without it:\n  {}", command.join(" ")));
        }
        Ok((result, text))
    }
}
