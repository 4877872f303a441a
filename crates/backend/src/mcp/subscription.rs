//! The subscription by which callers watch resources of a server: a method that tells which of them have changed.
//! Never tells of a resource that its caller may not read at that moment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use sealwire::errors::code;
use sealwire::serve::Description;
use sealwire::{Ctx, Router, RpcError};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::to_raw_value;
use tokio::time::{sleep, timeout};

use super::shared::Shared;
use super::upstream::{PATIENCE, late};
use super::watches::{Denial, News, Watcher};
use crate::backend::Health;
use crate::tool::Tool;

/// The most resources of one subscription, and the most bytes of one URI and of all of them.
const RESOURCES: usize = 64;
const URI: usize = 2_048;
const URIS: usize = 32 << 10;
/// The pause between two notifications: what changes meanwhile is told together.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscribeParams {
    uris: Vec<String>,
}

/// Adds the method to a router; `read` is the method that reads a resource.
pub(super) fn routed(
    router: Router,
    server: &Arc<Shared>,
    read: String,
    tool: &Tool,
    describe: impl Fn() -> Option<Arc<Description>> + Send + Sync + 'static,
) -> Router {
    let (name, server) = (tool.method.to_string(), Arc::clone(server));
    router
        .subscription(&name, move |ctx: Ctx, SubscribeParams { uris }| {
            let (server, read) = (Arc::clone(&server), read.clone());
            async move { watch(&server, read, ctx, uris) }
        })
        .named_params(&name, tool.declared.clone().unwrap_or_default())
        .describe_with(&name, describe)
}

/// A subscriber, and which resources it may read.
struct Subscriber {
    ctx: Ctx,
    /// The method that reads a resource.
    read: String,
    watcher: Watcher,
    denied: BTreeSet<Arc<str>>,
    has_begun: bool,
    is_over: bool,
}

fn watch(
    server: &Shared,
    read: String,
    ctx: Ctx,
    uris: Vec<String>,
) -> Result<impl Stream<Item = Result<News, RpcError>> + Send + use<>, RpcError> {
    if let Health::Down(reason) = &*server.health.borrow() {
        return Err(RpcError::dependency(reason.clone()));
    }
    let bytes: usize = uris.iter().map(String::len).sum();
    if uris.is_empty() || uris.len() > RESOURCES || bytes > URIS || uris.iter().any(|uri| uri.len() > URI) {
        let most = format!("`uris` has 1 to {RESOURCES} URIs of at most {URI} bytes, and {URIS} together");
        return Err(RpcError::invalid_params(most));
    }
    let all: BTreeSet<Arc<str>> = uris.into_iter().map(Arc::from).collect();
    let (allowed, denied) = all.into_iter().partition(|uri| may_read(&ctx, &read, uri));
    let caller = format!("{} {}", ctx.caller().agent, ctx.caller().subject);
    let watcher = server.watches.watch(caller, allowed)?;
    let subscriber = Subscriber { ctx, read, watcher, denied, has_begun: false, is_over: false };
    Ok(stream::unfold(subscriber, async |mut one| Some((Ok(one.next().await?), one))))
}

/// Whoever may not read a resource may not know when it changes either.
fn may_read(ctx: &Ctx, read: &str, uri: &str) -> bool {
    let params = to_raw_value(&json!({ "uri": uri })).ok();
    params.is_some_and(|params| ctx.may_call(read, Some(&params)))
}

impl Subscriber {
    async fn next(&mut self) -> Option<News> {
        if self.is_over {
            return None;
        }
        if !self.has_begun {
            self.has_begun = true;
            return Some(self.first().await);
        }
        sleep(PAUSE).await;
        loop {
            let mut news = self.watcher.next().await;
            // The policy may have changed since.
            news.updated.retain(|uri| may_read(&self.ctx, &self.read, uri));
            news.versions.retain(|uri, _| news.updated.contains(uri));
            if !(news.updated.is_empty() && news.refused.is_empty()) {
                return Some(news);
            }
        }
    }

    /// What can be watched, and what cannot.
    async fn first(&mut self) -> News {
        // What is not settled by then is refused.
        drop(timeout(PATIENCE, self.watcher.settled()).await);
        let mut news = self.watcher.first(&late());
        let why = Denial::ours(code::PERMISSION_DENIED, "permission denied");
        news.refused.extend(std::mem::take(&mut self.denied).into_iter().map(|uri| why.clone().of(uri)));
        self.is_over = news.subscribed.is_empty();
        news
    }
}
