//! Where does a client get its tokens from? From a file, a command, or a source of your own, which is asked before one expires.

use std::sync::Arc;
use std::time::Duration;

use sealwire::call::FetchedToken;
use sealwire::{Client, Config, Credentials, Ctx, Router, RpcError, TokenSource, method};

/// Says when it is asked. A real one asks an identity provider.
#[derive(Debug)]
struct Announced(Arc<dyn TokenSource>);

impl TokenSource for Announced {
    fn fetch(&self) -> FetchedToken<'_> {
        println!("fetches a token");
        self.0.fetch()
    }
}

async fn who(ctx: Ctx, (): ()) -> Result<String, RpcError> {
    Ok(ctx.caller().agent.to_string())
}

#[tokio::main]
async fn main() -> Result<(), sealwire::Error> {
    let service = Config::load("sealwire.toml")?.serve(Router::new(()).add("site/who", method(who)));
    tokio::select! {
        ended = service => ended,
        called = call() => called,
    }
}

async fn call() -> Result<(), sealwire::Error> {
    let credentials = Credentials::load("planner.creds.json")?;
    let source = Announced(credentials.tokens()?);
    let client = Client::connect(credentials.token_source(source)).await?;
    client.wait_for("math", Duration::from_secs(30)).await?;
    for _ in 0..2 {
        let who: String = client.call("math", "site/who", ()).await?;
        println!("{who}");
    }
    Ok(())
}
