//! An endpoint of async-nats' service framework, as its documentation has it: nobody is asked who they are.

use std::path::Path;

use async_nats::service::ServiceExt as _;
use futures_util::StreamExt as _;
use serde::Deserialize;

use crate::error::Fallible;

#[derive(Deserialize)]
struct Add {
    a: i64,
    b: i64,
}

#[derive(Deserialize)]
struct Echo {
    text: String,
}

pub async fn serve(folder: &Path) -> Fallible<()> {
    let url = std::fs::read_to_string(folder.join("broker"))?;
    let client = async_nats::connect(url).await?;
    let service = client.service_builder().start("bare", "1.0.0").await?;
    let mut add = service.endpoint("bare.add").await?;
    let mut echo = service.endpoint("bare.echo").await?;
    client.flush().await?;
    super::report::print_address("on the bus");
    let adding = async {
        while let Some(request) = add.next().await {
            let Add { a, b } = serde_json::from_slice(&request.message.payload)?;
            request.respond(Ok(serde_json::to_vec(&(a + b))?.into())).await?;
        }
        Fallible::Ok(())
    };
    let echoing = async {
        while let Some(request) = echo.next().await {
            let Echo { text } = serde_json::from_slice(&request.message.payload)?;
            request.respond(Ok(serde_json::to_vec(&text)?.into())).await?;
        }
        Fallible::Ok(())
    };
    tokio::try_join!(adding, echoing)?;
    Ok(())
}
