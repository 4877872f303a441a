//! jsonrpsee over HTTP and WebSocket, with a check of the token in front: of each request over HTTP, and once for each connection
//! over WebSocket, which is where one can be shown.

use jsonrpsee::RpcModule;
use jsonrpsee::server::{Server, ServerConfig};
use serde::Deserialize;
use tower::ServiceBuilder;

use crate::error::Fallible;
use crate::jwt::Check;

#[derive(Deserialize)]
struct Add {
    a: i64,
    b: i64,
}

#[derive(Deserialize)]
struct Echo {
    text: String,
}

pub async fn serve() -> Fallible<()> {
    let check = Check::new();
    let gate = ServiceBuilder::new().filter(move |request: jsonrpsee::server::HttpRequest| {
        let authorization = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        if check.admits(authorization) { Ok(request) } else { Err("no valid token") }
    });
    let config = ServerConfig::builder().max_connections(4096).build();
    let server = Server::builder().set_config(config).set_http_middleware(gate).build("127.0.0.1:0").await?;
    let mut methods = RpcModule::new(());
    methods.register_async_method("site/add", |params, _, _| async move {
        params.parse::<Add>().map(|Add { a, b }| a + b)
    })?;
    methods.register_async_method("site/echo", |params, _, _| async move {
        params.parse::<Echo>().map(|Echo { text }| text)
    })?;
    super::report::print_address(server.local_addr()?);
    server.start(methods).stopped().await;
    Ok(())
}
