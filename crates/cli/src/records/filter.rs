//! Which calls are asked for.
//! Never matches a call that lacks what is asked.

use clap::{Args, ValueEnum};
use sealwire::decide::Verdict;

use super::calls::Call;
use crate::when;

/// Which calls are asked for: those for which all of this holds.
#[derive(Args)]
pub(super) struct Filter {
    /// Calls of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Calls on behalf of this subject
    #[arg(long, value_name = "NAME")]
    subject: Option<String>,
    /// Calls of this method, or of all that begin like this: `bank/*`
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Calls that the policy allowed, or denied
    #[arg(long, value_enum, value_name = "allow|deny")]
    decision: Option<Decided>,
    /// Calls that this rule decided
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,
    /// Calls that came to this: ok, error, an error's code such as -32003, by what else they ended (cancelled, deadline, …), or
    /// unknown
    #[arg(long, value_name = "OUTCOME", allow_hyphen_values = true)]
    outcome: Option<String>,
    /// Calls of this trace
    #[arg(long, value_name = "ID")]
    trace: Option<String>,
    /// Calls since then: seconds since 1970, a time such as 2026-03-01T22:00:00Z, or how long ago: 15m, 1h, 7d
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<u64>,
    /// Calls before then
    #[arg(long, value_name = "WHEN", value_parser = since)]
    until: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Decided {
    Allow,
    Deny,
}

/// Seconds since the Unix epoch.
fn since(text: &str) -> Result<u64, String> {
    match when::duration(text) {
        Ok(ago) => Ok(when::now_s().saturating_sub(ago.as_secs())),
        Err(_) => when::instant(text).map_err(|why| format!("{why}, or how long ago, such as 15m")),
    }
}

impl Filter {
    pub(super) fn matches(&self, call: &Call) -> bool {
        let is = |asked: &Option<String>, found: Option<&str>| {
            asked.as_deref().is_none_or(|asked| found.is_some_and(|found| found == asked))
        };
        let is_method = self.method.as_deref().is_none_or(|asked| match asked.strip_suffix('*') {
            Some(beginning) => call.method.starts_with(beginning),
            None => call.method == asked,
        });
        let is_decided =
            self.decision.is_none_or(|asked| (asked == Decided::Allow) == (call.decision == Verdict::Allow));
        let is_outcome = self
            .outcome
            .as_deref()
            .is_none_or(|asked| call.outcome == asked || call.code.is_some_and(|code| asked.parse() == Ok(code)));
        let at_s = call.at_ms / 1_000;
        is(&self.agent, Some(&call.agent))
            && is(&self.subject, call.subject.as_deref())
            && is(&self.rule, call.rule.as_deref())
            && is(&self.trace, call.trace.as_deref())
            && is_method
            && is_decided
            && is_outcome
            && self.since.is_none_or(|since| at_s >= since)
            && self.until.is_none_or(|until| at_s < until)
    }
}
