//! Checks the head of a request: that it is unambiguous, meant for this door, and not from a page that may not call.
//! Never looks at who the caller is.

use std::net::IpAddr;

use hyper::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION,
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue,
    ORIGIN, TRANSFER_ENCODING, VARY, VIA,
};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, Response, StatusCode, Uri, Version};

use super::answered;
use super::config::{DoorConfig, Identity};
use super::connections::Body;
use super::refusal::Refusal;

/// The longest path and query, in bytes.
const URL_BYTES: usize = 4 << 10;
/// The most fields. hyper stops at this number in HTTP/1.1; in HTTP/2 a few bytes can stand for many fields.
const FIELDS: usize = 100;

/// Fields that may occur once, because with two it would be unclear which one counts.
const SINGLE: [HeaderName; 7] = [HOST, CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, AUTHORIZATION, ORIGIN, EXPECT];

/// Fields that proxies add, besides all that begin with `x-forwarded`. They mean that not only this machine reaches the listener.
const OF_PROXIES: [HeaderName; 7] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-client-ip"),
    HeaderName::from_static("x-cluster-client-ip"),
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("true-client-ip"),
];

/// The headers that a page of another origin may send.
const SENT_BY_PAGES: &str = "a2a-extensions, a2a-version, authorization, content-type, dpop, mcp-method, mcp-name, mcp-protocol-version, mcp-session-id";

/// RFC 9113 §8.3.1: HTTP/2 has `:authority` in place of `Host`, and may have both. This turns a request into the form of HTTP/1.1; if the
/// two differ, `Host` occurs twice.
pub(super) fn in_one_form(head: &mut Parts) {
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

/// Lets a request pass. Returns the origin of its page if browsers are to be told that the page may read the answer.
pub(super) fn pass(config: &DoorConfig, head: &Parts) -> Result<Option<HeaderValue>, Refusal> {
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
    // RFC 9112 §6.3: a length beside it is ignored, but an intermediary may have gone by that length.
    if headers.contains_key(TRANSFER_ENCODING) {
        return Err(Refusal::bad(StatusCode::LENGTH_REQUIRED, "a body needs `Content-Length`").closing());
    }
    for name in &SINGLE {
        single(headers, name)?;
    }
    if config.identity == (Identity::Own {})
        && let Some(name) = headers.keys().find(|name| is_of_proxies(name))
    {
        let message = format!("`{name}`: this door is for callers on its own machine, and not behind a proxy");
        return Err(Refusal::bad(StatusCode::FORBIDDEN, message));
    }
    let Some(host) = single(headers, &HOST)? else {
        return Err(Refusal::bad(StatusCode::BAD_REQUEST, "`Host` is missing"));
    };
    // Otherwise a page under a name that resolves to this machine would be of the door's own origin (DNS rebinding).
    if !authority_name(host).is_some_and(|name| is_loopback(&name) || config.hosts.contains(&name)) {
        return Err(Refusal::bad(StatusCode::FORBIDDEN, "`Host` is not one of this door's names"));
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
    Err(Refusal::bad(StatusCode::FORBIDDEN, "pages from this `Origin` may not call"))
}

/// Whether `GET` may be used: any page can send one without a preflight, even with an image. Browsers, and only they, say where a request
/// to a loopback address comes from. If callers present tokens there is no risk, since no page can make a browser add one.
pub(super) fn may_get(config: &DoorConfig, head: &Parts) -> Result<(), Refusal> {
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
    if may {
        Ok(())
    } else {
        Err(Refusal::bad(
            StatusCode::FORBIDDEN,
            "`GET` is for callers on this machine and pages of permitted origins: use POST",
        ))
    }
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
    let message = "the page is only for browsers on this machine, and only if its address is typed: http://127.0.0.1 and the door's port";
    if may { Ok(()) } else { Err(Refusal::bad(StatusCode::FORBIDDEN, message)) }
}

fn is_of_proxies(name: &HeaderName) -> bool {
    OF_PROXIES.contains(name) || name.as_str().starts_with("x-forwarded")
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

/// The value of a field that may occur once.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::bad(StatusCode::BAD_REQUEST, format!("`{name}` occurs more than once")).closing());
    }
    match value.to_str() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(Refusal::bad(StatusCode::BAD_REQUEST, format!("`{name}` is not ASCII text"))),
    }
}

/// The name of an authority, in lower case.
pub(super) fn authority_name(authority: &str) -> Option<String> {
    let parsed: Authority = authority.parse().ok().filter(|_| !authority.contains('@'))?;
    // The parser ignores what follows a closing bracket.
    let rest = authority.get(parsed.host().len()..)?;
    let is_port = rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    (rest.is_empty() || is_port).then(|| parsed.host().to_ascii_lowercase())
}

pub(super) fn is_loopback(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The answer to a CORS preflight.
pub(super) fn preflight(head: &Parts, origin: Option<&HeaderValue>) -> Option<Response<Body>> {
    let asks = head.method == Method::OPTIONS && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks || origin.is_none() {
        return None;
    }
    let mut answer = answered(StatusCode::NO_CONTENT, "text/plain", "");
    let headers = answer.headers_mut();
    headers.remove(CONTENT_TYPE);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(SENT_BY_PAGES));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    Some(answer)
}

/// Lets the page read the answer.
pub(super) fn shared_with(answer: &mut Response<Body>, origin: Option<HeaderValue>) {
    let headers = answer.headers_mut();
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
