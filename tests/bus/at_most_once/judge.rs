//! Judges a whole run: at most one execution of each message, and a reason for every refusal.
//! Never asks a guard: it is pure, and knows only what was offered, what was answered, and what was done to whom.
//!
//! A guard reports its fence with each answer. So a stale answer can be explained exactly, by the message's times. Each
//! value of a fence, of which there are few, must be explained by a fault that can cost the memory of nonces.

use std::collections::BTreeMap;

use super::history::{
    AGE, Answer, CLOCK, CUT_OFF, Execution, History, Life, Message, NODE_CUT_OFF, NODE_PAUSED, NODE_STALLED, Offer,
    PAUSED, STALLED, START, Span, Trouble, overlap,
};
use super::replica::{Cause, MEMORY_S, SKEW_S, Said, WINDOW_S};

/// How many answers had which reason, and which have none.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) reasons: BTreeMap<(&'static str, &'static str), u64>,
    pub(crate) fences: BTreeMap<&'static str, u64>,
    /// Offers that were lost with a killed replica.
    pub(crate) lost: u64,
    /// Messages of calm phases that met a replica or node which the machine did not let run.
    pub(crate) spared: u64,
    pub(crate) convictions: Vec<String>,
}

/// The judge, and its conclusions about the run.
struct Judge<'a> {
    history: &'a History,
    /// Troubles of each life alone.
    own: Vec<Vec<(&'static str, Span)>>,
    /// Troubles of all, until every replica had recovered.
    all: Vec<(&'static str, Span)>,
    causes: BTreeMap<(u16, u64), Option<&'static str>>,
    verdict: Verdict,
}

/// Judges a finished run.
pub(crate) fn judge(history: &History) -> Verdict {
    let own: Vec<_> = history.lives.iter().map(Life::troubles).collect();
    let mut judge = Judge { history, own, all: Vec::new(), causes: BTreeMap::new(), verdict: Verdict::default() };
    judge.all = history.troubles.iter().map(|trouble| (trouble.what, judge.settled(trouble))).collect();
    for (life, told) in (0..).zip(&history.lives) {
        for (at_ms, fence) in &told.fences {
            match judge.cause_of(life, *fence, *at_ms) {
                Some(cause) => *judge.verdict.fences.entry(cause).or_default() += 1,
                None => judge.convict(&format!("life {life}: fence {fence} at {at_ms} has no reason"), life, *at_ms),
            }
        }
    }
    let count = history.messages.len();
    let offers = by_message(count, &history.offers, |offer| offer.message);
    let answers = by_message(count, &history.answers, |answer| answer.message);
    let executions = by_message(count, &history.executions, |execution| execution.message);
    for message in 0..count {
        judge.message(message, &offers.of(message), &answers.of(message), &executions.of(message));
    }
    judge.verdict
}

impl Judge<'_> {
    fn message(&mut self, index: usize, offers: &[Offer], answers: &[Answer], executions: &[Execution]) {
        let message = self.history.messages[index];
        let mut wrong = Vec::new();
        if executions.len() > 1 {
            wrong.push("executed twice".to_owned());
        }
        let lost = self.accounts(offers, answers, executions, &mut wrong);
        let stalled = |answer: &Answer| {
            let own = self.own[usize::from(answer.life)].iter().filter(|(what, _)| *what == STALLED);
            let all = self.all.iter().filter(|(what, _)| *what == NODE_STALLED);
            own.chain(all).any(|(_, span)| overlap(*span, answer.span()))
        };
        if message.calm && answers.iter().any(stalled) {
            // The machine itself paused a replica or a node, so this was no calm.
            self.verdict.spared += 1;
        } else if message.calm {
            let replayed = answers.iter().filter(|answer| answer.said == Said::Replayed).count();
            if (offers.len(), executions.len(), replayed) != (9, 1, 8) {
                wrong.push("not executed once and replayed eight times, though nothing was wrong".to_owned());
            }
        }
        for answer in answers {
            let reason = match answer.said {
                Said::Executed => self.execution(message, answer),
                Said::Replayed => self.replay(message, answer, answers, executions, &lost),
                Said::Stale => self.stale(message, answer),
                Said::Unavailable(Cause::Fenced) => self.fenced(message, answer),
                Said::NotOpen | Said::Unavailable(_) => self.unavailable(answer),
                Said::Full => None,
            };
            match reason {
                Some(reason) => *self.verdict.reasons.entry((answer.said.word(), reason)).or_default() += 1,
                None => wrong.push(format!("no reason for {answer:?}")),
            }
        }
        self.verdict.lost += lost.len() as u64;
        if let Some(first) = wrong.first() {
            let (life, at_ms) = answers
                .iter()
                .find(|answer| wrong.iter().any(|text| text.contains(&format!("{answer:?}"))))
                .or(answers.first())
                .map_or((0, message.iat * 1000), |answer| (answer.life, answer.answered_ms));
            let text = format!(
                "message {index}, {message:?}: {first} ({} in all)\n  offers {offers:?}\n  answers {answers:?}\n  executions {executions:?}",
                wrong.len()
            );
            self.convict(&text, life, at_ms);
        }
    }

    /// Every offer is answered once, unless its replica was killed, and every execution is reported. Returns the lost offers.
    fn accounts(
        &self,
        offers: &[Offer],
        answers: &[Answer],
        executions: &[Execution],
        wrong: &mut Vec<String>,
    ) -> Vec<Offer> {
        let mut lost = Vec::new();
        let mut lives: Vec<_> =
            offers.iter().map(|offer| offer.life).chain(answers.iter().map(|answer| answer.life)).collect();
        lives.sort_unstable();
        lives.dedup();
        for life in lives {
            let killed = self.history.lives[usize::from(life)].killed_ms.is_some();
            let made: Vec<_> = offers.iter().filter(|offer| offer.life == life).collect();
            let heard = answers.iter().filter(|answer| answer.life == life).count();
            if heard > made.len() || heard < made.len() && !killed {
                wrong.push(format!("life {life} got {} offers and gave {heard} answers", made.len()));
            }
            // It is unknown which of several offers was lost; it may have been the first.
            lost.extend(made.iter().take(made.len().saturating_sub(heard)).map(|offer| **offer));
            let told = answers.iter().filter(|answer| answer.life == life && answer.said == Said::Executed).count();
            let done = executions.iter().filter(|execution| execution.life == life).count();
            if told > done || told < done && !killed {
                wrong.push(format!("life {life} told {told} executions and did {done}"));
            }
        }
        lost
    }

    /// An execution must have been allowed by everything that the test knows.
    fn execution(&self, message: Message, answer: &Answer) -> Option<&'static str> {
        let late = answer.received_ms >= (message.iat + WINDOW_S + SKEW_S) * 1000;
        // The fence of a starting replica can go back if another one vouches for it, but only while the fence lies ahead.
        let (before, after) = (u64::from(answer.fences.0), u64::from(answer.fences.1));
        let lay_ahead = before + SKEW_S >= answer.received_ms / 1000;
        let fenced = message.iat <= if lay_ahead { before.min(after) } else { before };
        let offset = self.history.lives[usize::from(answer.life)].offset_during(answer.received_ms, answer.answered_ms);
        let wrong_clock = offset.is_some_and(|offset| offset.unsigned_abs() > SKEW_S * 1000);
        let unfenced = self.history.troubles.iter().zip(&self.all).any(|(trouble, (_, settled))| {
            let forgot_s = trouble.forgot_ms.map_or(0, |at_ms| at_ms / 1000 + 2 * SKEW_S);
            answer.received_ms > settled.1 && u64::from(answer.fences.0) < forgot_s
        });
        (!late && !fenced && !wrong_clock && !unfenced).then_some("in its life")
    }

    /// Somebody must have burnt the nonce, or may have, and must have begun before this answer was given.
    fn replay(
        &self,
        message: Message,
        answer: &Answer,
        answers: &[Answer],
        executions: &[Execution],
        lost: &[Offer],
    ) -> Option<&'static str> {
        let burnt = |by_ms: u64| {
            let before = |at_ms: u64| at_ms <= by_ms;
            let executed = answers.iter().any(|other| other.said == Said::Executed && before(other.received_ms));
            if executed || executions.iter().any(|execution| before(execution.at_ms)) {
                return Some("it was executed");
            }
            let perhaps = answers.iter().any(|other| {
                before(other.received_ms)
                    && match other.said {
                        // Refused before anything was stored; or judged again after the stream's answer: the message expired or
                        // a fence came in between.
                        Said::Stale | Said::Unavailable(Cause::Fenced) => {
                            message.iat > u64::from(other.fences.0)
                                && other.received_ms < (message.iat + WINDOW_S) * 1000
                        }
                        Said::Unavailable(_) => true,
                        _ => false,
                    }
            });
            (perhaps || lost.iter().any(|offer| before(offer.at_ms)))
                .then_some("it was perhaps stored by a check that failed")
        };
        // Another copy was under way at the same replica at that time: its check burnt the nonce there, a moment before the
        // stream answered that another replica's copy was first.
        let under_way = |other: &&Answer| {
            other.life == answer.life
                && other.said == Said::Replayed
                && other.received_ms <= answer.answered_ms
                && answer.answered_ms < other.answered_ms
        };
        burnt(answer.answered_ms)
            .or_else(|| answers.iter().filter(under_way).find_map(|other| burnt(other.answered_ms)))
            .or_else(|| self.two_leaders(answer, answers))
    }

    /// A leader that was away goes on until it hears of its successor. Both get every question; if copies reach them in a
    /// different order, each finds another one on its way, says so at once (error 10158), and the acknowledgement comes too late.
    fn two_leaders(&self, answer: &Answer, answers: &[Answer]) -> Option<&'static str> {
        let old_leader_lives = |what: &str| [NODE_CUT_OFF, NODE_PAUSED, NODE_STALLED].contains(&what);
        let at_once = answers.iter().any(|other| {
            other.life != answer.life && other.said == Said::Replayed && overlap(other.span(), answer.span())
        });
        let split = self.all.iter().any(|(what, span)| old_leader_lives(what) && overlap(*span, answer.span()));
        (at_once && split).then_some("each of two leaders had another copy of it on its way")
    }

    fn stale(&mut self, message: Message, answer: &Answer) -> Option<&'static str> {
        let end_ms = (message.iat + WINDOW_S) * 1000;
        if answer.answered_ms >= end_ms {
            return Some("its life was over");
        }
        if message.iat <= u64::from(answer.fences.1) {
            return self.cause_of(answer.life, answer.fences.1.into(), answer.answered_ms);
        }
        let ahead = answer.answered_ms + SKEW_S * 1000 >= end_ms;
        let clock = self.own[usize::from(answer.life)]
            .iter()
            .any(|(what, span)| *what == CLOCK && overlap(*span, answer.span()));
        (ahead && clock).then_some("its life was over by a clock within the skew")
    }

    /// The fence lay ahead of the replica's clock, or the message is behind one that was passed within the skew; and there must be a
    /// reason.
    fn fenced(&mut self, message: Message, answer: &Answer) -> Option<&'static str> {
        let fence = u64::from(answer.fences.0.max(answer.fences.1));
        let offset = self.history.lives[usize::from(answer.life)].offset_during(answer.received_ms, answer.answered_ms);
        match offset {
            Some(offset)
                if answer.received_ms.saturating_add_signed(offset) / 1000
                    > if message.iat <= fence { fence + SKEW_S } else { fence } =>
            {
                None
            }
            Some(_) => self.cause_of(answer.life, fence, answer.answered_ms),
            None => Some(CLOCK),
        }
    }

    fn unavailable(&self, answer: &Answer) -> Option<&'static str> {
        let own = &self.own[usize::from(answer.life)];
        let latest = |may: &dyn Fn(&str) -> bool, of_all: &[(&'static str, Span)]| {
            let troubles = own.iter().chain(of_all).filter(|(what, span)| may(what) && overlap(*span, answer.span()));
            troubles.max_by_key(|(_, (from, _))| *from).map(|(what, _)| *what)
        };
        match answer.said {
            Said::NotOpen => latest(&|what| what == START, &[]),
            Said::Unavailable(Cause::ClockDiffers) => latest(&|what| [CLOCK, PAUSED, STALLED].contains(&what), &[]),
            Said::Unavailable(Cause::Other) => None,
            _ => latest(&|_| true, &self.all),
        }
    }

    /// The latest trouble of all replicas at that time.
    fn latest(&self, span: Span) -> Option<&(&'static str, Span)> {
        self.all.iter().filter(|(_, trouble)| overlap(*trouble, span)).max_by_key(|(_, (from, _))| *from)
    }

    /// Why the memory begins at `fence`, less twice the skew.
    fn cause_of(&mut self, life: u16, fence: u64, at_ms: u64) -> Option<&'static str> {
        if let Some(known) = self.causes.get(&(life, fence)) {
            return *known;
        }
        let from = fence.saturating_sub(2 * SKEW_S) * 1000;
        let second = (from, from + 999);
        let cause = if from + (MEMORY_S - 2) * 1000 <= at_ms {
            Some(AGE)
        } else if let Some((what, _)) = self.latest(second) {
            Some(*what)
        } else {
            self.enters_anew(life, second).or_else(|| self.vouched_by_another(life, fence, at_ms, second))
        };
        self.causes.insert((life, fence), cause);
        cause
    }

    /// What happened to this replica so that its memory had to begin at that time.
    fn enters_anew(&self, life: u16, second: Span) -> Option<&'static str> {
        let counts_anew = |what: &str| [START, CUT_OFF, CLOCK, PAUSED, STALLED].contains(&what);
        let own = &self.own[usize::from(life)];
        own.iter().find(|(what, span)| counts_anew(what) && overlap(*span, second)).map(|(what, _)| *what)
    }

    /// A joining replica takes over the fence that another one reported before.
    fn vouched_by_another(&self, life: u16, fence: u64, at_ms: u64, second: Span) -> Option<&'static str> {
        let told = |told: &Life| told.fences.iter().any(|(since_ms, other)| *other == fence && *since_ms <= at_ms);
        let others = (0..).zip(&self.history.lives).filter(|(other, lived)| *other != life && told(lived));
        others.filter_map(|(other, _)| self.enters_anew(other, second)).next()
    }

    /// From the fault until every replica that is not ill itself was ready again.
    fn settled(&self, trouble: &Trouble) -> Span {
        let mut at_ms = trouble.span.1.saturating_add(NODES_SETTLE_MS);
        loop {
            let unready = self.history.lives.iter().zip(&self.own).find(|(life, own)| {
                let ill = own.iter().any(|(_, span)| overlap(*span, (at_ms, at_ms)));
                life.is_alive_at(at_ms) && !ill && !life.is_ready_at(at_ms)
            });
            match unready {
                Some((life, _)) => at_ms = life.ready_from(at_ms).min(life.killed_ms.unwrap_or(u64::MAX)),
                None => return (trouble.span.0, at_ms),
            }
        }
    }

    fn convict(&mut self, what: &str, life: u16, at_ms: u64) {
        if self.verdict.convictions.len() >= MOST_CONVICTIONS {
            return;
        }
        let near = |at: u64| at.abs_diff(at_ms) < 20_000;
        let troubles = self.all.iter().filter(|(_, (from, to))| near(*from) || near(*to));
        // First, since the rest is long and may be cut off.
        let mut text = format!("troubles of all: {:?}\n  {what}", troubles.collect::<Vec<_>>());
        if let Some(told) = self.history.lives.get(usize::from(life)) {
            let log: Vec<_> = told.log.iter().filter(|(at, _)| near(*at)).collect();
            text += &format!(
                "\n  life {life} of replica {}, its troubles {:?}, said {log:?}",
                told.replica,
                self.own[usize::from(life)]
            );
        }
        self.verdict.convictions.push(text);
    }
}

/// Millions of items, grouped by message without comparing or copying them.
struct ByMessage<'a, T> {
    starts: Vec<u32>,
    order: Vec<u32>,
    items: &'a [T],
}

fn by_message<T>(count: usize, items: &[T], message: impl Fn(&T) -> u32) -> ByMessage<'_, T> {
    let mut starts = vec![0_u32; count + 1];
    for item in items {
        starts[message(item) as usize + 1] += 1;
    }
    for index in 0..count {
        starts[index + 1] += starts[index];
    }
    let mut next = starts.clone();
    let mut order = vec![0; items.len()];
    for (index, item) in items.iter().enumerate() {
        let place = &mut next[message(item) as usize];
        order[*place as usize] = u32::try_from(index).unwrap();
        *place += 1;
    }
    ByMessage { starts, order, items }
}

impl<T: Copy> ByMessage<'_, T> {
    fn of(&self, message: usize) -> Vec<T> {
        let places = self.starts[message] as usize..self.starts[message + 1] as usize;
        self.order[places].iter().map(|index| self.items[*index as usize]).collect()
    }
}

/// The broker's longest election time-out is 9 s: a node that was away may still call an election.
pub(crate) const NODES_SETTLE_MS: u64 = 10_000;

const MOST_CONVICTIONS: usize = 5;

#[path = "judge/tests.rs"]
mod tests;
