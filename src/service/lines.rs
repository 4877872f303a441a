//! What callers can have written to the log: a line a second for each of them and each reason, with the number of those left out.
//! Never lets one party's noise hide another's reason, and never takes a text from the wire for a reason.

use std::collections::HashMap;
use std::sync::Arc;

use crate::log_limiter::KeyedLogLimiter;
use crate::name::Name;
use crate::policy::RuleId;

/// What the lines are about. All of it is from closed sets: agents of the key ring, labels, registered methods and rules of the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct LogKey {
    pub(super) label: &'static str,
    /// What the label leaves open.
    pub(super) detail: Option<&'static str>,
    /// `None` where nobody is proved to be the sender.
    pub(super) agent: Option<Name>,
    pub(super) method: Option<Arc<str>>,
    pub(super) rule: Option<RuleId>,
}

/// Lets lines through.
#[derive(Debug, Default)]
pub(super) struct Lines(KeyedLogLimiter<LogKey>);

impl Lines {
    /// The number of lines left out since the last one, if a line about this may be logged now.
    pub(super) fn check(&self, key: &LogKey) -> Option<u64> {
        self.0.check(key)
    }

    /// The same for calls that the policy allows: their lines show what was done, so there may be more of them.
    pub(super) fn check_call(&self, agent: &Name, label: &'static str) -> Option<u64> {
        self.0.check_up_to(&LogKey { label, agent: Some(agent.clone()), ..LogKey::default() }, CALLS)
    }

    /// The same for a call that the policy refuses, by agent, reason, method and rule, and at most [`REFUSED`] by agent and reason: a service
    /// can have thousands of methods.
    pub(super) fn check_refused(&self, key: &LogKey) -> Option<u64> {
        let suppressed = self.0.check(key)?;
        let together = LogKey { method: None, rule: None, detail: Some("other methods"), ..key.clone() };
        match self.0.check_up_to(&together, REFUSED) {
            Some(others) => Some(suppressed.saturating_add(others)),
            None => {
                self.0.leave_out(&together, suppressed);
                None
            }
        }
    }

    fn untold(&self) -> Vec<(LogKey, u64)> {
        let untold = self.0.tidy();
        if untold.len() <= FEW {
            return untold;
        }
        let mut together = HashMap::<LogKey, u64>::new();
        for (key, suppressed) in untold {
            let left_out = together.entry(LogKey { method: None, rule: None, ..key }).or_default();
            *left_out = left_out.saturating_add(suppressed);
        }
        together.into_iter().collect()
    }

    /// Forgets who has been quiet, and tells the log what was left out.
    pub(super) fn tidy(&self) {
        for (key, suppressed) in self.untold() {
            let LogKey { label, detail, agent, method, rule } = key;
            tracing::info!(
                target: "sealwire::refused",
                agent = agent.as_ref().map(Name::as_str),
                refusal = label,
                detail,
                method = method.as_deref(),
                rule = rule.map(|rule| rule.to_string()),
                suppressed,
                "left out before"
            );
        }
    }
}

/// How many lines a second one agent's calls have that the policy allows: results, and as many errors. Some 25 kB a second.
const CALLS: u32 = 100;

/// How many lines a second one agent's refused calls have for one reason, whatever methods they are of. Some 5 kB a second.
const REFUSED: u32 = 20;

/// How many lines tell what was left out method by method.
const FEW: usize = 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_is_refused_at_every_method_has_few_lines_and_all_refusals_are_counted() {
        #![allow(clippy::unwrap_used, reason = "tests")]
        let lines = Lines::default();
        let key = |agent: &str, method: usize| LogKey {
            label: "no_rule",
            agent: Some(Name::new(agent).unwrap()),
            method: Some(format!("m{method}").into()),
            ..LogKey::default()
        };
        let (mut shown, mut told) = (0, 0);
        for second in 1..=2 {
            for method in (0..1_000).flat_map(|method| [method, method]) {
                if let Some(suppressed) = lines.check_refused(&key("ann", method)) {
                    (shown, told) = (shown + 1, told + suppressed);
                }
            }
            assert_eq!(shown, second * u64::from(REFUSED));
            assert!(lines.check_refused(&key("bob", 1)).is_some(), "nobody else is hidden");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let untold = lines.untold();
        assert!(untold.len() <= 2, "{untold:?}");
        told += untold.iter().map(|(_, suppressed)| suppressed).sum::<u64>();
        assert_eq!(shown + told, 4_000);
    }
}
