//! How does a method send its result in parts? It returns a stream; the caller takes each part as it comes.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use sealwire::{Client, Config, Credentials, Ctx, Method, Params, Router, RpcError};

#[derive(serde::Deserialize, Params)]
struct Text {
    text: String,
}

/// The stream is polled only while the caller has room, and dropped when the caller goes.
async fn words(_: Ctx, p: Text) -> Result<impl Stream<Item = Result<String, RpcError>>, RpcError> {
    let words: Vec<_> = p.text.split(' ').map(|word| Ok(word.to_owned())).collect();
    Ok(stream::iter(words))
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let service = Config::load("sealwire.toml")?.serve(Router::new(()).add("text/words", Method::stream(words)));
    tokio::select! {
        ended = service => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    let mut parts = client.stream::<String>("math", "text/words", ("signed one by one",));
    while let Some(part) = parts.next().await {
        println!("{}", part?);
    }
    Ok(())
}
