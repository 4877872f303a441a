//! The questions to this replica that are not answered yet: those of other replicas first, then `$SRV`.
//! Never holds more than a few hundred kilobytes, no matter who asks how often.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::discovery::{Asker, Request};
use crate::service::replicas::MOST;

/// The questions, in two queues.
#[derive(Debug, Default)]
pub(super) struct Questions {
    lines: Mutex<Lines>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    replicas: VecDeque<Request>,
    others: VecDeque<Request>,
}

/// How many questions on `$SRV` may wait. Each has at most about 500 bytes, since its reply subject is bounded.
const OTHERS: usize = 256;

impl Questions {
    /// Puts a question into its queue; `false` if there is no room.
    pub(super) fn push(&self, request: Request) -> bool {
        let mut lines = self.lines();
        let (line, most) = match request.asker() {
            Asker::Replica => (&mut lines.replicas, MOST),
            Asker::Anybody => (&mut lines.others, OTHERS),
        };
        let has_room = line.len() < most;
        if has_room {
            line.push_back(request);
        }
        drop(lines);
        self.filled.notify_one();
        has_room
    }

    /// Waits for the next question.
    ///
    /// Cancel safety: nothing is lost.
    pub(super) async fn next(&self) -> Request {
        loop {
            let next = {
                let mut lines = self.lines();
                lines.replicas.pop_front().or_else(|| lines.others.pop_front())
            };
            match next {
                Some(request) => return request,
                None => self.filled.notified().await,
            }
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use futures_util::FutureExt as _;

    use super::*;
    use crate::name::Name;
    use crate::nats::Message;
    use crate::wire::Endpoint;

    fn request(subject: &str, reply: &str) -> Option<Request> {
        let endpoint = Endpoint::new(Name::new("prod").unwrap(), Name::new("math").unwrap());
        let message = Message {
            sid: 1,
            subject: subject.to_owned(),
            reply: Some(reply.to_owned()),
            headers: bytes::Bytes::from_static(b"NATS/1.0\r\nA: b\rc\r\n\r\n"),
            payload: bytes::Bytes::new(),
            oversized: false,
        };
        Request::read(&endpoint, &message)
    }

    #[test]
    fn replicas_are_answered_first_and_others_wait_within_a_bound() {
        let questions = Questions::default();
        let other = || request("$SRV.PING", "_INBOX.tools.1").unwrap();
        assert_eq!((0..10_000).filter(|_| questions.push(other())).count(), OTHERS);
        let replica = || request("_SVC.math.replica.peers", "_SVC.math.replica.A.1").unwrap();
        assert_eq!((0..10_000).filter(|_| questions.push(replica())).count(), MOST);
        let asked: Vec<_> = std::iter::from_fn(|| questions.next().now_or_never()).map(|asked| asked.asker()).collect();
        assert_eq!(asked.len(), MOST + OTHERS);
        assert!(asked[..MOST].iter().all(|asker| *asker == Asker::Replica));
        assert!(asked[MOST..].iter().all(|asker| *asker == Asker::Anybody));
        assert!(questions.push(other()) && questions.next().now_or_never().is_some());
    }

    /// The asker chooses where the answer is published, with the service's permissions.
    #[test]
    fn each_asker_is_answered_where_it_may_listen_and_nowhere_else() {
        let tools = ["_INBOX.tools.1", "_INBOX.x"];
        let replicas = ["_SVC.math.replica.A.1", "_SVC.math.replica.x"];
        let long = format!("_INBOX.{}", "x".repeat(512));
        let neither = ["", "_INBOX", "_INBOX.", "_INBOX.*", "_INBOX.a..b", "_INBOX.a.>", "_INBOXES.a", "rpc.v1.math.a"];
        let others = ["_SVC.math.guard.x", "_SVC.bank.replica.x", "_SVC.math.replica", "$SRV.PING", &long];
        for subject in ["$SRV.PING", "$SRV.INFO.math", "$SRV.STATS.math.A"] {
            let answered = |reply: &str| request(subject, reply).is_some();
            assert!(tools.iter().all(|reply| answered(reply)), "{subject}");
            assert!(![&replicas[..], &neither, &others].concat().into_iter().any(answered), "{subject}");
        }
        let answered = |reply: &str| request("_SVC.math.replica.peers", reply).is_some();
        assert!(replicas.iter().all(|reply| answered(reply)));
        assert!(![&tools[..], &neither, &others].concat().into_iter().any(answered));
        for subject in ["$SRV", "$SRV.OTHER", "_SVC.math.replica.other", "_SVC.bank.replica.peers", "rpc.v1.math.a"] {
            assert!([tools, replicas].concat().into_iter().all(|reply| request(subject, reply).is_none()), "{subject}");
        }
    }
}
