//! How does a call carry a document? The argument names it by its digest, and the method fetches the bytes while it runs.

use std::time::Duration;

use sealwire::{Client, Config, Credentials, Ctx, Params, Router, RpcError, call, method, serve};

#[derive(serde::Deserialize, Params)]
struct Document {
    document: serve::Attachment,
}

/// A policy can ask size and type of the document before a byte of it is fetched.
async fn lines(ctx: Ctx, p: Document) -> Result<usize, RpcError> {
    let bytes = ctx.attachment(&p.document).await?;
    Ok(bytes.split(|byte| *byte == b'\n').count())
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let service = Config::load("sealwire.toml")?.serve(Router::new(()).add("text/lines", method(lines)));
    tokio::select! {
        ended = service => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    let document = call::Attachment::bytes("text/plain", "one\ntwo\nthree");
    let lines: usize = client.request("math").attach(&document).call("text/lines", (&document,)).await?;
    println!("{lines} lines");
    Ok(())
}
