//! The servers, each in a process of its own: `serve KIND THREADS FOLDER`. One line on standard output says where it listens; it
//! ends when its input does, so that none stays behind.

mod bare;
mod gateway;
pub mod grpc;
mod mcp;
mod report;
mod rpc;
pub mod sealwire;

use std::path::PathBuf;
use std::str::FromStr;

use tokio::runtime::Builder;

use crate::error::Fallible;
use crate::jwt::Check;

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A service of this project.
    Sealwire,
    /// A gateway to it.
    Gateway,
    /// A gateway to it for callers with tokens of an identity provider.
    GatewayMint,
    /// An endpoint of async-nats.
    Bare,
    /// jsonrpsee, over HTTP and WebSocket at one port.
    Rpc,
    /// tonic.
    Grpc,
    /// rmcp, as fast as it can be set up.
    Mcp,
    /// rmcp, with its defaults.
    McpSessions,
    /// rmcp, as fast as it can be set up, with tokens of an identity provider.
    McpProvided,
}

impl Kind {
    pub const ALL: [(&'static str, Self); 9] = [
        ("sealwire", Self::Sealwire),
        ("gateway", Self::Gateway),
        ("gateway-mint", Self::GatewayMint),
        ("bare", Self::Bare),
        ("rpc", Self::Rpc),
        ("grpc", Self::Grpc),
        ("mcp", Self::Mcp),
        ("mcp-sessions", Self::McpSessions),
        ("mcp-provided", Self::McpProvided),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| format!("no server is called `{name}`"))
    }
}

pub fn run(kind: Kind, threads: usize, folder: PathBuf) -> Fallible<()> {
    let runtime = match threads {
        0 => Builder::new_current_thread().enable_all().build()?,
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build()?,
    };
    std::thread::spawn(|| {
        // Nothing is ever written to it.
        drop(std::io::stdin().read_line(&mut String::new()));
        std::process::exit(0);
    });
    runtime.block_on(async {
        match kind {
            Kind::Sealwire => sealwire::serve(&folder).await,
            Kind::Gateway => gateway::serve(&folder.join("gateway.toml")).await,
            Kind::GatewayMint => gateway::serve(&folder.join("gateway-mint.toml")).await,
            Kind::Bare => bare::serve(&folder).await,
            Kind::Rpc => rpc::serve().await,
            Kind::Grpc => grpc::serve().await,
            Kind::Mcp => mcp::serve(mcp::quickest(), Check::new()).await,
            Kind::McpSessions => mcp::serve(mcp::as_it_comes(), Check::new()).await,
            Kind::McpProvided => mcp::serve(mcp::quickest(), Check::provided(&folder)?).await,
        }
    })
}
