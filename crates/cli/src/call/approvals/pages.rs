//! All requests that an agent may see, page by page.
//! Never takes a part of them for all.

use sealwire::{ClientError, RequestBuilder};
use serde::Deserialize;
use serde_json::json;

use super::request::Summary;

/// What a service has listed.
pub(super) struct Listed {
    pub(super) found: Vec<Summary>,
    /// How many the service could not read.
    pub(super) unread: usize,
    /// Whether there are no others.
    pub(super) is_whole: bool,
    /// Where the service tells of changes.
    pub(super) news: Vec<String>,
}

#[derive(Deserialize)]
struct Page {
    approvals: Vec<Summary>,
    #[serde(default)]
    next: Option<String>,
    #[serde(default)]
    unread: usize,
    #[serde(default)]
    news: Vec<String>,
}

/// The method that lists them.
pub(super) const LIST: &str = "rpc.approvals";

/// Asks with this request for each page.
pub(super) async fn read(request: &RequestBuilder) -> Result<Listed, ClientError> {
    let (mut found, mut unread, mut cursor, mut news) = (Vec::new(), 0_usize, None::<String>, Vec::new());
    // A service has at most a few hundred, on pages of its own choice.
    for _ in 0..PAGES {
        let params = cursor.as_ref().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
        let page: Page = request.clone().call(LIST, params).await?;
        found.extend(page.approvals);
        unread = unread.saturating_add(page.unread);
        (cursor, news) = (page.next, page.news);
        if cursor.is_none() {
            break;
        }
    }
    Ok(Listed { found, unread, is_whole: cursor.is_none() && unread == 0, news })
}

/// The most pages that are read.
const PAGES: usize = 64;
