//! `sealwire door`, from its configuration.

use std::path::Path;
use std::sync::Arc;

use sealwire::client::Credentials;
use sealwire_door::http::{Door, DoorConfig};
use tokio::net::TcpListener;

use crate::Fallible;

pub async fn serve(file: &Path) -> Fallible<()> {
    let config = DoorConfig::load(file)?;
    let credentials = Credentials::load(&config.credentials)?;
    let listener = TcpListener::bind(config.listen).await?;
    let door = Arc::new(Door::open(config, credentials).await?);
    super::listens(listener.local_addr()?);
    Ok(door.serve(listener, None, std::future::pending()).await?)
}
