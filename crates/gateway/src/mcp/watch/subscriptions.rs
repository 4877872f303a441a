//! Subscriptions to resources, one at each MCP server behind the bus.
//! Never takes the word of one server for that of another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{BoxStream, SelectAll, once};
use futures_util::{FutureExt as _, StreamExt as _};
use sealwire::ClientError;
use sealwire::errors::code;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::unconstrained;
use tokio::time::timeout;

use crate::caller::Caller;
use crate::mcp::fault::{RESOURCE_NOT_FOUND, not_found, of_call};
use crate::mcp::message::Fault;
use crate::mcp::offers::{RECENT, Source};

/// How long a service may take to say what can be watched.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// The most bytes of the version of a resource.
const VERSION: usize = 64;
/// How much of what has arrived is taken: the versions tell the rest.
const ARRIVED: usize = 1_024;
/// The request that the method of a service implements.
pub(in crate::mcp) const SUBSCRIBE: &str = "resources/subscribe";

/// A notification of such a method (docs/backends.md).
#[derive(Debug, Default, Deserialize)]
pub(super) struct News {
    #[serde(default)]
    subscribed: BTreeSet<String>,
    #[serde(default)]
    pub(super) refused: Vec<RefusedResource>,
    #[serde(default)]
    pub(super) updated: BTreeSet<String>,
    /// The versions of both.
    #[serde(default)]
    pub(super) versions: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RefusedResource {
    pub(super) uri: String,
    code: i32,
    message: String,
    #[serde(default)]
    data: Option<Value>,
    #[serde(default)]
    application_error: bool,
}

/// What the method of a service says next; `None` when it ends.
pub(super) type SubscriptionItem = (Arc<str>, Option<Result<News, ClientError>>);

/// A resource at the method of a service.
type Place = (Arc<str>, String);

/// Open subscriptions, one at each server.
#[derive(Default)]
pub(super) struct Subscriptions {
    streams: SelectAll<BoxStream<'static, SubscriptionItem>>,
    /// What each method has granted.
    granted: BTreeMap<Arc<str>, BTreeSet<String>>,
    pub(super) refused: BTreeMap<String, Fault>,
    /// The versions of resources when it was told of them last.
    versions: BTreeMap<Place, String>,
}

impl RefusedResource {
    /// The resource, and what is wrong with it; only the resource if its server has merely not acknowledged it.
    fn fault(self) -> Result<(String, Fault), String> {
        if self.code == code::INVALID_PARAMS && !self.application_error {
            return Err(self.uri);
        }
        // As of any other refusal: what is not the server's own word loses its sign.
        let is_ours = !self.application_error && (-32099..=-32000).contains(&self.code);
        let code = if is_ours { -self.code } else { self.code };
        Ok((self.uri, Fault { data: self.data, ..Fault::new(code, self.message) }))
    }
}

impl Subscriptions {
    /// Subscribes to these resources at each server that has subscriptions; all of them are asked, since a URI does not say whose it is.
    pub(super) async fn open(source: &Source, caller: &dyn Caller, uris: &BTreeSet<String>) -> Result<Self, Fault> {
        let offer = source.offer(caller, RECENT).await?;
        let methods = offer.relayed.iter().filter(|tool| tool.mcp.request.as_deref() == Some(SUBSCRIBE));
        let opening = methods.map(|tool| async move {
            let (request, _) = source.services.bus.request(caller, &tool.service).await?;
            let mut stream = request.subscribe::<News>(&tool.method.name, json!({ "uris": uris }));
            match timeout(PATIENCE, stream.next()).await {
                Ok(Some(Ok(news))) => Ok((Arc::from(format!("{} {}", tool.service, tool.method.name)), news, stream)),
                Ok(Some(Err(error))) => Err(of_call(&error)),
                Ok(None) => Err(Fault::internal("the service has ended the subscription")),
                Err(_) => Err(Fault::internal("the service does not say what can be watched")),
            }
        });
        let (mut found, mut failed, mut unknown) = (Self::default(), None, BTreeSet::new());
        for opened in join_all(opening).await {
            match opened {
                Ok((method, news, stream)) => {
                    let granted = news.subscribed.into_iter().filter(|uri| uris.contains(uri));
                    found.granted.insert(Arc::clone(&method), granted.collect());
                    found.remember(&method, news.versions, uris);
                    for resource in news.refused.into_iter().filter(|resource| uris.contains(&resource.uri)) {
                        let (uri, why) = match resource.fault() {
                            Ok(fault) => fault,
                            Err(uri) => {
                                unknown.insert(uri);
                                continue;
                            }
                        };
                        // Another server may know better what is wrong with it.
                        match found.refused.get(&uri) {
                            Some(known) if known.code != RESOURCE_NOT_FOUND => {}
                            _ => drop(found.refused.insert(uri, why)),
                        }
                    }
                    let said = stream.map(Some).chain(once(async { None }));
                    found.streams.push(said.map(move |said| (Arc::clone(&method), said)).boxed());
                }
                Err(fault) => failed = failed.or(Some(fault)),
            }
        }
        let granted = found.granted();
        for uri in uris.difference(&granted) {
            let ours = || match unknown.contains(uri) {
                true => not_found(RESOURCE_NOT_FOUND, uri),
                false => Fault::new(-32601, "Method not found"),
            };
            found.refused.entry(uri.clone()).or_insert_with(|| failed.clone().unwrap_or_else(ours));
        }
        found.refused.retain(|uri, _| !granted.contains(uri));
        Ok(found)
    }

    /// What is watched.
    pub(super) fn granted(&self) -> BTreeSet<String> {
        self.granted.values().flatten().cloned().collect()
    }

    /// A method grants some of its resources no more, or none of them. Returns those that it had granted.
    pub(super) fn withdraw(&mut self, method: &str, some: Option<&BTreeSet<String>>) -> BTreeSet<String> {
        let Some(granted) = self.granted.get_mut(method) else { return BTreeSet::new() };
        match some {
            Some(some) => granted.extract_if(.., |uri| some.contains(uri)).collect(),
            None => std::mem::take(granted),
        }
    }

    /// A method has told of these versions; those of other resources than these do not matter.
    pub(super) fn remember(&mut self, method: &Arc<str>, versions: BTreeMap<String, String>, uris: &BTreeSet<String>) {
        let known = versions.into_iter().filter(|(uri, version)| uris.contains(uri) && version.len() <= VERSION);
        self.versions.extend(known.map(|(uri, version)| ((Arc::clone(method), uri), version)));
    }

    /// The resources that have changed since those before were last told of them.
    pub(super) fn changed_since(&self, before: &Self) -> impl Iterator<Item = String> {
        let changed = self
            .versions
            .iter()
            .filter(|(place, version)| before.versions.get(*place).is_some_and(|known| known != *version));
        changed.map(|((_, uri), _)| uri.clone())
    }

    /// What a server says next; never completes without any.
    ///
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> SubscriptionItem {
        match self.streams.next().await {
            Some(said) => said,
            None => std::future::pending().await,
        }
    }

    /// What has arrived and was not taken yet.
    pub(super) fn arrived(&mut self) -> Vec<SubscriptionItem> {
        // Not until the scheduler would have somebody else's turn, but until there is nothing more.
        let next = || unconstrained(self.streams.next()).now_or_never().flatten();
        std::iter::from_fn(next).take(ARRIVED).collect()
    }
}
