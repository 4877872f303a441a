//! A `[[backend]]` table of kind `ws`.
//! Never takes a key that belongs to another kind.

use crate::config::whole_names;
use crate::stdio::PeerConfig;
use crate::tables::{BackendConfig, CredentialOwner};
use crate::web::Web;

/// A server at the other end of a WebSocket, and how it is used.
#[derive(Debug)]
pub(crate) struct WsConfig {
    pub(crate) name: String,
    pub(crate) web: Web,
    pub(crate) peer: PeerConfig,
}

impl WsConfig {
    /// Reads the table.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(config: &BackendConfig) -> Result<Self, String> {
        if !config.command.is_empty() || config.processes.is_some() {
            return Err("`command` and `processes` are for kinds that run a program".to_owned());
        }
        whole_names(config)?;
        if config.credential.iter().any(|one| one.owner != CredentialOwner::Service) {
            return Err(
                "a `credential` with an `owner` belongs to one caller, and all callers share the WebSocket: leave `owner` \
                        out, or use kind `http`"
                    .to_owned(),
            );
        }
        let peer = PeerConfig::read(config)?;
        let Some(url) = &config.url else {
            return Err("`url` is missing: write where the server is, wss://…, or ws://… on this machine".to_owned());
        };
        // Its handshake is a request over HTTP (RFC 6455 §3).
        let http = url.strip_prefix("wss:").map(|rest| format!("https:{rest}"));
        let http = http.or_else(|| url.strip_prefix("ws:").map(|rest| format!("http:{rest}")));
        let http = http.ok_or("`url` is no address of a WebSocket: write it as wss://…, or ws://… on this machine")?;
        let mut over_http = config.clone();
        over_http.url = Some(http);
        let web = Web::new(&over_http);
        let web = web.map_err(|wrong| wrong.replace("https", "wss").replace("http:", "ws:"))?;
        Ok(Self { name: config.name.to_string(), web, peer })
    }
}
