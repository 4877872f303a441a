//! tonic, with an interceptor that checks the token of each call.

use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use self::made::site_server::{Site, SiteServer};
use crate::error::Fallible;
use crate::jwt::Check;

pub mod made {
    #![allow(clippy::all, reason = "made by tonic")]
    tonic::include_proto!("compare.Site");
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Add {
    #[prost(int64, tag = "1")]
    pub a: i64,
    #[prost(int64, tag = "2")]
    pub b: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AddAnswer {
    #[prost(int64, tag = "1")]
    pub sum: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Echo {
    #[prost(string, tag = "1")]
    pub text: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EchoAnswer {
    #[prost(string, tag = "1")]
    pub text: String,
}

struct Methods;

#[tonic::async_trait]
impl Site for Methods {
    async fn add(&self, request: Request<Add>) -> Result<Response<AddAnswer>, Status> {
        let Add { a, b } = request.into_inner();
        Ok(Response::new(AddAnswer { sum: a + b }))
    }

    async fn echo(&self, request: Request<Echo>) -> Result<Response<EchoAnswer>, Status> {
        Ok(Response::new(EchoAnswer { text: request.into_inner().text }))
    }
}

pub async fn serve() -> Fallible<()> {
    let check = Check::new();
    let gate = move |request: Request<()>| {
        let authorization = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        if check.admits(authorization) { Ok(request) } else { Err(Status::unauthenticated("no valid token")) }
    };
    // `Server::tcp_nodelay` does not apply to connections that are handed in, and each answer would wait 40 ms.
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?.with_nodelay(Some(true));
    super::report::print_address(incoming.local_addr()?);
    let service = InterceptedService::new(SiteServer::new(Methods), gate);
    let server = Server::builder().max_concurrent_streams(4096).add_service(service);
    Ok(server.serve_with_incoming(incoming).await?)
}
