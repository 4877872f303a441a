//! An MCP server made with rmcp, over Streamable HTTP, with a check of each request's token in front: with its defaults, a session for each
//! client and answers as events; and as fast as it can be set up, without sessions and with answers in JSON.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{tool, tool_router};
use serde::Deserialize;

use crate::error::Fallible;
use crate::jwt::Check;

#[derive(Deserialize, schemars::JsonSchema)]
struct Add {
    a: i64,
    b: i64,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Echo {
    text: String,
}

#[derive(Clone)]
struct Tools;

#[tool_router(server_handler)]
impl Tools {
    #[tool(name = "site_add", description = "Adds.")]
    async fn add(&self, Parameters(Add { a, b }): Parameters<Add>) -> String {
        (a + b).to_string()
    }

    #[tool(name = "site_echo", description = "Says it again.")]
    async fn echo(&self, Parameters(Echo { text }): Parameters<Echo>) -> String {
        text
    }
}

pub fn quickest() -> (StreamableHttpServerConfig, NeverSessionManager) {
    let config = StreamableHttpServerConfig::default().with_legacy_session_mode(false).with_json_response(true);
    (config, NeverSessionManager::default())
}

pub fn as_it_comes() -> (StreamableHttpServerConfig, LocalSessionManager) {
    Default::default()
}

pub async fn serve<M: SessionManager>(
    (config, sessions): (StreamableHttpServerConfig, M),
    check: Check,
) -> Fallible<()> {
    let service = StreamableHttpService::new(|| Ok(Tools), Arc::new(sessions), config);
    let gate = move |request: Request, next: Next| {
        let authorization = request.headers().get("authorization").and_then(|value| value.to_str().ok());
        let admitted = check.admits(authorization);
        async move { if admitted { next.run(request).await } else { refused() } }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    super::report::print_address(listener.local_addr()?);
    // As the others have it. Without it, an answer written in several parts waits for acknowledgements, 40 ms.
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    axum::serve(listener, Router::new().nest_service("/mcp", service).layer(from_fn(gate))).await?;
    Ok(())
}

fn refused() -> Response {
    StatusCode::UNAUTHORIZED.into_response()
}
