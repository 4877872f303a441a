//! The same addresses, logins and TLS for connections that the client library keeps, as for our own.
//! Never hands the library a secret that it would keep: each of its connections asks for one.

use std::sync::Arc;

use async_nats::{Auth, AuthError, ConnectOptions, ServerAddr};

use super::config::{BusConfig, Target};
use super::error::BusError;
use super::login::Login;
use crate::jose::unb64;

/// Options of the client library, and where to connect.
///
/// # Errors
/// [`BusError`]: the settings, or a file that they name, cannot be used.
pub fn library_options(bus: &BusConfig) -> Result<(ConnectOptions, Vec<ServerAddr>), BusError> {
    let bus = &*bus.resolved()?;
    let Target { login, follow, .. } = bus.target()?;
    let login = Arc::new(login);
    let mut options = ConnectOptions::with_auth_callback(move |nonce| {
        let login = Arc::clone(&login);
        async move { auth(&login, &nonce).await.map_err(AuthError::new) }
    });
    if bus.urls.len() > 1 || !follow {
        // With other names of the same brokers, the one that was lost would be tried again too soon.
        options = options.ignore_discovered_servers();
    }
    if bus.no_randomize {
        options = options.retain_servers_order();
    }
    // The client library reads these files by name, for each connection, so that renewed ones take effect. Nobody else
    // can replace them after they were judged above: every folder on the path to them is closed to others.
    if let Some(ca) = &bus.tls_ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let (Some(cert), Some(key)) = (&bus.tls_cert, &bus.tls_key) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    // Also for the brokers that a broker announces, whose addresses do not ask for TLS.
    options = options.require_tls(bus.demands_tls());
    if bus.tls_first {
        options = options.tls_first();
    }
    let mut addresses = Vec::with_capacity(bus.urls.len());
    for (position, url) in bus.urls.iter().enumerate() {
        let member = || format!("urls[{position}]");
        if url.starts_with("ws") {
            return Err(BusError::Member { member: member(), reason: WEB });
        }
        let wrong = |_| BusError::Member { member: member(), reason: "is no broker address" };
        addresses.push(url.parse::<ServerAddr>().map_err(wrong)?);
    }
    Ok((options, addresses))
}

const WEB: &str = "is a WebSocket, which only the connections for calls use: name nats:// or tls:// addresses here; for a service's shared \
     guard, in `[replay.nats]`";

/// What one connection logs in with.
async fn auth(login: &Login, nonce: &[u8]) -> Result<Auth, BusError> {
    let nonce = String::from_utf8_lossy(nonce);
    let proof = login.stored_credential().await?.prove(Some(&nonce))?;
    let mut auth = Auth::new();
    auth.username = proof.user;
    auth.password = proof.pass.map(|password| password.to_string());
    auth.token = proof.auth_token.map(|token| token.to_string());
    auth.jwt = proof.jwt.map(|jwt| jwt.to_string());
    auth.nkey = proof.nkey;
    // The library encodes it itself.
    auth.signature = proof.sig.and_then(unb64);
    Ok(auth)
}
