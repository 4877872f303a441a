//! `sealwire gateway`, from its configuration.

use std::path::Path;
use std::sync::Arc;

use sealwire::Credentials;
use sealwire_gateway::http::{Gateway, GatewayConfig};
use tokio::net::TcpListener;

use crate::error::Fallible;

pub async fn serve(file: &Path) -> Fallible<()> {
    let config = GatewayConfig::load(file)?;
    let credentials = Credentials::load(&config.credentials)?;
    let listener = TcpListener::bind(config.listen).await?;
    let gateway = Arc::new(Gateway::open(config, credentials).await?);
    super::report::print_address(listener.local_addr()?);
    Ok(gateway.serve(listener, None, std::future::pending()).await?)
}
