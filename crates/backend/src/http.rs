//! A server that is called over HTTP: JSON-RPC 2.0 over POST, a stream of events, or a plain request.
//! Never gives a server the caller's token, and never makes two requests for one call.

mod answer;
mod batch;
mod config;
mod rest;
mod rpc;
mod server;
mod target;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sealwire::RpcError;
use sealwire::internal::rpc::Id;
use sealwire::internal::trace::{self, Span};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::answer::{Form, StreamEnd};
use self::batch::Batches;
pub(crate) use self::config::HttpConfig;
use self::config::{Binding, HttpOptions};
use self::rest::Rest;
use self::server::{Shared, ask};
use crate::backend::{Backend, Call, Health};
use crate::tables::BackendOutput;
use crate::tool::Tool;

/// One server.
#[derive(Debug)]
pub(crate) struct Http {
    shared: Arc<Shared>,
    batches: Batches,
    /// The id of the next request.
    next: AtomicU64,
    watching: Mutex<Option<JoinHandle<()>>>,
}

impl Http {
    /// Keeps checking whether the server is available, until [`Backend::stop`].
    pub(crate) fn start(used: HttpOptions) -> Self {
        let shared = Arc::new(Shared::new(used));
        let watching = Arc::clone(&shared);
        let watching = tokio::spawn(async move { watching.watch().await });
        Self { shared, batches: Batches::default(), next: AtomicU64::new(1), watching: Mutex::new(Some(watching)) }
    }

    async fn make(&self, call: Call) -> Result<Box<RawValue>, RpcError> {
        let id = Id::from(self.next.fetch_add(1, Ordering::Relaxed));
        match self.shared.used.ways.get(call.tool.method.as_str()) {
            None => Err(RpcError::internal("no way to ask for it")),
            Some(Binding::Post) => rpc::post(&self.shared, &self.batches, id, call, StreamEnd::Response).await,
            Some(Binding::PostStream) => rpc::post(&self.shared, &self.batches, id, call, StreamEnd::Body).await,
            Some(Binding::Stream(path)) => rpc::stream(&self.shared, &id, &call, path).await,
            Some(Binding::Rest(rest)) => self.rest(&call, rest).await,
        }
    }

    async fn rest(&self, call: &Call, rest: &Rest) -> Result<Box<RawValue>, RpcError> {
        let request = rest.fill(call.params.as_deref()).map_err(RpcError::invalid_params)?;
        let reply = ask(&self.shared, call, request).await?;
        let form = match rest.output {
            BackendOutput::Text => Form::Text,
            BackendOutput::JsonRpc => Form::AnyRpc,
            _ => Form::Json,
        };
        answer::of_rest(reply, call, form).await
    }
}

impl Backend for Http {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Box<RawValue>, RpcError>> {
        async move {
            let timeout = self.shared.used.timeout;
            let late = || RpcError::dependency(format!("no answer within {} s", timeout.as_secs()));
            tokio::time::timeout_at(call.until, self.make(call)).await.unwrap_or_else(|_| Err(late()))
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    fn describe_span(&self, span: &mut Span, tool: &Tool) {
        let used = &self.shared.used;
        match used.ways.get(tool.method.as_str()) {
            Some(Binding::Rest(rest)) => {
                span.name(rest.verb());
                span.set(trace::HTTP_METHOD, rest.verb());
            }
            _ => {
                span.name(&tool.name);
                span.set(trace::RPC_SYSTEM, "jsonrpc");
                span.set(trace::RPC_METHOD, tool.name.as_str());
            }
        }
        let (host, port) = used.web.host();
        span.set(trace::SERVER_ADDRESS, host);
        span.set(trace::SERVER_PORT, i64::from(port));
    }

    /// Calls have ended by now; connections close with the last of them.
    fn stop(&self) -> BoxFuture<'_, ()> {
        async move {
            let watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(watching) = watching {
                watching.abort();
                drop(watching.await);
            }
            self.batches.stop().await;
        }
        .boxed()
    }
}
