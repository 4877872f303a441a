//! Checks the head of a request: that it is unambiguous, meant for this gateway, and not from a page that may not call.
//! Never looks at who the caller is.

use hyper::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION,
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, FORWARDED, HOST, HeaderName, HeaderValue, ORIGIN,
    TRANSFER_ENCODING, UPGRADE, VARY, VIA,
};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Response, StatusCode, Uri, Version};

use super::authority::{authority_name, is_loopback};
use super::config::{GatewayConfig, Identity};
use super::connections::{Body, Flaw};
use super::fields::single;
use super::refusal::Refusal;
use super::response::response;

/// The longest path and query, in bytes.
const URL_BYTES: usize = 4 << 10;
/// The most fields. hyper stops at this number in HTTP/1.1; in HTTP/2 a few bytes can stand for many fields.
const FIELDS: usize = 100;

/// Fields that may occur once, because with two it would be unclear which one counts.
const SINGLE: [HeaderName; 8] =
    [HOST, CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING, AUTHORIZATION, ORIGIN, EXPECT];

/// Fields that proxies, balancers, tunnels and content delivery networks add. They mean that not only this machine reaches the listener.
const OF_PROXIES: [HeaderName; 18] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("cdn-loop"),
    HeaderName::from_static("client-ip"),
    HeaderName::from_static("proxy-client-ip"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("remote-addr"),
    HeaderName::from_static("wl-proxy-client-ip"),
    HeaderName::from_static("x-client-ip"),
    HeaderName::from_static("x-cluster-client-ip"),
    HeaderName::from_static("x-coming-from"),
    HeaderName::from_static("x-nginx-proxy"),
    HeaderName::from_static("x-proxyuser-ip"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-remote-addr"),
    HeaderName::from_static("x-remote-ip"),
    HeaderName::from_static("x-scheme"),
    HeaderName::from_static("x-true-client-ip"),
];

/// How the names of further such fields begin.
const OF_PROXIES_BEGIN: [&str; 20] = [
    "ali-cdn-",
    "cf-",
    "cloudfront-",
    "fastly-",
    "fly-",
    "forwarded-",
    "incap-",
    "tailscale-",
    "true-client-",
    "x-akamai-",
    "x-amz-cf-",
    "x-appengine-",
    "x-arr-",
    "x-azure-",
    "x-envoy-",
    "x-forwarded",
    "x-nf-",
    "x-original-",
    "x-sucuri-",
    "x-vercel-",
];

/// The headers that a page of another origin may send.
const SENT_BY_PAGES: &str = "a2a-extensions, a2a-version, authorization, baggage, content-type, dpop, last-event-id, mcp-method, mcp-name, mcp-protocol-version, mcp-session-id, traceparent, tracestate";

/// The head of a request that may pass: in one form, for this gateway, and from no page that may not call.
#[derive(Debug)]
pub struct CheckedHead {
    parts: Parts,
    /// The origin of its page, if browsers are to be told that the page may read the response.
    origin: Option<HeaderValue>,
}

impl std::ops::Deref for CheckedHead {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl CheckedHead {
    /// Checks a head that is normalized and unambiguous.
    pub(super) fn check(config: &GatewayConfig, parts: Parts) -> Result<Self, Box<(Parts, Refusal)>> {
        match allowed_origin(config, &parts) {
            Ok(origin) => Ok(Self { parts, origin }),
            Err(refusal) => Err(Box::new((parts, refusal))),
        }
    }

    /// Lets the page that sent the request read the response.
    pub(super) fn share(&self, response: &mut Response<Body>) {
        add_cors_headers(response, self.origin.clone());
    }

    /// Whether it arrived at the listener for other replicas.
    pub fn is_from_replica(&self) -> bool {
        self.extensions.get::<FromReplica>().is_some()
    }
}

/// In the extensions of a request: it arrived at the listener for other replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct FromReplica;

/// In the extensions of a request: its path as the client wrote it, if it ends in a slash.
#[derive(Debug, Clone)]
struct WrittenPath(String);

/// The path as the client wrote it.
pub(super) fn written_path(head: &Parts) -> &str {
    head.extensions.get::<WrittenPath>().map_or(head.uri.path(), |written| &written.0)
}

/// RFC 9113 §8.3.1: HTTP/2 has `:authority` in place of `Host`, and may have both. This turns a request into the form of HTTP/1.1; if the
/// two differ, `Host` occurs twice. A slash at the end of a path says nothing: clients that join a base address and an empty path add it.
pub(super) fn normalize(head: &mut Parts) {
    with_host(head);
    without_last_slash(head);
}

fn without_last_slash(head: &mut Parts) {
    // One with an authority is refused later.
    if head.method == Method::CONNECT || head.uri.authority().is_some() {
        return;
    }
    let path = head.uri.path();
    let Some(shorter) = path.strip_suffix('/').filter(|shorter| !shorter.is_empty() && !shorter.ends_with('/')) else {
        return;
    };
    let target = match head.uri.query() {
        Some(query) => format!("{shorter}?{query}"),
        None => shorter.to_owned(),
    };
    let Ok(target) = PathAndQuery::try_from(target) else { return };
    head.extensions.insert(WrittenPath(path.to_owned()));
    head.uri = Uri::from(target);
}

fn with_host(head: &mut Parts) {
    if head.version != Version::HTTP_2 || head.method == Method::CONNECT {
        return;
    }
    let Some(authority) = head.uri.authority().cloned() else { return };
    let Ok(host) = HeaderValue::from_str(authority.as_str()) else { return };
    let is_repeated = head.headers.get_all(HOST).iter().eq([&host]);
    if !is_repeated {
        head.headers.append(HOST, host);
    }
    head.uri = head.uri.path_and_query().cloned().map(Uri::from).unwrap_or_default();
}

/// The origin of a page that may call and read; `None` for all other callers that may call.
fn allowed_origin(config: &GatewayConfig, head: &Parts) -> Result<Option<HeaderValue>, Refusal> {
    let headers = &head.headers;
    // A body of HTTP/1.0 may end with its connection, and proxies use that version by habit.
    if !matches!(head.version, Version::HTTP_11 | Version::HTTP_2) {
        let message = "only HTTP/1.1 and HTTP/2 are supported";
        return Err(Refusal::bad(StatusCode::HTTP_VERSION_NOT_SUPPORTED, message).closing());
    }
    if headers.len() > FIELDS {
        let message = "the request has more than 100 header fields";
        return Err(Refusal::bad(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message).closing());
    }
    if head.uri.path_and_query().is_some_and(|target| target.as_str().len() > URL_BYTES) {
        return Err(Refusal::bad(StatusCode::URI_TOO_LONG, "the address is longer than 4 KiB"));
    }
    // RFC 9112 §3.2.2: an authority in the target would replace `Host`.
    if head.uri.authority().is_some() {
        return Err(Refusal::bad(StatusCode::BAD_REQUEST, "this is not a proxy: the target must be a path").closing());
    }
    for name in &SINGLE {
        single(headers, name)?;
    }
    // RFC 9112 §6.1.
    if single(headers, &TRANSFER_ENCODING)?.is_some_and(|coding| !coding.eq_ignore_ascii_case("chunked")) {
        let message = "the only transfer coding of a body is `chunked`";
        return Err(Refusal::bad(StatusCode::NOT_IMPLEMENTED, message).closing());
    }
    if config.identity == (Identity::Own {})
        && let Some(name) = headers.keys().find(|name| is_of_proxies(name))
    {
        let message = format!("`{name}`: this gateway is for callers on its own machine, and not behind a proxy");
        return Err(Refusal::bad(StatusCode::FORBIDDEN, message));
    }
    let Some(host) = single(headers, &HOST)? else {
        return Err(Refusal::bad(StatusCode::BAD_REQUEST, "`Host` is missing"));
    };
    // Otherwise a page under a name that resolves to this machine would be of the gateway's own origin (DNS rebinding).
    if !authority_name(host).is_some_and(|name| is_loopback(&name) || config.hosts.contains(&name)) {
        return Err(Refusal::bad(StatusCode::FORBIDDEN, "`Host` is not one of this gateway's names"));
    }
    let Some(origin) = single(headers, &ORIGIN)? else { return Ok(None) };
    let lower = origin.to_ascii_lowercase();
    if config.origins.contains(&lower) {
        return Ok(headers.get(ORIGIN).cloned());
    }
    let name = lower.strip_prefix("http://").or_else(|| lower.strip_prefix("https://")).and_then(authority_name);
    if name.is_some_and(|name| is_loopback(&name)) {
        return Ok(None);
    }
    Err(Refusal::bad(StatusCode::FORBIDDEN, UNLISTED))
}

/// What a page is told that may not call.
const UNLISTED: &str = "pages of this `Origin` may not call: the gateway's `origins` must name it";

/// Refuses a request that others on the way may have read differently.
pub(super) fn refuse_ambiguous(head: &Parts) -> Result<(), Refusal> {
    match head.extensions.get::<Flaw>() {
        Some(Flaw(why)) => Err(Refusal::bad(StatusCode::BAD_REQUEST, *why).closing()),
        None => Ok(()),
    }
}

/// Whether `GET` may be used: any page can send one without a preflight, even with an image. Browsers, and only they, say where a request
/// to a loopback address comes from. If callers present tokens there is no risk, since no page can make a browser add one.
pub(super) fn may_get(config: &GatewayConfig, head: &Parts) -> Result<(), Refusal> {
    if head.method != Method::GET || config.identity != (Identity::Own {}) {
        return Ok(());
    }
    let headers = &head.headers;
    let is_named = headers.get(ORIGIN).and_then(|origin| origin.to_str().ok());
    let is_named = is_named.is_some_and(|origin| config.origins.contains(&origin.to_ascii_lowercase()));
    let host = single(headers, &HOST)?.and_then(authority_name);
    let may = match single(headers, &HeaderName::from_static("sec-fetch-site"))? {
        Some(site) => site == "same-origin" || is_named,
        None => is_named || (!headers.contains_key(ORIGIN) && host.is_some_and(|name| is_loopback(&name))),
    };
    let message = match (headers.contains_key(ORIGIN), headers.contains_key(UPGRADE)) {
        _ if may => return Ok(()),
        (true, true) => "pages of this `Origin` may not open a WebSocket: the gateway's `origins` must name it",
        (true, false) => "pages of this `Origin` may not use `GET`: the gateway's `origins` must name it",
        (false, true) => "a WebSocket is for callers on this machine and pages of the gateway's `origins`",
        (false, false) => "`GET` is for callers on this machine and pages of the gateway's `origins`: use POST",
    };
    Err(Refusal::bad(StatusCode::FORBIDDEN, message))
}

/// Whether a request for the page comes from a browser on this machine: not through a proxy, and not from a page of any other origin, even
/// one that may call. For an address that was typed, browsers send `Sec-Fetch-Site: none`.
pub(super) fn may_look(head: &Parts) -> Result<(), Refusal> {
    let headers = &head.headers;
    let is_proxied = headers.keys().any(is_of_proxies);
    let host = single(headers, &HOST)?.and_then(authority_name);
    let site = single(headers, &HeaderName::from_static("sec-fetch-site"))?;
    let may = !is_proxied
        && !headers.contains_key(ORIGIN)
        && host.is_some_and(|name| is_loopback(&name))
        && matches!(site, None | Some("same-origin" | "none"));
    let message = "the page is only for browsers on this machine, and only if its address is typed: http://127.0.0.1 and the gateway's port";
    if may { Ok(()) } else { Err(Refusal::bad(StatusCode::FORBIDDEN, message)) }
}

fn is_of_proxies(name: &HeaderName) -> bool {
    OF_PROXIES.contains(name) || OF_PROXIES_BEGIN.iter().any(|begin| name.as_str().starts_with(begin))
}

/// Whether a call by `GET` was intended: programs that follow a link or a redirect accept anything, or pages.
pub(super) fn wants_events(head: &Parts) -> Result<(), Refusal> {
    let ranges =
        head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|all| all.split(','));
    let mut kinds = ranges.map(|range| range.split(';').next().unwrap_or_default().trim());
    if kinds.any(|kind| kind.eq_ignore_ascii_case("text/event-stream")) {
        return Ok(());
    }
    let message = "a call by `GET` needs `Accept: text/event-stream`";
    Err(Refusal::bad(StatusCode::NOT_ACCEPTABLE, message))
}

/// The answer to a CORS preflight.
pub(super) fn preflight(head: &CheckedHead) -> Result<Option<Response<Body>>, Refusal> {
    let asks = head.method == Method::OPTIONS && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks || !head.headers.contains_key(ORIGIN) {
        return Ok(None);
    }
    // Of this machine, which may call, but is not let read.
    if head.origin.is_none() {
        return Err(Refusal::bad(StatusCode::FORBIDDEN, UNLISTED));
    }
    let mut answer = response(StatusCode::NO_CONTENT, "text/plain", "");
    let headers = answer.headers_mut();
    headers.remove(CONTENT_TYPE);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(SENT_BY_PAGES));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    Ok(Some(answer))
}

/// Lets the page of this origin read the response, if there is one.
fn add_cors_headers(response: &mut Response<Body>, origin: Option<HeaderValue>) {
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(
                "retry-after, www-authenticate, dpop-nonce, mcp-session-id, sealwire-request, sealwire-answer",
            ),
        );
    }
}
