//! `sealwire approvals watch`: requests as they come, and what becomes of them.
//! Never says that a request has gone while it may only not have been listed.

use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use sealwire::errors::{ErrorKind, code};
use sealwire::internal::client::ApprovalListener;
use sealwire::{Client, ClientError, RpcError};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::desk::Desk;
use super::pages::{self, LIST, Listed};
use super::request::Summary;
use crate::call::failed;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::when;

/// Print calls that wait for approval as they come, and what becomes of them: a line for each change
///
/// First those that wait already. The service is asked when it tells that something has happened, and now and then. Runs until SIGTERM or
/// Ctrl-C.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire approvals watch bank --creds tess.creds.json
  sealwire approvals watch bank --json | jq -r .approval.id
  sealwire approvals watch bank --times 1     # until the next one comes")]
pub(crate) struct Watch {
    #[command(flatten)]
    desk: Desk,
    /// How often to ask the service even if it tells nothing; default 1m, or 5s where the broker lets this agent hear nothing
    #[arg(long, value_name = "TIME", value_parser = when::interval)]
    every: Option<Duration>,
    /// Stop after this many lines
    #[arg(long, value_name = "N")]
    times: Option<u64>,
}

impl Watch {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Self { desk, every, times } = self;
        desk.options().run_until_stopped(&desk.service, out, async |client: Client, signals, credentials| {
            let (mut seen, mut said, mut is_troubled) = (Seen::default(), 0, false);
            let (mut ears, mut asked_at) = (Ears::default(), None);
            while times.is_none_or(|times| said < times) {
                let request = desk.request(&client);
                let asked = async {
                    if let Some(asked_at) = asked_at {
                        ears.wait(asked_at, every.unwrap_or(if is_troubled || !ears.hear() { OFTEN } else { SELDOM }))
                            .await;
                    }
                    pages::read(&request).await
                };
                let asked = signals.unless_stopped(asked).await;
                asked_at = Some(Instant::now());
                match asked {
                    // The usual end.
                    None => break,
                    Some(Ok(listed)) => {
                        is_troubled = false;
                        let news = listed.news.clone();
                        for request in seen.changes(listed) {
                            out.result(&json!({ "approval": request }), || line(&request))?;
                            said += 1;
                            if times.is_some_and(|times| said >= times) {
                                break;
                            }
                        }
                        let listening = ears.listen(&client, &desk.service, news);
                        if signals.unless_stopped(listening).await.is_none() {
                            break;
                        }
                    }
                    Some(Err(error)) => {
                        let passes = passes(&error);
                        let failure = desk.explained(failed(error, &credentials, &desk.service).await, LIST);
                        if !passes || !seen.has_begun {
                            return Err(failure);
                        }
                        if !std::mem::replace(&mut is_troubled, true) {
                            let error = failure.object();
                            out.warning(&format!("{}; asking again now and then", error.message()));
                        }
                    }
                }
            }
            Ok(Exit::Ok)
        })
    }
}

fn line(request: &Summary) -> String {
    let needs = request.needs.iter().map(|need| format!("  {}", need.to_text()));
    let needs = if request.state == "pending" { needs.collect() } else { String::new() };
    request.to_line(when::now_s()) + &needs
}

/// Whether asking again may help.
fn passes(error: &ClientError) -> bool {
    match error.kind() {
        ErrorKind::Remote => {
            let code = error.remote().and_then(RpcError::profile_code);
            matches!(code, Some(code::QUOTA_EXCEEDED | code::OVERLOADED | code::TIMEOUT | code::STALE | code::REPLAYED))
        }
        ErrorKind::Disconnected
        | ErrorKind::ConnectionLost
        | ErrorKind::NoResponders
        | ErrorKind::Hint
        | ErrorKind::Timeout
        | ErrorKind::Busy
        | ErrorKind::Token => true,
        _ => false,
    }
}

/// Hears when it is time to ask.
#[derive(Default)]
struct Ears {
    subjects: Vec<String>,
    listener: Option<ApprovalListener>,
}

impl Ears {
    /// Listens on these subjects from now on. What happened before that is found in the next list, which comes soon.
    async fn listen(&mut self, client: &Client, service: &str, subjects: Vec<String>) {
        if self.subjects != subjects {
            (self.listener, self.subjects) = (None, subjects);
        }
        if self.listener.is_none() && !self.subjects.is_empty() {
            // Without it, there are more lists.
            self.listener = ApprovalListener::open(client, service, &self.subjects).await.ok();
        }
    }

    /// Whether news would be heard.
    fn hear(&self) -> bool {
        self.listener.as_ref().is_some_and(ApprovalListener::hears)
    }

    /// Waits until it is time to ask once more: for news, and no longer than `every`.
    async fn wait(&self, asked_at: Instant, every: Duration) {
        let news = async {
            match &self.listener {
                Some(listener) => listener.news().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep_until(asked_at + every.max(SHORTEST)) => {}
            () = news => sleep_until(asked_at + SHORTEST).await,
        }
    }
}

/// The requests as they were listed last.
#[derive(Default)]
struct Seen {
    has_begun: bool,
    known: HashMap<String, Summary>,
}

impl Seen {
    /// What is to be told of a new list.
    fn changes(&mut self, listed: Listed) -> Vec<Summary> {
        let Listed { mut found, is_whole, .. } = listed;
        found.sort_by_key(|request| request.asked_at);
        let mut before = std::mem::take(&mut self.known);
        let is_news = |request: &Summary, before: Option<Summary>| match before {
            Some(before) => before != *request,
            None => self.has_begun || request.state == "pending",
        };
        let mut news: Vec<_> =
            found.iter().filter(|request| is_news(request, before.remove(&request.id))).cloned().collect();
        self.known = found.into_iter().map(|request| (request.id.clone(), request)).collect();
        for (id, mut request) in before {
            if !is_whole {
                // It may only not have been read.
                if self.known.len() < KNOWN {
                    self.known.insert(id, request);
                }
            } else if matches!(request.state.as_str(), "pending" | "approved") {
                "gone".clone_into(&mut request.state);
                news.push(request);
            }
        }
        self.has_begun = true;
        news
    }
}

/// The shortest time between two lists.
const SHORTEST: Duration = Duration::from_secs(1);
/// The time between two lists without news, and where news cannot be heard.
const SELDOM: Duration = Duration::from_secs(60);
const OFTEN: Duration = Duration::from_secs(5);
/// How many requests are remembered while lists have gaps: more than a service has.
const KNOWN: usize = 1_024;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn request(id: &str, state: &str, have: usize) -> Summary {
        let needs = json!([{ "approval": "two", "roles": ["treasurer"], "count": 2, "have": have }]);
        let all = json!({
            "id": id, "state": state, "agent": "a", "subject": "a", "method": "m", "asked_at": 1, "deadline": 2, "needs": needs
        });
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn each_change_is_told_once_and_a_gap_in_a_list_is_none() {
        let mut seen = Seen::default();
        let mut told = |found: &[Summary], unread: usize| {
            let listed = Listed { found: found.to_vec(), unread, is_whole: unread == 0, news: Vec::new() };
            let mut told: Vec<_> =
                seen.changes(listed).iter().map(|request| format!("{} {}", request.id, request.state)).collect();
            told.sort();
            told
        };
        let (waits, half) = (request("a.1", "pending", 0), request("a.1", "pending", 1));
        assert_eq!(told(&[waits.clone(), request("a.2", "consumed", 2)], 0), ["a.1 pending"]);
        assert!(told(&[waits, request("a.2", "consumed", 2)], 0).is_empty());
        assert_eq!(told(std::slice::from_ref(&half), 0), ["a.1 pending"]);
        assert!(told(&[], 1).is_empty());
        assert!(told(std::slice::from_ref(&half), 0).is_empty());
        assert_eq!(
            told(&[request("a.1", "approved", 2), request("a.3", "denied", 0)], 0),
            ["a.1 approved", "a.3 denied"]
        );
        assert_eq!(told(&[], 0), ["a.1 gone"]);
        assert!(told(&[], 0).is_empty());
    }
}
